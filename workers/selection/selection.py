"""`Selection`: some of a source's samples, by rule; `split_by_key`: parts of a source by its keys.

Rules look at keys, costs and raw forms, so that nothing is decoded. What was chosen is a list of
indexes: costs that are known, tables among them, stay known, and workers elsewhere get the list.
"""

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ..sources.chosen import ChosenSamples
from ..sources.data_identity import KnownData
from ..sources.fingerprint import digest, digest_arrays
from ..sources.interface import SampleError, Source, source_name
from ..sources.plain import as_source, unwrap_dataset
from ..sources.registry import build, is_spec, open_source, registered

FORMAT = "selection"  # its name in the registry of sources
Limits = Mapping[str, Sequence[int | None]]


class Candidate:
    """A sample that `where` is asked about; what it does not look at is not read."""

    def __init__(self, source: Source, index: int) -> None:
        self._source = source
        self._index = index

    @property
    def key(self) -> str:
        """The sample's name."""
        return self._source.key(self._index)

    @cached_property
    def cost(self) -> Mapping[str, int]:
        """What the sample costs, by resource: kept costs, or those of probing it."""
        if self._source.decode_first or not self._source.knows_costs:
            raise ValueError(
                f"where= asks what samples of {source_name(self._source)} cost, and only loading "
                "them would show it: give PlainSource(data, cost={...}), a table, or a transform "
                "with a probe"
            )
        return (self._source.known(self._index) or self._source.probe(self._index)).cost

    @cached_property
    def raw(self) -> Mapping[str, Any]:
        """The sample before any transform, by extension: texts, JSON, media as files."""
        return self._source.raw(self._index, headers=True)


Where = Callable[[Candidate], bool] | Limits


class Selection(ChosenSamples):
    """Some of a source's samples, in its order: a data set, and a source, of its own.

        data = cp.workers.Selection(source, where=lambda sample: sample.cost["tokens"] <= 8192)

    To a ledger another selection is other data: DataLoader(skip_keys=) leaves samples out of a run.
    Raises ValueError where rules cannot be applied, or leave nothing.

    Args:
        source: A data set, as DataLoader takes it.
        where: Which samples are chosen: a function of one that has `key`, `cost` and `raw` (each
            read only if it is asked for; nothing is decoded); or limits, {"tokens": (1, 8192)},
            least and most, None for no limit. Samples that cannot be read stay in: the loader names
            them. Default all.
        split: {"part": "train", "shares": {"train": .98, "val": .02}, "seed": 0}: see split_by_key.
        limit: The most samples: the first that the other rules leave; default all.
    """

    def __init__(
        self,
        source: Any,
        *,
        where: Where | None = None,
        split: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> None:
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"limit is {limit!r}: give the number of samples, 1 or more")
        if not (where is None or callable(where) or isinstance(where, Mapping)):
            raise ValueError(f"where is {where!r:.80}: give a function of a sample, or limits")
        split = None if split is None else _checked_split(split)
        self._take(source)
        self._choose: Callable[[], Int64] | None = lambda: self._choose_indexes(where, split, limit)
        self.indices = self._choose()

    def _take(self, source: Any) -> None:
        super().__init__(as_source(source))
        self.pattern = f"selection of {source_name(self.source)}"
        self._known = KnownData(
            unwrap_dataset(self.source), len(self.source), self.source.key
        ).look_at_samples()

    def _choose_indexes(
        self, where: Where | None, split: Mapping[str, Any] | None, limit: int | None
    ) -> Int64:
        """Return the indexes of the samples that the rules leave, ascending (n,)."""
        indexes: Iterable[int] = range(len(self.source))
        if split is not None:
            choose_part = _make_splitter(split["shares"], split["seed"])
            indexes = [i for i in indexes if choose_part(self.source.key(i)) == split["part"]]
        if where is not None:
            if isinstance(where, Mapping):
                where = partial(_is_within, _checked_limits(where))
            indexes = self._filter(where, indexes)
        chosen = np.fromiter(islice(indexes, limit), np.int64)
        self.keep()
        if not len(chosen):
            raise ValueError(
                f"no sample of {source_name(self.source)} is left: loosen where=, "
                + (f"or give part {split['part']!r} a larger share" if split else "or leave it")
            )
        return chosen

    def _filter(self, where: Callable[[Candidate], bool], indexes: Iterable[int]) -> Iterator[int]:
        for index in indexes:
            try:
                fits = where(Candidate(self.source, index))
            except SampleError:
                fits = True
            except Exception as error:
                error.add_note(f"where= was asked about sample {self.source.key(index)!r}")
                raise
            if fits:
                yield index

    # --- a source

    def find_row(self, index: int) -> int:
        """Return a sample's index in the source."""
        if not 0 <= index < len(self.indices):
            raise IndexError(f"sample {index} of {len(self.indices)}")
        return int(self.indices[index])

    def __len__(self) -> int:
        return len(self.indices)

    def known_costs(self, resources: Sequence[str]) -> tuple[np.ndarray, ...] | None:
        """Return the costs of all samples, a column a resource; None where not all are known."""
        columns = self.source.known_costs(resources)
        return None if columns is None else tuple(column[self.indices] for column in columns)

    def fingerprint(self) -> str:
        """Return a hash of the source's fingerprint and of what was chosen."""
        return digest([super().fingerprint(), digest_arrays(b"", self.indices)])

    def data_digest(self, samples: int | None = None) -> str:
        """Return a hash of the source's data and of what was chosen; "" of first samples."""
        if samples is not None:
            return ""
        return digest([self._known.identity, digest_arrays(b"", self.indices)])

    def reopen_if_changed(self) -> bool:
        """Choose again if the source's files have changed; return whether they had."""
        if not self.source.reopen_if_changed():
            return False
        if self._choose is None:
            raise ValueError(f"the files of the {self.pattern} have changed: make it anew")
        self.indices = self._choose()
        return True

    def spec(self) -> dict[str, Any]:
        """Return the description for workers elsewhere; ValueError where the source has none."""
        chosen = np.zeros(len(self.source), np.bool_)
        chosen[self.indices] = True
        packed = base64.b64encode(zlib.compress(np.packbits(chosen).tobytes())).decode()
        of = self.source.spec()
        return {"source": FORMAT, "of": of, "samples": len(self.source), "chosen": packed}

    @classmethod
    def from_spec(
        cls,
        spec: Mapping[str, Any],
        root: str | Path | None,
        allowed: Iterable[str] = (),
        cache: str | Path | None = None,
    ) -> Self:
        """Open what spec() describes, or a recipe says: `of`, and where, split, limit.

        A recipe's `where` is limits, or the name and arguments of an allowed function.
        """
        about = {name: field for name, field in spec.items() if name != "source"}
        of, names = about.pop("of", None), tuple(allowed)
        known = {"samples", "chosen"} if "chosen" in about else {"where", "split", "limit"}
        if not isinstance(of, Mapping) or (unknown := sorted(about.keys() - known)):
            hint = f", not {unknown[0]}" if isinstance(of, Mapping) else ""
            raise ValueError(
                f"a selection is described by of, a source, and where, split, limit{hint}"
            )
        source = open_source(of, root, names, cache)
        if "chosen" not in about:
            if is_spec(about.get("where")):
                about["where"] = build(about["where"], registered(names))
            return cls(source, **about)
        selection = cls.__new__(cls)
        selection._take(source)
        selection.indices, selection._choose = _unpack_indexes(about, len(source)), None
        return selection

    def __getstate__(self) -> dict[str, Any]:
        """Leave the rules behind, which may have no name; what they chose goes along."""
        return {**self.__dict__, "_choose": None}


def split_by_key(source: Any, shares: Mapping[str, float], seed: int = 0) -> dict[str, Selection]:
    """Return parts of a source by a hash of each sample's key.

        parts = cp.workers.split_by_key(data, {"train": 0.98, "val": 0.02})

    shares: the part of the samples that each gets, on average; they add up to 1. A sample stays in
    its part when others are added, taken away or reordered; other shares move the fewest samples if
    their order stays. Raises ValueError for shares that are none, and a part without any sample.

    >>> parts = split_by_key(list(range(100)), {"train": 0.75, "val": 0.25})
    >>> [len(part) for part in parts.values()], parts["val"].key(0)
    ([79, 21], '8')
    """
    whole = as_source(source)
    split = {"shares": shares, "seed": seed}
    return {name: Selection(whole, split={"part": name, **split}) for name in shares}


def _checked_limits(limits: Limits) -> Limits:
    for name, pair in limits.items():
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        if not is_pair or not all(type(bound) in (int, type(None)) for bound in pair):
            raise ValueError(
                f"where= has {pair!r} of {name!r}: give the least and the most, None for none"
            )
    return limits


def _is_within(limits: Limits, sample: Candidate) -> bool:
    """Return whether a sample costs what the limits allow."""
    if lacks := [name for name in limits if name not in sample.cost]:
        has = ", ".join(sample.cost)
        raise ValueError(f"where= limits {lacks[0]!r}, and samples cost {has}")
    return all(
        (least or 0) <= sample.cost[name] and (most is None or sample.cost[name] <= most)
        for name, (least, most) in limits.items()
    )


def _checked_split(split: Mapping[str, Any]) -> dict[str, Any]:
    part, shares, seed = (split.get(name, 0) for name in ("part", "shares", "seed"))
    is_split = {*split, "seed"} == {"part", "shares", "seed"} and isinstance(shares, Mapping)
    if not is_split or type(seed) is not int or not 0 <= seed < 1 << 63:
        raise ValueError(f"split is {split!r:.200}: give part, shares, and a whole seed if need be")
    if not all(type(share) in (int, float) and 0 <= share <= 1 for share in shares.values()) or (
        abs(sum(shares.values()) - 1) > 1e-6  # floats add up to nearly 1
    ):
        raise ValueError(f"the shares are {dict(shares)}: give parts of 1 that add up to it")
    if part not in shares:
        raise ValueError(f"part is {part!r}, and the shares are of {', '.join(shares)}")
    return {"part": part, "shares": shares, "seed": seed}


def _make_splitter(shares: Mapping[str, float], seed: int) -> Callable[[str], str]:
    """Return what says which part a key is in."""
    names, ends = [*shares], np.cumsum([*shares.values()]) * 2.0**64
    salt = seed.to_bytes(8, "little")

    def choose_part(key: str) -> str:
        mark = hashlib.blake2b(key.encode(), digest_size=8, salt=salt).digest()
        at = int(np.searchsorted(ends, float(int.from_bytes(mark, "little")), side="right"))
        return names[min(at, len(names) - 1)]

    return choose_part


def _unpack_indexes(about: Mapping[str, Any], count: int) -> Int64:
    """Return the indexes in a description; ValueError where they are not of `count` samples."""
    if about.get("samples") != count:
        raise ValueError(
            f"the selection is of {about.get('samples')!r:.20} samples, and its source has {count} "
            "here: give the workers the same files"
        )
    size = -(-count // 8)
    try:
        packed = zlib.decompressobj().decompress(base64.b64decode(about["chosen"]), size)
    except (TypeError, ValueError, binascii.Error, zlib.error) as error:
        raise ValueError(f"the selection's description is none: {error!r:.200}") from None
    if len(packed) != size:
        raise ValueError(f"the selection's description is of {len(packed)} bytes, needed: {size}")
    chosen = np.unpackbits(np.frombuffer(packed, np.uint8), count=count)
    indexes = np.flatnonzero(chosen).astype(np.int64)
    if not len(indexes):
        raise ValueError("the selection's description chooses no sample")
    return indexes
