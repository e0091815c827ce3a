"""Opens what `counterpoise try` is given: a data set, files, or a script that makes a DataLoader.

A `Subject` is all that the loaders which are compared have in common, and the lines of code that
make the same in a user's script.
"""

import importlib.util
import os
import pickle
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.utils.data as torch_data

from ...loader import collate_padded
from ...workers.mixture.order import find_rows
from ...workers.mixture.recipe_files import is_recipe
from ...workers.processes.start_method import start_method
from ...workers.sources.failures import describe_error
from ...workers.sources.registry import find_format, find_format_class, open_data
from ...workers.vision_language.transform import VisionLanguage
from ..analyze.scan.sources import find_dataset, import_object, is_import_path

# The arguments of a script's loader that are taken, with torch's defaults.
TAKEN: dict[str, Any] = {
    "drop_last": False, "worker_init_fn": None, "multiprocessing_context": None, "timeout": 0,
    "pin_memory": False, "persistent_workers": False, "prefetch_factor": 2,
}  # fmt: skip
# First samples that are looked at, to see what makes batches of them.
LOOKED_AT = 8
OWN_BATCHES = "The forecast compares with random order, and the batch_sampler has one of its own."
COLLATE_LINE = "from counterpoise.loader import collate_padded"


class UnusableDataError(ValueError):
    """Data of which nothing can be measured; the command ends with status 4."""

    exit_status = 4


@dataclass(frozen=True, slots=True)
class Subject:
    """What is tried.

    settings: torch's arguments for it. named: what the lines of `setup`, which make the data set,
    call it. ranks: those of a DistributedSampler, 0 for none. notes: sentences about what the user
    did not choose.
    """

    name: str
    dataset: Any
    named: str
    setup: tuple[str, ...]
    settings: Mapping[str, Any]
    ranks: int = 0
    notes: tuple[str, ...] = ()

    @property
    def is_stream(self) -> bool:
        """True for samples that have no index: no step can be planned of them."""
        is_stream = isinstance(self.dataset, torch_data.IterableDataset)
        return is_stream or not hasattr(self.dataset, "__getitem__")

    @property
    def shuffle(self) -> bool:
        """True where the order is random, as far as is known."""
        return bool(self.settings.get("shuffle", True))

    @property
    def samples(self) -> Any:
        """What balanced loops read: the data set, or what an HFProcessor makes of it."""
        processor: Any = self.settings.get("collate_fn")
        return find_rows(
            processor.over(self.dataset) if hasattr(processor, "over") else self.dataset
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a loader: without those that a batch_sampler decides."""
        decided = ("batch_size", "drop_last") if "batch_sampler" in self.settings else ()
        return {name: value for name, value in self.settings.items() if name not in decided}

    def line(self, *more: str, **changed: Any) -> str:
        """Return the line that makes our loader, with more arguments behind those of all."""
        plain = bool | int | float | str
        shown = (
            f"{name}={value!r}" if isinstance(value, plain) else
            f"{name}={_defined_name(value) or name}"
            for name, value in {**self.arguments, **changed}.items() if value is not None
        )  # fmt: skip
        return f"loader = cp.DataLoader({', '.join([self.named, *shown, *more])})"


def open_subject(
    source: str, batch_size: int | None, workers: int | None, collate: str, transform: str
) -> Subject:
    """Return what a SOURCE names; what is given overrules what a script's loader says.

    Raises ValueError for a source that cannot be opened, UnusableDataError for an empty one.
    """
    is_python = ".py:" in source or is_import_path(source)
    subject = _open_python(source) if is_python else _open_files(source, transform)
    settings = {"batch_size": batch_size, "num_workers": workers}
    settings = {name: value for name, value in settings.items() if value is not None}
    subject = _replace_settings(subject, **settings)
    _refuse_unusable(subject)
    if subject.is_stream:
        left = {n: v for n, v in subject.settings.items() if n not in ("shuffle", "sampler")}
        subject = replace(subject, settings=left)
    if collate:
        function, lines, _ = _make_named(collate, "collate_fn")
        subject = replace(subject, setup=(*subject.setup, *lines))
        return _replace_settings(subject, collate_fn=function)
    is_found = "collate_fn" in subject.settings or subject.is_stream
    return subject if is_found else _with_collate(subject)


def _refuse_unusable(subject: Subject) -> None:
    """Raise UnusableDataError for no samples, and for what workers that start clean cannot get."""
    if hasattr(subject.dataset, "__len__") and len(subject.dataset) == 0:
        raise UnusableDataError(f"{subject.name} is empty: give a data set with samples")
    method = start_method(subject.settings.get("multiprocessing_context"))
    if subject.settings["num_workers"] and method != "fork" and (why := find_pickle_error(subject)):
        raise UnusableDataError(
            f"{subject.name} cannot be pickled ({why}), and torch's workers and ours would start "
            f"clean ({method}): open files and locks when a sample is first read, or give "
            "multiprocessing_context='fork'"
        )


def _replace_settings(subject: Subject, **settings: Any) -> Subject:
    return replace(subject, settings={**subject.settings, **settings})


def _import_line(path: str) -> str:
    module, _, name = path.rpartition(":")
    return f"from {Path(module).stem if module.endswith('.py') else module} import {name}"


def _default_settings() -> dict[str, Any]:
    workers = min(4, len(os.sched_getaffinity(0)))
    return {"batch_size": 8, "shuffle": True, "num_workers": workers}


def _open_python(source: str) -> Subject:
    named_object, name = _import_named(source), source.rpartition(":")[2]
    named, setup = name, [_import_line(source)]
    is_data = hasattr(named_object, "__getitem__") or hasattr(named_object, "__iter__")
    if isinstance(named_object, type) or not is_data:
        named_object = _call_factory(named_object, source)
        named, setup = "dataset", [*setup, f"dataset = {name}()"]
    if not isinstance(named_object, torch_data.DataLoader):
        return Subject(source, named_object, named, tuple(setup), _default_settings())
    loader = named_object
    if getattr(loader, "is_balanced", False):
        raise UnusableDataError(
            f"{source} is balanced already: leave balance= out of it for the trial, which compares "
            "both; what it does now is in loader.report()"
        )
    if loader.batch_size is None and loader.batch_sampler is None:
        raise UnusableDataError(
            f"{source} has batch_size=None: its data set or sampler makes whole batches, as "
            "lhotse's do, and the trial makes them of samples: name a data set of single samples, "
            "with --collate and --batch-size; without balance our DataLoader takes it as it is"
        )
    order, ranks = _read_order(loader)
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 1
    settings = {"batch_size": size, **order, "num_workers": loader.num_workers}
    if loader.collate_fn is not torch_data.default_collate:
        settings["collate_fn"] = loader.collate_fn
    taken = {name: getattr(loader, name) for name in TAKEN}
    settings |= {n: value for n, value in taken.items() if value not in (TAKEN[n], None)}
    place = (f"# in {source.replace(':', ', ')}, in place of DataLoader:",)
    notes = (OWN_BATCHES,) if "batch_sampler" in order else ()
    return Subject(source, loader.dataset, "dataset", place, settings, ranks, notes)


def _import_named(source: str) -> Any:
    """Return what FILE.py:NAME or package.module:NAME is."""
    path, _, name = source.rpartition(":")
    return _in_script(Path(path), name) if path.endswith(".py") else import_object(source)


def _call_factory(factory: Any, source: str) -> Any:
    try:
        return factory()
    except TypeError as error:
        raise ValueError(
            f"{source} cannot be called without arguments ({error}): name an object, or a function "
            "or a class that makes one and needs no argument"
        ) from None


def _defined_name(function: Any) -> str:
    """Return the name that a function was defined by; "" for objects and lambdas."""
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else ""


def _make_named(source: str, called: str) -> tuple[Any, tuple[str, ...], str]:
    """Return a named function, or an object of a named class, its lines, and its name in them."""
    named_object, name = _import_named(source), source.rpartition(":")[2]
    if isinstance(named_object, type):
        lines = (_import_line(source), f"{called} = {name}()")
        return _call_factory(named_object, source), lines, called
    if _defined_name(named_object) == name or name == called:
        return named_object, (_import_line(source),), name
    return named_object, (_import_line(source), f"{called} = {name}"), called


def _in_script(path: Path, name: str) -> Any:
    """Return an object of a script, whose __name__ is its file's, so that no main part runs."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give FILE.py:NAME or package.module:NAME")
    file = path.resolve()
    module = sys.modules.get(file.stem)
    # Pickle looks for what is in it by its name: a second name of a script is in the same module.
    if module is None or getattr(module, "__file__", None) != str(file):
        sys.path.insert(0, str(file.parent))
        spec: Any = importlib.util.spec_from_file_location(file.stem, file)
        module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    try:
        return getattr(module, name)
    except AttributeError:
        raise ValueError(f"{path} has no {name!r}; check the name") from None


def _read_order(loader: Any) -> tuple[dict[str, Any], int]:
    """Return torch's arguments for the order of a loader, and the ranks that its sampler knows."""
    sampler, batches = loader.sampler, loader.batch_sampler
    if isinstance(sampler, torch_data.DistributedSampler):
        return {"shuffle": sampler.shuffle}, sampler.num_replicas
    if type(batches) not in (torch_data.BatchSampler, type(None)):
        return {"batch_sampler": batches}, 0
    if isinstance(sampler, torch_data.SequentialSampler | torch_data.RandomSampler):
        return {"shuffle": isinstance(sampler, torch_data.RandomSampler)}, 0
    return {"sampler": sampler}, 0


def _open_files(source: str, transform: str) -> Subject:
    """Return the samples of files, by the transform that is named, or by one that fits them."""
    settings, lines = _default_settings(), tuple[str, ...]()
    if is_recipe(source):
        lines = (f"dataset = cp.Mixture.from_file({source!r})",)
        return Subject(source, find_dataset(source), "dataset", lines, settings)
    opens = f"dataset = cp.{find_format_class(source).__name__}({source!r}"
    if transform:
        function, lines, expression = _make_named(transform, "transform")
        lines = (*lines, f"{opens}, {expression})")
        return Subject(source, open_data(source, function), "dataset", lines, settings)
    if find_format(source) == "hf" and (tokenized := _load_tokenized(source)) is not None:
        lines = ("import datasets", f"dataset = datasets.load_from_disk({source!r})")
        return Subject(source, tokenized, "dataset", lines, settings)
    ready = open_data(source, VisionLanguage(image_token_id=0))
    if first_samples(ready):
        note = "A byte counts as a token, and images are cut into tiles of 448 pixels"
        lines = (COLLATE_LINE, f"{opens}, cp.workers.VisionLanguage(image_token_id=0))")
        settings["collate_fn"] = collate_padded
    else:
        ready, lines, note = open_data(source), (f"{opens})",), "The records are used as they are"
    note += ": give --transform MODULE:NAME for what your loop does."
    return Subject(source, ready, "dataset", lines, settings, notes=(note,))


def _load_tokenized(folder: str) -> Any:
    """Return a Hugging Face folder as its users open it, if it has token ids; else None."""
    with suppress(ImportError):
        import datasets

        dataset = datasets.load_from_disk(folder)
        return dataset if "input_ids" in dataset.column_names else None
    return None


def first_samples(dataset: Any) -> list[Any]:
    """Return those of the first samples that load."""
    samples = []
    for index in range(min(len(dataset), LOOKED_AT)):
        with suppress(Exception):  # the trial says what is broken
            samples.append(dataset[index])
    return samples


def _with_collate(subject: Subject) -> Subject:
    """Return the subject with what makes batches of its samples, where none is given."""
    samples = first_samples(subject.dataset)
    with suppress(Exception):
        torch_data.default_collate(samples)
        return subject
    with suppress(Exception):
        collate_padded(samples)
        subject = replace(subject, setup=(*subject.setup, COLLATE_LINE))
        return _replace_settings(subject, collate_fn=collate_padded)
    note = (
        "Samples do not stack into a batch, so that batches were lists of samples: give "
        "--collate MODULE:NAME, the collate_fn of your loop."
    )
    return _replace_settings(replace(subject, notes=(*subject.notes, note)), collate_fn=list)


class Unbroken:
    """A data set whose broken samples are the next one that is not, for a loader that has no skip.

    >>> Unbroken(["a", "b"])[-3]
    'b'
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        for place in range(index, index + len(self)):
            with suppress(Exception):
                return self.dataset[place % len(self)]
        raise ValueError("no sample can be used")


def find_pickle_error(subject: Subject) -> str:
    """Return why the data set, or what makes its batches, cannot be pickled; "" where it can."""
    with Path(os.devnull).open("wb") as nowhere:
        try:
            pickle.dump((subject.dataset, subject.settings.get("collate_fn")), nowhere)
        except Exception as error:
            return describe_error(error)
    return ""
