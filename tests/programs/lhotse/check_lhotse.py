"""lhotse's DynamicBucketingSampler beside a balanced loader over the same cuts."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from lhotse import CutSet
from lhotse.dataset import DynamicBucketingSampler

import counterpoise as cp
from tests.docs.pages import blocks
from tests.programs import harness
from tests.programs.lhotse import speech

CUTS, RANKS = 2000, 8
PAGE = "docs/from/lhotse.md"


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech.write_cuts(tmp_path_factory.mktemp("lhotse"), CUTS, seed=1)


@dataclass(frozen=True)
class Epoch:
    """Seconds of each step and rank, counted from its tensors: with padding, and of sound."""

    padded: np.ndarray
    sound: np.ndarray
    cuts: Counter[str]

    @property
    def padding(self) -> float:
        return 1 - self.sound.sum() / self.padded.sum()


def waiting(seconds: np.ndarray) -> float:
    """Return the longest rank of each step (steps, ranks) over the mean rank."""
    return float(seconds.max(axis=1).sum() / seconds.mean(axis=1).sum())


def count_theirs(path: Path, buckets: int) -> Epoch:
    """Load an epoch of each rank with lhotse's sampler; fail unless all have as many steps."""
    ranks = []
    cuts = Counter[str]()
    for rank in range(RANKS):
        steps = []
        for batch in speech.load_by_sampler(path, rank, RANKS, buckets):
            steps.append((batch["inputs"].numel(), speech.count_samples(batch)))
            cuts.update(speech.name_cuts(batch))
        ranks.append(steps)
    assert len({len(steps) for steps in ranks}) == 1
    seconds = np.array(ranks) / speech.RATE
    return Epoch(seconds[..., 0].T, seconds[..., 1].T, cuts)


def count_ours(loader: cp.DataLoader) -> Epoch:
    """Load an epoch of all ranks, which a loader plays."""
    padded, sound, cuts = [], [], Counter[str]()
    for step in loader.steps():
        seconds = np.zeros((2, RANKS))
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            seconds[0, info.rank] += batch["inputs"].numel() / speech.RATE
            if info.samples:  # else a cut of another rank stands in, with weight 0
                seconds[1, info.rank] += speech.count_samples(batch) / speech.RATE
                cuts.update(speech.name_cuts(batch))
        padded.append(seconds[0])
        sound.append(seconds[1])
    return Epoch(np.stack(padded), np.stack(sound), cuts)


@pytest.fixture(scope="module")
def epochs(cuts: Path) -> dict[str, Epoch]:
    counted = {f"lhotse, {n} buckets": count_theirs(cuts, n) for n in (10, 30)}
    all_ranks = cp.Ranks(virtual=RANKS)
    for kind, load in (("eager", speech.load_eager), ("lazy", speech.load_lazy)):
        counted[kind] = count_ours(load(cuts, RANKS, all_ranks))
    for kind, epoch in counted.items():
        print(
            f"\n{kind}: {len(epoch.padded)} steps, longest rank / mean {waiting(epoch.padded):.4f} "
            f"with padding, {waiting(epoch.sound):.4f} of sound, {epoch.padding:.1%} padding, "
            f"{epoch.padded.max(axis=1).sum():,.0f} s on the longest ranks",
            end="",
        )
    return counted


@pytest.mark.parametrize("kind", ["eager", "lazy"])
def test_ranks_do_more_equal_work_than_by_the_best_number_of_buckets(
    epochs: dict[str, Epoch], kind: str
) -> None:
    ours, theirs = epochs[kind], [epochs[name] for name in epochs if name.startswith("lhotse")]
    assert waiting(ours.padded) < min(waiting(epoch.padded) for epoch in theirs)
    assert waiting(ours.sound) < min(waiting(epoch.sound) for epoch in theirs)
    assert ours.padding < min(epoch.padding for epoch in theirs)
    assert ours.padded.max() <= speech.MAX_DURATION * 2  # the last step may have two microbatches


@pytest.mark.parametrize("kind", ["eager", "lazy"])
def test_an_epoch_has_each_cut_once(epochs: dict[str, Epoch], kind: str) -> None:
    assert len(epochs[kind].cuts) == CUTS
    assert set(epochs[kind].cuts.values()) == {1}


def test_cuts_that_are_read_by_their_lines_make_the_same_batches(epochs: dict[str, Epoch]) -> None:
    assert np.array_equal(epochs["lazy"].padded, epochs["eager"].padded)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech.write_cuts(tmp_path_factory.mktemp("few"), 400, seed=2)


@pytest.mark.parametrize("kind", ["lazy", "stream"])
def test_two_ranks_train_in_step(few: Path, kind: str) -> None:
    script = str(Path(__file__).with_name("train.py"))
    run = harness.run_program([script, kind, str(few)], few.parent, kind)
    samples = [name for batch in run.batches for name in batch["samples"]]
    assert len(samples) == len(set(samples)) == 400
    ranks = [{batch["step"] for batch in run.batches if batch["rank"] == rank} for rank in (0, 1)]
    assert ranks[0] == ranks[1]
    print(f"\n{kind}, 2 ranks: waiting {run.waiting():.1%}, padding {run.padding():.1%}", end="")


def test_samplers_of_ranks_that_split_cuts_themselves_run_out_of_step(few: Path) -> None:
    """The stream of the test before has the same shares, and its ranks end together."""
    batches = []
    for rank in (0, 1):
        share = CutSet.from_cuts([*CutSet.from_jsonl(few)][rank::2])
        sampler = DynamicBucketingSampler(
            share, max_duration=speech.MAX_DURATION, num_buckets=10, rank=0, world_size=1
        )
        batches.append(len([*sampler]))
    assert batches[0] != batches[1]


def test_an_epoch_goes_on_exactly(few: Path) -> None:
    ranks = cp.Ranks(virtual=4)
    whole = [[info.keys for info in step.infos] for step in speech.load_lazy(few, 4, ranks).steps()]
    loader = speech.load_lazy(few, 4, ranks)
    for step in loader.steps():
        if step.number == 3:
            state = loader.state_dict()
            break
    resumed = speech.load_lazy(few, 4, ranks)
    resumed.load_state_dict(state)
    assert [[info.keys for info in step.infos] for step in resumed.steps()] == whole[4:]


@pytest.mark.parametrize(
    ("limit", "costs"),
    [
        ({"max_cuts": 8}, lambda cuts: {"frames": frames(cuts), "cuts": [1] * len(cuts)}),
        (
            {"quadratic_duration": 40},
            lambda cuts: {"frames": [f + f * f // 4000 for f in frames(cuts)]},
        ),
    ],
)
def test_other_limits_of_the_sampler_are_kept_with_ranks_more_equal(
    cuts: Path, limit: dict[str, int], costs: Callable[[CutSet], dict[str, list[int]]]
) -> None:
    data = CutSet.from_jsonl(cuts)
    table = costs(data)
    balance = cp.Balance(
        budgets={"frames": 6000} | ({"cuts": 8} if "cuts" in table else {}), samples_per_step=40,
        accumulate="auto", mode="window", work=cp.Work("padded", {"frames": 1}),
    )  # fmt: skip
    loader = cp.DataLoader(
        data, shuffle=True, collate_fn=len, ranks=cp.Ranks(virtual=RANKS), balance=balance,
        cost=table,
    )  # fmt: skip
    ours = []
    for step in loader.steps():
        seconds = np.zeros(RANKS)
        for info in step.infos:
            assert info.costs["frames"] <= 6000
            assert info.samples <= limit.get("max_cuts", info.samples)
            seconds[info.rank] += info.costs["frames"]
        ours.append(seconds)
    frames_of = dict(zip((cut.id for cut in data), table["frames"], strict=True))
    theirs = []
    for rank in range(RANKS):
        sampler = DynamicBucketingSampler(
            data, max_duration=60, num_buckets=30, shuffle=True, rank=rank, world_size=RANKS,
            **limit,
        )  # fmt: skip
        # a cut that comes twice has another name then
        padded = [len(batch) * max(frames_of[cut.id[:9]] for cut in batch) for batch in sampler]
        theirs.append(padded)
    print(
        f"\n{limit}: {waiting(np.array(theirs).T):.4f}, ours {waiting(np.stack(ours)):.4f}", end=""
    )
    assert waiting(np.stack(ours)) < waiting(np.array(theirs).T)


def frames(cuts: CutSet) -> list[int]:
    return [speech.count_frames(cut)["frames"] for cut in cuts]


def test_the_python_of_the_page_runs(few: Path, tmp_path: Path) -> None:
    (tmp_path / "cuts.jsonl").write_bytes(few.read_bytes())
    text = "\n".join(block.text for block in blocks("python") if block.page == PAGE)
    (tmp_path / "page.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-P", "page.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
