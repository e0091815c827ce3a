"""Handles are refused where a payload does not lie in the run that they name."""

from hypothesis import given
from hypothesis import strategies as st

from counterpoise.balancer.protocol.messages import Handles, PayloadHandle

numbers = st.lists(st.integers(-2, 3), max_size=4).map(tuple)
places = st.lists(st.integers(0, 9), max_size=4).map(tuple)


def fits(handles: Handles, items: int) -> bool:
    """Return whether handles are those of so many items, looked at one by one."""
    if not (handles.runs or handles.run_of or handles.offsets or handles.lengths):
        return True
    if {len(handles.run_of), len(handles.offsets), len(handles.lengths)} != {items}:
        return False
    return all(
        -1 <= number < len(handles.runs)
        and start + length <= (handles.runs[number].nbytes if number >= 0 else 0)
        for number, start, length in handles.places()
    )


@given(st.lists(st.integers(0, 18), max_size=3), st.integers(0, 4), st.data())
def test_handles_fit_if_each_of_them_does(
    sizes: list[int], items: int, data: st.DataObject
) -> None:
    runs = tuple(PayloadHandle(1, n, 0, 0, size) for n, size in enumerate(sizes))
    if data.draw(st.booleans()):
        handles = Handles(runs, data.draw(numbers), data.draw(places), data.draw(places))
    else:  # as many as there are items, mostly in the first run
        drawn = [st.sampled_from([0, 0, 0, 0, -1, 1]), st.integers(0, 9), st.integers(0, 9)]
        run_of, offsets, lengths = (tuple(data.draw(each) for _ in range(items)) for each in drawn)
        handles = Handles(runs, run_of, offsets, lengths)
    assert (handles.problem(items) == "") == fits(handles, items)
