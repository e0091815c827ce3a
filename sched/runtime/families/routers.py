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
        logits: list[Tensor] = []

        def keep(module: nn.Module, inputs: Any, outputs: Any) -> None:
            del module, inputs
            logits.append(outputs[self.index])

        routers = [module for module in layer.modules() if isinstance(module, self.router)]
        hooks = [router.register_forward_hook(keep) for router in routers]
        try:
            yield logits
        finally:
            for hook in hooks:
                hook.remove()

    def added(self, rows: Tensor, logits: list[Tensor], hidden: Tensor) -> Tensor:
        """Return the rows (1, rows, width) with what one layer's routers say."""
        if not rows.shape[1]:
            rows = hidden.new_zeros(1, self.rows, self.width)
        for router_logits in logits:
            probabilities = router_logits.softmax(-1).float()
            chosen = torch.zeros_like(probabilities).scatter_(
                1, probabilities.topk(self.chosen).indices, 1.0
            )
            shares = torch.cat([chosen.mean(0), probabilities.mean(0), chosen.new_ones(1)])
            space = self.rows * self.width - len(shares)
            rows = rows + nn.functional.pad(shares, (0, space)).view_as(rows).to(rows.dtype)
        return rows

    def close(self, rows: Tensor) -> None:
        """Keep the loss of a microbatch, whose last layer was run."""
        shares = rows[0].flatten().float()
        layers = shares[2 * self.experts].detach()
        chosen = shares[: self.experts].detach() / layers
        probabilities = shares[self.experts : 2 * self.experts] / layers
        self.left = [self.coefficient * self.experts * (chosen * probabilities).sum()]

    def take(self, fields: Mapping[str, Tensor]) -> Tensor:
        """Return the loss, times the labels of the microbatch that count."""
        return self.left.pop() * (fields["labels"] >= 0).sum()


def find_routers(model: Any, width: int) -> RouterLoss | None:
    """Return what collects the losses of a model's routers, if its forward adds them."""
    if not getattr(model.config, "output_router_logits", False):
        return None
    # what transformers itself records: the class of the router, and which of its results
    router = (model._can_record_outputs or model.model._can_record_outputs)["router_logits"]
    return RouterLoss(
        model.num_experts,
        model.num_experts_per_tok,
        model.router_aux_loss_coef,
        getattr(router, "target_class", router),
        getattr(router, "index", 0),
        width,
    )
