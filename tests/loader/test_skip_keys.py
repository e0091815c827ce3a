"""DataLoader(skip_keys=): samples left out of a plan that is otherwise as it was, and doctor."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import counterpoise as cp
from counterpoise.loader import assembly
from counterpoise.tools.doctor.command import command
from counterpoise.workers import PlainSource, Probe, SampleError
from tests.loader.local.both_ways import by_balancer

COUNT = 96
LENGTHS = np.random.default_rng(0).integers(1, 40, COUNT)


def plain() -> Any:
    return PlainSource([{"n": n} for n in range(COUNT)], cost={"tokens": LENGTHS}, key="k{}".format)


class Probed:
    """A source of which each sample has to be measured, and one cannot be read."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            raise SampleError("k17", "is broken")
        return {"n": index}

    def key(self, index: int) -> str:
        return f"k{index}"

    def probe(self, index: int) -> Probe:
        self[index]
        return Probe(self.key(index), {"tokens": int(LENGTHS[index])})


def loader(data: Any, ranks: int = 2, **others: Any) -> Any:
    balance = cp.Balance(
        budgets={"tokens": 120}, samples_per_step=12, accumulate="auto", seed=5,
        mode=others.pop("mode", "exact"),
    )  # fmt: skip
    return cp.DataLoader(
        data, balance=balance, shuffle=True, ranks=cp.Ranks(virtual=ranks), collate_fn=list,
        **others,
    )  # fmt: skip


def steps(made: Any) -> list[list[str]]:
    found = []
    for step in made.steps():
        found.append(sorted(key for info in step.infos for key in info.keys))
        total = sum(info.samples for info in step.infos)
        assert all(info.step_samples == total for info in step.infos)
        held = [sample["n"] for batch in step.microbatches for sample in batch]
        assert sorted(f"k{n}" for n in held) == found[-1]
    return found


@pytest.fixture(params=["local", "workers", "balancer"])
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    if request.param == "balancer":
        monkeypatch.setattr(assembly, "choose_connection", by_balancer)
    return {"num_workers": 2} if request.param == "workers" else {}


@pytest.mark.parametrize(("make", "mode"), [(plain, "exact"), (plain, "window"), (Probed, "exact")])
def test_they_are_holes_and_nothing_else_moves(
    make: Callable[[], Any], mode: Any, way: dict[str, Any]
) -> None:
    skipped = ["k3", "k17", "k40", "k41"]
    whole = steps(loader(plain(), mode=mode))
    made = loader(make(), mode=mode, skip_keys=skipped, **way)
    found = steps(made)
    assert found == [[key for key in step if key not in skipped] for step in whole]
    assert made.left_out == 4
    other = [key for step in steps(made) for key in step]
    assert sorted(other) == sorted(f"k{n}" for n in range(COUNT) if f"k{n}" not in skipped)


def test_a_ledger_goes_on_without_them(way: dict[str, Any]) -> None:
    whole, first = steps(loader(plain())), loader(plain())
    for step in first.steps():
        if step.number == 3:
            break
    state = json.loads(json.dumps(first.state_dict()))
    skipped = [whole[4][0], whole[4][5], whole[7][2], whole[1][0]]
    for ranks in (1, 3):
        second = loader(plain(), ranks, skip_keys=skipped, **way)
        second.load_state_dict(state)
        assert steps(second) == [[k for k in step if k not in skipped] for step in whole[4:]]
    third = loader(plain())  # and may leave it again
    third.load_state_dict(json.loads(json.dumps(second.state_dict())))
    assert third._balanced.epoch == 1


def test_a_step_that_was_begun_keeps_its_samples() -> None:
    whole, first = steps(loader(plain())), loader(plain())
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    assert state["step"] == 0 < state["microbatch"]
    second = loader(plain(), skip_keys=whole[0][:1])
    second.load_state_dict(state)
    with pytest.raises(ValueError, match="saved inside of it"):
        next(iter(second))
    third = loader(plain(), skip_keys=whole[1][:1])
    third.load_state_dict(state)
    rest = [sorted(key for info in step.infos for key in info.keys) for step in third.steps()]
    assert rest[1:] == [whole[1][1:], *whole[2:]]


def test_they_are_no_errors_and_no_letters(tmp_path: Path) -> None:
    letters = tmp_path / "letters.jsonl"
    skipped = [f"k{n}" for n in range(20, 30)]
    made = loader(
        Probed(),
        skip_keys=skipped,
        on_error=cp.OnError("skip", dead_letter=str(letters), max_errors=1),
    )
    assert sum(map(len, steps(made))) == COUNT - 11
    assert [json.loads(line)["key"] for line in letters.read_text().splitlines()] == ["k17"]


def test_keys_of_a_mixture_are_rows() -> None:
    def mixture() -> Any:
        return cp.Mixture({"a": (plain(), 3), "b": (Probed(), 1)}, epoch=240)

    def keys(**others: Any) -> list[str]:
        return [k for s in loader(mixture(), **others).steps() for i in s.infos for k in i.keys]

    whole = keys(on_error="skip")
    assert [*filter(lambda key: key != "a@2/k5", whole)] == keys(
        on_error="skip", skip_keys=["a@2/k5"]
    )


@pytest.mark.parametrize(
    ("skipped", "error", "says"),
    [
        (["k1", "k500"], ValueError, "skip_keys has 'k500', and no sample"),
        ("k1", TypeError, "list of samples' keys"),
        ([1], TypeError, "list of samples' keys"),
    ],
)
def test_keys_of_nobody_are_refused(skipped: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        next(iter(loader(plain(), skip_keys=skipped)))


def test_other_loops_refuse_them() -> None:
    with pytest.raises(ValueError, match="skip_keys needs a balanced loader"):
        cp.DataLoader([1], skip_keys=["0"])
    with pytest.raises(ValueError, match="has no keys here"):
        cp.DataLoader(
            cp.RemoteDataset("*.tar"), balance="fixed", shuffle=True, skip_keys=["0"],
            balancer="tcp://127.0.0.1:1",
        )  # fmt: skip


MODULE = """
import counterpoise as cp
from counterpoise.workers import PlainSource
data = PlainSource(list(range(96)), cost={"tokens": [1] * 96}, key="k{}".format)
mixture = lambda: cp.Mixture({"a": (data, 3), "b": (data, 1)}, epoch=48)
"""


@pytest.mark.parametrize("name", ["data", "mixture"])
def test_the_doctor_names_the_samples_of_a_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"step_data_{name}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = getattr(__import__(module), name)
    made = loader(found if name == "data" else found())
    wanted: list[list[str]] = []
    for epoch in range(2):
        for step in made.steps():
            wanted.append([key for info in step.infos for key in info.keys])
            if epoch and step.number == 2:
                break
    (tmp_path / "ledger.json").write_text(json.dumps(made.state_dict()))

    def ask(*arguments: str) -> Any:
        return CliRunner().invoke(command, ["ledger.json", *arguments], standalone_mode=False)

    said = ask("--step", "1", "--data", f"{module}:{name}", "--json")
    keys = json.loads(said.output.splitlines()[-1])["keys"]
    per_epoch = 8 if name == "data" else 4
    assert sorted(keys) == sorted(wanted[per_epoch + 1])
    assert all(key in ask("--step", "1", "--data", f"{module}:{name}").output for key in keys[:1])
    for arguments, says in (
        (["--step", "99", "--data", f"{module}:{name}"], "counted from 0"),
        (["--step", "1"], "needs LEDGER and --data"),
        (["--step", "1", "--data", f"{module}:{'mixture' if name == 'data' else 'data'}"], "other"),
    ):
        assert says in str(ask(*arguments).exception)


def test_the_doctor_knows_only_steps_of_mode_exact(tmp_path: Path) -> None:
    made = loader(plain(), mode="window")
    next(made.steps())
    (tmp_path / "ledger.json").write_text(json.dumps(made.state_dict()))
    said = CliRunner().invoke(
        command, [str(tmp_path / "ledger.json"), "--step", "0", "--data", "a.tar"],
        standalone_mode=False,
    )  # fmt: skip
    assert "log StepInfo.keys" in str(said.exception)
