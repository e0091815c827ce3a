"""Measurement of the bytes that autograd saves in a forward for its backward."""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint


def saved_bytes(forward: Callable[[], object], parameters: Iterable[Tensor] = ()) -> int:
    """Run a forward and return the bytes it saved, each storage once, parameters not counted.

    A recomputed layer saves its input only; what it saves during recomputation is not counted. The
    forward's result is dropped at the end.
    """
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    found: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()
    total = sum(found.values())
    del result
    return total


def run_layers(layers: Sequence[nn.Module], x: Tensor, recompute: Iterable[int]) -> Tensor:
    """Run a stage's layers, those at the positions of `recompute` checkpointed."""
    again = set(recompute)
    for at, layer in enumerate(layers):
        x = checkpoint(layer, x, use_reentrant=False) if at in again else layer(x)
    return x


def live_bytes(
    layers: Sequence[nn.Module], inputs: Sequence[Tensor], recompute: Sequence[int]
) -> int:
    """Return the bytes that a stage has saved after the forwards of its live microbatches."""
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    return saved_bytes(lambda: [run_layers(layers, x, recompute) for x in inputs], [*parameters])
