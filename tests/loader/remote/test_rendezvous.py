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
from counterpoise.loader.peers.store import MeetingPoint
from counterpoise.loader.remote.rendezvous import Rendezvous

PLAN = PlanConfig(2, 4, 2, ("tokens",), (None,))
JOB, OTHER = to_json(JobSpec(PLAN)), to_json(JobSpec(PLAN, shuffle=False))
DATA, MORE_DATA = "a", "b"


@pytest.fixture
def store() -> Any:
    return dist.HashStore()  # type: ignore[attr-defined]


def opened(
    store: Any, process: int, name: str = "", data: str = DATA, job: str = JOB
) -> Rendezvous:
    """Return a process' part."""
    point = MeetingPoint(store, "group", process, (0, 1))
    return Rendezvous(point, name, {"data": data, "configuration": job})


def test_one_claims_and_the_others_get_its_address(store: Any, tmp_path: Any) -> None:
    (tmp_path / "balancer").touch()
    first, second = opened(store, 1), opened(store, 0)
    assert (first.claim(), second.claim()) == (True, False)
    first.publish(f"ipc://{tmp_path}/balancer")
    assert second.wait_for_address() == f"ipc://{tmp_path}/balancer"
    assert second.owner is not None
    assert second.owner.process == 1


def test_a_loader_of_another_name_has_another_balancer(store: Any) -> None:
    assert opened(store, 0).claim()
    assert opened(store, 1, name="eval").claim()


def test_the_second_loader_of_its_name_has_another_balancer(store: Any) -> None:
    assert [opened(store, 0).claim() for _ in range(3)] == [True] * 3
    assert [opened(store, 1).claim() for _ in range(4)] == [False] * 3 + [True]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"job": OTHER}, "another configuration than process 1: shuffle: False here, True there"),
        ({"data": MORE_DATA}, "another data than process 1: 'b' here, 'a' there"),
    ],
)
def test_who_brings_something_else_and_all_others_are_told(
    store: Any, changes: dict[str, str], why: str
) -> None:
    first = opened(store, 0)
    assert first.claim()
    assert first.explain_absence() == ""
    with pytest.raises(LoaderError, match=rf"process 0 .* opened loader '' with {why}"):
        opened(store, 1, **changes).claim()
    assert why in first.explain_absence()


def test_a_process_that_cannot_start_says_so(store: Any) -> None:
    first, second = opened(store, 0), opened(store, 1)
    assert (first.claim(), second.claim()) == (True, False)
    first.give_up("no space left")
    with pytest.raises(LoaderError, match=r"process 0 could not start .*: no space left"):
        second.wait_for_address()
    assert "no space left" in second.explain_absence()


def test_a_dead_claimer_does_not_hold_up_the_others(store: Any) -> None:
    first, second = opened(store, 0), opened(store, 1)
    assert first.claim()
    assert not second.claim()
    with pytest.raises(LoaderError, match=r"has not started its balancer within 0 s.*restart all"):
        second.wait_for_address(deadline_s=0.0)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert second.owner is not None
    second.owner = second.owner._replace(pid=child.pid)
    with pytest.raises(LoaderError, match=rf"pid {child.pid}\), which ran the balancer, has ended"):
        second.wait_for_address()


def test_a_balancer_that_is_gone_or_elsewhere_is_an_error_that_says_what_to_do(
    store: Any, tmp_path: Any
) -> None:
    first, second = opened(store, 0), opened(store, 1)
    assert (first.claim(), second.claim()) == (True, False)
    first.publish(f"ipc://{tmp_path}/balancer")
    with pytest.raises(LoaderError, match=f"pid {os.getpid()}.* has closed its loader"):
        second.wait_for_address()
    (tmp_path / "balancer").touch()
    assert second.wait_for_address() == f"ipc://{tmp_path}/balancer"
    assert second.explain_absence() == ""
    (tmp_path / "balancer").unlink()
    assert "has closed its loader" in second.explain_absence()
    first.give_up("sample 'a' does not decode", "go on")
    assert second.explain_absence() == "process 0 could not go on: sample 'a' does not decode"
    with pytest.raises(LoaderError, match="process 0 could not go on: sample 'a'"):
        second.wait_for_address()
    assert second.owner is not None
    second.owner = second.owner._replace(host="elsewhere")
    with pytest.raises(LoaderError, match=r"on host elsewhere .*start `counterpoise balancer`"):
        second.wait_for_address()


def test_ranks_get_what_one_of_them_has_found_out(store: Any) -> None:
    def found(process: int) -> Rendezvous:
        point = MeetingPoint(store, "group", process, (0, 1))
        return Rendezvous(point, "auto", {}, "looked for what samples cost")

    first, second = found(1), found(0)
    assert (first.claim(), second.claim()) == (True, False)
    with pytest.raises(LoaderError, match=r"not found it within 0 s, is it alive\? restart all"):
        second.wait_for_answer("found it", 0.0)
    first.publish({"tokens": 3})
    assert second.wait_for_answer("found it", 1.0) == {"tokens": 3}
    first.forget()
    second.forget()
    assert store.num_keys() == 2  # how many each has opened
