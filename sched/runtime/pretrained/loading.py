"""Load a rank's part of a model from the safetensors files that `save_pretrained` writes.

Names in files may be others than the model's, and some tensors are parts of the model's (an
expert's of all experts'): transformers' own table of conversions says so. Files are read without
mapping them, one tensor at a time, so that a rank needs its own part and the largest tensor. Of
layers that vocabulary passes divide, a rank reads its rows.
"""

import copy
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..model_state import HeldModules
from .making import draw_parameter, initialise_unloaded

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_FLOATS = ("F64", "F32", "F16", "BF16")


class _Place(NamedTuple):
    """Where a tensor goes. `rows`: which of its rows, None for all; `shape`: of all."""

    tensor: Tensor
    shape: tuple[int, ...]
    rows: slice | None = None


class _Files:
    """The tensors of a folder by their names in its files, read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._open = folder, dict[str, Any]()
        if (folder / INDEX).is_file():
            self.where = _index(folder / INDEX)
            missing = [n for n in sorted(set(self.where.values())) if not (folder / n).is_file()]
            if missing:
                raise FileNotFoundError(
                    f"{folder / INDEX} names {some(missing)}, which {folder} does not hold; "
                    "download or copy all of its files"
                )
        elif (folder / SINGLE).is_file():
            self.where = dict.fromkeys(self._file(SINGLE).keys(), SINGLE)
        else:
            raise FileNotFoundError(
                f"{folder} has neither {INDEX} nor {SINGLE}; give a folder that save_pretrained "
                "wrote, or that huggingface_hub.snapshot_download returns"
            )

    def tensor(self, key: str) -> Any:
        """Return a tensor's slice, which reads what it is asked for. Raises ValueError."""
        from safetensors import SafetensorError

        try:
            return self._file(self.where[key]).get_slice(key)
        except SafetensorError as error:
            raise ValueError(
                f"{self.folder / self.where[key]} cannot give {key} ({error}); copy it again"
            ) from error

    def _file(self, name: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if name not in self._open:
            try:
                # not mapped: what was read of a mapped file would count as this process' memory
                self._open[name] = safe_open(self.folder / name, "pt", backend="pread")
            except SafetensorError as error:
                raise ValueError(
                    f"{self.folder / name} is damaged or cut off ({error}); copy it again"
                ) from error
        return self._open[name]


def _index(path: Path) -> dict[str, str]:
    """Return the file of each tensor by an index. Raises ValueError if it is damaged."""
    try:
        return {
            str(k): str(v) for k, v in json.loads(path.read_text("utf-8"))["weight_map"].items()
        }
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is no index of safetensors files ({error!r})") from error


class _Source(NamedTuple):
    """What tensors of the model are made of: names in files, each with its converter's pattern.

    `names`: of all the tensors that the converter makes; without one, of the only tensor.
    """

    names: tuple[str, ...]
    converter: Any
    parts: list[tuple[str, str]]


def load_weights(model: Any, held: HeldModules, folder: str | Path) -> None:
    """Load what a rank holds of a model of transformers.

    Floating point is cast to the model's own precision. Raises FileNotFoundError for missing files,
    and ValueError for damaged ones and for those of another model: names that are missing or too
    many, other shapes, other kinds of numbers, and two values of a tied weight.
    """
    files, places = _Files(Path(folder)), _places(held)
    sources, unexpected = _sources(model, files.where)
    known = {name for source in sources.values() for name in source.names}
    file_names = {name: _names_in_files(model, name, known) for name in places}
    lost = SimpleNamespace(
        missing_keys={name for name in places if not file_names[name]}, unexpected_keys=unexpected
    )
    model._adjust_missing_and_unexpected_keys(lost)  # by what transformers itself passes over
    _refuse_other_names(folder, lost.missing_keys, lost.unexpected_keys)
    for source in sources.values():
        targets = [(name, places[to]) for to, names in file_names.items() for name in names]
        targets = [(name, place) for name, place in targets if name in source.names]
        if targets:
            _take(model, files, source, targets)


def set_weights(
    model: Any, held: HeldModules, units: Mapping[str, nn.Module], weights: str | Path | int
) -> None:
    """Set all tensors that a rank holds. Raises as `load_weights` and `initialise_unloaded` do.

    `units`: the modules of its stages and encoders, by name. `weights`: a folder, or a seed.
    """
    if not isinstance(weights, int):
        load_weights(model, held, weights)
        initialise_unloaded(model, units, 0)
        return
    initialise_unloaded(model, units, weights)
    # what other ranks have, too, or other rows of
    for name, place in _places(held).items():
        if place.rows is not None or name in model.all_tied_weights_keys:
            value = draw_parameter(model, saved_name(model, name), weights, place.tensor.device)
            with torch.no_grad():
                place.tensor.copy_(value if place.rows is None else value[place.rows])


def saved_name(model: Any, name: str) -> str:
    """Return the name under which a weight, that may be tied, is saved."""
    return str(model.all_tied_weights_keys.get(name, name))


def _names_in_files(model: Any, name: str, known: set[str]) -> list[str]:
    """Return the names of a tensor, or of what it is tied to, that there are in the files."""
    tied = (n for pair in model.all_tied_weights_keys.items() for n in pair)
    same = [n for n in tied if saved_name(model, n) == saved_name(model, name)]
    return [n for n in dict.fromkeys((name, *same)) if n in known]


def _places(held: HeldModules) -> dict[str, _Place]:
    """Return where the tensors go that a rank holds, by their names in the whole model."""
    places = {
        start + name: _Place(tensor, tuple(tensor.shape))
        for _, start, module in held.modules()
        for name, tensor in module.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor)
    }
    if held.shard is not None:
        for name, rows, sharding in held.shard.named_rows():
            start, real = sharding.start, sharding.real
            shape = (sharding.size, *rows.shape[1:])
            places[name] = _Place(rows.detach()[:real], shape, slice(start, start + real))
    return places


def _sources(model: Any, keys: Iterable[str]) -> tuple[dict[str, _Source], set[str]]:
    """Return what the model's tensors are made of, and the names that it does not have."""
    from transformers import conversion_mapping, core_model_loading as own

    conversions = conversion_mapping.get_model_conversion_mapping(model)
    renamings = [rule for rule in conversions if isinstance(rule, own.WeightRenaming)]
    converters = [rule for rule in conversions if isinstance(rule, own.WeightConverter)]
    by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    prefix, state = model.base_model_prefix, model.state_dict()
    sources: dict[str, _Source] = {}
    unexpected = set()
    for key in sorted(keys, key=own.dot_natural_key):
        name, pattern = own.rename_source_key(key, renamings, converters, prefix, state)
        if name not in state and key in state:
            name, pattern = key, None
        if name not in state:
            unexpected.add(name)
            continue
        converter = None if pattern is None else by_pattern[pattern]
        names = (name,)
        if converter is not None:
            first = converter.target_patterns[0]
            names = tuple(name.replace(first, target) for target in converter.target_patterns)
        sources.setdefault(name, _Source(names, converter, [])).parts.append((pattern or key, key))
    # with which transformers, and `save_weights`, turn names back
    model._weight_conversions = [rule for rule in conversions if rule.was_used()]
    return sources, unexpected


def _refuse_other_names(
    folder: str | Path, missing: Collection[str], unexpected: Collection[str]
) -> None:
    wrong = [f"has no {some(missing)}, which the model has"] if missing else []
    wrong += [f"has {some(unexpected)}, which the model has not"] if unexpected else []
    if wrong:
        raise ValueError(
            f"{folder} {', and '.join(wrong)}; make the model of the config.json in that folder"
        )


def _take(model: Any, files: _Files, source: _Source, places: Sequence[tuple[str, _Place]]) -> None:
    """Copy what is made of some tensors of files to where a rank has it."""
    parts = [(pattern, files.tensor(key)) for pattern, key in source.parts]
    tensors: dict[str, Any] = {source.names[0]: parts[0][1]}
    for (_, key), (_, part) in zip(source.parts, parts, strict=True):
        numbers, kind = part.get_dtype(), places[0][1].tensor.dtype
        if (numbers in _FLOATS) != kind.is_floating_point:
            raise ValueError(
                f"{files.folder / files.where[key]} has {key} as {numbers}, the model as {kind}; "
                "give a folder of weights that are not quantized"
            )
    if source.converter is not None:
        converter = copy.deepcopy(source.converter)
        for (pattern, part), (_, key) in zip(parts, source.parts, strict=True):
            converter.add_tensor(source.names[0], key, pattern, partial(part.__getitem__, ...))
        try:
            tensors = converter.convert(source.names[0], model=model, config=model.config)
        except (RuntimeError, ValueError) as error:  # such as experts of several shapes
            why = str(error).splitlines()[0]
            raise ValueError(
                f"{files.folder} has {some([key for _, key in source.parts])}, which do not make "
                f"{source.names[0]} ({why}); make the model of the config.json in that folder"
            ) from error
    for name, place in places:
        value = tensors[name][0] if isinstance(tensors[name], list) else tensors[name]
        shape = tuple(value.shape if isinstance(value, Tensor) else value.get_shape())
        if shape != place.shape:
            raise ValueError(
                f"{files.folder} has {name} of shape {shape}, the model of {place.shape}; make the "
                "model of the config.json in that folder"
            )
        value = (value[...] if place.rows is None else value[place.rows]).to(place.tensor)
        if hasattr(place.tensor, "_is_hf_initialized") and not torch.equal(value, place.tensor):
            raise ValueError(
                f"{files.folder} has two values of {name}, which is tied; make the model with "
                "tie_word_embeddings=False in its config"
            )
        with torch.no_grad():
            place.tensor.copy_(value)
        # by this flag transformers tells what is not to be drawn
        place.tensor._is_hf_initialized = True  # type: ignore[attr-defined]


def some(names: Collection[str]) -> str:
    """Return a few names, and how many there are."""
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} ... ({len(names)} tensors)"
