"""Times and bytes from model shapes.

Work is counted in floating point operations (a multiply-add is two), after Narayanan et al., 2021:
a transformer layer's forward over s tokens of width h is 24 s h^2 for the matrix products of a
GPT layer and 4 s^2 h for attention, a vocabulary of V costs 2 s h V, and a backward is twice its
forward. A `Device` turns work into nanoseconds at a constant efficiency; small matrices run below
it, so such times say what is possible, and measured ones (`CostProfile`) what is.
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
        """How long so many floating point operations take.

        >>> Device(10**12, 50).compute_ns(10**9)
        2000000
        """
        return flops * 10**11 // (self.flops_per_s * self.efficiency_percent)

    def memory_ns(self, size: int) -> int:
        """How long so many bytes take to or from memory."""
        return size * 10**9 // self.memory_bytes_per_s

    def all_reduce_ns(self, size: int, ranks: int) -> int:
        """A ring all-reduce of so many bytes over so many ranks: 2 (n - 1) / n of them travel."""
        return 2 * self.gather_ns(size, ranks)

    def gather_ns(self, size: int, ranks: int) -> int:
        """An all-gather or a reduce-scatter: (n - 1) / n of the bytes travel."""
        return size * (ranks - 1) * 10**9 // (ranks * self.link_bytes_per_s)


@dataclass(frozen=True, slots=True)
class TransformerLayer:
    """A transformer layer, of a language model or an image encoder.

    `hidden`: the width h. `inner`: the width of the MLP, 4 h unless given. `matrices`: how many
    the MLP has, 2, or 3 where it is gated. `key_values`: the width of keys and values together,
    2 h unless given (less with grouped queries).
    """

    hidden: int
    inner: int = 0
    matrices: int = 2
    key_values: int = 0

    @property
    def parameters(self) -> int:
        """Of its matrices: queries and output 2 h^2, keys and values, the MLP."""
        inner = self.inner or 4 * self.hidden
        attention = self.hidden * (2 * self.hidden + (self.key_values or 2 * self.hidden))
        return attention + self.matrices * self.hidden * inner

    def forward_flops(self, *, tokens: int, pairs: int) -> int:
        """A forward over so many tokens, `pairs` the sum of the squares of the sequences.

        >>> flops = 24 * 10 * 1024**2 + 4 * 100 * 1024
        >>> TransformerLayer(1024).forward_flops(tokens=10, pairs=100) == flops
        True
        """
        return 2 * self.parameters * tokens + 4 * self.hidden * pairs

    def activation_bytes(self, tokens: int) -> int:
        """What a forward keeps for its backward, in bf16 with fused attention: 34 s h bytes."""
        return 34 * tokens * self.hidden

    def parallel_ns(self, device: Device, *, tokens: int, ranks: int) -> int:
        """The collectives of a forward or a backward cut over tensor-parallel ranks: two sums."""
        return 2 * device.all_reduce_ns(2 * tokens * self.hidden, ranks)


def vit_layer(hidden: int, inner: int = 0) -> TransformerLayer:
    """A layer of an image encoder; a tile is a sequence of its own."""
    return TransformerLayer(hidden, inner)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """An input embedding and an output layer of `size` words, each of width `hidden`."""

    hidden: int
    size: int

    @property
    def parameters(self) -> int:
        """Of one of the two."""
        return self.hidden * self.size

    def forward_flops(self, tokens: int) -> int:
        """The output layer's forward; its backward is twice this."""
        return 2 * tokens * self.parameters


def optimizer_ns(device: Device, parameters: int) -> int:
    """Adam in mixed precision: fp32 weight and two moments read and written, gradient and copy."""
    return device.memory_ns(parameters * (2 * 12 + 4 + 2))


def data_parallel_ns(device: Device, parameters: int, ranks: int) -> int:
    """Gradients scattered in fp32 and parameters gathered in bf16, once a step."""
    return device.gather_ns(4 * parameters, ranks) + device.gather_ns(2 * parameters, ranks)
