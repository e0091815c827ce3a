"""Images that travel between all ranks of a mesh with pipeline stages, beside one process."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from counterpoise.loader import ImageDispatch
from counterpoise.sched.runtime import TravellingImages
from counterpoise.sched.runtime.encoders.travelling import rank_images
from counterpoise.sched.runtime.job.start import separate_encoders
from counterpoise.sched.runtime.settings import StageOptions
from tests.sched.runtime.encoders.models import make_model
from tests.sched.runtime.encoders.processes import loader_step
from tests.sched.runtime.encoders.travelling import (
    TravelSetting,
    make_travelling,
    run_travelling,
    samples_of,
    without_pixels,
)
from tests.sched.runtime.pool import Pool

TOLERANCE = 1e-6
NAMES = ("gpipe", "1f1b", "zb-h1", "zbv", "interleaved", "1f1b-alg2")
SOME = (
    TravelSetting("1f1b", 2), TravelSetting("zbv", 4), TravelSetting("1f1b-alg2", 2),
    TravelSetting("zb-h1", 2, frozen="stages", stage_merges=True),
    TravelSetting("1f1b", 4, frozen="encoder"), TravelSetting("1f1b", 2, sized=True),
)  # fmt: skip
EVERY = [
    TravelSetting(name, ranks, frozen)
    for name, ranks, frozen in product(NAMES, (2, 4), ("", "encoder", "stages"))
]


def assert_equal(pool: Pool, setting: TravelSetting) -> None:
    for rank, found in enumerate(pool.run(run_travelling, setting, 2)):
        assert max(found.values()) <= TOLERANCE, (rank, found)


@pytest.mark.parametrize("setting", SOME, ids=str)
def test_a_step_trains_what_one_process_trains(pool: Pool, setting: TravelSetting) -> None:
    assert_equal(pool, setting)


@pytest.mark.long
@pytest.mark.parametrize("setting", EVERY, ids=str)
def test_so_does_every_schedule(pool: Pool, setting: TravelSetting) -> None:
    assert_equal(pool, setting)


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_encode_as_much_and_one_saves_it(pool: Pool, ranks: int) -> None:
    setting = TravelSetting("1f1b", ranks)
    tiles = sum(len(sample.pixels) for own in all_samples(setting) for sample in own)
    found = pool.run(_encoded, setting)
    # Of the blank image, too, from which shapes are known.
    rows = [rows - 1 for rows, *_ in found]
    assert sum(rows) == tiles
    assert max(rows) == -(-tiles // 4)
    assert [names for _, names, _ in found] == [number % ranks == 0 for number in range(4)]
    pixels = [fields for *_, fields in found]
    assert pixels == [number % ranks == 0 for number in range(4)]


def all_samples(setting: TravelSetting) -> list[Any]:
    """Return the microbatches of all replicas of four processes."""
    return samples_of(setting, 0, replicas=4 // setting.ranks)


def _encoded(rank: int, setting: TravelSetting) -> tuple[int, bool, bool]:
    """Return the rows that a rank encodes, and whether it saves the encoder and needs pixels."""
    del rank
    model, rows = make_model([2], setting.ranks, setting.dtype, merges=False), [0]
    model.encoders[0][0].register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    pipe, mine = make_travelling(setting, model)
    step = loader_step(all_samples(setting)[pipe.replica], 1)
    pipe.step(without_pixels(step, keep=0 in mine))
    saved = [name for name, _ in pipe.held().saved()]
    pipe.close()
    return (sum(rows), "encoders.vision." in saved, "pixel_values" in pipe.fields(pipe.rank))


# One process, without torch.distributed, is a job of one rank.


def images(**given: Any) -> TravellingImages:
    blank = torch.zeros(1, 2)
    return TravellingImages("vision", ImageDispatch(nn.Linear(2, 2), blank, **given))


def test_dispatches_that_do_not_fit_a_pipeline_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'vision' has the reduction 'mean'.*reduction=\"sum\""):
        images()
    with pytest.raises(ValueError, match=r"encodes 2 microbatches together.*leave together="):
        images(reduction="sum", together=2)


def test_pipelines_that_cannot_take_them_are_refused() -> None:
    made, run = images(reduction="sum"), StageOptions()
    with pytest.raises(ValueError, match="for a mesh; in units give Units spread=True"):
        rank_images(made, 0, None, run)
    with pytest.raises(ValueError, match="encoders has a TravellingImages; give a list of Enc"):
        separate_encoders([made])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="between 1 ranks, and the mesh has 1 x 2 in dp and pp"):
        rank_images(made, 0, (1, 2), run)


def test_encoders_of_several_tensors_are_refused() -> None:
    class Deep(nn.Linear):
        def forward(self, rows: Any) -> Any:
            return super().forward(rows), [rows]

    dispatch = ImageDispatch(Deep(2, 2), torch.zeros(1, 2), reduction="sum")
    with pytest.raises(TypeError, match=r"the encoder returned tuple.*one tensor"):
        dispatch.step([torch.ones(2, 2)]).features(0)
