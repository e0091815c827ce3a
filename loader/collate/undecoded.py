"""Lays out samples that are not decoded, where all are dicts of the same arrays.

What a batch is made of follows from the headers, and its bytes are copied from where they lie: no
sample is made, nor any array of one.
"""

from collections.abc import Collection, Container, Sequence
from itertools import chain
from typing import Any

from ...balancer.planning.problem.options import LayoutName
from ...workers.codec.columns import ColumnReader, Places
from ...workers.lending.placed_payloads import PlacedPayloads
from .columnar import lay_out
from .fields import Batch
from .payloads import bytes_of

# The headers and payloads of a microbatch's samples, as encode_packed makes them.
Undecoded = tuple[Sequence[bytes], Collection[Any]]


def collate_undecoded(
    layout: LayoutName,
    reader: ColumnReader,
    microbatches: Sequence[Undecoded],
    fields: Container[str],
    **given: Any,
) -> list[Batch] | None:
    """Return the batches of microbatches with samples; None where some have to be decoded.

    given: as for `lay_out`.
    """
    headers = [*chain.from_iterable([headers for headers, _ in microbatches])]
    columns = reader.read(headers, _places_of([payloads for _, payloads in microbatches]))
    if columns is None:
        return None
    return lay_out(layout, columns, [len(each) for each, _ in microbatches], fields, **given)


def _places_of(microbatches: Sequence[Collection[Any]]) -> Places:
    """Return the places of the payloads of all microbatches."""
    found = [*map(_places_of_one, microbatches)]
    if len(found) == 1:
        return found[0]
    runs: list[Any] = []
    run_of: list[int] = []
    for each in found:
        before = len(runs)
        run_of += [before + number for number in each.run_of]
        runs += each.runs
    offsets, lengths = (
        [*chain.from_iterable(column)] for column in [*zip(*found, strict=True)][2:]
    )
    return Places(runs, run_of, offsets, lengths)


def _places_of_one(payloads: Collection[Any]) -> Places:
    if isinstance(payloads, PlacedPayloads):
        places = payloads.handles
        return Places(payloads.runs, places.run_of, places.offsets, places.lengths)
    runs = [*map(bytes_of, payloads)]
    return Places(runs, range(len(runs)), [0] * len(runs), [*map(len, runs)])
