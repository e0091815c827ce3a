"""Workers start as torch's would in the same interpreter, and asking does not fix the method."""

import multiprocessing
from multiprocessing import forkserver

import pytest

from counterpoise.workers.processes.start_method import start_method, worker_context


@pytest.fixture
def chosen():
    before = multiprocessing.get_start_method(allow_none=True)
    yield lambda name: multiprocessing.set_start_method(name, force=True)
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.parametrize("name", ["fork", "spawn", "forkserver"])
def test_a_context_or_the_interpreters_choice_decides(chosen, name):
    assert start_method(multiprocessing.get_context(name)) == name
    chosen(name)
    assert start_method() == start_method(multiprocessing.get_context()) == name


def test_the_default_is_the_interpreters_and_stays_open(chosen):
    chosen(None)
    assert start_method() == multiprocessing.get_all_start_methods()[0]
    assert multiprocessing.get_start_method(allow_none=True) is None


def test_a_fork_server_imports_torch_beside_what_it_was_told_to():
    server = vars(forkserver)["_forkserver"]
    before = server._preload_modules
    try:
        forkserver.set_forkserver_preload(["numpy"])
        context = multiprocessing.get_context("forkserver")
        assert worker_context(context) is worker_context(context) is context
        assert server._preload_modules == ["numpy", "counterpoise.workers.processes.fork_server"]
    finally:
        forkserver.set_forkserver_preload(before)
