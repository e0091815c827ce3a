"""`analyze module:dataset` of a Hugging Face data set finds the costs that balance="auto" finds."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from counterpoise.loader import Balance, DataLoader
from counterpoise.tools.cli import main
from counterpoise.workers.discovery import column_costs, find_costs

datasets = pytest.importorskip("datasets")
ROWS = 90
LENGTHS = np.random.default_rng(5).integers(1, 70, ROWS).tolist()
IDS = [[7] * n for n in LENGTHS]


def _picture(number: int) -> Image.Image:
    return Image.new("RGB", (3 + LENGTHS[number], 5), "red")


def _turned(number: int) -> Image.Image:
    image = _picture(number)
    image.getexif()[0x0112] = 6
    return image


def tokens() -> Any:
    return datasets.Dataset.from_dict({"input_ids": IDS, "labels": IDS, "id": ["x"] * ROWS})


def lengths() -> Any:
    return datasets.Dataset.from_dict({"input_ids": IDS, "length": LENGTHS})


def chosen() -> Any:
    return tokens().shuffle(seed=1).select(range(80))


def nested() -> Any:
    boxes = [[[1.0, 2.0]] * (n % 9) for n in LENGTHS]
    return datasets.Dataset.from_dict({"boxes": boxes, "input_ids": IDS})


def texts() -> Any:
    return datasets.Dataset.from_dict({"text": ["ab" * 3 * n for n in LENGTHS]})


def images() -> Any:
    rows = {"image": [_picture(k) if k % 7 else None for k in range(ROWS)], "input_ids": IDS}
    return datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())


def several() -> Any:
    rows = [[_picture(k), _turned(k)][: k % 3] for k in range(ROWS)]
    features = datasets.Features({"images": datasets.List(datasets.Image())})
    return datasets.Dataset.from_dict({"images": rows}, features=features)


def mapped() -> Any:
    return texts().with_transform(
        lambda batch: {"input_ids": [[1] * (len(each) // 2) for each in batch["text"]]}
    )


FOUND = {
    "tokens": ("tokens", "label_tokens"), "lengths": ("tokens",),
    "chosen": ("tokens", "label_tokens"), "nested": ("boxes", "tokens"), "texts": ("text",),
    "images": ("image", "tokens"), "several": ("images",), "mapped": ("tokens",),
}  # fmt: skip


def costs_by_loader(dataset: Any) -> list[dict[str, int]]:
    # said, since a text that collate_fn leaves a text is left out of the plan
    said = Balance("auto", work="packed")
    loader = DataLoader(dataset, 1, shuffle=True, balance=said, collate_fn=list)
    infos = [info for step in loader.steps() for info in step.infos]
    return [dict(info.costs) for info in sorted(infos, key=lambda info: int(info.keys[0]))]


@pytest.mark.parametrize("name", FOUND)
def test_analyze_finds_what_auto_finds_in_the_same_rows(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--workers", "1", "--ranks", "2", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as end:
        main(["analyze", f"{__name__}:{name}", *words])
    assert end.value.code == 0, capsys.readouterr().err
    table = np.load(tmp_path / "index.npz")
    found = costs_by_loader(globals()[name]())
    assert tuple(found[0]) == FOUND[name]
    assert {each: table[each].tolist() for each in FOUND[name]} == {
        each: [cost[each] for cost in found] for each in FOUND[name]
    }


@pytest.mark.parametrize("name", ["images", "several"])
def test_pixels_of_a_column_come_from_headers(name: str, monkeypatch: Any) -> None:
    dataset = globals()[name]()
    found = find_costs([dataset[k] for k in range(40)])
    expected = [found.measure(dataset[k]) for k in range(len(dataset))]
    costs = column_costs(dataset, found)
    assert costs is not None
    monkeypatch.setattr(type(dataset), "__getitem__", None)  # nothing is decoded
    assert [costs.cost(k) for k in range(len(dataset))] == expected


def test_an_image_of_a_format_that_only_datasets_reads_is_measured_by_reading_it() -> None:
    rows = []
    for number in range(20):
        file = io.BytesIO()
        Image.new("RGB", (4 + number, 4)).save(file, "PCX" if number == 3 else "PNG")
        rows.append({"bytes": file.getvalue(), "path": None})
    made = datasets.Dataset.from_dict({"image": rows}).cast_column("image", datasets.Image())
    found = find_costs([made[k] for k in range(20)])
    costs = column_costs(made, found)
    assert costs is not None
    assert costs.cost(3) == {"image": 28}
