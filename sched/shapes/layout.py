"""How a model is laid out on GPUs, as one frozen value."""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from ..ir.program import place

Recompute = Literal["none", "all"] | tuple[tuple[int, ...], ...]
# Schedules whose stages fold back: rank 0 holds the first stage and the last.
V_SHAPED = ("v-half", "zbv", "dualpipev", "v-min")


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """TP, PP, DP, CP and VPP of a chain of layers, its stages, and what is kept of a forward.

    `stages`: the layers of each of the pp x vpp stages, in model order; () until a planner has
    chosen. `recompute`: "none", "all", or each stage's positions. `zero`: 0, or the ZeRO stage,
    over dp x cp ranks. `sequence_parallel`: activations between TP's matrices are divided too.
    `spread_vocabulary`: embedding and output layer are divided over the pipeline's ranks, their
    passes are not part of the stages. `fused`: kernels that keep no intermediate of norms and gates
    (Megatron's); plain PyTorch keeps them. `*_bytes`: of one parameter or activation. `overlap`:
    transfers between stages run beside passes; in Megatron-LM senders wait. `prefetch`:
    microbatches that the loader has on the GPU.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    vpp: int = 1
    microbatches: int = 1
    schedule: str = "1f1b"
    stages: tuple[int, ...] = ()
    recompute: Recompute = "none"
    zero: int = 1
    sequence_parallel: bool = True
    spread_vocabulary: bool = False
    fused: bool = True
    weight_bytes: int = 2
    gradient_bytes: int = 4
    optimizer_bytes: int = 12
    activation_bytes: int = 2
    overlap: bool = False
    prefetch: int = 2

    def __post_init__(self) -> None:
        """Raise ValueError for sizes that contradict each other."""
        for name in ("tp", "pp", "dp", "cp", "vpp", "microbatches"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {value}; give 1 or more")
        if self.schedule in V_SHAPED and self.vpp != 2:
            raise ValueError(f"{self.schedule} has 2 stages on a rank; vpp is {self.vpp}, give 2")
        if not 0 <= self.zero <= 3:
            raise ValueError(f"zero is {self.zero}; give 0, or ZeRO's stage 1, 2 or 3")
        if self.stages and (len(self.stages) != self.pp * self.vpp or min(self.stages) < 1):
            raise ValueError(
                f"stages of {list(self.stages)} layers for pp {self.pp} x vpp {self.vpp}; give "
                f"{self.pp * self.vpp} numbers of 1 or more"
            )
        self._check_recompute()

    def _check_recompute(self) -> None:
        if isinstance(self.recompute, str):
            if self.recompute not in ("none", "all"):
                raise ValueError(f"recompute is {self.recompute!r}; give none, all, or positions")
            return
        if len(self.recompute) != len(self.stages):
            raise ValueError(
                f"recompute has {len(self.recompute)} stages of {len(self.stages)}; give all"
            )
        for at, (positions, size) in enumerate(zip(self.recompute, self.stages, strict=True)):
            if positions and not 0 <= min(positions) <= max(positions) < size:
                raise ValueError(f"stage {at} has {size} layers and recomputes {list(positions)}")

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def replicas(self) -> int:
        """Return the ranks that hold the same parameters: dp x cp."""
        return self.dp * self.cp

    @property
    def placement(self) -> tuple[int, ...]:
        """Return the rank of each stage."""
        return place(self.pp, self.vpp, "v" if self.schedule in V_SHAPED else "loop")

    def ranges(self, layers: int) -> list[range]:
        """Return each stage's layers. Raises ValueError if the stages do not add up to them."""
        if sum(self.stages) != layers:
            raise ValueError(
                f"stages of {list(self.stages)} layers, but the model has {layers}; give {layers}"
            )
        return [range(a, b) for a, b in pairwise([0, *accumulate(self.stages)])]

    def recomputed(self, stage: int) -> range | tuple[int, ...]:
        """Return the positions that a stage recomputes."""
        if isinstance(self.recompute, str):
            return range(self.stages[stage] if self.recompute == "all" else 0)
        return self.recompute[stage]
