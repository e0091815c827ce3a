"""Two processes under torch.distributed make one plan, each for its own rank."""

import json
import re

import pytest

from counterpoise import Ranks
from tests.forking.ranks import written_by
from tests.loader.processes import rank_trainer

pytestmark = pytest.mark.slow


def alone(epochs=2, ledger=None, dataset=None, **changes):
    """Return what one process that plays both ranks takes."""
    loader = rank_trainer.make(dataset, ranks=Ranks(virtual=2), **changes)
    if ledger is not None:
        loader.load_state_dict(ledger)
    return rank_trainer.take(loader, epochs)


@pytest.fixture(scope="module")
def ledger():
    """The ledger of one rank alone, after two steps."""
    loader = rank_trainer.make(ranks=Ranks(virtual=1))
    steps = loader.steps()
    next(steps), next(steps)
    return loader.state_dict()


@pytest.fixture(scope="module")
def came(tmp_path_factory, ledger):
    """What came to each of two ranks, by manner; see rank_trainer.py."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "ledger.json").write_text(json.dumps(ledger))
    return written_by(rank_trainer.__file__, folder, 2)


def together(came, manner):
    assert not [rank[manner] for rank in came if isinstance(rank[manner], str)]
    return sorted([each for rank in came for each in rank[manner]], key=lambda each: each[:4])


def test_two_processes_take_what_one_takes_that_plays_both_ranks(came):
    assert {each[3] for each in came[1]["plain"]} == {1}
    assert together(came, "plain") == alone()


def test_ledgers_are_the_same_on_every_rank(came):
    assert came[0]["ledger"] == came[1]["ledger"]


def test_both_resume_from_the_ledger_of_a_run_with_another_number_of_ranks(came, ledger):
    assert together(came, "resume") == alone(ledger=ledger)
    assert together(came, "resume") == [each for each in alone() if each[:2] >= [0, 2]]


def test_a_rank_that_is_late_gets_its_last_batches_although_the_other_has_ended(came):
    assert together(came, "late") == alone(epochs=1)


def test_ranks_that_have_left_an_epoch_at_different_places_have_the_next(came):
    assert together(came, "left") == [each for each in alone() if each[0] == 1]


@pytest.mark.parametrize("manner", ["torn", "inline"])
def test_ranks_whose_next_is_left_by_exceptions_go_on_with_the_others(came, manner):
    dataset = rank_trainer.broken(rank_trainer.COUNT)
    assert together(came, manner) == alone(dataset=dataset, on_error="skip")


def test_ranks_that_are_apart_are_both_told_where_they_are(came):
    for rank in came:
        assert rank["apart"] == (
            "LoaderError: the ranks are not at the same position: rank 0 starts at epoch 0, step "
            "0; rank 1 starts at epoch 1, step 0: resume all of them from one ledger"
        )


@pytest.mark.parametrize(
    ("manner", "text"),
    [
        ("other", "of \\d+ samples that all ranks have loaded rank 1 has others than rank 0, or "),
        ("table", "of \\d+ samples that all ranks have loaded rank 1 has others than rank 0, or "),
        ("keyed", "rank {} \\(.*with another order or content of the data than rank"),
    ],
)
def test_ranks_with_the_samples_in_another_order_are_told_so(came, manner, text):
    for number, rank in enumerate(came):
        assert re.search(text.format(1 - number), rank[manner])


def test_a_sample_ends_the_loop_of_the_rank_that_has_it_and_the_other_names_that_rank(came):
    own, other = sorted(came, key=lambda rank: "k0007" not in rank["broken"])
    assert own["broken"] == "LoaderError: sample 'k0007': it does not decode"
    number = came.index(own)
    # Which it is depends on whether its next plan was there before the other had ended.
    assert other["broken"].startswith(
        ("TimeoutError: no batch within 5 s: waits for ", "LoaderError: other ranks will say ")
    )
    assert f"rank {number} (process {number}, host " in other["broken"]
    assert "which has closed its loader" in other["broken"]
