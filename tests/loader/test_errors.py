"""Broken samples and bad input: what is left out is on record, all else is one clear line."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from counterpoise import Balance, DataLoader, OnError, Ranks
from counterpoise.loader import LoaderError
from counterpoise.tools.cli import main
from counterpoise.workers import TarDataset, VisionLanguage
from counterpoise.workers.sources.dead_letters import read_letters
from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made
from tests.tars import write_tar


class Numbers(IterableDataset):
    """A stream that says how long it is, as webdataset's with_length() does."""

    def __iter__(self):
        return iter(range(4))

    def __len__(self):
        return 4


TRANSFORM = VisionLanguage(tile_size=28, max_tiles=4, tokens_per_tile=4)


def make(dataset, **changes):
    given: dict[str, Any] = {
        "grouping": "isf",
        "samples_per_step": 8,
        "accumulate": "auto",
        "ranks": Ranks(virtual=2),
        "shuffle": True,
    }
    given |= {"layout": "torch", "collate_fn": made.as_list, **changes}
    return balanced_loader(dataset, **given)


def one_line(raised):
    text = str(raised.value)
    assert text
    assert "\n" not in text
    return text


# --- the awkward files


@pytest.fixture(scope="module")
def manifest(data):
    return json.loads((data / "awkward" / "manifest.json").read_text())


@pytest.fixture(scope="module")
def awkward(data, manifest, tmp_path_factory):
    """A shard with every awkward file under its own key: key n is the manifest's n-th."""
    folder = tmp_path_factory.mktemp("awkward")
    members = [
        (
            f"{number:02}.{entry['file'].rpartition('.')[2]}",
            (data / "awkward" / entry["file"]).read_bytes(),
        )
        for number, entry in enumerate(manifest)
    ]
    return TarDataset(write_tar(folder / "a.tar", members), TRANSFORM, cache=folder)


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_files_are_left_out_and_on_record(awkward, manifest, tmp_path, workers):
    dead = tmp_path / "dead.jsonl"
    loader = make(awkward, on_error=OnError("skip", dead_letter=str(dead)), num_workers=workers)
    came, holes = {}, []
    for batch in loader:
        came |= dict(zip(loader.step_info.keys, batch, strict=True))
        holes += loader.step_info.holes
    loader.close()
    errors = {
        f"{number:02}": entry["observed_pillow"]["error"]
        for number, entry in enumerate(manifest)
        if "error" in entry["observed_pillow"]
    }
    letters = {letter.key: letter for letter in read_letters(dead)}
    assert sorted(holes) == sorted(letters) == sorted(errors)
    assert sorted([*came, *errors]) == [f"{number:02}" for number in range(len(manifest))]
    for key, error in errors.items():
        assert error.partition(" 'out")[0] in letters[key].reason
    for key, sample in came.items():
        is_text = manifest[int(key)]["file"].endswith(".txt")
        assert (len(sample["pixel_values"]) == 0) == is_text


@pytest.mark.parametrize("workers", [0, 1])
def test_where_errors_are_raised_they_name_the_key_and_the_cause(data, tmp_path, workers):
    good = (data / "awkward" / "hopper_gray.jpg").read_bytes()
    bad = (data / "awkward" / "truncated_jpeg.jpg").read_bytes()
    path = write_tar(tmp_path / "a.tar", [("x.jpg", good), ("y.jpg", bad), ("z.jpg", good)])
    loader = make(TarDataset(path, TRANSFORM, cache=tmp_path), num_workers=workers)
    with pytest.raises(LoaderError, match=r"'y' of .*a\.tar: jpg: OSError: image") as got:
        list(loader)
    one_line(got)


# --- bad input


def no_file(folder):
    return TarDataset(folder / "nothing.tar")


def no_match(folder):
    return TarDataset(str(folder / "*.tar"))


def no_samples(folder):
    return TarDataset(write_tar(folder / "a.tar", []))


def truncated(folder):
    path = write_tar(folder / "a.tar", [("x.txt", b"a" * 5000), ("y.txt", b"b" * 5000)])
    path.write_bytes(path.read_bytes()[:6000])
    return TarDataset(path)


def same_key(folder):
    for name in ("a.tar", "b.tar"):
        write_tar(folder / name, [("x.txt", b"a")])
    return TarDataset(str(folder / "*.tar"))


def no_transform(folder):
    path = write_tar(folder / "a.tar", [("x.txt", b"a")])
    spec = {"source": "tar", "pattern": str(path), "transform": {"name": "a.b:c", "args": {}}}
    return TarDataset.from_spec(spec, None)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (no_file, "nothing.tar"),
        (no_match, r"\*\.tar"),
        (no_samples, "no samples in 1 files; members must be named key.extension"),
        (truncated, "a.tar"),
        (same_key, "key 'x' stands in"),
        (no_transform, "no such transform: 'a.b:c'"),
    ],
)
def test_bad_data_is_refused_in_one_line(tmp_path, source, reason):
    with pytest.raises((ValueError, OSError), match=reason) as raised:
        source(tmp_path)
    one_line(raised)


@pytest.mark.parametrize(
    ("dataset", "changes", "reason"),
    [
        ([], {}, "is empty: nothing to load"),
        (iter([]), {}, "a list_iterator is neither: give an IterableDataset"),
        (Numbers(), {}, r"a stream is packed within budgets.*cp.TarDataset\("),
        ("shards/*.tar", {}, r"give cp.TarDataset\('shards/\*.tar'\)"),
        (["a.tar", "b.tar"], {}, r"give cp.TarDataset\(\['a.tar', 'b.tar'\]\)"),
        (Path("shards"), {}, "names files, and is no data set"),
        ([1, 2, 3], {"ranks": Ranks(virtual=4)}, "3 samples cannot feed 4 ranks: use fewer ranks"),
        ([1, 2], {"budgets": {"miles": 3}}, "but samples cost samples: give cost="),
        ([1, 2], {"on_error": "hope"}, "on_error is 'hope', allowed are"),
        ([1, 2], {"buffer_bytes": 0}, "buffer_bytes is 0, needed is a positive integer"),
        ([1, 2], {"layout": "padded"}, "collate_fn belongs to layout 'torch', not 'padded'"),
        ([1, 2], {"ranks": (2, 2)}, "of 2 ranks, rank may be 0 to 1"),
        (
            [1, 2],
            {"generator": torch.Generator().manual_seed(4), "seed": 3},
            r"Balance\(seed=3\) and the seed of sampler or generator, 4, contradict",
        ),
        ([1, 2], {"sampler": [0, 1]}, "a balanced loader plans its own order"),
        ([1, 2], {"balancer": "tcp://127.0.0.1:1"}, "workers elsewhere cannot read a list"),
        (
            [1, 2],
            {"cost": lambda _: {"a": -1}},
            "the last: sample '1': cost 'a' is -1, allowed are whole numbers",
        ),
    ],
)
def test_bad_arguments_are_refused_in_one_line(dataset, changes, reason):
    with pytest.raises(ValueError, match=reason) as raised:
        make(dataset, **changes)
    one_line(raised)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accumulate": 1, "budgets": {"tokens": 50}}, r"step 0.*accumulate"),
        ({"buffer_bytes": 200, "on_error": "skip"}, "raise buffer_bytes to at least"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(workers, changes, reason):
    loader = make(made.Augmented(30), num_workers=workers, cost=made.measure, **changes)
    with pytest.raises((LoaderError, ValueError), match=reason) as raised:
        list(loader)
    one_line(raised)
    loader.close()


@pytest.mark.filterwarnings(r"ignore:.*set_start_method\('fork'\)")  # a newer torch's advice
def test_a_dataset_that_cannot_be_sent_fails_as_torchs_does():
    dataset = made.Augmented(30)
    dataset.trap = lambda: 0  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="lambda") as raised:
        list(make(dataset, num_workers=1, multiprocessing_context="forkserver"))
    one_line(raised)
    assert len(list(make(dataset, num_workers=1, multiprocessing_context="fork"))) > 0


def test_several_ranks_that_cannot_find_each_other_are_told_what_to_do():
    with pytest.raises(ValueError, match="start `counterpoise balancer`"):
        list(make(made.Augmented(30), ranks=(0, 2)))


def test_a_sample_that_kills_workers_is_given_up():
    loader = make(made.Deadly(), on_error="skip", num_workers=1, shuffle=False)
    holes = [key for _ in loader for key in loader.step_info.holes]
    loader.close()
    assert holes == ["3"]


def test_a_key_cannot_act_on_a_terminal(tmp_path):
    tar, key = tmp_path / "a.tar", "\x1b[31mred"
    write_tar(tar, {f"{key}.txt": b"<image>", f"{key}.\x1bimg.jpg": b"no picture"})
    data = TarDataset(tar, VisionLanguage())
    for balance in (None, Balance(budgets={"tokens": 9}, samples_per_step=1)):
        with pytest.raises((LoaderError, ValueError)) as raised:
            next(iter(DataLoader(data, shuffle=False, balance=balance, collate_fn=list)))
        assert "\x1b" not in str(raised.value)
        assert r"\x1b[31mred" in str(raised.value)


@pytest.mark.parametrize("source", [no_file, truncated])
def test_the_demo_exits_with_2_on_bad_data(tmp_path, source, capfd):
    pattern = tmp_path / ("nothing.tar" if source is no_file else "*.tar")
    with pytest.raises((ValueError, OSError)):
        source(tmp_path)
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["demo", str(pattern)])
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert len(said.strip().splitlines()) == 1, said


@pytest.mark.parametrize("files", ["shards/*.tar", Path("a"), ["a.tar"], b"a"])
def test_a_plain_loader_does_not_go_over_the_letters_of_a_path(files):
    with pytest.raises(ValueError, match="names files, and is no data set"):
        DataLoader(files)
    # what a collate_fn of the user's own opens is a data set
    assert list(DataLoader(["a.jpg"], collate_fn=list)) == [["a.jpg"]]


def test_iterators_over_steps_and_batches_have_the_length_of_an_epoch():
    loader: Any = DataLoader(list(range(8)), batch_size=2, balance="fixed", shuffle=False)
    assert len(loader.steps()) == len(iter(loader)) == len(list(loader.steps())) == 4
    mode: Any = DataLoader(
        list(range(8)),
        balance=Balance(budgets={"tokens": 4}, samples_per_step=4, mode="epoch"),
        cost={"tokens": [1] * 8},
        shuffle=True,
    )
    with pytest.raises(TypeError, match="in mode 'epoch' the number of steps is not known"):
        len(mode.steps())


@pytest.mark.parametrize("balance", [None, "fixed"])
def test_too_few_descriptors_are_an_error_that_names_the_limit(balance: Any) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = len([*Path("/proc/self/fd").iterdir()])
    loader: Any = DataLoader(
        [*range(40)], batch_size=4, num_workers=8, balance=balance, shuffle=False
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 30, limits[1]))
    try:
        with pytest.raises(OSError, match=rf"8 worker .*, and {held + 30} are allowed: raise that"):
            list(loader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert sum(len(batch) for batch in loader) == 40
    loader.close()
