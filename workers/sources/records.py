"""Makes a data set of records: what all sources have in common that read samples from files.

A format (tar shards, JSONL, parquet) says how many samples each of its files has, how one is read,
and what it is called. Transform, costs and where they are kept, random numbers, errors that name
sample and file, identity, and the description for workers elsewhere are the same for all of them,
and are here. Nothing here imports torch.
"""

import bisect
import inspect
import io
import itertools
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from PIL import features

from ..images.decode import ImageError, decoded, image_size, is_image
from ..media.files import MediaError, is_media
from .cache_files import Stamp, identity, remove_file
from .cost_cache import CostsCache
from .costs import sample_nbytes
from .data_files import DataFiles, check_reads
from .failures import DataChangedError
from .file_patterns import Pattern, find_shards, named
from .fingerprint import digest, digest_arrays, library_versions
from .interface import Cost, Probe, Sample, SampleError, Source, accepts, checked_probe
from .randomness import generator, run_seeded
from .registry import build, find_import_name, make_spec, registered
from .urls import checked_to_tell, is_url

Transform = Callable[..., Sample]
END_BYTES = 1 << 16


class RecordDataset(Source):
    """Samples of files, in order of files and rows; a torch dataset and a source.

    `pattern` names the files; with `root` all that is read lies below that folder.
    `transform(raw)` gets what `raw` returns; if it accepts `rng` it also gets a numpy Generator
    made from (seed, epoch, key). Without a transform images become uint8 (height, width, 3) arrays.
    Costs come from `transform.probe(raw)` (without decoding), else from `cost(sample)` (decode
    first), else, without a transform, from the headers: {"pixels", "bytes"}. Probed costs are kept
    in `cache`, $COUNTERPOISE_CACHE, beside the files or in ~/.cache/counterpoise.

    A format is a subclass that has `open_files` and `read`. Its constructor takes these arguments
    by name, and sets `arguments`, those of its own, before it calls this one: that finds the files
    and opens them.
    """

    FORMAT: ClassVar[str] = ""  # its name in the registry of sources; else package.module:class
    # By what `open_data` knows its files, and its folders.
    EXTENSIONS: ClassVar[tuple[str, ...]] = ()
    MARKERS: ClassVar[tuple[str, ...]] = ()
    HINT: ClassVar[str] = ""  # what an error about files without samples says besides
    # Whether two files may have samples of one name, and what an error about that says besides.
    MAY_REPEAT: ClassVar[bool] = True
    REPEAT_HINT: ClassVar[str] = ""
    # New costs of a file that are kept together; who measures many and calls keep() may give more.
    write_from: int = 1
    arguments: Mapping[str, Any] = MappingProxyType({})  # beside those of all formats; JSON-able
    files: tuple[Path, ...]
    pattern: tuple[str, ...]

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
        self.cost = cost
        self._files = DataFiles()
        self._probe = getattr(transform, "probe", None) if cost is None else None
        self._takes_rng = accepts(transform, "rng")
        # It must not draw from the generators of the process either, which threads share.
        is_repeatable = self._takes_rng or getattr(transform, "deterministic", False)
        is_safe = is_repeatable and getattr(transform, "thread_safe", False)
        self.thread_safe = transform is None or bool(is_safe)
        self.files = self.find_files(pattern)
        self.open()

    # What a format says.

    def find_files(self, pattern: Pattern) -> tuple[Any, ...]:
        """Return the files of a pattern, below the root if there is one, sorted, each once."""
        return find_shards(pattern, self.root, self.EXTENSIONS)

    @abstractmethod
    def open_files(self) -> Sequence[int]:
        """Index the files as they are now; return how many samples each has."""

    @abstractmethod
    def read(self, number: int, row: int, headers: bool) -> dict[str, Any]:
        """Return the parts of a sample by extension: the file's number, the row there.

        Texts and JSON are decoded, media are bytes. With `headers` media are files to read from
        instead, so that a probe reads little. ValueError for one that is broken.
        """

    def name(self, number: int, row: int) -> str:
        """Return a sample's permanent name: FILE:ROW, unless a format has better ones."""
        return f"{self.files[number].name}:{row}"

    def file_digest(self, number: int) -> str:
        """Return a hash of what a file holds: its size and its ends, unless a format knows more."""
        path = self.files[number]
        with path.open("rb") as file:
            head = file.read(END_BYTES)
            size = path.stat().st_size
            file.seek(max(0, size - END_BYTES))
            return digest([size, digest_arrays(head + file.read())])

    def kept_index(self, number: int) -> Path | None:  # noqa: ARG002
        """Return where a file's index is kept; None where none is."""
        return None

    def stamp(self, number: int) -> Stamp:
        """Return what identifies a file's state: costs kept of another one are forgotten."""
        return identity(self.files[number])

    # What all formats have.

    def key(self, index: int) -> str:
        """Return the sample's permanent name; IndexError outside 0 <= index < len."""
        return self.name(*self.place(index))

    def raw(self, index: int, headers: bool = False) -> dict[str, Any]:
        """Return "__key__" and the parts of a sample by extension; SampleError for a broken one.

        Texts and JSON are decoded, media are bytes; with `headers` they are files to read from.
        """
        (number, row), key = self.place(index), self.key(index)
        try:
            return {"__key__": key, **self.read(number, row, headers)}
        except DataChangedError:
            # It may look as it did when the index was kept: the next run is to index it anew.
            if (index_file := self.kept_index(number)) is not None:
                remove_file(index_file)
            raise
        except (ValueError, RecursionError) as error:
            raise SampleError(key, str(error), self.locate_file(index)) from error

    def check(self, number: int) -> None:
        """Raise DataChangedError where a file has changed since it was indexed."""
        if self.files:
            self._files.check(self.files[number])

    def open(self) -> None:
        """Index the files, and forget what is known of others; ValueError for no samples."""
        self._files.note(self.files)
        counts = self.open_files()
        self._ends = tuple(itertools.accumulate(counts))
        if not self._ends or not len(self):
            files = f"no samples in {len(self.files)} files"
            raise ValueError(f"{', '.join(self.pattern)}: {files}{self.HINT}")
        if self.MAY_REPEAT and len(self.files) > 1:
            self._refuse_repeated(counts)
        self._costs: dict[int, CostsCache] = {}
        self._data_digest = ""  # made when it is first asked for: every index is read for it

    def _refuse_repeated(self, counts: Sequence[int]) -> None:
        seen: dict[str, Path] = {}
        for number, path in enumerate(self.files):
            for key in (self.name(number, row) for row in range(counts[number])):
                if (first_path := seen.setdefault(key, path)) is not path:
                    raise ValueError(
                        f"key {key!r} stands in {first_path} and in {path}; keys must differ over "
                        "all files, so name one of the two files only or write them again"
                        f"{self.REPEAT_HINT}"
                    )

    def reopen_if_changed(self) -> bool:
        """Index the files again if one has changed since; return whether one had.

        Loaders call this when an iteration begins. A file that changes later is an error.
        """
        changed = any(map(self._files.has_changed, self.files))
        if changed:
            self.open()
        return changed

    @property
    def knows_costs(self) -> bool:
        """Return whether it is said what samples cost: cost=, the transform's probe, or headers.

        A transform without a probe may make anything of a sample: then each counts as 1.
        """
        is_said = self.transform is None or self.cost is not None or self._probe is not None
        return is_said or bool(self.cost_table)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Sample:
        return self.load(index)

    def place(self, index: int) -> tuple[int, int]:
        """Return a sample's file, by its number in `files`, and its row there; or IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return self.in_files(int(index))

    def in_files(self, row: int) -> tuple[int, int]:
        """Return the number of the file that a row of all files is in, and its row there."""
        number = bisect.bisect_right(self._ends, row)
        return number, row - self.begin(number)

    def begin(self, number: int) -> int:
        """Return the rows before those of a file."""
        return self._ends[number - 1] if number else 0

    def locate_file(self, index: int) -> str:
        """Return the path of the file that a sample is in, "" for none; IndexError as in `key`."""
        number, _ = self.place(index)
        return str(self.files[number]) if self.files else ""

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
            raise self._locate_error(index, error) from error

    def _locate_error(self, index: int, error: Exception) -> SampleError:
        """Return the error of a sample with its key, unless it names one, and its file."""
        if isinstance(error, SampleError):
            return SampleError(error.key, error.reason, error.source or self.locate_file(index))
        return SampleError(self.key(index), str(error), self.locate_file(index))

    def explain_single_thread(self) -> str:
        """Return why only one thread may load samples, and what to do, to end an error with."""
        called = getattr(self.transform, "__name__", type(self.transform).__name__)
        return (
            f"its transform {called} does not say that several may call it; if they may, give it "
            "thread_safe = True, and the argument rng to draw from, or deterministic = True if it "
            "draws nothing"
        )

    def probe(self, index: int) -> Probe:
        """Find a sample's cost, from the kept costs or the headers; SampleError where neither."""
        if (known := self.known(index)) is not None:
            return known
        probe, (number, row) = self._measure(index), self.place(index)
        if (costs := self._kept_costs(number)) is not None:
            costs.put(row, probe.cost, probe.nbytes, self.write_from)
        return probe

    def known(self, index: int) -> Probe | None:
        """Return a sample's cost if an earlier run or worker has kept it, reading no sample."""
        if self.cost_table:
            return Source.probe(self, index)
        number, row = self.place(index)
        costs = self._kept_costs(number)
        cost = costs.get(row) if costs is not None else None
        return Probe(self.key(index), *cost) if cost is not None else None

    def keep(self) -> None:
        """Write the costs that are not in their files yet."""
        for costs in self._costs.values():
            costs.keep()

    def _measure(self, index: int) -> Probe:
        if self.cost is not None or not self.knows_costs:
            return super().probe(index)
        raw = self.raw(index, headers=True)
        try:
            return checked_probe((self._probe or probe_headers)(raw), self.key(index))
        except (ImageError, MediaError, SampleError) as error:
            raise self._locate_error(index, error) from error
        finally:
            check_reads(raw.values())
            self.check(self.place(index)[0])

    def _kept_costs(self, number: int) -> CostsCache | None:
        """Return the file's table; None for no file, and a transform that cannot be told apart."""
        if number not in self._costs:
            is_told_apart = self._probe is not None and hasattr(self.transform, "fingerprint")
            if not self.files or not is_told_apart:
                return None
            raw = [self.file_digest(number), *map(str, self.arguments.values())]
            facts = [self._transform_fingerprint(), library_versions(), *raw]
            file, stamp = self.files[number], self.stamp(number)
            count = self._ends[number] - self.begin(number)
            self._costs[number] = CostsCache(file, stamp, digest(facts), count, self.cache)
        return self._costs[number]

    def data_digest(self, samples: int | None = None) -> str:
        """Return a hash of keys and places of the samples; of the first ones, if given.

        Empty where the first `samples` are not all of some files.
        """
        if samples is None:
            self._data_digest = self._data_digest or self._digest_files(len(self._ends))
            return self._data_digest
        count = 1 + bisect.bisect_left(self._ends, samples)
        if count > len(self._ends) or self._ends[count - 1] != samples:
            return ""
        return self._digest_files(count)

    def _digest_files(self, count: int) -> str:
        return digest([self.file_digest(number) for number in range(count)])

    def fingerprint(self) -> str:
        """Return a hash of versions, decoders, transform and data."""
        decoders = {name: features.version(name) for name in ("jpg", "libjpeg_turbo", "webp")}
        about = [library_versions(), decoders, self._transform_fingerprint()]
        return digest([*about, self.data_digest()])

    def _transform_fingerprint(self) -> str:
        offered = getattr(self.transform, "fingerprint", None)
        if self.transform is None or offered is not None:
            return str(offered()) if offered is not None else "none"
        try:
            return digest(make_spec(self.transform))
        except (ValueError, TypeError):
            # It has no importable name; two transforms may share this one.
            is_function = inspect.isfunction(self.transform)
            kind: Any = self.transform if is_function else type(self.transform)
            return f"{kind.__module__}:{kind.__qualname__}"

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able description for `from_spec`; ValueError for a nameless transform."""
        paths = [self._make_absolute(pattern) for pattern in self.pattern]
        transform = None if self.transform is None else make_spec(self.transform)
        name = self.FORMAT or find_import_name(type(self))
        arguments = {
            name: value for name, value in self.arguments.items() if value not in (None, {})
        }
        if "media" in arguments:  # a folder, of what records name
            arguments["media"] = self._make_absolute(str(arguments["media"]))
        return {"source": name, "pattern": paths, "transform": transform, **arguments}

    def _make_absolute(self, pattern: str) -> str:
        if not is_url(pattern):
            return pattern if self.root is not None else os.path.abspath(pattern)  # noqa: PTH100
        return checked_to_tell(pattern)

    @classmethod
    def from_spec(
        cls,
        spec: Mapping[str, Any],
        root: str | Path | None,
        allowed: Iterable[str] = (),
        cache: str | Path | None = None,
    ) -> Self:
        """Open what `spec` describes: below `root`, with built-in, registered or `allowed` names.

        Raises ValueError for a spec that is malformed, a path outside the root, and a transform
        that is not registered.
        """
        name = cls.FORMAT or find_import_name(cls)
        about = {"source": name, "pattern": None, "transform": None, **spec}
        pattern, chosen = about.pop("pattern"), about.pop("transform")
        if about.pop("source") != name or not isinstance(pattern, str | list | tuple):
            raise ValueError(
                f"a {name} source is given as source, pattern, transform; got {spec!r:.200}"
            )
        if not all(isinstance(text, str) for text in pattern):
            raise ValueError(f"a pattern is a text or a list of texts, got {pattern!r:.200}")
        known = {*inspect.signature(cls).parameters} - {"root", "cache", "cost"}
        if unknown := sorted(set(about) - known):
            raise ValueError(f"a {name} source is not described by {', '.join(unknown)}")
        transform = None if chosen is None else build(chosen, registered(allowed))
        return cls(pattern, transform=transform, root=root, cache=cache, **about)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_costs": {}}


def probe_headers(raw: Mapping[str, Any]) -> Probe:
    """Return the cost of a sample without a transform: pixels, and bytes once decoded."""
    sizes = [image_size(media) for name, media in raw.items() if is_image(name)]
    played = [raw[name].seek(0, io.SEEK_END) for name in raw if is_media(name)]
    other_fields = {name: raw[name] for name in raw if not (is_image(name) or is_media(name))}
    pixels = sum(width * height for width, height in sizes)
    nbytes = 3 * pixels + sum(played) + sample_nbytes(other_fields)
    return Probe(str(raw["__key__"]), {"pixels": pixels, "bytes": nbytes}, nbytes)
