"""Labels of HFProcessor: those of TRL itself for real conversations, and what is not learned."""

import io
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset
from PIL import Image
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

import counterpoise as cp
from counterpoise.workers import SampleError, TarDataset
from counterpoise.workers.vision_language.transform import image_members
from tests.workers.hf_processor.families import make, tokenizer

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
SAID = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "12 apples"}]


def turns(raw: Any) -> list[dict[str, str]]:
    """A real conversation in TRL's form, images apart."""
    roles = {"human": "user", "gpt": "assistant"}
    return [
        {"role": roles[each["from"]], "content": each["value"].replace("<image>", "")}
        for each in raw["json"]["conversations"]
    ]


def conversations(real: TarDataset, seen: bool) -> Any:
    for index in range(len(real)):
        raw = real.raw(index)
        if raw["json"].get("conversations") and bool(image_members(raw)) == seen:
            yield raw


def test_labels_are_those_of_trl_for_200_conversations(real: TarDataset, tmp_path: Path) -> None:
    words = tokenizer()
    words.chat_template = (TEMPLATES / "qwen2_5_training.jinja").read_text()
    rows = [{"messages": turns(raw)} for raw in islice(conversations(real, False), 200)]
    assert len(rows) == 200
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(words), **sizes, **heads))
    arguments = SFTConfig(
        str(tmp_path), assistant_only_loss=True, max_length=None, report_to=[], use_cpu=True,
        bf16=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = SFTTrainer(
        model, arguments, train_dataset=Dataset.from_list(rows), processing_class=words
    )
    hf = cp.HFProcessor(words)
    for row, prepared in zip(rows, trainer.train_dataset, strict=True):
        theirs = trainer.data_collator([prepared])
        ours = hf(row)
        assert ours["input_ids"].tolist() == theirs["input_ids"][0].tolist()
        assert ours["labels"].tolist() == theirs["labels"][0].tolist()


SHOWN = ("qwen2_5_vl", "qwen3_vl", "gemma3", "idefics3", "smolvlm", "llava_next")


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "found"])
@pytest.mark.parametrize("family", SHOWN)
def test_labels_beside_images_are_those_of_trl(family: str, marked: bool, real: TarDataset) -> None:
    processor = make(family)
    training = (TEMPLATES / f"{family}_training.jinja").read_text()
    plain = (TEMPLATES / f"{family}.jinja").read_text()
    # The model's own template has no marks: what it renders is found to be the same.
    hf = cp.HFProcessor(
        processor, chat_template=training if marked else plain,
        processor_kwargs={"add_special_tokens": False},
    )  # fmt: skip
    collate = DataCollatorForVisionLanguageModeling(
        processor, assistant_only_loss=True, max_length=None, chat_template=training
    )
    for raw in islice(conversations(real, True), 0, 100, 20):
        files = [io.BytesIO(raw[name]) for name in image_members(raw)]
        images = [Image.open(file).convert("RGB") for file in files]
        ours = hf({"messages": turns(raw), "images": images})
        theirs = collate([{"messages": turns(raw), "images": images}])
        assert ours["input_ids"].tolist() == theirs["input_ids"][0].tolist()
        assert ours["labels"].tolist() == theirs["labels"][0].tolist()


def test_a_template_whose_turns_cannot_be_found_asks_for_marks() -> None:
    words = tokenizer()
    last = "{% for m in messages %}{{ m.content if loop.last else 'x' }}{% endfor %}"
    with pytest.raises(SampleError, match=r"turn 1 of the assistant cannot be found .* generation"):
        cp.HFProcessor(words, chat_template=last)({"messages": SAID * 2})


def test_images_that_the_assistant_shows_are_not_learned() -> None:
    processor = make("qwen2_vl")
    image = Image.new("RGB", (40, 90))
    shown = [{"type": "image", "image": image}, {"type": "text", "text": "this"}]
    messages = [SAID[0], {"role": "assistant", "content": shown}]
    sample = cp.HFProcessor(processor)({"messages": messages})
    learned = sample["input_ids"][sample["labels"] != -100]
    assert processor.image_token_id in sample["input_ids"]
    assert processor.image_token_id not in learned
