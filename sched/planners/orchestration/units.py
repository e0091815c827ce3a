"""The cost of a parallel layout of modules: terms and formulas of disaggregated training.

A multimodal model is a chain of modules (encoder, backbone, generator) that are trained as one
pipeline, each with its own GPUs: a unit of `tp` x `dp` x `pp` of them. The backbone sets the
microbatch: one sample for each of its replicas, so batch / dp microbatches a step; a module with
fewer replicas has several samples in its microbatch.
DistTrain (2025), section 5.1. Two things differ from the paper, each towards what really runs:

- layers are whole: a stage takes as long as ceil(layers / stages) of them;
- the pipeline is one: in 1F1B the first stage of a module holds a microbatch for every stage from
  it to the end of the whole pipeline, not only to the end of the module.

All numbers are whole: nanoseconds and bytes, rounded up.
"""

from collections.abc import Mapping
from dataclasses import dataclass

TENSOR_SIZES = (1, 2, 4, 8)
# The name of the module that sets the microbatch.
BACKBONE = "backbone"


@dataclass(frozen=True, slots=True)
class Module:
    """A part of the model. Amounts are of the whole module, for one sample.

    `forward_ns[tp]`, `backward_ns[tp]`: times on tp tensor-parallel GPUs, their communication
    included. `state_bytes`: parameters and gradients. `optimizer_bytes`: cut over the replicas
    (ZeRO-1). `activation_bytes`: kept by the forward. `output_bytes`: of one layer to the
    next. `parts`: the number of parts (images) into which a sample can be cut between replicas.
    `flops`: operations of forward and backward, 0 if not known.
    """

    name: str
    layers: int
    forward_ns: Mapping[int, int]
    backward_ns: Mapping[int, int]
    state_bytes: int = 0
    optimizer_bytes: int = 0
    activation_bytes: int = 0
    output_bytes: int = 0
    parts: int = 1
    flops: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for sizes or times that make no sense."""
        if self.layers < 1 or self.parts < 1:
            sizes = f"{self.layers} layers and {self.parts} parts"
            raise ValueError(f"{self.name} has {sizes}; give 1 or more of each")
        if not self.forward_ns or set(self.forward_ns) != set(self.backward_ns):
            raise ValueError(f"{self.name}: give forward and backward times for the same TP sizes")
        numbers = [*self.forward_ns.values(), *self.backward_ns.values(), self.state_bytes]
        numbers += [self.optimizer_bytes, self.activation_bytes, self.output_bytes, self.flops]
        if min(numbers) < 0:
            raise ValueError(f"{self.name}: got {min(numbers)}; give numbers of 0 or more")

    def work_ns(self, tp: int) -> int:
        """Return the time of forward and backward of one sample on tp GPUs."""
        return self.forward_ns[tp] + self.backward_ns[tp]


@dataclass(frozen=True, slots=True)
class Unit:
    """A module's part of the cluster; `vpp`: chunks of layers on a rank, in microbatches of pp."""

    tp: int = 1
    dp: int = 1
    pp: int = 1
    vpp: int = 1

    @property
    def gpus(self) -> int:
        """The number of GPUs of the unit."""
        return self.tp * self.dp * self.pp


@dataclass(frozen=True, slots=True)
class OrchestrationProblem:
    """The training job to lay out, and the cluster.

    `modules`: in the order of the pipeline, at most one before and one after the backbone.
    `batch`: samples a step. `memory_bytes`: of one GPU, what training may use. `link_mb_per_s`:
    from GPU to GPU of two nodes, in 10^6 bytes.
    """

    modules: tuple[Module, ...]
    gpus: int
    batch: int
    memory_bytes: int
    link_mb_per_s: int = 25_000

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be laid out."""
        self._check_chain()
        if min(self.gpus, self.batch, self.memory_bytes, self.link_mb_per_s) < 1:
            raise ValueError("GPUs, batch, memory and link must be 1 or more")
        for module in self.modules:
            self._check_module(module)

    def _check_chain(self) -> None:
        names = [module.name for module in self.modules]
        if names.count(BACKBONE) != 1 or len(set(names)) != len(names):
            listed = ", ".join(names) or "none"
            raise ValueError(f"got modules {listed}; give one named {BACKBONE}, no two alike")
        at = names.index(BACKBONE)
        if at > 1 or len(names) - at > 2:
            raise ValueError("give at most one module before and one after the backbone")

    def _check_module(self, module: Module) -> None:
        if not self.tensor_sizes(module):
            have = ", ".join(map(str, module.forward_ns))
            want = ", ".join(map(str, TENSOR_SIZES))
            raise ValueError(f"{module.name} has no times for TP {want}; it has them for {have}")
        if self._largest(module) >= 2**62:
            raise ValueError(f"{module.name}: its numbers are too large for nanoseconds, bytes")

    def _largest(self, module: Module) -> int:
        """Return a bound of the numbers that the search computes in 64 bits."""
        times = max(module.work_ns(tp) for tp in module.forward_ns) * self.batch * module.layers
        sizes = max(module.activation_bytes, 1000 * module.output_bytes) * self.batch
        fixed = module.state_bytes + module.optimizer_bytes + self.memory_bytes
        return times + sizes + fixed * module.layers * max(TENSOR_SIZES)

    @property
    def at(self) -> int:
        """The backbone's position among the modules."""
        return [module.name for module in self.modules].index(BACKBONE)

    def tensor_sizes(self, module: Module) -> list[int]:
        """Return the TP sizes to try for a module."""
        return [size for size in TENSOR_SIZES if size in module.forward_ns]


def fullest(layers: int, unit: Unit) -> int:
    """Return the layers on the fullest rank.

    >>> fullest(10, Unit(pp=4))
    3
    """
    return -(-layers // unit.pp)


def stage_ns(module: Module, unit: Unit, replicas: int) -> int:
    """Return the time of the fullest stage for a microbatch; `replicas`: of the backbone.

    >>> stage_ns(Module("m", 10, {1: 100}, {1: 200}), Unit(pp=4), 1)
    90
    """
    work = -(-module.work_ns(unit.tp) * replicas // unit.dp)
    return -(-work * fullest(module.layers, unit) // module.layers)


def warmup_ns(module: Module, unit: Unit, replicas: int, link_mb_per_s: int) -> int:
    """Return the first microbatch's time through all stages and back, transfers included."""
    stage = stage_ns(module, unit, replicas)
    size = -(-module.output_bytes * replicas // unit.dp)
    transfer = -(-size * 1000 // link_mb_per_s)
    return unit.pp * (stage + 2 * transfer)


def chunks_ahead(unit: Unit, after: int) -> int:
    """Return the chunk forwards that the module's first rank runs before its first backward ends.

    `after`: microbatches that the later modules take in before they give the first one back. 1F1B
    runs one for every stage to come. Interleaved 1F1B goes through its chunks in rounds of pp
    microbatches, and takes 2 (pp - 1) for the way there and back (Megatron-LM's warm-up).

    >>> chunks_ahead(Unit(pp=4), 2), chunks_ahead(Unit(pp=4, vpp=2), 0)
    (6, 11)
    """
    if unit.vpp == 1:
        return unit.pp + after
    rounds, place = divmod(after, unit.pp)
    return (rounds * unit.vpp + unit.vpp - 1) * unit.pp + place + 1 + 2 * (unit.pp - 1)


def microbatches_ahead(unit: Unit, after: int) -> int:
    """Return the microbatches that the module takes in before it gives the first one back.

    >>> microbatches_ahead(Unit(pp=4), 2), microbatches_ahead(Unit(pp=4, vpp=2), 0)
    (6, 7)
    """
    rounds, place = divmod(chunks_ahead(unit, after), unit.pp * unit.vpp)
    return chunks_ahead(unit, after) if unit.vpp == 1 else rounds * unit.pp + min(place, unit.pp)


def behind(units: tuple[Unit, ...]) -> tuple[int, ...]:
    """Return for each module the microbatches that later ones take in before giving one back."""
    result = [0]
    for unit in reversed(units[1:]):
        result.insert(0, microbatches_ahead(unit, result[0]))
    return tuple(result)


def memory_bytes(module: Module, unit: Unit, replicas: int, after: int, microbatches: int) -> int:
    """Return bytes of the fullest GPU of a module: states, optimizer (ZeRO-1), activations."""
    fixed = module.state_bytes + -(-module.optimizer_bytes // unit.dp)
    sample = -(-module.activation_bytes * replicas // unit.dp)
    held = fixed + min(microbatches, unit.pp + after) * sample
    return -(-held * fullest(module.layers, unit) // (module.layers * unit.tp))


def iteration_ns(job: OrchestrationProblem, units: tuple[Unit, ...]) -> int:
    """Return the iteration time: warm-ups, then the slowest stage for all microbatches but one."""
    replicas = units[job.at].dp
    both = list(zip(job.modules, units, strict=True))
    warm = sum(warmup_ns(m, u, replicas, job.link_mb_per_s) for m, u in both)
    return warm + (job.batch // replicas - 1) * max(stage_ns(m, u, replicas) for m, u in both)


def module_bytes(job: OrchestrationProblem, units: tuple[Unit, ...]) -> tuple[int, ...]:
    """Return the bytes of the fullest GPU of each module."""
    replicas = units[job.at].dp
    return tuple(
        memory_bytes(module, unit, replicas, after, job.batch // replicas)
        for module, unit, after in zip(job.modules, units, behind(units), strict=True)
    )
