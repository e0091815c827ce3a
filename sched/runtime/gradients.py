"""Sum gradients over ranks, clip them, and drive FSDP2's own reduction.

Tensors may be divided over processes (DTensors), by FSDP2 or by `parallelize_module`.

Sums over ranks that hold the same part are sums of local tensors, since all of these ranks divide a
parameter alike. Before that each gradient must be divided as its parameter is: tensor parallelism
may leave a gradient as parts of a sum (a norm between sequence-parallel layers), and another rank,
whose microbatches gave it none, adds zeros to whole values.

Microbatches are weighted with the whole step's counts, so the plain sum over all ranks is the
gradient of the step's loss: nothing is divided here.

Sums are made of `.grad` in place. What earlier steps left there is summed already, so
`EarlierGradients` puts it aside for a step: it would count once for every rank.

`SharedParameters` are those that several ranks of a pipeline hold: tied and replicated layers. Each
rank's copy gets the gradients of the rank's own stages; their sum is the parameter's.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .links.process_groups import add_up, group_ranks, report_lost, wait_for


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process has, in the same memory; all of a plain one."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def settle(parameters: Iterable[nn.Parameter]) -> None:
    """Divide gradients as their parameters are; the processes that these are divided over meet."""
    for parameter in parameters:
        gradient = parameter.grad
        if not isinstance(parameter, DTensor) or not isinstance(gradient, DTensor):
            continue
        if gradient.placements != parameter.placements:
            with torch.no_grad():
                parameter.grad = gradient.redistribute(placements=parameter.placements)


def dividing_groups(parameter: Tensor) -> list[dist.ProcessGroup]:
    """Return the groups of processes that a parameter is divided over, none for a plain one.

    In a dimension of its mesh in which it is replicated every process has all of it.
    """
    if not isinstance(parameter, DTensor):
        return []
    mesh = parameter.device_mesh
    return [
        mesh.get_group(dimension)
        for dimension, placement in enumerate(parameter.placements)
        if not placement.is_replicate() and mesh.size(dimension) > 1
    ]


def likeness(parameter: nn.Parameter) -> str:
    """Return what must be the same on all ranks that have a parameter, in words."""
    kind = "trained" if parameter.requires_grad else "frozen"
    text = f"{kind} {parameter.dtype} of shape {tuple(parameter.shape)}"
    if not isinstance(parameter, DTensor):
        return text
    return f"{text} divided as {', '.join(map(str, parameter.placements))}"


def is_sharded(module: nn.Module) -> bool:
    """Return whether FSDP2 (`fully_shard`) is applied to a module or a part of it."""
    return any(True for _ in _sharded(module))


def refuse_sharded(module: nn.Module, subject: str, whose: str) -> None:
    """Raise ValueError for a module with FSDP2 that some ranks do not run. `whose`: the ranks."""
    if is_sharded(module):
        raise ValueError(
            f"{subject} is sharded with FSDP2, whose collectives ranks {whose} would not enter; "
            "give the plain module, the pipeline sums its gradients over all ranks that have a copy"
        )


def _sharded(module: nn.Module) -> Iterator[FSDPModule]:
    return (part for part in module.modules() if isinstance(part, FSDPModule))


def parameters_of_fsdp(module: nn.Module, lanes: dist.ProcessGroup | None) -> frozenset[int]:
    """Return the `id` of the parameters of a module whose gradients FSDP2 sums.

    Not of those that tensor parallelism alone divides over `lanes`. Call it outside of passes,
    where parameters are sharded.
    """
    if not is_sharded(module):
        return frozenset()
    lane_ranks = group_ranks(lanes)
    return frozenset(id(p) for p in module.parameters() if _mesh_ranks(p) not in (None, lane_ranks))


def sharded_over(modules: Mapping[int, nn.Module], ranks: frozenset[int]) -> frozenset[int]:
    """Return the `id` of parameters in FSDP2's modules that only these processes divide."""
    parts = (part for module in modules.values() for part in module.modules())
    parameters = (p for part in parts if isinstance(part, FSDPModule) for p in part.parameters())
    return frozenset(id(p) for p in parameters if _mesh_ranks(p) == ranks)


def _mesh_ranks(tensor: Tensor) -> frozenset[int] | None:
    """Return the processes of a DTensor's mesh, None for a plain tensor."""
    if not isinstance(tensor, DTensor):
        return None
    return frozenset(tensor.device_mesh.mesh.flatten().tolist())


def refuse_wrapped(stages: Mapping[int, nn.Module]) -> None:
    """Raise ValueError for a stage that DistributedDataParallel wraps.

    DDP reduces in hooks of one backward per forward; with several microbatches under way, gradients
    are wrong or the job hangs, and nothing says so.
    """
    for stage, module in stages.items():
        if any(isinstance(part, DistributedDataParallel) for part in module.modules()):
            raise ValueError(
                f"stage {stage} is wrapped in DistributedDataParallel, which gives wrong gradients "
                "with several microbatches under way; give the plain module, the pipeline sums "
                "gradients over the mesh's data-parallel ranks"
            )


def begin_step(module: nn.Module) -> None:
    """Tell FSDP2 to keep all whole until the step's last backward, and to sum gradients there."""
    for part in _sharded(module):
        part.set_requires_gradient_sync(False, recurse=False)
        part.set_is_last_backward(False)
        part.set_reshard_after_backward(False, recurse=False)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def last_backward(module: nn.Module) -> None:
    """Tell FSDP2 that the next backward is the step's last of this module: it reduces in it."""
    for part in _sharded(module):
        part.set_requires_gradient_sync(True, recurse=False)
        part.set_is_last_backward(True)
        part.set_reshard_after_backward(True, recurse=False)


_BUCKET_BYTES = 32 << 20


@dataclass(slots=True)
class Reduction:
    """The reductions of one step. `group`: of the ranks with the same parameters, None for one."""

    group: dist.ProcessGroup | None
    # Gradients that are reduced as one tensor, that tensor, and the sum under way.
    _buckets: list[tuple[list[Tensor], Tensor, dist.Work]] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    def start(self, parameters: Iterable[nn.Parameter]) -> None:
        """Start to reduce gradients, once a parameter; zeros for those of which others have one."""
        if self.group is None or self.group.size() == 1:
            return
        new = []
        for parameter in parameters:
            if parameter.requires_grad and id(parameter) not in self._seen:
                self._seen.add(id(parameter))
                new.append(parameter)
        settle(new)
        for bucket in _fill(new):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            work = dist.all_reduce(flat, group=self.group, async_op=True)
            self._buckets.append((bucket, flat, work))

    def finish(self, deadline_s: float) -> None:
        """Wait for all reductions, and put the sums into `.grad`. Raises RuntimeError."""
        buckets, self._buckets = self._buckets, []
        self._seen.clear()
        for gradients, flat, work in buckets:
            wait_for(work, flat, deadline_s)
            parts = torch.split(flat, [gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))


def _fill(parameters: Iterable[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Yield lists of gradients of one precision, each list up to the size of a bucket."""
    open_buckets: dict[torch.dtype, list[Tensor]] = {}
    sizes: dict[torch.dtype, int] = {}
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient = local_part(parameter.grad)
        open_buckets.setdefault(gradient.dtype, []).append(gradient)
        sizes[gradient.dtype] = sizes.get(gradient.dtype, 0) + gradient.nbytes
        if sizes[gradient.dtype] >= _BUCKET_BYTES:
            yield open_buckets.pop(gradient.dtype)
            sizes.pop(gradient.dtype)
    yield from open_buckets.values()


class EarlierGradients:
    """Puts gradients aside for a step, whose own are added to them, unless it raises."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        # once each, though stages may share it
        self._put_aside = [(parameter, parameter.grad) for parameter in dict.fromkeys(parameters)]

    def __enter__(self) -> None:
        for parameter, _ in self._put_aside:
            parameter.grad = None

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        put_aside, self._put_aside = self._put_aside, []
        for parameter, earlier in put_aside:
            if raised is None and earlier is not None and parameter.grad is not None:
                earlier.add_(parameter.grad)  # in the memory of the earlier
            if raised is not None or earlier is not None:
                parameter.grad = earlier


@dataclass(frozen=True, slots=True)
class SharedParameters:
    """A rank's copies. `ranks`: the pipeline ranks that have each. `groups`: by their ranks."""

    rank: int
    parameters: Mapping[str, nn.Parameter]
    ranks: Mapping[str, tuple[int, ...]]
    groups: Mapping[tuple[int, ...], dist.ProcessGroup]

    def counted_elsewhere(self) -> list[nn.Parameter]:
        """Return the copies that another rank counts in a norm: all but the first rank's."""
        return [p for name, p in self.parameters.items() if self.ranks[name][0] != self.rank]

    def copy_values(self, deadline_s: float) -> None:
        """Give all copies the first rank's values; all ranks call this. Raises PeerLostError."""
        for name in sorted(self.parameters):
            with torch.no_grad():
                part, group = local_part(self.parameters[name]), self.groups[self.ranks[name]]
                with report_lost():
                    work = dist.broadcast(part, group=group, group_src=0, async_op=True)
                    wait_for(work, part, deadline_s)

    def sum_gradients(self, deadline_s: float) -> None:
        """Sum gradients over the copies. Raises RuntimeError if another rank is lost."""
        running = []
        # In one order on all ranks: a rank may be in several groups.
        for ranks in sorted(self.groups):
            names = sorted(name for name in self.parameters if self.ranks[name] == ranks)
            reduction = Reduction(self.groups[ranks])
            reduction.start(self.parameters[name] for name in names)
            running.append(reduction)
        for reduction in running:
            reduction.finish(deadline_s)


def in_several(modules: Sequence[nn.Module]) -> frozenset[int]:
    """Return the `id` of the parameters that are in more than one of a rank's stages."""
    counts = Counter(id(p) for module in modules for p in module.parameters())
    return frozenset(number for number, count in counts.items() if count > 1)


@dataclass(frozen=True, slots=True)
class SummedParameters:
    """The gradients that this rank sums, over replicas and over copies.

    `stages`: by number; what FSDP2 shards of them it sums. `other_modules`: encoders' layers
    and the vocabulary's shard. `lanes`: over which tensor parallelism divides them. `late`: the
    `id` of stages' parameters whose gradients are whole after the last pass only. `copies`: of
    which other ranks of the pipeline have copies.
    """

    stages: Mapping[int, nn.Module]
    other_modules: Sequence[nn.Module]
    lanes: dist.ProcessGroup | None
    late: frozenset[int]
    copies: Collection[nn.Parameter]

    def stage_parameters(self, stage: int) -> Iterator[nn.Parameter]:
        """Yield those of a stage that are summed over replicas right after its last pass."""
        yield from (p for p in self._own(self.stages[stage]) if id(p) not in self.late)

    def after_passes(self) -> Iterator[nn.Parameter]:
        """Yield those that are summed over replicas when all passes are over."""
        yield from (p for module in self.other_modules for p in module.parameters())
        for module in self.stages.values():
            yield from (p for p in self._own(module) if id(p) in self.late)

    def every(self, *, replicas: bool) -> Iterator[nn.Parameter]:
        """Yield all that are summed, over `replicas` too or over copies alone."""
        if replicas:
            for stage in self.stages:
                yield from self.stage_parameters(stage)
            yield from self.after_passes()
        yield from self.copies

    def _own(self, module: nn.Module) -> Iterator[nn.Parameter]:
        """Yield what FSDP2 does not sum."""
        summed_by_fsdp = parameters_of_fsdp(module, self.lanes)
        yield from (p for p in module.parameters() if id(p) not in summed_by_fsdp)


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    *,
    pipelines: Sequence[dist.ProcessGroup],
    shared: Iterable[nn.Parameter] = (),
    deadline_s: float = 300.0,
) -> Tensor:
    """Scale all gradients so that their common norm is at most `max_norm`; return the norm before.

    `pipelines`: the ranks that hold the other stages, in each lane of this process. `shared`:
    parameters that another pipeline rank counts. Parts of a divided parameter (FSDP2, tensor
    parallelism) count once: those of the pipeline's own ranks in its sum, others in one before
    that. Raises RuntimeError if other ranks' parts do not come within the deadline.
    """
    unique = {id(p): p for p in parameters if p.requires_grad}
    counted_elsewhere = {id(p) for p in shared}
    zero = torch.zeros((), device=next((p.device for p in unique.values()), torch.device("cpu")))
    own_ranks = group_ranks(pipelines[0])
    # By the groups that add up before the pipeline. Processes of one enter the same ones in one
    # order, so parameters without a gradient count: others may have one.
    squares: dict[tuple[dist.ProcessGroup, ...], Tensor] = {(): zero}
    for number, parameter in unique.items():
        if number in counted_elsewhere:
            continue
        dividing = dividing_groups(parameter)
        outside = (g for g in dividing if not own_ranks >= group_ranks(g))
        groups, square = tuple(outside), zero
        if parameter.grad is not None:
            square = local_part(parameter.grad).float().pow(2).sum()
        squares[groups] = squares.get(groups, zero) + square
    for groups, part in squares.items():
        for group in groups:
            add_up(part, [group], deadline_s)
    total = torch.stack([*squares.values()]).sum()
    add_up(total, pipelines, deadline_s)
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in unique.values():
        if parameter.grad is not None:
            local = local_part(parameter.grad)
            local.mul_(factor.to(local.dtype))
    return norm
