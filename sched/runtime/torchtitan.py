"""The schedule that a `pipelining_fn` of torchtitan returns: a Pipeline behind its two calls.

torchtitan's trainer calls nothing but `step` of the schedule, and its validator `eval`, with the
microbatches of a rank: inputs on ranks with the first stage, labels on those with the last one,
keyword arguments everywhere. Checked against torchtitan 0.3.0; see other-frameworks.md.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..ir.program import Program
from .pipeline import Pipeline
from .stage.modules import Running

_INPUT, _KEYWORDS, _LABELS = "input", "keywords", "labels"


class TorchtitanSchedule:
    """A schedule of ours in the place of torchtitan's; `step` and `eval` are called as theirs are.

    `mesh`: the job's, of which the dimension "pp" is used. `stages`: this rank's model parts by
    number of the stage, as `parallelize_fn` has returned them. `hidden`: the shape of a
    microbatch's hidden states, such as (local batch size, sequence length, dim). `loss`: the
    trainer's loss function, which returns a sum, or a sum and metrics. FSDP, clipping, optimizer
    and checkpoints remain torchtitan's.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        *,
        schedule: str | Callable[[int, int], Program],
        stages: Mapping[int, nn.Module],
        hidden: tuple[int, ...],
        loss: Callable[..., Any],
        dtype: torch.dtype = torch.float32,
        deadline_s: float = 300.0,
        options: Mapping[str, Any] | None = None,
        **running: Any,
    ) -> None:
        self._loss = loss
        self._keywords: Mapping[str, Any] = {}
        self._losses: list[Tensor] = []
        own: Running = {"inputs": (_INPUT,), "extras": (_KEYWORDS,), "labels": (_LABELS,)}
        self.pipe = Pipeline(
            mesh["pp"],
            schedule=schedule,
            stages={stage: _CalledWith(module) for stage, module in stages.items()},
            hidden=lambda _: hidden,
            loss=self._compute_loss,
            weigh=lambda _: 1.0,
            dtype=dtype,
            deadline_s=deadline_s,
            options=options,
            **{**running, **own},
        )
        needed = self.pipe.fields(self.pipe.rank)
        self.has_first_stage = _INPUT in needed
        self.has_last_stage = _LABELS in needed

    def step(self, *, return_outputs: bool = False, **given: Any) -> None:
        """Run forward and backward of all microbatches; their losses are put into `losses`.

        `given`: as for `eval`. Gradients are added to `.grad`. Raises ValueError for calls that
        this adapter cannot run.
        """
        if return_outputs:
            raise ValueError("outputs are freed when they have been used; leave return_outputs")
        self._run(self.pipe.step, **given)

    def eval(self, **given: Any) -> None:
        """Run the forward of all microbatches; their losses are put into `losses`.

        `given`: arg_mbs, kwarg_mbs, target_mbs, losses and loss_kwargs, as torchtitan gives them.
        """
        self._run(self.pipe.evaluate, **given)

    def _run(
        self,
        run: Callable[[Any], object],
        *,
        arg_mbs: Sequence[tuple[Tensor, ...]] | None = None,
        kwarg_mbs: Sequence[Mapping[str, Any]] | None = None,
        target_mbs: Sequence[Tensor] | None = None,
        losses: list[Tensor] | None = None,
        loss_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._keywords, self._losses = loss_kwargs or {}, []
        run(self._microbatches(arg_mbs, kwarg_mbs, target_mbs))
        if losses is not None:
            losses[:] = self._losses
        self._losses = []

    def _compute_loss(self, output: Tensor, labels: Tensor) -> Tensor:
        returned = self._loss(output, labels, **self._keywords)
        found: Tensor = returned[0] if isinstance(returned, tuple) else returned
        self._losses.append(found.detach())
        return found

    def _microbatches(
        self,
        arg_mbs: Sequence[tuple[Tensor, ...]] | None,
        kwarg_mbs: Sequence[Mapping[str, Any]] | None,
        target_mbs: Sequence[Tensor] | None,
    ) -> SimpleNamespace:
        """Return the microbatches as a loader would give them."""
        count = max(len(given or ()) for given in (arg_mbs, kwarg_mbs, target_mbs))
        made: list[dict[str, Any]] = [{_KEYWORDS: dict(one)} for one in kwarg_mbs or [{}] * count]
        # Only ranks at the model's ends have inputs or labels: on the others the keyword arguments
        # alone say how many microbatches there are.
        if count == 0 or len(made) != count:
            raise ValueError(
                f"kwarg_mbs has {len(made)} microbatches of {count}; give each rank the keyword "
                "arguments of all of them, as torchtitan 0.3.0 does"
            )
        for fields, inputs in zip(made, arg_mbs or (), strict=False):
            if len(inputs) != 1:
                raise ValueError(
                    f"a microbatch has {len(inputs)} positional arguments; give the input, and "
                    "everything else as keyword arguments"
                )
            fields[_INPUT] = inputs[0]
        for fields, labels in zip(made, target_mbs or (), strict=False):
            fields[_LABELS] = labels
        return SimpleNamespace(microbatches=made, infos=[SimpleNamespace()] * count)


class _CalledWith(nn.Module):
    """Calls a model part with keyword arguments that differ in every microbatch."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, keywords: Mapping[str, Any]) -> Any:
        return self.module(x, **keywords)
