"""Divide the small models as users do, with torch's `parallelize_module`."""

from collections.abc import Iterable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from counterpoise.sched.runtime import Units
from tests.sched.runtime.encoders.models import Layer, Model
from tests.sched.runtime.models import Block
from tests.sched.runtime.stage.generator.decoder import Decoder


def divide_in(units: Units, pieces: Iterable[nn.Module]) -> None:
    """Divide the pieces of a model as this process' unit is; all processes of the job call this."""
    if any(unit.tp > 1 for unit in units.sizes):
        mesh = units.mesh()["tp"]
        if mesh.size() > 1:
            divide_pieces(pieces, mesh)


def divide(model: Model, mesh: DeviceMesh) -> None:
    """Divide the linear layers, and the embedding, of all stages and encoders over a mesh.

    Norms stay whole, and so does what stages and layers take and give. Neither the head's words nor
    those of the embedding divide evenly.
    """
    divide_pieces(model.pieces(), mesh)


def divide_pieces(pieces: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Divide pieces of a model as `divide` does, and a decoder that draws."""
    for piece in pieces:
        for module in piece.modules():
            plan = plan_of(module, piece)
            if plan:
                parallelize_module(module, mesh, plan)


def plan_of(module: nn.Module, piece: nn.Module) -> dict[str, ParallelStyle]:
    """Return how the layers right below a module are divided."""
    if isinstance(module, Block | Decoder):
        return {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if isinstance(module, Layer):
        return {"linear": ColwiseParallel(output_layouts=Replicate())}
    if module is not piece:
        return {}
    found: dict[str, ParallelStyle] = {}
    for name, layer in module.named_children():
        if isinstance(layer, nn.Embedding):
            found[name] = RowwiseParallel(input_layouts=Replicate())
        elif isinstance(layer, nn.Linear):
            found[name] = ColwiseParallel(output_layouts=Replicate())
    return found
