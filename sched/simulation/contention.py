"""Contention between kernels of two models that run on one GPU at the same time.

Filling puts an encoder's computation beside the language model's collectives, and its collectives
beside the language model's computation (Optimus, 2024, section 4.2), because they use different
parts of a GPU. They still share some: a collective takes SMs, both take memory bandwidth. So beside
another an encoder's kernel of t nanoseconds lasts t x (1 + c), and leaves less room for the next.
The language model's kernels keep their times here; what they lose is seen in measured steps.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Contention:
    """Permille by which an encoder's kernels take longer beside the language model's.

    `compute`: of computation beside a collective. `communication`: of a collective beside
    computation. `measured_on`: the device; "" where nobody has measured, and then both are 0.
    Raises ValueError for other values.

    >>> Contention(200, 50, "NVIDIA H100").longer_ns(1001, resource=0)
    1202
    """

    compute: int = 0
    communication: int = 0
    measured_on: str = ""

    def __post_init__(self) -> None:
        """Check the values."""
        for name, value in (("compute", self.compute), ("communication", self.communication)):
            if type(value) is not int or value < 0:
                raise ValueError(f"contention: {name} is {value!r}; give permille, 0 or more")
        if (self.compute or self.communication) and not self.measured_on:
            raise ValueError(
                f"contention of {self.compute} and {self.communication} permille was measured "
                "nowhere: give the device as measured_on, or leave both at 0"
            )

    @property
    def permille(self) -> tuple[int, int]:
        """Both, by the resource of the encoder's kernel: 0 computes, 1 communicates."""
        return self.compute, self.communication

    def longer_ns(self, ns: int, resource: int) -> int:
        """Return the time of an encoder's kernel beside the language model's, rounded up."""
        return ns + -(-ns * self.permille[resource] // 1000)

    def __str__(self) -> str:
        """Return it as people read it."""
        if not self.measured_on:
            return "not measured, 0 % assumed"
        return (
            f"computation {self.compute / 10:g} %, collectives {self.communication / 10:g} % "
            f"longer, measured on {self.measured_on}"
        )


NOT_MEASURED = Contention()
