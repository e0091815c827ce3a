"""Devices: a GPU's peak, memory and links, by name or from a JSON file.

All of a named device but its peaks is assumed, not measured: the share of the peak that layers
reach (encoders have smaller matrices than language models, a U-Net smaller ones still), links at
what NCCL usually reaches of them, latencies. So times are roofline figures; `measured` says that a
file's are not. DistTrain (2025), section 8, and Optimus (2025), Table 5, lie within a few percent.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..ir.typed_json import read_json, read_json_file

GB = 10**9


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU and its links; links in bytes a second and GPU, in one direction.

    `flops_per_s`: the dense bf16 peak. `efficiency_percent`: the share of it that a language
    model's layers reach, `encoder_percent`, `generator_percent` those of others. `link`: to GPUs of
    the same node, of which there are `node`; `network`: to others.
    """

    flops_per_s: int = 989 * 10**12
    efficiency_percent: int = 50
    encoder_percent: int = 40
    generator_percent: int = 35
    memory_bytes: int = 80 * GB
    memory_bytes_per_s: int = 3350 * GB
    link_bytes_per_s: int = 350 * GB
    link_latency_ns: int = 12_000
    network_bytes_per_s: int = 45 * GB
    network_latency_ns: int = 20_000
    node: int = 8
    name: str = "h100"
    measured: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for speeds and sizes below one."""
        for name, value in asdict(self).items():
            if type(value) is int and value < (0 if name.endswith("latency_ns") else 1):
                raise ValueError(f"device {self.name}: {name} is {value}; give 1 or more")

    def compute_ns(self, flops: int, percent: int = 0) -> int:
        """Return the time of floating point operations, at `percent` of the peak.

        >>> Device(10**12, 50).compute_ns(10**9)
        2000000
        """
        return flops * 10**11 // (self.flops_per_s * (percent or self.efficiency_percent))

    def gather_ns(self, size: int, ranks: int, *, across: bool = False) -> int:
        """Return the time of an all-gather or reduce-scatter: (n - 1) / n of the bytes are sent.

        `across`: over the network; ranks that do not fit a node are too.
        """
        if ranks == 1:
            return 0
        slow = across or ranks > self.node
        speed = self.network_bytes_per_s if slow else self.link_bytes_per_s
        latency = self.network_latency_ns if slow else self.link_latency_ns
        return size * (ranks - 1) * 10**9 // (ranks * speed) + latency

    def send_ns(self, size: int) -> int:
        """Return the time to send bytes to a GPU of another node, 0 for none."""
        return size * 10**9 // self.network_bytes_per_s + self.network_latency_ns if size else 0

    @property
    def origin(self) -> str:
        """Return one line on where times come from."""
        if self.measured:
            return f"{self.name}: measured"
        return (
            f"{self.name}: roofline, not measured ({self.efficiency_percent} % of "
            f"{self.flops_per_s / 1e12:.0f} TFLOP/s, encoders {self.encoder_percent} %)"
        )


DEFAULT_DEVICE = "h100"
_H100 = Device()
DEVICES = {
    "a100": replace(
        _H100, name="a100", flops_per_s=312 * 10**12, memory_bytes_per_s=2039 * GB,
        link_bytes_per_s=230 * GB, network_bytes_per_s=22 * GB,
    ),
    # DistTrain's cluster: NVLink of 300 GB/s both ways, 4 x 200 Gb/s for the 8 GPUs of a node.
    "a800": replace(
        _H100, name="a800", flops_per_s=312 * 10**12, memory_bytes_per_s=2039 * GB,
        link_bytes_per_s=150 * GB, network_bytes_per_s=12_500 * 10**6,
    ),
    "h100": _H100,
    "h200": replace(_H100, name="h200", memory_bytes=141 * GB, memory_bytes_per_s=4800 * GB),
    "b200": replace(
        _H100, name="b200", flops_per_s=2250 * 10**12, memory_bytes=180 * GB,
        memory_bytes_per_s=8000 * GB, link_bytes_per_s=700 * GB,
    ),
}  # fmt: skip


def read_device(text: str = DEFAULT_DEVICE) -> Device:
    """Return a device by name, or from a JSON file of `Device`'s fields.

    A file's "like" names the device that the fields left out are taken from. Raises ValueError for
    unknown names and fields.

    >>> read_device("a100").memory_bytes
    80000000000
    """
    if text in DEVICES:
        return DEVICES[text]
    path = Path(text)
    if not path.is_file():
        raise ValueError(f"device {text!r} is no file; name one of {', '.join(DEVICES)}")
    fields = read_json_file(path, dict[str, Any])
    if not fields:
        raise ValueError(f"{text} is empty; give fields such as flops_per_s")
    like = read_device(str(fields.pop("like", DEFAULT_DEVICE)))
    return read_json(json.dumps({**asdict(like), "name": path.stem, **fields}), Device, text)
