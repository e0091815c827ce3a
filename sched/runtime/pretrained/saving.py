"""Save a pipeline's weights as `save_pretrained` does, each rank its own part.

A file of safetensors is a header, in JSON, and tensors one after another, so that the rows of a
layer that vocabulary passes divide can be appended by the ranks in turn: none holds all of them.
As with checkpoints, the folder has another name until all is on the disk.
"""

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..files import new_folder, sync_folder, written
from ..pipeline import Pipeline
from .loading import INDEX, saved_name, some

_KINDS = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_KINDS |= {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8"}
_KINDS |= {torch.uint8: "U8", torch.bool: "BOOL"}
# Parts of the names of peft's tensors: the layer that is adapted, and LoRA's two matrices.
_BASE, _LORA = ".base_layer.", re.compile(r"\.lora_[AB]\.[^.]+\.weight$")

# A process' tensors by name: of rows of a divided one, the first and their number.
_Part = Mapping[str, tuple[int, int] | None]


def save_weights(
    folder: str | Path,
    pipe: Pipeline,
    model: Any,
    shard_bytes: int = 5 * 10**9,
    deadline_s: float | None = None,
) -> None:
    """Write the weights and the config of a model of transformers, as `Adapted.save_pretrained`."""
    sizes: dict[str, dict[str, int]] = {}
    finish = partial(_finish, sizes)
    with new_folder(pipe, Path(folder), deadline_s, finish) as (making, together):
        saving = _Saving(making, pipe, model, shard_bytes)
        saving.parts = parts = together(saving.begin)
        _refuse_missing(model, parts)
        for written_sizes in together(saving.write_whole):
            sizes |= written_sizes
        # those whose rows begin further down come later
        rows = {n: [span for span in part.values() if span] for n, part in enumerate(parts)}
        for turn in sorted((n for n in rows if rows[n]), key=lambda n: max(rows[n])):
            for written_sizes in together(saving.append_rows if turn == saving.process else dict):
                sizes |= written_sizes


class _Saving:
    """The files that one process writes into `making`; `parts`: what each process has."""

    def __init__(self, making: Path, pipe: Pipeline, model: Any, shard_bytes: int) -> None:
        self.process, self.parts = dist.get_rank(), list[_Part]()
        self._making, self._pipe, self._model = making, pipe, model
        self._shard_bytes = shard_bytes
        self._state: dict[str, Tensor] = {}

    def begin(self) -> _Part:
        """Write the config, and return what this process has to save."""
        if self.process == 0:
            _write_config(self._making, self._model)
        state = self._pipe.state()
        if self._pipe.replica != 0 or self._pipe.lane != 0:
            return {}
        # a tied weight has one name in the files
        merged = _merged(self._model, state.model)
        self._state = {n: t for n, t in merged.items() if saved_name(self._model, n) == n}
        rows = state.rows
        return {n: (rows[n], len(t)) if n in rows else None for n, t in self._state.items()}

    def write_whole(self) -> dict[str, dict[str, int]]:
        """Write the tensors that this process has whole; return bytes by name by file."""
        sizes = {}
        whole = {n: self._state[n] for n, rows in self.parts[self.process].items() if rows is None}
        for number, tensors in enumerate(_files(self._model, whole, self._shard_bytes)):
            name = f"{self.process}-{number}"
            sizes[name] = {n: t.nbytes for n, t in tensors.items()}
            _append(self._making / name, tensors.values(), tensors)
        return sizes

    def append_rows(self) -> dict[str, dict[str, int]]:
        """Append this process' rows of divided tensors; return the whole ones' bytes as above."""
        sizes = {}
        for name, rows in self.parts[self.process].items():
            if rows is None:
                continue
            tensor = self._state[name]
            count = sum(span[1] for part in self.parts if (span := part.get(name)) is not None)
            like = tensor.new_empty((count, *tensor.shape[1:]), device="meta")
            (saved,) = _converted(self._model, {name: like})
            _append(self._making / name, [tensor], {} if rows[0] else {saved: like})
            sizes[name] = {saved: like.nbytes}
        return sizes


def refuse_other_tensors(model: Any, ends: Iterable[str]) -> None:
    """Raise ValueError for a model whose files `from_pretrained` would not read as it is.

    LoRA's matrices are added to weights, not in the modules `ends`, that may be tied or divided.
    """
    if not hasattr(model, "_keys_to_ignore_on_save"):  # not of transformers: it has no files
        return
    with torch.device("meta"):
        right = {*type(model)(copy.deepcopy(model.config)).state_dict()}
    state = model.state_dict()
    odd = ({*_merged(model, state, add=False)} ^ right) - set(model._keys_to_ignore_on_save)
    if odd := odd or {name for name in state if name.partition(_BASE)[0] in ends}:
        raise ValueError(
            f"{some(odd)}: {type(model).__name__} has adapters or other tensors there that "
            "from_pretrained would not load; merge them into the weights (merge_and_unload() of "
            "peft), or train plain LoRA of layers that are nn.Linear, without embedding and head"
        )


def _merged(model: nn.Module, state: Mapping[str, Tensor], add: bool = True) -> dict[str, Tensor]:
    """Return tensors by their names without LoRA (peft's), whose products linear layers `add`."""
    modules, tensors = dict[str, Any](model.named_modules()), dict[str, Tensor]()
    for name, tensor in state.items():
        where, _, last = _LORA.sub(_BASE, name).rpartition(_BASE)
        layer: Any = modules.get(where)
        is_linear = isinstance(getattr(layer, "base_layer", None), nn.Linear)
        if not is_linear or getattr(layer, "lora_variant", True):  # other adapters have variants
            tensors[name] = tensor
        elif last:
            used = layer.active_adapters if add and last == "weight" else ()
            used = () if layer.disable_adapters or layer.merged else used
            with torch.no_grad():
                tensors[f"{where}.{last}"] = sum(map(layer.get_delta_weight, used), tensor)
    return tensors


def _refuse_missing(model: Any, parts: Iterable[_Part]) -> None:
    """Raise ValueError for weights of the model that no rank saves."""
    names = _merged(model, model.state_dict(), add=False)
    saved = {name for name in names if saved_name(model, name) == name}
    if missing := saved.difference(*parts) - set(model._keys_to_ignore_on_save):
        raise ValueError(
            f"no rank has {some(missing)} of the model; save a pipeline of all of it, not one of "
            "text alone (images=False)"
        )


def _files(
    model: Any, tensors: Mapping[str, Tensor], limit_bytes: int
) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of each file by their names in it, converted a layer at a time."""
    shard: dict[str, Tensor] = {}
    for _, names in groupby(sorted(tensors), _layer):
        for name, value in _converted(model, {n: tensors[n] for n in names}).items():
            if shard and sum(t.nbytes for t in shard.values()) + value.nbytes > limit_bytes:
                yield shard
                shard = {}
            shard[name] = value
    if shard:
        yield shard


def _layer(name: str) -> str:
    """Return what the names of a layer's tensors begin with; another tensor is one by itself."""
    match = re.match(r".*?\.\d+(?=\.)", name)
    return name if match is None else match[0]


def _converted(model: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as released files have them."""
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, tensors))


def _append(path: Path, tensors: Iterable[Tensor], header: Mapping[str, Tensor]) -> None:
    """Append tensors to a file that is on the disk then; `header`: what it will have."""
    with written(path, "ab") as file:
        if header:
            file.write(_header(header))
        for tensor in tensors:
            file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the beginning of a file of safetensors."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        kind, end = _KINDS[tensor.dtype], at + tensor.nbytes
        entries[name] = {"dtype": kind, "shape": [*tensor.shape], "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries).encode()
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


def _finish(sizes: Mapping[str, Mapping[str, int]], folder: Path) -> None:
    """Give the files of weights their names, and write the index."""
    places: dict[str, str] = {}
    for number, (name, tensors) in enumerate(sizes.items()):
        last = f"model-{number + 1:05}-of-{len(sizes):05}.safetensors"
        (folder / name).rename(folder / last)
        places |= dict.fromkeys(tensors, last)
    size = sum(count for tensors in sizes.values() for count in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    for path in folder.iterdir():
        sync_folder(path)
