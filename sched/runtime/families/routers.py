"""The load balancing loss of experts' routers, which is one of all layers together.

transformers' forward adds, with config.output_router_logits,

    coef * experts * sum_e f_e P_e

where f_e is the share of tokens whose choices have expert e, and P_e the mean of its probability,
both over all layers and tokens of the microbatch ("Switch Transformers", 2021, equations 4 to 6).
It is no sum over layers, so each stage adds its layers' shares to the rows that travel with the
hidden states, in their precision, and the last one has the loss. That is weighted as the
microbatch's other loss: by the labels that it has.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(eq=False, slots=True)
class RouterLoss:
    """Collects what routers say of a microbatch.

    `router`: the class of routers, of whose result the item `index` is the logits. `width`: of the
    hidden states. `left`: the loss of the microbatch whose last layer has just been run.
    """

    experts: int
    chosen: int
    coefficient: float
    router: type[nn.Module]
    index: int
    width: int
    left: list[Tensor] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Return the rows of hidden states that hold two shares of each expert, and a count."""
        return -(-(2 * self.experts + 1) // self.width)

    @contextmanager
    def watch(self, layer: nn.Module) -> Iterator[list[Tensor]]:
        """Collect the logits of a layer's routers."""
        found: list[Tensor] = []

        def keep(module: nn.Module, given: Any, made: Any) -> None:
            del module, given
            found.append(made[self.index])

        routers = [each for each in layer.modules() if isinstance(each, self.router)]
        hooks = [each.register_forward_hook(keep) for each in routers]
        try:
            yield found
        finally:
            for hook in hooks:
                hook.remove()

    def added(self, rest: Tensor, logits: list[Tensor], hidden: Tensor) -> Tensor:
        """Return the rows (1, rows, width) with what one layer's routers say."""
        if not rest.shape[1]:
            rest = hidden.new_zeros(1, self.rows, self.width)
        for each in logits:
            probabilities = each.softmax(-1).float()
            chosen = torch.zeros_like(probabilities).scatter_(
                1, probabilities.topk(self.chosen).indices, 1.0
            )
            one = torch.cat([chosen.mean(0), probabilities.mean(0), chosen.new_ones(1)])
            space = self.rows * self.width - len(one)
            rest = rest + nn.functional.pad(one, (0, space)).view_as(rest).to(rest.dtype)
        return rest

    def close(self, rest: Tensor) -> None:
        """Keep the loss of a microbatch, whose last layer was run."""
        found = rest[0].flatten().float()
        layers = found[2 * self.experts].detach()
        chosen = found[: self.experts].detach() / layers
        probabilities = found[self.experts : 2 * self.experts] / layers
        self.left = [self.coefficient * self.experts * (chosen * probabilities).sum()]

    def take(self, fields: Mapping[str, Tensor]) -> Tensor:
        """Return the loss, times the labels of the microbatch that count."""
        return self.left.pop() * (fields["labels"] >= 0).sum()


def routers_of(model: Any, width: int) -> RouterLoss | None:
    """Return what collects the losses of a model's routers, if its forward adds them."""
    if not getattr(model.config, "output_router_logits", False):
        return None
    # what transformers itself records: the class of the router, and which of its results
    recorded = model._can_record_outputs or model.model._can_record_outputs
    router = recorded["router_logits"]
    return RouterLoss(
        model.num_experts,
        model.num_experts_per_tok,
        model.router_aux_loss_coef,
        getattr(router, "target_class", router),
        getattr(router, "index", 0),
        width,
    )
