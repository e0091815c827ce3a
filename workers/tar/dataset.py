"""Presents WebDataset tar shards as a map-style dataset: any sample, by its index.

Opening reads headers only (or the kept indexes). A sample's members are read by offset; text and
JSON members are decoded, images are left to the transform. Any object with len() and [i] is a
map-style dataset to torch, so this module does without torch.
"""

import bisect
import inspect
import io
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import features

from ..images.decode import ImageError, image_size, is_image, look_at, open_image
from ..media.files import MediaError, is_media
from ..sources.costs import checked_measure, sample_nbytes
from ..sources.failures import DataChangedError
from ..sources.file_patterns import Pattern, find_shards, named
from ..sources.fingerprint import digest, library_versions
from ..sources.interface import (
    DEFAULT_COST,
    Cost,
    Probe,
    Sample,
    SampleError,
    accepts,
    checked_probe,
)
from ..sources.labels import with_label_tokens
from ..sources.randomness import generator, run_seeded
from ..sources.registry import build, registered, spec_of
from .cache_files import DamagedFileError, kept_path, remove_file
from .cost_cache import CostsCache
from .index import Member, ShardIndex, open_index
from .members import decode_member, refuse_pickled
from .shard_files import ShardFiles, check_pieces

logger = logging.getLogger(__name__)
FORMAT = "tar"  # its name in workers/sources/registry.py
Transform = Callable[..., Sample]


class TarDataset:
    """Samples of tar shards, in order of shards and members; a torch dataset and a source.

    `pattern` is a path, a folder, a glob, a brace pattern or a list of them; with `root` every
    file must lie below that folder. `transform(raw)` gets a dict of the sample's members by
    extension, and "__key__"; if it accepts `rng` it also gets a numpy Generator made from (seed,
    epoch, key). Without a transform images become uint8 (height, width, 3) arrays. Costs come
    from `transform.probe(raw)` (without decoding), else from `cost(sample)` (decode first), else,
    without a transform, from the headers: {"pixels", "bytes"}.

    Indexes and probed costs are kept in `cache`, $COUNTERPOISE_CACHE, beside the shards or in
    ~/.cache/counterpoise. Raises FileNotFoundError and ValueError (damaged shard, key that occurs
    twice, no samples).
    """

    keep_every = 1  # costs per write to their file; with more than 1, call keep() at the end

    def __init__(
        self,
        pattern: Pattern,
        transform: Transform | None = None,
        root: str | Path | None = None,
        cache: str | Path | None = None,
        cost: Callable[[Sample], Cost] | None = None,
    ) -> None:
        self.pattern = named(pattern)
        self.transform = transform
        self.root = root
        self.cache = Path(cache) if cache is not None else None
        self.shards = find_shards(pattern, root)
        self._cost = cost
        self._probe = getattr(transform, "probe", None) if cost is None else None
        self._files = ShardFiles()
        self._open()

    def _open(self) -> None:
        self._files.note(self.shards)
        self._indexes = _open_indexes(self.shards, self.cache)
        self._ends = tuple(itertools.accumulate(len(index) for index in self._indexes))
        if not len(self):
            raise ValueError(
                f"{', '.join(self.pattern)}: no samples in {len(self.shards)} shards; members "
                "must be named key.extension"
            )
        if len(self.shards) > 1:
            _check_keys(self.shards, self._indexes)
        self._costs: dict[int, CostsCache] = {}
        self._data_digest = ""  # made when it is first asked for: every index is read for it

    def reopen_if_changed(self) -> bool:
        """Index the shards again if one has changed since; return whether one had.

        Loaders call this when an iteration begins. A shard that changes later is an error.
        """
        changed = any(self._files.has_changed(shard) for shard in self.shards)
        if changed:
            self._open()
        return changed

    @property
    def decode_first(self) -> bool:
        """Return whether a sample has to be decoded to learn its cost."""
        return self._cost is not None

    @property
    def knows_costs(self) -> bool:
        """Return whether anybody says what samples cost: cost=, the transform's probe, or headers.

        A transform without a probe may make anything of a sample: then each counts as 1.
        """
        return self.transform is None or self._cost is not None or self._probe is not None

    @property
    def thread_safe(self) -> bool:
        """Return whether threads may load samples at once: if the transform says so of itself.

        It must not draw from the generators of the process either, which threads share.
        """
        said = self._takes_rng or getattr(self.transform, "deterministic", False)
        safe = said and getattr(self.transform, "thread_safe", False)
        return self.transform is None or bool(safe)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._ends[-1]

    def __getitem__(self, index: int) -> Sample:
        """Return the sample as of epoch 0 and seed 0."""
        return self.load(index)

    def key(self, index: int) -> str:
        """Return the sample's name in the shard; IndexError outside 0 <= index < len."""
        shard, row = self._place(index)
        return self._indexes[shard].key(row)

    def file_of(self, index: int) -> str:
        """Return the path of the shard that a sample is in; IndexError as in `key`."""
        return str(self.shards[self._place(index)[0]])

    def raw(self, index: int, headers: bool = False) -> dict[str, Any]:
        """Return the members by extension, and "__key__"; SampleError for text that is none.

        With `headers` images, video and audio are files to read from instead of bytes, so that a
        probe reads little.
        """
        shard, row = self._place(index)
        raw: dict[str, Any] = {"__key__": self._indexes[shard].key(row)}
        members, faults = self._indexes[shard].sample(row), self._indexes[shard].faults
        if row in faults:
            raise SampleError(raw["__key__"], faults[row], self.file_of(index))
        try:
            for member in members:
                refuse_pickled(member.extension)
            # All is read, and the shard looked at, before the first member is taken for broken.
            for name, data in self._read(shard, members, headers).items():
                raw[name] = decode_member(name, data) if isinstance(data, bytes) else data
        except ValueError as error:
            raise SampleError(raw["__key__"], str(error), self.file_of(index)) from error
        return raw

    def _read(self, shard: int, members: tuple[Member, ...], headers: bool) -> dict[str, Any]:
        """Return members by extension, as they are in the file; with `headers` media as files."""
        path, found = self.shards[shard], dict[str, Any]()
        try:
            for member in members:
                is_file = headers and (is_image(member.extension) or is_media(member.extension))
                read = self._files.piece if is_file else self._files.read
                found[member.extension] = read(path, member)
            self._files.check(path)
        except DataChangedError:
            # It may look as it did when the index was kept: the next run is to index it anew.
            remove_file(kept_path(path, "index.npz", self.cache))
            raise
        return found

    def load(self, index: int, epoch: int = 0, seed: int = 0) -> Sample:
        """Read, decode and transform a sample; the bytes do not depend on process or time."""
        raw = self.raw(index)
        key, transform = raw["__key__"], self.transform
        try:
            if transform is None:
                return decoded(raw)
            if self._takes_rng:
                return transform(raw, rng=generator(seed, epoch, key))
            if getattr(transform, "deterministic", False):
                return transform(raw)
            # A copy: what is done twice may have taken fields out.
            return run_seeded(seed, epoch, key, lambda: transform(dict(raw)))
        except (ImageError, MediaError, SampleError) as error:
            raise self._located(index, error) from error

    def _located(self, index: int, error: Exception) -> SampleError:
        """Return the error of a sample with its key, unless it names one, and its shard."""
        if isinstance(error, SampleError):
            return SampleError(error.key, error.reason, error.source or self.file_of(index))
        return SampleError(self.key(index), str(error), self.file_of(index))

    def probe(self, index: int) -> Probe:
        """Find a sample's cost, from the kept costs or the headers; SampleError where neither."""
        shard, row = self._place(index)
        costs = self._kept_costs(shard)
        if costs is None:
            return self._measured(index)
        known = costs.get(row)
        if known is not None:
            return Probe(self._indexes[shard].key(row), *known)
        found = self._measured(index)
        costs.put(row, found.cost, found.nbytes)
        return found

    def known(self, index: int) -> Probe | None:
        """Return a sample's cost if an earlier run or worker has kept it, reading no sample."""
        shard, row = self._place(index)
        costs = self._kept_costs(shard)
        kept = costs.get(row) if costs is not None else None
        return Probe(self._indexes[shard].key(row), *kept) if kept is not None else None

    def keep(self) -> None:
        """Write the gathered costs; needed only with keep_every above 1."""
        for costs in self._costs.values():
            costs.keep()

    def measure(self, sample: Sample) -> dict[str, int]:
        """Return a loaded sample's cost, unchecked; only where probing decodes (decode_first)."""
        if self._cost is None:
            raise ValueError("measuring a sample needs cost=, a function of the sample")
        return with_label_tokens(checked_measure(self._cost(sample)), sample)

    def data_digest(self, samples: int | None = None) -> str:
        """Return a hash of keys and places of the samples; of the first ones, if given.

        Empty where the first `samples` are not all of some shards.
        """
        if samples is None:
            self._data_digest = self._data_digest or self._digest_of(len(self._indexes))
            return self._data_digest
        count = 1 + bisect.bisect_left(self._ends, samples)
        if count > len(self._ends) or self._ends[count - 1] != samples:
            return ""
        return self._digest_of(count)

    def _digest_of(self, shards: int) -> str:
        return digest([index.digest for index in self._indexes[:shards]])

    def fingerprint(self) -> str:
        """Return a hash of versions, decoders, transform and indexes."""
        decoders = {name: features.version(name) for name in ("jpg", "libjpeg_turbo", "webp")}
        indexes = [index.digest for index in self._indexes]
        return digest([library_versions(), decoders, self._transform_fingerprint(), indexes])

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able description for `from_spec`; ValueError for a nameless transform."""
        paths = self.pattern if self.root is not None else map(os.path.abspath, self.pattern)
        transform = None if self.transform is None else spec_of(self.transform)
        return {"source": FORMAT, "pattern": list(paths), "transform": transform}

    @classmethod
    def from_spec(
        cls,
        spec: Mapping[str, Any],
        root: str | Path | None,
        allowed: Iterable[str] = (),
        cache: str | Path | None = None,
    ) -> "TarDataset":
        """Open what `spec` describes: below `root`, with built-in, registered or `allowed` names.

        Raises ValueError for a spec that is malformed, a path outside the root, and a transform
        that nobody registered.
        """
        pattern = spec.get("pattern")
        if spec.get("source") != FORMAT or not isinstance(pattern, str | list | tuple):
            raise ValueError(
                f"a {FORMAT} source is given as source, pattern, transform; got {spec!r:.200}"
            )
        if not all(isinstance(text, str) for text in pattern):
            raise ValueError(f"a pattern is a text or a list of texts, got {pattern!r:.200}")
        chosen = spec.get("transform")
        transform = None if chosen is None else build(chosen, registered(allowed))
        return cls(pattern, transform, root, cache)

    @cached_property
    def _takes_rng(self) -> bool:
        return accepts(self.transform, "rng")

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        shard = bisect.bisect_right(self._ends, index)
        return shard, int(index) - (self._ends[shard - 1] if shard else 0)

    def _measured(self, index: int) -> Probe:
        if self._cost is not None:
            sample = self.load(index)
            found = Probe(self.key(index), self.measure(sample), sample_nbytes(sample))
            return checked_probe(found)
        if self.transform is not None and self._probe is None:
            return Probe(self.key(index), dict(DEFAULT_COST))
        raw = self.raw(index, headers=True)
        try:
            return checked_probe((self._probe or probed)(raw), self.key(index))
        except (ImageError, MediaError, SampleError) as error:
            raise self._located(index, error) from error
        finally:
            check_pieces(raw.values())
            self._files.check(self.shards[self._place(index)[0]])

    def _kept_costs(self, shard: int) -> CostsCache | None:
        """Return the shard's table; None where a transform has no fingerprint to keep it under."""
        if shard not in self._costs:
            if self._probe is None or not hasattr(self.transform, "fingerprint"):
                return None
            facts = [self._transform_fingerprint(), library_versions(), self._indexes[shard].digest]
            self._costs[shard] = CostsCache(
                self.shards[shard],
                digest(facts),
                len(self._indexes[shard]),
                self.cache,
                self.keep_every,
            )
        return self._costs[shard]

    def _transform_fingerprint(self) -> str:
        offered = getattr(self.transform, "fingerprint", None)
        if self.transform is None or offered is not None:
            return str(offered()) if offered is not None else "none"
        try:
            return digest(spec_of(self.transform))
        except (ValueError, TypeError):
            # It has no importable name; two transforms may share this one.
            is_function = inspect.isfunction(self.transform)
            kind: Any = self.transform if is_function else type(self.transform)
            return f"{kind.__module__}:{kind.__qualname__}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_costs": {}}


def decoded(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a raw sample with its images as uint8 (height, width, 3); ImageError where broken."""
    return {
        name: np.array(look_at(name, look_at(name, open_image, value).decode))
        if is_image(name)
        else value
        for name, value in raw.items()
    }


def probed(raw: Mapping[str, Any]) -> Probe:
    """Return the cost of a sample without a transform: pixels, and bytes once decoded."""
    sizes = [image_size(value) for name, value in raw.items() if is_image(name)]
    played = [raw[name].seek(0, io.SEEK_END) for name in raw if is_media(name)]
    rest = {name: raw[name] for name in raw if not (is_image(name) or is_media(name))}
    pixels = sum(width * height for width, height in sizes)
    nbytes = 3 * pixels + sum(played) + sample_nbytes(rest)
    return Probe(str(raw["__key__"]), {"pixels": pixels, "bytes": nbytes}, nbytes)


def _open_indexes(shards: tuple[Path, ...], cache: Path | None) -> tuple[ShardIndex, ...]:
    """Open the shards' indexes; kept ones that had to be made again are logged in one line."""
    damaged: list[DamagedFileError] = []
    indexes = tuple(open_index(shard, cache, damaged.append) for shard in shards)
    if damaged:
        first, count = damaged[0], len(damaged)
        others = f" ({count} of {len(shards)} indexes like it)" if count > 1 else ""
        logger.warning("%s: it is made again%s", first, others)
    return indexes


def _check_keys(shards: tuple[Path, ...], indexes: tuple[ShardIndex, ...]) -> None:
    """Raise ValueError for a key that occurs in two shards."""
    seen: dict[str, Path] = {}
    for shard, index in zip(shards, indexes, strict=True):
        for row in range(len(index)):
            other = seen.setdefault(index.key(row), shard)
            if other is not shard:
                raise ValueError(
                    f"key {index.key(row)!r} stands in {other} and in {shard}; keys must differ "
                    "over all shards, so name one of the two files only or write them again"
                )
