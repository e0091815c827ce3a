"""Probed costs are kept by file of the data: views find them, and a file that changed loses its."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, Subset, random_split

import counterpoise as cp
from counterpoise.workers import JsonlDataset, PlainSource, Probe, TarDataset
from counterpoise.workers.sources.interface import Source


class Words:
    """A transform that counts what it is asked for."""

    deterministic = True
    probed = 0

    def __call__(self, raw: dict[str, Any]) -> dict[str, Any]:
        return raw

    def probe(self, raw: dict[str, Any]) -> Probe:
        Words.probed += 1
        return Probe(raw["__key__"], {"words": len(str(raw["json"]["text"]).split())})

    def fingerprint(self) -> str:
        return "words"


@pytest.fixture
def shards(shard: Any) -> list[Path]:
    """Return two shards of nine samples."""
    return [
        shard(f"{name}.tar", {f"{name}{n}.json": {"text": "word " * n} for n in range(9)})
        for name in "ab"
    ]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Return a file of five records."""
    path = tmp_path / "c.jsonl"
    path.write_text("".join(f'{{"id": "c{n}", "text": "{"word " * n}"}}\n' for n in range(5)))
    return path


def probes_of(source: Source) -> int:
    """Return how many samples are probed to know what all cost."""
    before = Words.probed
    for index in range(len(source)):
        source.probe(index)
    return Words.probed - before


def known(source: Any) -> list[int | None]:
    found = [source.known(index) for index in range(len(source))]
    return [None if each is None else each.cost["words"] for each in found]


def test_views_find_what_was_kept_of_the_whole(shards: list[Path], records: Path) -> None:
    for data, kind in ((shards, TarDataset), (records, JsonlDataset)):
        probes_of(kind(data, Words()))
    tar, jsonl = TarDataset(shards, Words()), JsonlDataset(records, Words())
    both: Any = ConcatDataset([tar, jsonl])  # type: ignore[list-item]
    for view, expected in (
        (Subset(tar, [3, 9, 17]), [3, 0, 8]),  # type: ignore[arg-type]
        (random_split(Subset(tar, range(9)), [4, 5])[0], None),  # type: ignore[arg-type]
        (Subset(both, [17, 18, 22]), [8, 0, 4]),
    ):
        source = PlainSource(view)
        assert known(source) == [source.probe(n).cost["words"] for n in range(len(source))]
        assert expected in (None, known(source))
        assert probes_of(source) == 0
        first = source.known(0)
        assert first is not None
        assert first.key == source.key(0) == "0"


def test_the_whole_finds_what_was_kept_of_a_view(shards: list[Path]) -> None:
    view = PlainSource(Subset(TarDataset(shards, Words()), [1, 10]))  # type: ignore[arg-type]
    assert probes_of(view) == 2
    whole = TarDataset(shards, Words())
    assert [n for n, each in enumerate(known(whole)) if each is not None] == [1, 10]


def test_a_part_that_keeps_nothing_leaves_the_others_theirs(shards: list[Path]) -> None:
    class Own(list[str]):
        def probe(self, index: int) -> Probe:
            return Probe(str(index), {"words": 7})

    probes_of(TarDataset(shards, Words()))
    both: Any = ConcatDataset([TarDataset(shards[1], Words()), Own("xyz")])  # type: ignore[list-item]
    assert known(PlainSource(both)) == [*range(9), None, None, None]


def test_a_file_that_changed_loses_its_own_costs_alone(
    shards: list[Path], shard: Any, records: Path
) -> None:
    probes_of(TarDataset(shards, Words()))
    probes_of(JsonlDataset(records, Words()))
    shard("b.tar", {f"b{n}.json": {"text": "other " * (n + 1)} for n in range(9)})
    os.utime(shards[1], ns=(1, 1))
    again = TarDataset(shards, Words())
    assert known(again) == [*range(9), *[None] * 9]
    assert probes_of(again) == 9
    assert known(TarDataset(shards, Words())) == [*range(9), *range(1, 10)]
    records.write_text('{"id": "c0", "text": "word word"}\n')
    assert known(JsonlDataset(records, Words())) == [None]


def test_costs_lie_in_the_cache_folder_where_one_is_given(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.iterdir())
    assert probes_of(TarDataset(shards, Words(), cache=tmp_path / "cache")) == 18
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "cache"])
    assert probes_of(TarDataset(shards, Words(), cache=tmp_path / "cache")) == 0
    monkeypatch.setenv("COUNTERPOISE_CACHE", str(tmp_path / "cache"))
    assert probes_of(TarDataset(shards, Words())) == 0


def test_folders_that_may_not_be_written_need_none(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "read"
    folder.mkdir()
    for path in shards:
        shutil.copy(path, folder)
    folder.chmod(0o555)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert probes_of(TarDataset(folder, Words())) == 18
    assert probes_of(TarDataset(folder, Words())) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["a.tar", "b.tar"]
    (tmp_path / "nowhere").write_text("a file, no folder")
    unwritable = TarDataset(folder, Words(), cache=tmp_path / "nowhere" / "cache")
    assert probes_of(unwritable) == 18


class Broken(Words):
    """As Words, with a sample that cannot be measured."""

    def probe(self, raw: dict[str, Any]) -> Probe:
        if raw["__key__"] == "a3":
            raise ValueError("broken")
        return super().probe(raw)


@pytest.mark.parametrize(
    ("transform", "options"),
    [(Broken, {}), (Words, {"persistent_workers": True}), (Broken, {"num_workers": 0})],
)
def test_later_epochs_write_no_costs_that_the_file_has(
    shards: list[Path], tmp_path: Path, options: dict[str, Any], transform: type[Words]
) -> None:
    loader: Any = cp.DataLoader(
        TarDataset(shards, transform(), cache=tmp_path / "kept"), batch_size=3, shuffle=True,
        collate_fn=list, balance="fixed", on_error="skip", **{"num_workers": 2, **options},
    )  # fmt: skip
    sizes = []
    for _ in range(3):
        list(loader)
        sizes.append(sum(each.stat().st_size for each in (tmp_path / "kept").glob("*.costs")))
    loader.close()
    assert len({*sizes}) == 1
    kept = known(TarDataset(shards, transform(), cache=tmp_path / "kept"))
    assert kept.count(None) == (transform is Broken)


def test_what_another_has_kept_meanwhile_is_not_measured_again(shards: list[Path]) -> None:
    one, other = (TarDataset(shards, Words()) for _ in range(2))
    assert known(other) == [None] * 18
    for index in range(4):
        one.probe(index)
    other.probe(2)
    one.probe(5)
    assert known(other) == [0, 1, 2, 3, None, 5, *[None] * 12]
    before = [path.read_bytes() for path in sorted(shards[0].parent.glob("*.costs"))]
    assert [other.probe(index).cost["words"] for index in (0, 3, 5)] == [0, 3, 5]
    assert [path.read_bytes() for path in sorted(shards[0].parent.glob("*.costs"))] == before
