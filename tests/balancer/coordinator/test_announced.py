"""What workers announce becomes a payload for each item, and is freed run by run."""

from hypothesis import given
from hypothesis import strategies as st

from counterpoise.balancer.coordinator.delivery.announced import take_announced
from counterpoise.balancer.coordinator.delivery.shared_payloads import SharedPayloads, free_all
from counterpoise.balancer.protocol.messages import (
    DecodedItem,
    DecodeDone,
    Handles,
    PayloadHandle,
)

SIZE = 10


def _message(run_of):
    """Return what a worker announces: each item in a run, or with its payload beside (-1)."""
    runs = tuple(PayloadHandle(7, k, 0, 0, 100 * SIZE) for k in range(max(run_of, default=-1) + 1))
    items = tuple(DecodedItem(k, f"k{k}", (), b"") for k in range(len(run_of)))
    places = [(0, 0) if run < 0 else (k * SIZE, SIZE) for k, run in enumerate(run_of)]
    offsets, lengths = zip(*places, strict=True) if places else ((), ())
    return DecodeDone(3, items, Handles(runs, tuple(run_of), offsets, lengths))


RUNS = st.lists(st.integers(-1, 3), max_size=12)


@given(RUNS)
def test_each_item_has_the_payload_at_its_place(run_of):
    message = _message(run_of)
    frames = [f"frame {k}" for k, run in enumerate(run_of) if run < 0]
    taken, payloads = take_announced(SharedPayloads(), b"w", None, message, frames)
    assert [item.key for item in taken.items] == [item.key for item in message.items]
    inline = iter(frames)
    for number, (run, payload) in enumerate(zip(run_of, payloads, strict=True)):
        if run < 0:
            assert payload == next(inline)
        else:
            assert payload.run.handle.serial == run
            assert (payload.offset, payload.nbytes) == (number * SIZE, SIZE)


@given(RUNS.filter(lambda run_of: max(run_of, default=-1) >= 0))
def test_what_was_announced_before_is_left_out(run_of):
    shared, message = SharedPayloads(), _message(run_of)
    frames = [b"frame"] * run_of.count(-1)
    take_announced(shared, b"w", None, message, frames)
    again, payloads = take_announced(shared, b"w", None, message, frames)
    assert [item.ordinal for item in again.items] == [k for k, run in enumerate(run_of) if run < 0]
    assert payloads == frames


@given(RUNS)
def test_payloads_that_end_together_free_what_they_free_one_by_one(run_of):
    freed = []
    for is_together in (True, False):
        shared = SharedPayloads()
        _, payloads = take_announced(shared, b"w", None, _message([max(r, 0) for r in run_of]), ())
        some = [each for number, each in enumerate(payloads) if run_of[number] != 2]
        if is_together:
            free_all(some)
            free_all(some[:1])  # it is free already
        else:
            for each in some:
                each.free()
        idle = shared.idle_bytes
        free_all(payloads)
        freed.append((idle, shared.idle_bytes, len(shared), shared.take_freed(b"w")))
    assert freed[0][:3] == freed[1][:3]
    assert [set(each.serials) for each in freed[0][3]] == [set(e.serials) for e in freed[1][3]]
    assert freed[0][1:3] == (0, 0)
