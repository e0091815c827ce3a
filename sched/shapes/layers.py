"""Compute times and bytes from the shapes of layers.

Work is counted in floating point operations (a multiply-add is two), after Narayanan et al., 2021:
a transformer layer's forward over s tokens of width h is 24 s h^2 for the matrix products of a
GPT layer and 4 s^2 h for attention, a vocabulary of V costs 2 s h V, and a backward is twice its
forward. A `Device` turns work into nanoseconds at a constant efficiency; small matrices run below
it, so such times are a lower bound; a measured `CostProfile` gives the real ones.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """A processor and its links. `efficiency_percent`: the share of the peak that layers reach."""

    flops_per_s: int = 312 * 10**12
    efficiency_percent: int = 50
    memory_bytes_per_s: int = 2 * 10**12
    link_bytes_per_s: int = 300 * 10**9

    def compute_ns(self, flops: int) -> int:
        """Return the time of a number of floating point operations.

        >>> Device(10**12, 50).compute_ns(10**9)
        2000000
        """
        return flops * 10**11 // (self.flops_per_s * self.efficiency_percent)

    def memory_ns(self, size: int) -> int:
        """Return the time to read or write `size` bytes of memory."""
        return size * 10**9 // self.memory_bytes_per_s

    def all_reduce_ns(self, size: int, ranks: int) -> int:
        """Return the time of a ring all-reduce of `size` bytes, of which 2 (n - 1) / n are sent."""
        return 2 * self.gather_ns(size, ranks)

    def gather_ns(self, size: int, ranks: int) -> int:
        """Return the time of an all-gather or reduce-scatter: (n - 1) / n of the bytes are sent."""
        return size * (ranks - 1) * 10**9 // (ranks * self.link_bytes_per_s)


@dataclass(frozen=True, slots=True)
class TransformerLayer:
    """A transformer layer, of a language model or an image encoder.

    `hidden`: the width h. `inner`: the width of the MLP, 4 h by default. `matrices`: the number of
    the MLP's matrices, 2, or 3 if it is gated. `key_values`: the width of keys and values together,
    2 h by default (less with grouped queries).
    """

    hidden: int
    inner: int = 0
    matrices: int = 2
    key_values: int = 0

    @property
    def parameters(self) -> int:
        """Return the parameters of its matrices: queries and output 2 h^2, keys and values, MLP."""
        inner = self.inner or 4 * self.hidden
        attention = self.hidden * (2 * self.hidden + (self.key_values or 2 * self.hidden))
        return attention + self.matrices * self.hidden * inner

    def forward_flops(self, *, tokens: int, pairs: int) -> int:
        """Return the operations of a forward; `pairs`: the sum of the sequences' squared lengths.

        >>> flops = 24 * 10 * 1024**2 + 4 * 100 * 1024
        >>> TransformerLayer(1024).forward_flops(tokens=10, pairs=100) == flops
        True
        """
        return 2 * self.parameters * tokens + 4 * self.hidden * pairs

    def activation_bytes(self, tokens: int) -> int:
        """Return the bytes that a forward keeps, in bf16 with fused attention: 34 s h."""
        return 34 * tokens * self.hidden

    def parallel_ns(self, device: Device, *, tokens: int, ranks: int) -> int:
        """Return the time of a pass's collectives over tensor-parallel ranks: two all-reduces."""
        return 2 * device.all_reduce_ns(2 * tokens * self.hidden, ranks)


def vit_layer(hidden: int, inner: int = 0) -> TransformerLayer:
    """Return a layer of an image encoder, for which every tile is a sequence."""
    return TransformerLayer(hidden, inner)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """An input embedding and an output layer of `size` words, each of width `hidden`."""

    hidden: int
    size: int

    @property
    def parameters(self) -> int:
        """Return the parameters of one of the two."""
        return self.hidden * self.size

    def forward_flops(self, tokens: int) -> int:
        """Return the operations of the output layer's forward; its backward has twice as many."""
        return 2 * tokens * self.parameters


def optimizer_ns(device: Device, parameters: int) -> int:
    """Return Adam's time in mixed precision, bound by memory.

    It reads and writes the fp32 weight and two moments, reads a gradient and writes a bf16 copy.
    """
    return device.memory_ns(parameters * (2 * 12 + 4 + 2))


def data_parallel_ns(device: Device, parameters: int, ranks: int) -> int:
    """Return the time to scatter gradients in fp32 and gather parameters in bf16, once a step."""
    return device.gather_ns(4 * parameters, ranks) + device.gather_ns(2 * parameters, ranks)
