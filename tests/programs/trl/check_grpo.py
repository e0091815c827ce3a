"""TRL's GRPOTrainer on 2 gloo ranks: rollouts are dealt to ranks, and training stays as it was."""

import pytest

from tests.programs.harness import (
    TORCHRUN,
    check_gradients,
    print_comparison,
    run_program,
    slots,
    tokens,
)
from tests.programs.tiny_model import write_model


@pytest.mark.parametrize(
    ("loss_type", "steps_per_generation"), [("dapo", 2), ("grpo", 2), ("dapo", 4)]
)
def test_the_first_gradient_stays(loss_type, steps_per_generation, tmp_path):
    """4 batches a generation are 2 optimizer steps: no rollout moves from one to the other."""
    write_model(tmp_path / "model")
    command = (*TORCHRUN, "--nproc-per-node=2", "-m", "tests.programs.trl.grpo")
    options = (loss_type, str(steps_per_generation))
    plain, ours = (
        # launch: tests.programs.start would note prompts, which Trainer's training_step gets here
        run_program(
            [*command, str(tmp_path / "model"), str(tmp_path / kind), kind, *options],
            tmp_path, kind, launch=False,
        )
        for kind in ("plain", "balanced")
    )  # fmt: skip
    assert ours.step_samples() == plain.step_samples()
    assert len(ours.steps) == len(plain.steps) == 4
    assert {len(batch["samples"]) for batch in ours.batches} == {4}
    assert any(gradient.any() for gradient in plain.gradients.values())
    check_gradients(ours, plain.gradients, 1e-6)
    assert ours.waiting(tokens, "step") < plain.waiting(tokens, "step")
    assert sum(map(slots, ours.batches)) < sum(map(slots, plain.batches))
    print_comparison(f"GRPO {loss_type} {steps_per_generation}", plain, ours, "step")
    waits = [f"{run.waiting(tokens, 'step'):.1%}" for run in (plain, ours)]
    print(f"by tokens ranks wait {waits[0]} -> {waits[1]}")
