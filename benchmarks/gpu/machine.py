"""The machine that figures are from, and the peak of its devices."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from counterpoise.sched.shapes.device import DEVICES

DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices, and the versions that figures depend on."""

    device: str
    devices: int
    name: str
    driver: str
    versions: str

    @property
    def peak_flops(self) -> int | None:
        """Return the dense bfloat16 peak of a device in FLOP/s; None where it is not known."""
        return peak_of(self.name)

    def facts(self) -> dict[str, str]:
        """Return what stands above the tables, by name."""
        peak = self.peak_flops
        return {
            "device": f"{self.devices} x {self.name}" if self.device == "cuda" else "cpu",
            "peak": f"{peak / 1e12:.0f} TFLOP/s, dense bfloat16" if peak else "unknown",
            "driver": self.driver,
            "versions": self.versions,
        }


def peak_of(name: str) -> int | None:
    """Return the peak of a device by the name that CUDA gives it.

    >>> peak_of("NVIDIA H100 80GB HBM3"), peak_of("NVIDIA A10"), peak_of("NVIDIA H100 PCIe")
    (989000000000000, None, None)
    """
    words = name.lower().replace("-", " ").split()
    if ("h100" in words and {"pcie", "nvl"} & set(words)) or {"h200", "nvl"} <= set(words):
        return None  # the table has the SXM boards', which are faster
    return next((each.flops_per_s for key, each in DEVICES.items() if key in words), None)


def this_machine(most: int | None = None) -> Machine:
    """Return this machine, with `most` of its GPUs at most."""
    versions = ", ".join(f"{name} {_version(name)}" for name in ("torch", "transformers"))
    versions += f", Python {platform.python_version()}"
    if not torch.cuda.is_available():
        return Machine("cpu", most or 2, "cpu", "no GPU", versions)
    driver = DRIVER.read_text("utf-8").splitlines()[0] if DRIVER.is_file() else "unknown"
    count = min(most or torch.cuda.device_count(), torch.cuda.device_count())
    versions += f", CUDA {torch.version.cuda}"
    return Machine("cuda", count, torch.cuda.get_device_name(0), driver, versions)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
