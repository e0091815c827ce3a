"""Processes find a loader's balancer in a key-value store, each whenever it comes."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch.distributed as dist

from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.loader import LoaderError
from counterpoise.loader.remote import rendezvous
from counterpoise.loader.remote.rendezvous import Meeting, Opened, Rendezvous, find_conflict

PLAN = PlanConfig(2, 4, 2, ("tokens",), (None,))
JOB, OTHER = to_json(JobSpec(PLAN)), to_json(JobSpec(PLAN, shuffle=False))
DATA, MORE_DATA = "a", "b"


@pytest.fixture
def store() -> Any:
    return dist.HashStore()  # type: ignore[attr-defined]


def opened(store: Any, process: int, rank: int | None = None, **changes: Any) -> Rendezvous:
    """Return a process' part, of its own rank unless it shares another's."""
    given: Any = {"name": "", "data": DATA, "job": JOB} | changes
    rank = process if rank is None else rank
    meeting = Meeting(store, "group", process)
    return Rendezvous(meeting, given["name"], rank, given["data"], given["job"])


def test_one_claims_and_the_others_get_its_address(store: Any, tmp_path: Any) -> None:
    (tmp_path / "balancer").touch()
    first, second = opened(store, 1), opened(store, 0)
    assert (first.claim(), second.claim()) == (True, False)
    first.publish(f"ipc://{tmp_path}/balancer")
    assert second.wait_for_address() == f"ipc://{tmp_path}/balancer"
    assert "process 1" in str(second.owner)


@pytest.mark.parametrize("changes", [{"job": OTHER}, {"data": MORE_DATA}, {"name": "eval"}])
def test_another_loader_has_another_balancer(store: Any, changes: Any) -> None:
    assert opened(store, 0).claim()
    assert opened(store, 1, **changes).claim()


def test_the_second_loader_of_its_kind_has_another_balancer(store: Any) -> None:
    assert [opened(store, 0).claim() for _ in range(3)] == [True] * 3
    assert [opened(store, 1).claim() for _ in range(4)] == [False] * 3 + [True]


def test_who_shares_a_rank_may_not_have_another_configuration(store: Any) -> None:
    opened(store, 0, rank=0)
    with pytest.raises(
        LoaderError, match=r"process 0 .* another configuration: shuffle: False here"
    ):
        opened(store, 1, rank=0, job=OTHER)


def test_who_shares_a_rank_may_open_other_data_or_a_loader_of_another_name(store: Any) -> None:
    opened(store, 0, rank=0)
    opened(store, 1, rank=0, data=MORE_DATA, job=OTHER)
    opened(store, 2, rank=0, name="eval", job=OTHER)


def test_who_waits_for_a_rank_that_opened_something_else_is_told(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "DOUBT_PEERS_S", 0.0)
    first = opened(store, 0)
    assert first.why_apart() == ""
    second = opened(store, 1, job=OTHER)
    assert "process 1 opened this loader with another configuration" in first.why_apart()
    assert "process 0 opened this loader with another configuration" in second.why_apart()
    opened(store, 1)
    assert first.why_apart() == ""


def test_loaders_that_are_opened_in_another_order_make_no_conflict_once_both_are_open() -> None:
    a, b = [Opened(0, 0, DATA, JOB), Opened(0, 0, DATA, OTHER)]
    c, d = [Opened(1, 1, DATA, OTHER), Opened(1, 1, DATA, JOB)]
    assert find_conflict(a, [a, c], is_waiting=True)
    assert not find_conflict(a, [a, c, d], is_waiting=True)
    assert not find_conflict(c, [a, b, c], is_waiting=True)


def test_a_process_that_cannot_start_says_so(store: Any) -> None:
    first, second = opened(store, 0), opened(store, 1)
    assert first.claim()
    first.give_up("no space left")
    with pytest.raises(LoaderError, match=r"process 0 could not start .*: no space left"):
        second.wait_for_address()
    assert "no space left" in second.why_apart()


def test_a_dead_claimer_does_not_hold_up_the_others(store: Any, tmp_path: Any) -> None:
    first, second = opened(store, 0), opened(store, 1)
    assert first.claim()
    with pytest.raises(LoaderError, match=r"has not started its balancer within 0 s.*restart all"):
        second.wait_for_address(deadline_s=0.0)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    owner = first._get(f"{first._key}/owner") | {"pid": child.pid}
    first._set(f"{first._key}/owner", owner)
    second.owner = None
    with pytest.raises(LoaderError, match=rf"pid {child.pid}\) ended while it started"):
        second.wait_for_address()
    assert "which ran the balancer, has ended" in second.why_apart()


def test_a_balancer_that_is_gone_or_elsewhere_is_an_error_that_says_what_to_do(
    store: Any, tmp_path: Any
) -> None:
    first, second = opened(store, 0), opened(store, 1)
    assert first.claim()
    first.publish(f"ipc://{tmp_path}/balancer")
    with pytest.raises(LoaderError, match=f"pid {os.getpid()}.* has ended the balancer"):
        second.wait_for_address()
    (tmp_path / "balancer").touch()
    assert second.wait_for_address() == f"ipc://{tmp_path}/balancer"
    assert second.why_apart() == ""
    (tmp_path / "balancer").unlink()
    assert "has closed its loader" in second.why_apart()
    first.give_up("sample 'a' does not decode", "go on")
    assert second.why_apart() == "process 0 could not go on: sample 'a' does not decode"
    with pytest.raises(LoaderError, match="process 0 could not go on: sample 'a'"):
        second.wait_for_address()
    owner = first._get(f"{first._key}/owner") | {"host": "elsewhere"}
    first._set(f"{first._key}/owner", owner)
    with pytest.raises(LoaderError, match=r"on host elsewhere .*start `counterpoise balancer`"):
        second.wait_for_address()
