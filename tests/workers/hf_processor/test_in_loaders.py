"""HFProcessor where it runs: workers elsewhere, rows of data sets, plain and balanced loaders."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image

import counterpoise as cp
from counterpoise.workers import SampleError, TarDataset
from tests.workers.hf_processor.families import PICTURE, make, tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A processor as AutoProcessor loads it."""
    path = tmp_path / "llava"
    make("llava").save_pretrained(path)
    return str(path)


@pytest.fixture
def shard(tmp_path: Path) -> str:
    """A tar of six records with an image each."""
    file = io.BytesIO()
    PICTURE.save(file, "PNG")
    path = tmp_path / "few.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(6):
            said = [{"from": "human", "value": f"<image>{'how ' * number}?"}]
            said.append({"from": "gpt", "value": "so " * (number + 1)})
            body = json.dumps({"conversations": said}).encode()
            for name, data in ((f"k{number}.json", body), (f"k{number}.png", file.getvalue())):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return str(path)


def test_a_worker_elsewhere_makes_the_same_from_a_name(folder: str, shard: str) -> None:
    here = TarDataset(shard, cp.HFProcessor(folder, max_length=400))
    spec = json.loads(json.dumps(here.spec()))
    assert spec["transform"]["name"] == "counterpoise:HFProcessor"
    with pytest.raises(ValueError, match="no such transform: 'counterpoise:HFProcessor'"):
        TarDataset.from_spec(spec, None)  # it reads folders that a job names
    there = TarDataset.from_spec(spec, None, ["counterpoise:HFProcessor"])
    assert there.probe(3) == here.probe(3)
    assert there[3]["input_ids"].tolist() == here[3]["input_ids"].tolist()
    assert there.fingerprint() == here.fingerprint()
    with pytest.raises(ValueError, match=r"save_pretrained\(folder\)"):
        cp.HFProcessor(tokenizer()).spec()
    assert there.transform.max_length == 400


def test_costs_are_kept_by_what_decides_them(folder: str) -> None:
    prints = {
        cp.HFProcessor(folder).fingerprint(),
        cp.HFProcessor(folder, max_length=9).fingerprint(),
        cp.HFProcessor(folder, chat_template="{{ messages }}").fingerprint(),
        cp.HFProcessor(make("llava_next")).fingerprint(),
        cp.HFProcessor(tokenizer()).fingerprint(),
    }
    assert len(prints) == 5
    assert cp.HFProcessor(make("llava")).fingerprint() == cp.HFProcessor(folder).fingerprint()


ROWS: Any = [
    {"messages": [
        {"role": "user", "content": "how " * (number % 7 + 1)},
        {"role": "assistant", "content": "so " * (number % 5 + 1)},
    ], "images": [PICTURE] * (number % 3)}
    for number in range(24)
]  # fmt: skip


def test_rows_of_a_data_set_are_samples_with_costs(monkeypatch: Any) -> None:
    hf = cp.HFProcessor(make("llava"))
    source = hf.over(Dataset.from_list(ROWS[:4]))
    assert len(source) == 4
    samples = [source[n] for n in range(4)]
    for row, sample in zip(ROWS, samples, strict=False):
        assert np.array_equal(sample["pixel_values"], hf(row)["pixel_values"])
    # no pixel is decoded to find costs
    monkeypatch.setattr(Image.Image, "load", None)
    assert [source.probe(n).cost for n in range(4)] == [hf.cost(each) for each in samples]


def test_a_wrong_row_has_the_index_as_its_name() -> None:
    bad = cp.HFProcessor(tokenizer()).over([{"messages": []}])
    with pytest.raises(SampleError, match="sample '0': messages is"):
        bad.probe(0)


def test_a_batch_is_what_its_model_takes() -> None:
    for family in ("llava", "llava_next", "internvl", "idefics3"):
        hf = cp.HFProcessor(make(family))
        batch, unseen = hf(ROWS[:3]), hf(ROWS[:1])
        named = {*batch} - {"image_sizes", "pixel_attention_mask"}
        assert named == {"input_ids", "labels", "attention_mask", "pixel_values"}
        assert {*unseen} == {"input_ids", "labels", "attention_mask"}
        assert batch["pixel_values"].ndim == (5 if family == "idefics3" else 4)


def test_as_collate_fn_it_makes_a_padded_batch() -> None:
    hf = cp.HFProcessor(make("llava"))
    (batch,) = torch.utils.data.DataLoader(ROWS[:3], batch_size=3, collate_fn=hf)
    samples = [hf(row) for row in ROWS[:3]]
    assert batch["attention_mask"].sum(1).tolist() == [len(each["input_ids"]) for each in samples]
    for row, each in zip(batch["labels"], samples, strict=True):
        assert row[: len(each["labels"])].tolist() == each["labels"].tolist()
    assert len(batch["pixel_values"]) == 0 + 1 + 2


@pytest.mark.parametrize("way", ["collate_fn", "source"])
def test_a_balanced_loader_plans_by_the_probed_costs(way: str) -> None:
    hf = cp.HFProcessor(make("llava"))
    balance = cp.Balance(budgets={"tokens": 200}, samples_per_step=8, accumulate="auto")
    given: Any = {"dataset": ROWS, "collate_fn": hf}
    if way == "source":
        given = {"dataset": hf.over(ROWS), "collate_fn": hf.collate_samples}
    loader = cp.DataLoader(shuffle=True, balance=balance, num_workers=1, **given)
    seen, costs = 0, [hf.cost(hf(row)) for row in ROWS]
    for batch, info in loader.with_info():
        here = [costs[int(key)] for key in info.keys]
        assert info.costs["tokens"] == sum(each["tokens"] for each in here)
        assert info.label_tokens == sum(each["label_tokens"] for each in here)
        assert int(batch["attention_mask"].sum()) == info.costs["tokens"]
        seen += len(here)
    assert seen == len(ROWS)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_a_plan_says_which_microbatches_have_images(family: str) -> None:
    hf = cp.HFProcessor(make(family))
    loader = cp.DataLoader(
        hf.over(ROWS), batch_size=1, collate_fn=list, shuffle=True, balance=cp.Balance("fixed")
    )
    told = set()
    for samples, info in loader.with_info():
        assert info.images == any(len(each["pixel_values"]) for each in samples)
        told.add(info.images)
    assert told == {True, False}


def test_auto_finds_the_probed_costs(shard: str) -> None:
    data = TarDataset(shard, cp.HFProcessor(make("llava")))
    hf: Any = data.transform
    loader = cp.DataLoader(
        data, batch_size=2, shuffle=True, balance="auto", collate_fn=hf.collate_samples
    )
    assert sum(info.samples for _, info in loader.with_info()) == 6
