"""Make the parameters and buffers of some modules of a model that is on the meta device.

What is not loaded is set by the model's own `_init_weights`, as `from_pretrained` does it. Each
module that a rank has (a layer, the embedding) is drawn from a seed of its own, made of its name,
so that the model is the same whatever rank has the module, and those that share it are alike.
"""

import copy
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def materialise(
    units: Mapping[str, nn.Module],
    device: torch.device,
    precisions: Mapping[str, torch.dtype] | None = None,
) -> None:
    """Give tensors of the meta device memory of their own; what is tied stays tied.

    `units`: modules by name. `precisions`: of floating-point tensors, by a pattern that is found in
    their names; others keep their own. Such buffers are NaN, so that `initialise_unloaded` can
    tell which of them are not set.
    """
    copies: dict[Tensor, Tensor] = {}
    named = ((name, *child) for name, unit in units.items() for child in unit.named_modules())
    for unit_name, path, module in named:
        for tensors in (vars(module)["_parameters"], vars(module)["_buffers"]):
            for name, old in tensors.items():
                if old is None or not old.is_meta:
                    continue
                # Tied tensors are one tensor in several places, and get one copy.
                if old not in copies:
                    full_name = ".".join(filter(None, (unit_name, path, name)))
                    chosen = precisions.items() if precisions and old.is_floating_point() else ()
                    dtypes = (dtype for pattern, dtype in chosen if re.search(pattern, full_name))
                    dtype = next(dtypes, old.dtype)
                    new = copies[old] = torch.empty_like(old, device=device, dtype=dtype)
                    if isinstance(old, nn.Parameter):
                        copies[old] = nn.Parameter(new, old.requires_grad)
                    elif new.is_floating_point():
                        new.fill_(float("nan"))
                tensors[name] = copies[old]


def find_precisions(model: Any, dtype: torch.dtype) -> Mapping[str, torch.dtype]:
    """Return what transformers keeps in another precision than the model's, for `materialise`.

    Raises ValueError for a model of something else.
    """
    if not hasattr(model, "_get_dtype_plan"):
        raise ValueError(
            f"{type(model).__name__} is no model of transformers, of which weights= makes a part; "
            "make the whole model on every process"
        )
    return dict(model._get_dtype_plan(dtype))


def initialise_unloaded(model: nn.Module, units: Mapping[str, nn.Module], seed: int) -> None:
    """Set what is not loaded in some modules of a model of transformers, by their names in it.

    Raises ValueError for a buffer that the model's class does not set.
    """
    from transformers import initialization

    with torch.no_grad(), initialization.guard_torch_init_functions():
        for name, module in units.items():
            with _seeded(f"{seed} {name}", module):
                _initialise(_owner(model, name), module)
            for inside, buffer in module.named_buffers():
                if buffer.is_floating_point() and bool(buffer.isnan().any()):
                    raise ValueError(
                        f"{type(model).__name__} does not set {name}.{inside} in _init_weights, so "
                        "that a rank alone cannot make it; make the whole model on every rank"
                    )


def draw_parameter(model: nn.Module, name: str, seed: int, device: torch.device) -> Tensor:
    """Return a parameter of a module without children, the same as on any other rank."""
    module_name, _, parameter_name = name.rpartition(".")
    module = copy.deepcopy(model.get_submodule(module_name)).to("meta").to_empty(device=device)
    initialise_unloaded(model, {module_name: module}, seed)
    return module.get_parameter(parameter_name).detach()


@contextmanager
def _seeded(text: str, module: nn.Module) -> Iterator[None]:
    """Draw random numbers that follow from a text, and leave torch's own as they are."""
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    devices = [] if device.type == "cpu" else [device]
    options = {} if device.type == "cpu" else {"device_type": device.type}
    with torch.random.fork_rng(devices, **options):
        torch.manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))
        yield


def _owner(model: nn.Module, name: str) -> Any:
    """Return the innermost model of transformers that a module is in, which initialises it."""
    from transformers import PreTrainedModel

    owner, child = model, model
    for child_name in name.split("."):
        child = getattr(child, child_name)
        owner = child if isinstance(child, PreTrainedModel) else owner
    return owner


def _initialise(owner: Any, module: nn.Module) -> None:
    from transformers import PreTrainedModel

    for child in module.children():
        _initialise(child if isinstance(child, PreTrainedModel) else owner, child)
    owner._init_weights(module)
