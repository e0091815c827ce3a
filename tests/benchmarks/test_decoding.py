"""Figures of the benches of images follow from the passes; all pipelines give the same pictures."""

from pathlib import Path

import pytest

from benchmarks.loading import decoding
from benchmarks.loading.pipelines import ImagePass, ImageWork, copy_samples, end, run_pass
from counterpoise.tools.demo.data import ensure_demo_data


def _passes(*all_us: float, trainer: float = 2.0) -> list[ImagePass]:
    return [ImagePass(1e6 / each, trainer, each - trainer) for each in all_us]


def test_ratios_are_of_passes_of_one_round_and_to_the_best_of_torchs() -> None:
    found = decoding.figures(
        {
            "balanced": _passes(12.0, 22.0),
            "threads": _passes(9.0, 44.0),
            "balanced, pillow": _passes(42.0, 42.0),
            "plain": _passes(10.0, 10.0),
            "DataLoader": _passes(20.0, 50.0),
            "webdataset": _passes(24.0, 40.0),
            "alone": _passes(7.0, 12.0),
            "alone, pillow": _passes(22.0, 22.0),
        }
    )
    assert found["best"] == "webdataset"  # 32 in the middle, the other has 35
    balanced = found["pipelines"]["balanced"]
    assert balanced["over_best"] == {"median": 0.525, "low": 0.5, "high": 0.55}
    assert balanced["over_alone"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert found["pipelines"]["balanced, pillow"]["over_alone"]["median"] == 2.0
    assert found["pipelines"]["webdataset"]["over_best"]["median"] == 1.0
    assert "over_alone" not in found["pipelines"]["alone"]
    beside = found["threads_over_processes"]
    assert beside["cpu"] == {"median": 1.375, "low": 0.75, "high": 2.0}
    assert beside["samples_per_s"]["high"] == pytest.approx(12 / 9)


def test_pipelines_give_the_same_pictures(tmp_path: Path) -> None:
    copy_samples(ensure_demo_data(tmp_path / "data", samples=24, shards=2), 8, 2, str(tmp_path))
    work = ImageWork(str(tmp_path), batch_size=2, workers=1, tile_size=32)
    pictures: dict[str, set[str]] = {"torch": set(), "pillow": set()}
    for pipeline in decoding.PIPELINES.values():
        loader = pipeline.make(work, pipeline.resize)
        found = run_pass(loader, hashed=True)
        assert found.all_us >= found.trainer_us > 0
        assert found.workers_us >= 0
        pictures[pipeline.resize].add(found.pictures)
        end(loader)
    assert [len(each) for each in pictures.values()] == [1, 1]
    assert pictures["torch"] != pictures["pillow"]


def test_more_samples_than_there_are_are_refused(tmp_path: Path) -> None:
    pattern = ensure_demo_data(tmp_path / "data", samples=4, shards=2)
    with pytest.raises(ValueError, match="has 4 samples: give --samples 4"):
        copy_samples(pattern, 5, 2, str(tmp_path))
