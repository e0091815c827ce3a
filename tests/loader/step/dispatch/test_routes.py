"""Routes: ranks agree about what each sends to whom, and every image is encoded once."""

from collections import Counter

from hypothesis import given, settings, strategies as st

from counterpoise.loader.step.dispatch.routes import count_rows, plan_round

SIZE = st.integers(1, 12) | st.tuples(st.just(1), st.integers(1, 4), st.integers(1, 4))
# By rank and microbatch.
ROUND = st.integers(1, 4).flatmap(
    lambda microbatches: st.lists(
        st.lists(st.lists(SIZE, max_size=5), min_size=microbatches, max_size=microbatches),
        min_size=1, max_size=4,
    )
)  # fmt: skip


@given(sizes=ROUND)
@settings(deadline=None, max_examples=60)
def test_every_image_is_encoded_once_and_sends_meet_receives(
    sizes: list[list[list[int | tuple[int, ...]]]],
) -> None:
    ranks = range(len(sizes))
    routes = [plan_round(sizes, rank, count_rows) for rank in ranks]
    for source in ranks:
        for target in ranks:
            assert routes[source].send[target] == routes[target].receive[source]
    encoded = Counter(size for route in routes for size in route.encoded)
    assert encoded == Counter(size for route in routes for size in route.own)
    for rank, route in enumerate(routes):
        assert sorted(route.order) == list(range(len(route.own)))
        sent = [size for images in route.send for size in images]
        assert sent == [route.own[image] for image in route.order]
        assert sum(map(count_rows, route.encoded)) == route.loads[rank]
        assert max(route.loads) <= max(route.whole)
    assert len({(route.loads, route.whole) for route in routes}) == 1
