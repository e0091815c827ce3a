"""Workers start as torch's would in the same interpreter, and asking does not fix the method."""

import multiprocessing

import pytest

from counterpoise.workers.processes.start_method import start_method


@pytest.fixture
def chosen():
    before = multiprocessing.get_start_method(allow_none=True)
    yield lambda name: multiprocessing.set_start_method(name, force=True)
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.parametrize(
    ("name", "method"), [("fork", "fork"), ("spawn", "forkserver"), ("forkserver", "forkserver")]
)
def test_a_context_or_the_interpreters_choice_decides(chosen, name, method):
    assert start_method(multiprocessing.get_context(name)) == method
    chosen(name)
    assert start_method() == start_method(multiprocessing.get_context()) == method


def test_the_default_is_the_interpreters_and_stays_open(chosen):
    chosen(None)
    method = "fork" if multiprocessing.get_all_start_methods()[0] == "fork" else "forkserver"
    assert start_method() == method
    assert multiprocessing.get_start_method(allow_none=True) is None
