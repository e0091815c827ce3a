"""Collectives that run beside products leave smaller bubbles, and the same work."""

import pytest

from counterpoise.sched.bubble_filling.presets import case_setup, exposed_ns
from counterpoise.sched.bubble_filling.setup import KernelLayer, total_ns
from counterpoise.sched.shapes import Device

CHUNKS = (1, 2, 4, 8)


def exposed(layer: KernelLayer) -> int:
    both = (*layer.forward, *layer.backward)
    return total_ns(one for one in both if one.resource == "communication")


def computed(layer: KernelLayer) -> int:
    both = (*layer.forward, *layer.backward)
    return total_ns(one for one in both if one.resource == "compute")


@pytest.mark.parametrize("case", ["A", "3072"])
def test_chunks_expose_less_of_collectives_and_change_no_work(case: str) -> None:
    setups = [case_setup(case, chunks=count) for count in CHUNKS]
    assert setups[0] == case_setup(case)
    layers = [[setup.model.layer, *(each.layer for each in setup.encoders[8])] for setup in setups]
    for same in zip(*layers, strict=True):
        assert len({computed(each) for each in same}) == 1
        times = [exposed(each) for each in same]
        # Each chunk has the link's latency, which is more than small layers gain by eight.
        assert times[0] > max(times[1:])
        assert times[1] > times[2]


def test_a_slow_link_stays_exposed_beyond_its_product() -> None:
    gpu = Device(link_bytes_per_s=10**9, link_latency_ns=0)
    size, product = 8_000_000, 1_000_000
    whole = size * 7 // 8
    # The first quarter, and of the others what the rest of the product does not hide.
    assert exposed_ns(gpu, size, 8, product, 4) == whole // 4 + 3 * whole // 4 - 3 * product // 4
    assert exposed_ns(gpu, size, 1, product, 4) == 0
