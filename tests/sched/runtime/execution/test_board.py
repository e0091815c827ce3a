"""The board: who is silent is known, a lost store is survived, and no rank hangs for ever."""

import sys
from datetime import timedelta
from itertools import count

import msgspec
import pytest

from counterpoise.sched.runtime.compiled import Value
from counterpoise.sched.runtime.execution import board as module
from counterpoise.sched.runtime.execution.board import Board
from counterpoise.sched.runtime.execution.waiting import Standing
from tests.forking.popen import run


class Store:
    """A store in this process. `lost`: whether its host is gone."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.lost = False

    def set_timeout(self, timeout: timedelta) -> None:
        assert timeout > timedelta(0)

    def set(self, key: str, value: str) -> None:
        if self.lost:
            raise RuntimeError("connection reset")
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        if self.lost:
            raise RuntimeError("connection reset")
        return [self.values[key].encode() for key in keys]

    def post(self, process: int, standing: Standing) -> None:
        self.values[f"standing/{process}"] = msgspec.json.encode(standing).decode()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The board's clock, which the tests set; listening takes no time."""
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "_PERIOD_S", 0.0)
    return now


# Two pipelines side by side, and two lanes that have the last process in common.
ONE, TWO = ((0, 1, 2),), ((0, 1, 2), (3, 4, 5))
LANES = ((0, 2, 4), (1, 3, 4))


def a_board(store: Store, pipelines: tuple[tuple[int, ...], ...] = ONE, pipeline: int = 0) -> Board:
    board = Board(store, 1, pipelines, pipeline, deadline_s=10.0)  # type: ignore[arg-type]
    for rank in (0, 2):
        store.post(pipelines[pipeline][rank], Standing(4, 2, "0F1", 1.0, beat=7))
    return board


def test_a_rank_whose_number_does_not_grow_is_silent(clock: list[float]) -> None:
    store = Store()
    board = a_board(store)
    board._exchange()
    clock[0] += 6.0
    store.post(2, Standing(4, 2, "0F1", 7.0, beat=8))
    found = board.give_up("")
    assert found[0].silent_s == 6.0
    assert found[2].silent_s == 0.0
    assert '"failed":"failed"' in store.values["standing/1"]


def test_what_was_known_last_is_told_when_the_store_is_gone(clock: list[float]) -> None:
    store = Store()
    board = a_board(store)
    board._exchange()
    store.lost = True
    clock[0] += 6.0
    found = board.give_up("")
    assert found[2] == Standing(4, 2, "0F1", 7.0, beat=7)
    # The first rank hosts the store.
    assert found[0].silent_s == 6.0
    assert board.elsewhere() == {}


def test_the_host_of_a_store_that_is_gone_before_it_was_read_is_told(clock: list[float]) -> None:
    store = Store()
    board = a_board(store)
    store.lost = True
    board.start()
    clock[0] += 6.0
    found = board.give_up("")
    board.close()
    board.join(clock[0] + 10.0)
    assert found[0] == Standing(0, 0, since_s=6.0, silent_s=6.0)
    assert found[2] == Standing(0, 0, since_s=6.0)


def test_the_host_of_a_lost_store_is_told_in_other_pipelines(clock: list[float]) -> None:
    store = Store()
    store.post(0, Standing(4, 3, beat=5))
    board = a_board(store, TWO, pipeline=1)
    board._exchange()
    store.lost = True
    clock[0] += 6.0
    board.give_up("")
    assert board.elsewhere() == {0: {0: Standing(4, 3, beat=5, silent_s=6.0)}}


def test_listening_ends_though_nobody_says_more(clock: list[float], monkeypatch) -> None:
    board = a_board(Store())
    ticks = count(100.0, 0.5)
    monkeypatch.setattr(module, "monotonic", lambda: next(ticks))
    monkeypatch.setattr(board, "_as_of_now", dict)
    assert set(board.give_up("")) == {1}


def test_a_rank_that_failed_with_an_error_need_not_listen(clock: list[float]) -> None:
    store = Store()
    board = a_board(store)
    board.give_up("1F2 of rank 1 raised ValueError: no")
    assert "ValueError: no" in store.values["standing/1"]


def test_other_pipelines_standings_are_read(clock: list[float]) -> None:
    store = Store()
    board = a_board(store, TWO)
    for rank in range(3):
        store.post(3 + rank, Standing(4, rank))
    board.give_up("nothing")
    board._read_at = clock[0] = clock[0] + 3.0
    store.post(5, Standing(4, 2, beat=1))
    assert board.elsewhere() == {
        1: {
            0: Standing(4, 0, silent_s=3.0),
            1: Standing(4, 1, silent_s=3.0),
            2: Standing(4, 2, beat=1),
        }
    }


def test_a_process_of_two_lanes_is_read_in_both(clock: list[float]) -> None:
    store = Store()
    board = a_board(store, LANES, pipeline=1)
    for process in (0, 2):
        store.post(process, Standing(4, process))
    board._exchange()
    assert board.standings[2] == Standing(4, 2, "0F1", 1.0, beat=7)
    board.give_up("nothing")
    assert board.elsewhere()[0] == {0: Standing(4, 0), 1: Standing(4, 2), 2: board.standings[2]}


@pytest.mark.parametrize("reason", ["others gave up", "store lost", "store does not answer"])
def test_a_rank_that_hangs_in_a_pass_is_ended_once_nobody_waits_for_it(
    clock: list[float], reason: str
) -> None:
    store, left = Store(), list[int]()
    board = a_board(store)
    waits = board.begin_step(4)
    board._exchange()
    board._own()
    clock[0] += 11.0
    board._exchange()
    board._end_if_left_alone(left.append)
    assert not left
    if reason == "store lost":
        store.lost = True
    elif reason == "others gave up":
        store.post(2, Standing(4, 2, "0F1", 7.0, failed="failed", beat=8))
    if reason == "store does not answer":
        clock[0] += 11.0
    else:
        board._exchange()
    for busy in ({"value": Value("F", 0, 1)}, {"done": True}):
        for name, value in busy.items():
            setattr(waits, name, value)
        board._own()
        board._end_if_left_alone(left.append)
        waits.value, waits.done = None, False
    board._own()
    assert not left
    clock[0] += 11.0
    if reason == "others gave up":
        board._exchange()
    board._end_if_left_alone(left.append)
    assert left == [70]


# A job that ends while threads are in calls, of which each is over while the interpreter ends: they
# wait for a rank that never comes.
ENDS_IN_CALLS = """
import time
from datetime import timedelta
from torch.distributed import TCPStore
from counterpoise.sched.runtime.execution import board as module


class EndsSlowly:
    def __del__(self, sleep=time.sleep):
        sleep(0.6)


module._PERIOD_S = 0.01
ends_slowly = EndsSlowly()
observer = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
boards = []
for process in (0, 1):
    store = TCPStore("127.0.0.1", observer.port, is_master=False)
    boards.append(module.Board(store, 0, ((process, 2),), 0, deadline_s=10.0))
    store.set_timeout(timedelta(seconds=0.3))
for process, board in enumerate(boards):
    board.start()
    while b'"beat":0' in observer.get(f"standing/{process}"):
        pass
boards[0].close()
print("ended")
"""


def test_a_process_ends_well_while_threads_wait_for_the_store() -> None:
    done = run([sys.executable, "-c", ENDS_IN_CALLS])
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
