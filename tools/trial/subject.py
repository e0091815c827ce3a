"""Opens what `counterpoise try` is given: a data set, files, or a script that makes a DataLoader.

A `Subject` is all that the loaders which are compared have in common, and the lines of code that
make the same in a user's script.
"""

import importlib.util
import io
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch.utils.data as torch_data

from ...loader import collate_padded
from ...workers.mixture.order import rows_of
from ...workers.mixture.recipe_files import is_recipe
from ...workers.sources.failures import describe_error
from ...workers.sources.registry import class_of, format_of, source_of
from ...workers.vision_language.transform import VisionLanguage
from ..analyze.scan.sources import find_dataset, import_object, is_import_path

# Samples of files that are looked at, to see what makes training samples of them.
LOOKED_AT = 4
COLLATE_LINE = "from counterpoise.loader import collate_padded"
# A data set that pickles to so many bytes without an error is taken for one that can be pickled.
ENOUGH_BYTES = 64 << 20


class UnusableDataError(ValueError):
    """Data of which nothing can be measured; the command ends with status 4."""

    exit_status = 4


@dataclass(frozen=True, slots=True)
class Subject:
    """What is tried.

    order: torch's arguments for it (shuffle, sampler or batch_sampler). ranks: those of a
    DistributedSampler, 0 for none. more: other arguments of the script's loader. setup: lines of
    code that make the data set, which they call `named`. notes: sentences about what the user did
    not choose.
    """

    name: str
    dataset: Any
    named: str
    setup: tuple[str, ...]
    collate: Callable[[list[Any]], Any] | None = None
    batch_size: int = 8
    workers: int = field(default_factory=lambda: min(4, len(os.sched_getaffinity(0))))
    order: Mapping[str, Any] = field(default_factory=lambda: {"shuffle": True})
    drop_last: bool = False
    begin: Callable[[int], None] | None = None
    context: Any = None
    ranks: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def is_stream(self) -> bool:
        """True for samples that have no index: no step can be planned of them."""
        return not hasattr(self.dataset, "__getitem__") or isinstance(
            self.dataset, torch_data.IterableDataset
        )

    @property
    def shuffle(self) -> bool:
        """True where the order is random, as far as is known."""
        return bool(self.order.get("shuffle", True))

    @property
    def samples(self) -> Any:
        """What balanced loops read: the data set, or what an HFProcessor makes of it."""
        processor: Any = self.collate
        return rows_of(processor.over(self.dataset) if hasattr(processor, "over") else self.dataset)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that all loaders share."""
        sized = {} if "batch_sampler" in self.order else {"batch_size": self.batch_size}
        return {
            **self.order, **sized, "num_workers": self.workers, "collate_fn": self.collate,
            "drop_last": self.drop_last and bool(sized), "worker_init_fn": self.begin,
            "multiprocessing_context": self.context if self.workers else None, **self.more,
        }  # fmt: skip

    def line(self, *more: str, **changed: object) -> str:
        """Return the line that makes our loader, with more arguments behind those of all."""
        shuffle = {name: each for name, each in self.order.items() if name == "shuffle"}
        given = {"batch_size": self.batch_size, **shuffle, "num_workers": self.workers, **changed}
        parts = [self.named, *(f"{name}={value!r}" for name, value in given.items())]
        if self.collate is not None:
            parts.append(f"collate_fn={getattr(self.collate, '__name__', 'collate_fn')}")
        parts += ["drop_last=True"] if self.drop_last else []
        parts += [f"{name}={value!r}" for name, value in self.more.items()]
        return f"loader = cp.DataLoader({', '.join([*parts, *more])})"


def open_subject(
    source: str, batch_size: int | None, workers: int | None, collate: str, transform: str
) -> Subject:
    """Return what a SOURCE names; what is given overrules what a script's loader says.

    Raises ValueError for a source that cannot be opened, UnusableDataError for an empty one.
    """
    is_python = ".py:" in source or is_import_path(source)
    subject = _in_python(source) if is_python else _in_files(source, transform)
    if batch_size is not None:
        subject = replace(subject, batch_size=batch_size)
    if workers is not None:
        subject = replace(subject, workers=workers)
    if hasattr(subject.dataset, "__len__") and len(subject.dataset) == 0:
        raise UnusableDataError(f"{source} is empty: give a data set with samples")
    if subject.is_stream:
        return replace(
            subject, order={}, collate=import_object(collate) if collate else subject.collate
        )
    if collate:
        module, _, name = collate.partition(":")
        setup = (*subject.setup, f"from {module} import {name}")
        subject = replace(subject, collate=import_object(collate), setup=setup)
    elif subject.collate is None:
        subject = _with_collate(subject)
    return subject


def _in_python(source: str) -> Subject:
    path, _, name = source.rpartition(":")
    is_script = path.endswith(".py")
    found = _object_in_script(Path(path), name) if is_script else import_object(source)
    is_data = hasattr(found, "__getitem__") or hasattr(found, "__iter__")
    is_called = isinstance(found, type) or not is_data
    if is_called:
        if not callable(found):
            raise ValueError(
                f"{source} is a {type(found).__name__}: name a data set, a DataLoader, or a "
                "function that makes one"
            )
        try:
            found = found()
        except TypeError as error:
            raise ValueError(
                f"{source} cannot be called without arguments ({error}): name a function that "
                "needs none"
            ) from None
    module = Path(path).stem if is_script else path
    if isinstance(found, torch_data.DataLoader):
        return _of_loader(source, found)
    setup = [f"from {module} import {name}"] + ([f"dataset = {name}()"] if is_called else [])
    return Subject(source, found, "dataset" if is_called else name, tuple(setup))


def _object_in_script(path: Path, name: str) -> Any:
    """Return an object of a script, whose __name__ is its file's, so that no main part runs."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give FILE.py:NAME or package.module:NAME")
    sys.path.insert(0, str(path.resolve().parent))
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    # Workers that are started clean, and pickle, look for it by its name.
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        return getattr(module, name)
    except AttributeError:
        raise ValueError(f"{path} has no {name!r}; check the name") from None


def _of_loader(source: str, loader: Any) -> Subject:
    """Return what a script's loader is made of."""
    given: dict[str, Any] = {}
    sampler = loader.sampler
    batches = loader.batch_sampler
    if isinstance(sampler, torch_data.DistributedSampler):
        given = {"order": {"shuffle": sampler.shuffle}, "ranks": sampler.num_replicas}
    elif type(batches) not in (torch_data.BatchSampler, type(None)):
        given = {"order": {"batch_sampler": batches}}
    elif type(sampler) in (torch_data.SequentialSampler, torch_data.RandomSampler):
        given = {"order": {"shuffle": type(sampler) is torch_data.RandomSampler}}
    elif not isinstance(loader.dataset, torch_data.IterableDataset):
        given = {"order": {"sampler": sampler}}
    else:
        given = {"order": {}}
    place = f"# in {source.replace(':', ', ')}, in place of DataLoader"
    own = loader.collate_fn is not torch_data.default_collate
    size = loader.batch_size or getattr(batches, "batch_size", None) or 1
    return Subject(
        source, loader.dataset, "dataset", (place,),
        loader.collate_fn if own else None, size, loader.num_workers,
        drop_last=loader.drop_last, begin=loader.worker_init_fn,
        context=loader.multiprocessing_context, more=_of_workers(loader), **given,
    )  # fmt: skip


def _of_workers(loader: Any) -> dict[str, Any]:
    """Return what a loader says about its workers, and torch would not by itself."""
    defaults = {"persistent_workers": False, "pin_memory": False, "prefetch_factor": 2}
    given = {name: getattr(loader, name) for name in defaults} if loader.num_workers else {}
    return {name: value for name, value in given.items() if value != defaults[name]}


def _in_files(source: str, transform: str) -> Subject:
    """Return the samples of files, by the transform that is named, or by one that fits them."""
    if is_recipe(source):
        return Subject(
            source,
            find_dataset(source),
            "dataset",
            (f"dataset = cp.Mixture.from_file({source!r})",),
        )
    kind = class_of(source).__name__
    if transform:
        module, _, name = transform.partition(":")
        found = import_object(transform)
        found = found() if isinstance(found, type) else found
        made = f"{name}()" if isinstance(import_object(transform), type) else name
        lines = (f"from {module} import {name}", f"dataset = cp.{kind}({source!r}, {made})")
        return Subject(source, source_of(source, found), "dataset", lines)
    raw = source_of(source)
    if not len(raw):
        raise UnusableDataError(f"{source} is empty: give files with samples")
    if format_of(source) == "hf" and (found := _tokenized(source)) is not None:
        lines = ("import datasets", f"dataset = datasets.load_from_disk({source!r})")
        return Subject(source, found, "dataset", lines)
    ready = source_of(source, VisionLanguage(image_token_id=0))
    if _first_samples(ready):
        note = (
            "A byte counts as a token, and images are cut into tiles of 448 pixels: give "
            "--transform MODULE:NAME for what your loop does"
        )
        lines = (
            COLLATE_LINE,
            f"dataset = cp.{kind}({source!r}, cp.VisionLanguage(image_token_id=0))",
        )
        return Subject(source, ready, "dataset", lines, collate_padded, notes=(note,))
    note = "The records are used as they are: give --transform MODULE:NAME for what your loop does"
    return Subject(source, raw, "dataset", (f"dataset = cp.{kind}({source!r})",), notes=(note,))


def _tokenized(folder: str) -> Any:
    """Return a Hugging Face folder as its users open it, if it has token ids; else None."""
    try:
        import datasets
    except ImportError:
        return None
    found = datasets.load_from_disk(folder)
    return found if "input_ids" in found.column_names else None


def _first_samples(dataset: Any) -> list[Any]:
    """Return those of the first samples that load."""
    found = []
    for index in range(min(len(dataset), LOOKED_AT)):
        with suppress(Exception):  # which it is, the trial says
            found.append(dataset[index])
    return found


def _with_collate(subject: Subject) -> Subject:
    """Return the subject with what makes batches of its samples where nobody has said it."""
    samples = _first_samples(subject.dataset)
    tried = (None, collate_padded)
    for collate in tried if len(samples) > 1 else ():
        try:
            (collate or torch_data.default_collate)(samples)
        except Exception:
            continue
        if collate is None:
            return subject
        return replace(subject, collate=collate, setup=(*subject.setup, COLLATE_LINE))
    if len(samples) < 2:
        return subject
    note = (
        "Samples cannot be stacked into a batch, so that batches were lists of samples: give "
        "--collate MODULE:NAME, the collate_fn of your loop"
    )
    return replace(subject, collate=list, notes=(*subject.notes, note))


class _Sink(io.RawIOBase):
    """Takes bytes and keeps none, up to ENOUGH_BYTES of them."""

    taken = 0

    def write(self, data: Any) -> int:
        self.taken += len(data)
        if self.taken > ENOUGH_BYTES:
            raise StopIteration
        return len(data)


def why_unpicklable(subject: Subject) -> str:
    """Return why the data set, or what makes its batches, cannot be pickled; "" where it can."""
    for thing in (subject.dataset, subject.collate, subject.begin):
        try:
            pickle.Pickler(_Sink(), pickle.HIGHEST_PROTOCOL).dump(thing)  # type: ignore[arg-type]
        except StopIteration:
            continue
        except Exception as error:
            return describe_error(error)
    return ""
