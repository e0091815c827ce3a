"""Workers as the pool sees them."""

from counterpoise.balancer.pool.workers import SLOW_PARTS, PoolWorker


def test_a_worker_is_slow_only_once_all_of_its_last_parts_took_longer() -> None:
    worker = PoolWorker(b"w", 0.0, 1)
    paces = []
    for ratio in (20.0, 0.5, *[10.0] * SLOW_PARTS, 0.1):
        worker.note_pace(ratio)
        paces.append(worker.pace)
    # One large sample says nothing of its worker, and one small one much.
    assert paces == [1.0, 1.0, *[1.0] * (SLOW_PARTS - 1), 10.0, 1.0]
