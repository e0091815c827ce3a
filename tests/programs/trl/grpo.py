"""GRPO on CPU: grpo.py MODEL OUT KIND LOSS_TYPE STEPS_PER_GENERATION, of 2 accumulated batches.

KIND is "plain" or "balanced". Completions have the lengths of a long tail, as a model that reasons
gives them; a model with random weights never ends one.
"""

import random
import sys

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from tests.programs.recording import note_batch, note_step, save_gradients
from tests.programs.tiny_model import WORDS
from tests.programs.trl.balanced_grpo import BalancedGRPOTrainer

MOST, PROMPTS = 192, 64


class Observer(TrainerCallback):
    """Notes steps, and the gradients of the first."""

    def on_pre_optimizer_step(self, *_, model=None, **__):
        save_gradients(model.named_parameters())

    def on_log(self, _args, state, *_, logs=None, **__):
        if "loss" in logs:
            note_step(state.global_step - 1, logs["loss"], logs["grad_norm"], logs["learning_rate"])


def observe_batches(trainer):
    """Note the batches that a trainer computes a loss of."""
    prepare = trainer._prepare_inputs

    def prepare_and_note(generation_batch):
        inputs = prepare(generation_batch)
        ids, mask = (
            torch.cat([inputs[f"prompt_{kind}"], inputs[f"completion_{kind}"]], 1)
            for kind in ("ids", "mask")
        )
        note_batch(trainer.state.global_step, 0, ids, mask)
        return inputs

    trainer._prepare_inputs = prepare_and_note


def roll_out(prompts, trainer):
    """Return completions of the policy's vocabulary, from 2 to MOST tokens with a long tail."""
    tokenizer = trainer.processing_class
    draw = random.Random(f"{trainer.state.global_step} {trainer.accelerator.process_index}")
    lengths = [min(MOST, 2 + int(draw.lognormvariate(3, 1.2))) for _ in prompts]
    completions = [[draw.randrange(3, 250) for _ in range(length)] for length in lengths]
    return {
        "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": completions,
        "logprobs": None,
    }


def reward(completion_ids, **_):
    """Return a reward that differs within a group."""
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def main(model, out, kind, loss_type, steps_per_generation):
    draw = random.Random(0)
    prompts = [
        f"row {number}: " + " ".join(draw.choices(WORDS, k=draw.randint(1, 30)))
        for number in range(PROMPTS)
    ]
    args = GRPOConfig(
        out, use_cpu=True, bf16=False, per_device_train_batch_size=4, num_generations=4,
        gradient_accumulation_steps=2, steps_per_generation=int(steps_per_generation),
        loss_type=loss_type, max_completion_length=MOST, max_steps=4, logging_steps=1,
        save_strategy="no", report_to=[], seed=0, learning_rate=1e-3, disable_tqdm=True,
    )  # fmt: skip
    trainer = (BalancedGRPOTrainer if kind == "balanced" else GRPOTrainer)(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), reward, args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts}), rollout_func=roll_out,
        processing_class=AutoTokenizer.from_pretrained(model), callbacks=[Observer()],
    )  # fmt: skip
    observe_batches(trainer)
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
