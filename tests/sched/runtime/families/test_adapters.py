"""Models with peft's adapters: a pipeline's saved folder loads what was trained, or is refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from counterpoise.sched.runtime import adapt
from counterpoise.sched.runtime.pretrained.saving import refuse_other_tensors
from tests.sched.runtime.families.models import make
from tests.sched.runtime.families.training import (
    Setting,
    batches_of,
    counted,
    forward_loss,
    loader_step,
)
from tests.sched.runtime.pool import make_mesh

peft = pytest.importorskip("peft")
LAYERS = ["q_proj", "v_proj"]
ENDS = ("model.embed_tokens", "lm_head")


def with_lora(targets: Any = LAYERS, kind: str = "llama", **more: Any) -> Any:
    """Return a model into which LoRA was put, whose products are not 0."""
    model = make(kind, **more.pop("model", {}))
    peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, r=2, **more))
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return model


def train_and_save(rank: int, schedule: str, folder: str) -> float:
    """Train LoRA a step; return how far the saved model's logits are from the merged one's."""
    del rank
    model = with_lora()
    expected, setting = copy.deepcopy(model), Setting("llama", schedule)
    adapted = adapt(model)
    mesh = make_mesh(2)
    pipe = adapted.pipeline(mesh, schedule, deadline_s=40)
    trained = [p for p in pipe.parameters() if p.requires_grad]
    every = [batches_of(setting, expected, replica, 0) for replica in range(2)]
    total = sum(counted(batch) for own in every for batch in own)
    try:
        pipe.step(loader_step(every[mesh["dp"].get_local_rank()], expected, total))
        torch.optim.SGD(trained, lr=0.5).step()
        for own in every:
            forward_loss(expected, own, total)
        torch.optim.SGD([p for p in expected.parameters() if p.requires_grad], lr=0.5).step()
        adapted.save_pretrained(folder, pipe)
    finally:
        pipe.close()
    saved, info = type(model).from_pretrained(folder, output_loading_info=True)
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids = torch.arange(3, 13)[None]
    with torch.no_grad():
        return float((saved(ids).logits - expected(ids).logits).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "1f1b-alg2"])
def test_lora_is_saved_in_the_weights_of_its_layers(pool, tmp_path: Path, schedule: str) -> None:
    for distance in pool.run(train_and_save, schedule, str(tmp_path / schedule)):
        assert distance < 1e-4


@pytest.mark.parametrize(
    "model",
    [
        lambda: with_lora(use_dora=True),
        lambda: with_lora(lora_bias=True),
        lambda: with_lora(modules_to_save=["norm"]),
        lambda: with_lora([*LAYERS, "lm_head"], model={"tied": False}),
        lambda: with_lora([*LAYERS, "embed_tokens"]),
    ],
    ids=["dora", "bias", "modules_to_save", "head", "words"],
)
def test_what_a_folder_would_lose_is_refused_before_training(model: Any) -> None:
    adapted, mesh = adapt(model()), None
    with pytest.raises(ValueError, match=r"from_pretrained would not load; merge .*plain LoRA"):
        adapted.pipeline(mesh, "1f1b")  # type: ignore[arg-type]


def test_a_tensor_that_the_models_class_does_not_have_is_refused() -> None:
    model = make("llama")
    refuse_other_tensors(model, ENDS)
    model.register_buffer("steps", torch.zeros(1))
    with pytest.raises(ValueError, match=r"steps: LlamaForCausalLM has .* tensors there"):
        refuse_other_tensors(model, ENDS)


@pytest.mark.parametrize("kind", ["llava", "qwen2_moe", "gpt2"])
def test_models_as_they_are_made_are_not(kind: str) -> None:
    refuse_other_tensors(make(kind), ENDS)
