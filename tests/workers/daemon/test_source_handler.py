"""What a worker's handler of one job keeps when the job is over."""

import weakref

from counterpoise.workers.daemon.source_handler import SourceHandler
from counterpoise.workers.sources.interface import PlainSource


def test_a_handler_that_is_closed_lets_its_source_go_and_the_files_with_it() -> None:
    source = PlainSource([1, 2, 3])
    handler, of_it = SourceHandler(source, ("samples",), seed=0, local=True), weakref.ref(source)
    assert handler.open("")[0] == 3
    del source
    assert of_it() is not None
    handler.close()
    assert of_it() is None
