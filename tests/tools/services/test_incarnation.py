"""Balancers started one soon after the other have no number of a lease or token in common."""

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.tools.services.balancer import new_incarnation

# A killed balancer is started again by `--supervise` at once; importing alone takes longer.
SOONEST_NS = 50_000_000
YEAR_2040_NS = 2_208_988_800 * 10**9


def first_number(now_ns: int) -> int:
    return Coordinator(incarnation=new_incarnation(now_ns)).last_lease


def test_numbers_differ_also_within_a_second() -> None:
    # The ends of a second, too: incarnations do not depend on where one begins.
    for now_ns in range(YEAR_2040_NS, YEAR_2040_NS + 2 * 10**9, 123_456_789):
        granted = 10_000
        assert first_number(now_ns + SOONEST_NS) > first_number(now_ns) + granted


def test_numbers_fit_into_a_message() -> None:
    assert 0 < first_number(YEAR_2040_NS) < 2**63 - 2**32
