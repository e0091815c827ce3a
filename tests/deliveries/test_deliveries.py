"""What the loader delivers is what is on record in deliveries.json, bit by bit."""

import pytest

from tests.deliveries import cases, record
from tests.deliveries.place import Place, real_shards

pytestmark = pytest.mark.slow

KNOWN = record.known()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The data of all cases, and a balancer with workers."""
    made = Place(tmp_path_factory.mktemp("deliveries"))
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("name", record.CASES)
def test_a_case_delivers_what_is_on_record(name, place):
    if record.needs_real_shards(name) and real_shards() is None:
        pytest.skip("no real data here (set COUNTERPOISE_DATA)")
    assert record.digest_of_case(record.records_of(name, place)) == KNOWN[name]


def test_every_case_is_on_record_and_nothing_else():
    assert set(KNOWN) == set(record.CASES)


@pytest.mark.parametrize(("one", "other"), cases.SAME)
def test_cases_that_differ_only_in_who_decodes_are_the_same(one, other):
    assert KNOWN[one] == KNOWN[other]
