"""A trainer at a balancer that plays all ranks gets what the local loop gives it, byte by byte."""

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from counterpoise import OnError
from counterpoise.balancer.parties import seats
from counterpoise.balancer.protocol.messages import BalancerStops
from counterpoise.balancer.transport.sockets import Link
from counterpoise.loader import LoaderError
from counterpoise.loader.remote import connection
from counterpoise.loader.remote.rank_sockets import RankSockets, closed_sockets
from counterpoise.loader.remote_dataset import RemoteDataset
from counterpoise.workers.sources.dead_letters import read_letters
from counterpoise.workers.sources.interface import Probe
from tests.loader import balanced_data as made
from tests.loader.remote.balancer_here import BalancerHere
from tests.loader.remote.served import COUNT, Served, described, drawing, make_loader, padded, taken

WAYS: dict[str, dict[str, Any]] = {
    "packed": {"balance": {"layout": "packed"}},
    "padded": {"balance": {"layout": "padded"}},
    "listed": {"collate_fn": made.as_list},
    "drawing": {"collate_fn": drawing},
    "fields": {"balance": {"layout": "packed"}, "fields": {"input_ids", "labels"}},
    "chosen": {
        "balance": {"layout": "packed"},
        "fields": lambda info: {"labels", "map"} if info.rank else {"input_ids"},
    },
    "counted": {"balance": {"layout": "packed", "label_tokens": "batch"}},
    "counted here": {"balance": {"label_tokens": "batch"}, "collate_fn": padded},
    "auto": {"balance": {"accumulate": "auto", "budgets": {"tokens": 90}}, "collate_fn": list},
    "spares": {
        "balance": {"accumulate": "auto", "budgets": {"tokens": 90}}, "collate_fn": drawing,
    },
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_batches_are_those_of_the_local_loop(way: str) -> None:
    data, given = Served(COUNT), WAYS[way]
    with BalancerHere(data) as balancer:
        remote = make_loader(data, balancer.address, **given)
        found = [taken(remote), taken(remote)]
        remote.close()
    local = make_loader(data, **given)
    assert found == [taken(local), taken(local)]
    assert balancer.relayed == 0


@pytest.mark.parametrize("way", ["packed", "drawing", "listed"])
def test_samples_that_cannot_be_used_are_the_same_holes(way: str, tmp_path: Path) -> None:
    data = Served(COUNT, broken=[5, 17, 44], unreadable=[3, 21])
    letters = []
    for name in ("remote", "local"):
        given = WAYS[way] | {"on_error": OnError("skip", dead_letter=str(tmp_path / name))}
        with BalancerHere(data) as balancer:
            loader = make_loader(data, balancer.address if name == "remote" else None, **given)
            letters.append((taken(loader), loader.left_out))
            loader.close()
    assert letters[0] == letters[1]
    # of samples that are not loaded for a step the balancer knows only the index
    named = [
        {int(each.key.lstrip("k")) for each in read_letters(tmp_path / n)}
        for n in ("remote", "local")
    ]
    assert named[0] == named[1] >= {3, 5, 17, 21, 44}


@pytest.mark.parametrize("ends", [3, 6, 11])
def test_another_trainer_goes_on_in_mid_epoch(ends: int) -> None:
    data = Served(COUNT)
    whole = taken(make_loader(data, balance={"layout": "packed"}))
    first = make_loader(data, balance={"layout": "packed"})
    source = iter(first)
    for _ in range(ends):
        next(source)
    with BalancerHere(data) as balancer:
        second = make_loader(data, balancer.address, balance={"layout": "packed"})
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert taken(second) == whole[ends:]
        second.close()


def test_a_trainer_needs_no_data() -> None:
    data = Served(COUNT)
    given: Any = {"balance": {"layout": "packed", "budgets": {"tokens": 200, "tiles": 20}}}
    with BalancerHere(data) as balancer:
        remote = make_loader(RemoteDataset("made"), balancer.address, **given)
        found = taken(remote)
        assert remote.state_dict()["samples"] == COUNT
        remote.close()
    assert [each for _, each in found] == [each for _, each in taken(make_loader(data, **given))]


class Declared(Served):
    """Samples that declare more label tokens than they have."""

    def probe(self, index: int) -> Probe:
        """Return what a sample is said to cost."""
        told = super().probe(index)
        tokens = int((self.labels(index) != -100).sum()) + 3
        return Probe(told.key, told.cost | {"label_tokens": tokens}, None)


@pytest.mark.parametrize("way", ["packed", "listed"])
def test_labels_that_are_not_as_many_as_declared_are_refused(way: str) -> None:
    data = Declared(COUNT)
    with BalancerHere(data) as balancer:
        remote = make_loader(data, balancer.address, **WAYS[way])
        with pytest.raises(LoaderError, match="says that they have 26 label tokens"):
            taken(remote)
        remote.close()


def test_sockets_may_be_closed_while_processes_are_forked() -> None:
    data, given = Served(COUNT), WAYS["drawing"]
    with BalancerHere(data) as balancer:
        remote, found = make_loader(data, balancer.address, **given), []
        source = iter(remote.with_info())
        while True:
            try:
                found.append(described(*next(source)))
            except StopIteration:
                break
            if len(found) in (2, 3, 9):
                with closed_sockets():
                    pass
        remote.close()
    assert found == taken(make_loader(data, **given))


class Failing:
    """Changes its samples, and raises at some calls."""

    def __init__(self, *calls: int) -> None:
        self.calls, self.failing = 0, calls

    def __call__(self, samples: list[Any]) -> Any:
        self.calls += bool(samples)
        names = [each.pop("name") for each in samples]
        if self.calls in self.failing:
            raise MemoryError(f"call {self.calls}")
        return names


def test_what_collate_fn_raises_is_raised_and_the_microbatch_comes_again() -> None:
    data = Served(COUNT)
    with BalancerHere(data) as balancer:
        remote, found = make_loader(data, balancer.address, collate_fn=Failing(3, 4)), []
        source, errors = iter(remote), 0
        while True:
            try:
                found.append(next(source))
            except StopIteration:
                break
            except MemoryError:
                errors += 1
        remote.close()
    assert (errors, found) == (2, list(make_loader(data, collate_fn=Failing())))


def test_a_note_says_of_which_microbatch_collate_fn_has_raised() -> None:
    data = Served(COUNT)
    with BalancerHere(data) as balancer:
        remote = make_loader(data, balancer.address, collate_fn=Failing(1, 2, 3))
        source = iter(remote)
        for _ in range(3):
            with pytest.raises(MemoryError) as caught:
                next(source)
            (note,) = caught.value.__notes__
            assert "microbatch 0 of step 0" in note
            assert "could not be made, and comes again" in note
        assert len([*source]) == len([*make_loader(data, collate_fn=list)])
        remote.close()


def test_a_job_with_other_settings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "ENDED_S", 1.0)
    data = Served(COUNT)
    with BalancerHere(data) as balancer:
        first = make_loader(data, balancer.address, collate_fn=list)
        next(iter(first))
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        other = make_loader(data, balancer.address, collate_fn=list, balance={"accumulate": 1})
        with pytest.raises(LoaderError, match="another job, that of process 0"):
            next(iter(other))
        first.close()


def test_a_sample_that_cannot_be_used_ends_the_run() -> None:
    data = Served(COUNT, unreadable=[31])
    with BalancerHere(data) as balancer:
        remote = make_loader(data, balancer.address, collate_fn=list)
        with pytest.raises(LoaderError, match=r"'k0031'.* it does not decode"):
            taken(remote)
        remote.close()


def test_a_wait_says_what_is_missing() -> None:
    with BalancerHere(Served(COUNT)) as balancer:
        nobody = balancer.address
    remote = make_loader(Served(COUNT), nobody, collate_fn=list, timeout=0.1)
    with pytest.raises(TimeoutError, match=f"waits for the balancer at {nobody} to answer"):
        next(iter(remote))
    remote.close()


def test_a_stop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    data = Served(COUNT)
    with BalancerHere(data) as balancer:
        remote = make_loader(data, balancer.address, collate_fn=list)
        source = iter(remote)
        next(source)
        balancer.notices = [BalancerStops()]
        with caplog.at_level(logging.WARNING):
            assert len([*source]) == len([*make_loader(data, collate_fn=list)]) - 1
        remote.close()
    assert f"the balancer at {balancer.address} was stopped; waits up to 600 s" in caplog.text


def test_a_balancer_that_has_moved_is_left_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was sent to it needs no time to leave: nobody is there."""
    data, said = Served(COUNT), tmp_path / "balancer.addr"
    has_moved, close, lingers = RankSockets.has_moved, Link.close, list[int]()

    def move(sockets: RankSockets) -> bool:
        said.write_text(balancer.address)
        return has_moved(sockets)

    def note(link: Link, linger_ms: int) -> None:
        lingers.append(linger_ms)
        close(link, linger_ms)

    monkeypatch.setattr(connection, "BEAT_S", 0.05)
    monkeypatch.setattr(connection, "FIND_S", 0.0)
    monkeypatch.setattr(RankSockets, "has_moved", move)
    monkeypatch.setattr(Link, "close", note)
    with BalancerHere(data) as nobody:
        said.write_text(nobody.address)
    with BalancerHere(data) as balancer:
        remote = make_loader(data, f"file://{said}", collate_fn=list, timeout=60)
        next(iter(remote))
        assert lingers == [0]
        remote.close()
