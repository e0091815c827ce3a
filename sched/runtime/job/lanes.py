"""Lanes: the processes of one rank, between which tensor parallelism divides modules.

Each lane is a pipeline of its own, and what a stage takes and gives is whole in all of them. So a
parameter that is not divided gets the same gradient in every lane, without a sum over them, if its
module computes the same in all. That is the modules' part. It is compared, once for each parameter:
else a wrong one would train, with copies that drift apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..gradients import dividing_groups, likeness, local_part, sharded_over
from ..links.meeting import gather_objects
from ..links.process_groups import group_ranks, wait_for
from ..units.place import UnitPlace

# Kernels that add in any order differ by much less, where a part of a sum is missing by about one.
_LIKE = 0.05
_ADVICE = (
    "make modules from one seed in all lanes, divide them with parallelize_module alone, and give "
    "the layers between divided ones whole activations"
)


@dataclass(slots=True)
class Lanes:
    """The lanes of this rank.

    `stages`: this lane's, by number. `parameters`: by names that are the same in all lanes.
    """

    place: UnitPlace
    stages: Mapping[int, nn.Module]
    parameters: Mapping[str, nn.Parameter]
    deadline_s: float
    _compared: set[str] = field(default_factory=set)

    def agree(self) -> None:
        """Compare the parameters of all lanes; all ranks of the job call this.

        Raises ValueError on all ranks of a pipeline if lanes have other parameters, or values of
        plain ones, and for those divided over processes which do not have the same stages.
        """
        place = self.place
        # Without lanes, a mesh does not say over which processes parameters may be divided.
        if place.lanes is None and not place.units.beside:
            return
        lane_fault = self._other_lane()  # all lanes enter this, whatever else is wrong in one
        fault = self._foreign_mesh() or lane_fault
        # All ranks get the first fault, so that none waits for a rank that has ended.
        for group in (place.lanes, *place.groups, place.replicas):
            faults = gather_objects(fault, group, place.device, self.deadline_s)
            fault = next(filter(None, faults), "")
        if fault:
            raise ValueError(fault)

    def compare_gradients(self) -> None:
        """Compare the gradients of plain parameters that were never compared; all lanes call this.

        Raises ValueError in all of them if they differ, and RuntimeError if others do not come.
        """
        group = self.place.lanes
        new = {n: p for n, p in self.parameters.items() if n not in self._compared}
        if group is None or not new:
            return
        # A parameter without a gradient may get its first one in a later step.
        self._compared |= {n for n, p in new.items() if p.grad is not None or not p.requires_grad}
        plain = {
            name: p.grad
            for name, p in new.items()
            if p.grad is not None and not isinstance(p, DTensor) and p.numel()
        }
        if not plain:
            return
        errors = torch.stack([self._error(gradient, group) for gradient in plain.values()])
        work = dist.all_reduce(errors, dist.ReduceOp.MAX, group=group, async_op=True)
        wait_for(work, errors, self.deadline_s)
        worst, at = errors.max(0)
        if float(worst) > _LIKE:
            raise ValueError(
                f"{list(plain)[int(at)]} is not divided, and its gradients in the lanes of tensor "
                f"parallelism differ by {float(worst):.0%}: some lane computes a part of it; "
                f"{_ADVICE}"
            )

    def _other_lane(self) -> str:
        """Return what is not the same in all lanes of this rank, "" if all is."""
        facts = {name: _facts(parameter) for name, parameter in self.parameters.items()}
        lanes = gather_objects(facts, self.place.lanes, self.place.device, self.deadline_s)
        for number, lane in enumerate(lanes):
            for name in {**lanes[0], **lane}:
                first, second = (row.get(name, "missing") for row in (lanes[0], lane))
                if first != second:
                    return (
                        f"tensor-parallel ranks 0 and {number} do not have the same {name}: it is "
                        f"{first}, and {second}; {_ADVICE}"
                    )
        return ""

    def _error(self, gradient: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the largest difference of a gradient to that of the first lane, relative."""
        first = gradient.detach().clone()
        work = dist.broadcast(first, group=group, group_src=0, async_op=True)
        wait_for(work, first, self.deadline_s)
        scale = first.abs().max().float() + torch.finfo(torch.float32).tiny
        return (gradient.detach() - first).abs().max().float() / scale

    def _foreign_mesh(self) -> str:
        """Return what is divided over other processes than it may be, "" if nothing is."""
        lanes = group_ranks(self.place.lanes)
        allowed = [lanes, self.place.replica_ranks]
        wrapped = sharded_over(self.stages, lanes)
        for name, parameter in self.parameters.items():
            if id(parameter) in wrapped:
                return (
                    f"FSDP2 does not divide {name} over data-parallel ranks, but over "
                    f"{sorted(lanes)}, which train on the same samples; give fully_shard the "
                    "dimension 'dp' of the pipeline's own mesh"
                )
            for group in dividing_groups(parameter):
                if (ranks := group_ranks(group)) not in allowed:
                    return (
                        f"{name} is divided over the processes {sorted(ranks)}, and this rank's "
                        f"are {sorted(lanes) or [dist.get_rank()]}; divide modules over the "
                        "dimension 'tp' of the pipeline's own mesh: parallelize_module(module, "
                        "units.mesh()['tp'], ...) for units, mesh['tp'] without; fully_shard takes "
                        "'dp' of it, for the language model's stages"
                    )
        return ""


def _facts(parameter: nn.Parameter) -> str:
    """Return what must be the same in all lanes, in words: of plain parameters the values, too."""
    if isinstance(parameter, DTensor) or not parameter.numel():
        return likeness(parameter)
    values = local_part(parameter.detach()).double()
    sums = torch.stack([values.sum(), values.square().sum()]).tolist()
    return f"{likeness(parameter)} with the sum {sums[0]!r} and the squares' {sums[1]!r}"
