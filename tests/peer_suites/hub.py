"""Writes what suites fetch from the Hugging Face hub: tiny models, and the data of their tests.

`python hub.py FOLDER CHECKOUT`. `from_pretrained` and `load_dataset` take a folder by the name that
they are given, so that a suite that runs in FOLDER needs no network. TRL's checkout has the scripts
that made its models and data: they run here, with a tokenizer of ours in the place of theirs, and
what they would upload is written to FOLDER. Whatever is not here, the control does not pass either.
"""

import importlib
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

TEXT = (
    "beautiful is better than ugly explicit simple complex complicated flat nested sparse dense "
    "readability counts special cases errors should never pass silently unless explicitly silenced "
    "in the face of ambiguity refuse temptation to guess there be one and preferably only obvious "
    "way do it although that may not at first you are dutch now often right idea good bad explain"
)
WORDS = TEXT.split()
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Templates in TRL's checkout, by the names of models; the others get the first.
TEMPLATES = {"": "qwen2_5", "Qwen/Qwen3": "qwen3", "meta-llama": "llama3_2", "openai": "gptoss"}


def make_tokenizer(templates: Path | None = None, model: str = "") -> Any:
    """Return a tokenizer of bytes and some words; `templates`: a folder of chat templates."""
    bpe = ByteLevelBPETokenizer()
    text = [TEXT, *(f" {word.capitalize()}." for word in WORDS)]
    bpe.train_from_iterator(text, 500, 1, show_progress=False, special_tokens=list(SPECIAL))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0]
    )
    if templates is not None:
        family = [family for family in TEMPLATES if model.startswith(family)][-1]
        tokenizer.chat_template = (templates / f"{TEMPLATES[family]}.jinja").read_text()
    return tokenizer


def write_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write a model and its tokenizer as `from_pretrained` reads them."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_dataset(folder: Path, name: str, parts: DatasetDict) -> None:
    """Write a data set as configuration `name` of the repository that stands in a folder."""
    for part, data in parts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        data.to_parquet(folder / name / f"{part}.parquet")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    lines = [
        f"- config_name: {name}\n  data_files:\n"
        + "".join(
            f"  - split: {path.stem}\n    path: {name}/{path.name}\n"
            for path in sorted((folder / name).iterdir())
        )
        for name in names
    ]
    (folder / "README.md").write_text(f"---\nconfigs:\n{''.join(lines)}---\n")


def write_common(hub: Path) -> None:
    """Write what tests of transformers and sentence-transformers ask for."""
    tokenizer = make_tokenizer()
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**sizes))
    write_model(hub / "hf-internal-testing/tiny-random-LlamaForCausalLM", llama, tokenizer)
    qwen = Qwen2ForCausalLM(Qwen2Config(**sizes))
    write_model(hub / "trl-internal-testing/tiny-Qwen2ForCausalLM-2.5", qwen, tokenizer)
    rng = random.Random(0)  # a third of the rows of wikitext are empty, and the others long
    rows = [" ".join(rng.choices(WORDS, k=rng.choice([0, 3, 150]))) for _ in range(200)]
    texts = Dataset.from_dict({"text": rows})
    write_dataset(hub / "wikitext", "wikitext-2-raw-v1", DatasetDict(train=texts))
    sizes |= {"vocab_size": 512, "max_position_embeddings": 128}  # tests add tokens up to 500
    sentences = hub / "sentence-transformers-testing/stsb-bert-tiny-safetensors"
    write_model(sentences, BertModel(BertConfig(**sizes)), tokenizer)
    pairs = [
        {f"sentence{k}": " ".join(rng.choices(WORDS, k=rng.randint(3, 9))) for k in (1, 2)}
        | {"score": rng.random()}
        for _ in range(60)
    ]
    parts = {part: Dataset.from_list(pairs) for part in ("train", "validation", "test")}
    write_dataset(hub / "sentence-transformers/stsb", "default", DatasetDict(parts))


def write_trl(hub: Path, checkout: Path) -> None:
    """Run the scripts by which TRL made the models and data of its tests."""
    sys.path.insert(0, str(checkout))
    models: Any = importlib.import_module("scripts.generate_tiny_models._common")
    templates = checkout / "trl/chat_templates"

    def write(model: Any, tokenizer: Any, _: Any, *labels: str, **__: Any) -> None:
        prefix, suffix = (*labels, None, None)[:2]
        name = "-".join(filter(None, (prefix, type(model).__name__, suffix)))
        write_model(hub / models.ORGANIZATION / name, model, tokenizer)

    def push(parts: Any, repo: str, config_name: str) -> None:
        write_dataset(hub / repo, config_name, parts)

    ignore: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    for check in ("check_transformers_version", "check_dtype_pattern", "print_config_diff"):
        setattr(models, check, ignore)
    models.push_to_hub = write
    AutoTokenizer.from_pretrained = lambda name, **_: make_tokenizer(templates, name)
    GenerationConfig.from_pretrained = lambda *_, **__: GenerationConfig()
    DatasetDict.push_to_hub = push
    for script in sorted((checkout / "scripts").glob("generate_*_dataset.py")):
        repo = re.search(r'default="(trl-internal-testing/.*)"', script.read_text())
        if repo is not None:
            importlib.import_module(f"scripts.{script.stem}").main(0.1, True, repo[1])
    for script in sorted((checkout / "scripts/generate_tiny_models/for_causal_lm").glob("*.py")):
        torch.manual_seed(0)
        try:
            importlib.import_module(f"scripts.generate_tiny_models.for_causal_lm.{script.stem}")
        except Exception as error:  # of a newer transformers, or on data of the hub
            print(f"not made: {script.stem}: {error!r:.200}", file=sys.stderr)


def main(hub: Path, checkout: Path) -> None:
    """Write the models and data to `hub`, for the suite in `checkout`."""
    write_common(hub)
    if (checkout / "scripts/generate_tiny_models").is_dir():
        write_trl(hub, checkout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
