"""Save a pipeline's weights as `save_pretrained` does, each rank its own part.

A file of safetensors is a header, in JSON, and tensors one after another, so that the rows of a
layer that vocabulary passes divide can be appended by the ranks in turn: none holds all of them.
As with checkpoints, the folder has another name until all is on the disk.
"""

import copy
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..files import on_all_ranks, sync_folder
from ..pipeline import Pipeline
from .loading import INDEX, some, tie_of

_PARTIAL = ".partial"
_KINDS = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_KINDS |= {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8"}
_KINDS |= {torch.uint8: "U8", torch.bool: "BOOL"}


# A process' tensors by name: of rows of a divided one, the first and their number.
_Part = Mapping[str, tuple[int, int] | None]


def save_weights(
    folder: str | Path,
    pipe: Pipeline,
    model: Any,
    shard_bytes: int = 5 * 10**9,
    deadline_s: float | None = None,
) -> None:
    """Write the weights of a model of transformers, and its config; all ranks call this.

    `shard_bytes`: of a file, which has one tensor at least. `deadline_s`: how long ranks wait for
    each other's files. Raises on every rank, and leaves no folder, if any fails: FileExistsError if
    the folder exists, OSError for what could not be written, and ValueError for weights of the
    model that no rank has.
    """
    folder, what = Path(folder), f"save {folder}"
    making, process = folder.with_name(folder.name + _PARTIAL), dist.get_rank()
    own: dict[str, Tensor] = {}

    def begin() -> _Part:
        if folder.exists():
            raise FileExistsError(f"{folder} exists; give each model a folder of its own")
        if process == 0:
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(parents=True)
            _write_config(making, model)
        state = pipe.state()
        if pipe.replica != 0 or pipe.lane != 0:
            return {}
        # a tied weight has one name in the files
        own.update((name, t) for name, t in state.model.items() if tie_of(model, name) == name)
        rows = state.rows
        return {name: (rows[name], len(t)) if name in rows else None for name, t in own.items()}

    def write_whole() -> dict[str, dict[str, int]]:
        found = {}
        whole = {name: own[name] for name, rows in parts[process].items() if rows is None}
        for number, tensors in enumerate(_files(model, whole, shard_bytes)):
            found[f"{process}-{number}"] = {n: t.nbytes for n, t in tensors.items()}
            _append(making / f"{process}-{number}", tensors.values(), tensors)
        return found

    def append_rows() -> dict[str, dict[str, int]]:
        found = {}
        for name, rows in parts[process].items():
            if rows is not None:
                count = sum(each[1] for part in parts if (each := part.get(name)) is not None)
                like = own[name].new_empty((count, *own[name].shape[1:]), device="meta")
                (saved,) = _converted(model, {name: like})
                _append(making / name, [own[name]], {} if rows[0] else {saved: like})
                found[name] = {saved: like.nbytes}
        return found

    def end() -> None:
        if process == 0:
            _finish(making, written)
            making.replace(folder)
            sync_folder(folder.parent)

    try:
        parts = on_all_ranks(pipe, what, deadline_s, begin)
        _refuse_missing(model, parts)
        written: dict[str, dict[str, int]] = {}
        for found in on_all_ranks(pipe, what, deadline_s, write_whole):
            written |= found
        # those whose rows begin further down come later
        rows = {n: [each for each in part.values() if each] for n, part in enumerate(parts)}
        for turn in sorted((n for n in rows if rows[n]), key=lambda n: max(rows[n])):
            work = append_rows if turn == process else dict
            for found in on_all_ranks(pipe, what, deadline_s, work):
                written |= found
        on_all_ranks(pipe, what, deadline_s, end)
    except (OSError, ValueError, RuntimeError):
        if process == 0:
            shutil.rmtree(making, ignore_errors=True)
        raise


def _refuse_missing(model: Any, parts: Iterable[_Part]) -> None:
    """Raise ValueError for weights of the model that no rank saves."""
    every = {name for name in model.state_dict() if tie_of(model, name) == name}
    if missing := every.difference(*parts) - set(model._keys_to_ignore_on_save):
        raise ValueError(
            f"no rank has {some(missing)} of the model; save a pipeline of all of it, not one of "
            "text alone (images=False)"
        )


def _files(
    model: Any, tensors: Mapping[str, Tensor], limit_bytes: int
) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of each file by their names in it, converted a layer at a time."""
    found: dict[str, Tensor] = {}
    for _, names in groupby(sorted(tensors), _layer):
        for name, value in _converted(model, {n: tensors[n] for n in names}).items():
            if found and sum(t.nbytes for t in found.values()) + value.nbytes > limit_bytes:
                yield found
                found = {}
            found[name] = value
    if found:
        yield found


def _layer(name: str) -> str:
    """Return what the names of a layer's tensors begin with; another tensor is one by itself."""
    found = re.match(r".*?\.\d+(?=\.)", name)
    return name if found is None else found[0]


def _converted(model: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as released files have them."""
    from transformers.core_model_loading import revert_weight_conversion

    found: dict[str, Tensor] = revert_weight_conversion(model, tensors)
    return found


def _append(path: Path, tensors: Iterable[Tensor], header: Mapping[str, Tensor]) -> None:
    """Append tensors to a file that is on the disk when this returns; `header`: what it will have.

    Raises OSError.
    """
    try:
        with path.open("ab") as file:
            if header:
                file.write(_header(header))
            for tensor in tensors:
                flat = tensor.detach().cpu().contiguous().flatten()
                file.write(flat.view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the beginning of a file of safetensors."""
    found: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        kind, end = _KINDS[tensor.dtype], at + tensor.nbytes
        found[name] = {"dtype": kind, "shape": [*tensor.shape], "data_offsets": [at, end]}
        at = end
    text = json.dumps(found).encode()
    text += b" " * (-len(text) % 8)  # what follows is aligned
    return len(text).to_bytes(8, "little") + text


def _write_config(folder: Path, model: Any) -> None:
    """Write the files beside the weights that `from_pretrained` reads."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


def _finish(folder: Path, written: Mapping[str, Mapping[str, int]]) -> None:
    """Give the files of weights their names, and write the index."""
    places: dict[str, str] = {}
    for number, (name, tensors) in enumerate(written.items()):
        last = f"model-{number + 1:05}-of-{len(written):05}.safetensors"
        (folder / name).rename(folder / last)
        places |= dict.fromkeys(tensors, last)
    size = sum(count for tensors in written.values() for count in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    for path in folder.iterdir():
        sync_folder(path)
    sync_folder(folder)
