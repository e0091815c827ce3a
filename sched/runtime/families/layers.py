"""Call the layers of a decoder as its forward does: masks, rotary embeddings, and what travels.

What a forward makes once for all its layers is made once in each stage, from positions, which
every stage has. A mask or rotary embedding is made when the first layer of its kind asks for it.

A stage is given one tensor. Where more has to travel, such as features that later layers add, it
follows the hidden states (batch, tokens, width) as more rows: the layers that need it take them off
and put them on again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from .description import DecoderFamily
from .routers import RouterLoss

# The key under which layers find what their stage has made, beside the extras.
_INPUTS = "inputs of the layers"
FULL, WINDOW = "full_attention", "sliding_attention"


@dataclass(frozen=True, eq=False, slots=True)
class _Inputs:
    """What the layers of a stage are called with, in one microbatch.

    `near`: hidden states, of which shape, precision and device count. `text`: positions of tokens,
    by which masks are made, `axes`: those of rotary embeddings.
    """

    near: Tensor
    text: Tensor | None
    axes: Tensor
    masks: dict[str, Any] = field(default_factory=dict)
    rotary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Layers:
    """Calls the layers of a decoder.

    `config`: of the decoder. `rotary`: the module that makes position embeddings. `kinds`: of each
    layer's attention. `routers`: collects their losses. `stacked`: how many features of images
    layers add; `border`: how many of them any stage hands on. `ends`: layers that end a stage.
    `scale`: of the hidden states before the first layer.
    """

    family: DecoderFamily
    config: Any
    rotary: nn.Module | None
    kinds: tuple[str, ...]
    routers: RouterLoss | None = None
    stacked: int = 0
    border: int = 0
    ends: frozenset[int] = frozenset()
    scale: float = 1.0

    def cut(self, sizes: tuple[int, ...], scale: float = 1.0) -> "Layers":
        """Return the calls for stages of so many layers; `scale` is multiplied to its own."""
        ends = [sum(sizes[: stage + 1]) - 1 for stage in range(len(sizes) - 1)]
        border = max((self.stacked - end - 1 for end in ends[:1]), default=0)
        return replace(self, ends=frozenset(ends), border=max(border, 0), scale=self.scale * scale)

    def rows(self, tokens: int) -> int:
        """Return the rows of what travels between stages, for a microbatch of so many tokens."""
        more = 0 if self.routers is None else self.routers.rows
        return tokens * (1 + self.border) + more

    def prepare(self, x: Tensor, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the layers of a stage need beside the extras, from its hidden states."""
        positions = extras["position_ids"]
        if positions.ndim == 3:  # as transformers takes them: the text's, and those of M-RoPE
            positions, axes = positions[0], positions[1:]
        else:
            axes = extras.get("mrope_position_ids", positions)
        if self.family.axes > 1 and axes.ndim < 3:
            axes = axes.expand(self.family.axes, *axes.shape)
        return {_INPUTS: _Inputs(x[:, : positions.shape[-1]].detach(), positions, axes)}

    def call(self, number: int, layer: nn.Module, x: Tensor, extras: Mapping[str, Any]) -> Tensor:
        """Return what follows a layer, with the rows that travel."""
        inputs: _Inputs = extras[_INPUTS]
        tokens = inputs.near.shape[1]
        hidden, rows = x[:, :tokens], x[:, tokens:]
        if number == 0 and self.scale != 1:
            hidden = hidden * self.scale
        if self.routers is None:
            hidden = self._hidden(number, layer, hidden, inputs)
        else:
            with self.routers.watch(layer) as logits:
                hidden = self._hidden(number, layer, hidden, inputs)
            rows = self.routers.added(rows, logits, hidden)
        if self.stacked and rows.shape[1]:
            hidden, rows = self._stack(number, hidden, rows)
        return torch.cat([hidden, rows], 1) if rows.shape[1] else hidden

    def end(self, norm: nn.Module, x: Tensor, extras: Mapping[str, Any]) -> Tensor:
        """Return what the norm makes of the hidden states; nothing travels on."""
        tokens = extras[_INPUTS].near.shape[1]
        if self.routers is not None:
            self.routers.close(x[:, tokens:])
        normed: Tensor = norm(x[:, :tokens])
        return normed

    def _hidden(self, number: int, layer: nn.Module, hidden: Tensor, inputs: _Inputs) -> Tensor:
        kind = self.kinds[number]
        arguments = {"attention_mask": self._mask(kind, inputs), "position_ids": inputs.text}
        if self.rotary is not None:
            arguments["position_embeddings"] = self._rotary(self.rotary, kind, inputs)
        output = layer(hidden, **arguments)
        return output if isinstance(output, Tensor) else output[0]

    def _mask(self, kind: str, inputs: _Inputs) -> Any:
        if kind not in inputs.masks:
            from transformers import masking_utils

            of_kind = {
                FULL: masking_utils.create_causal_mask,
                WINDOW: masking_utils.create_sliding_window_causal_mask,
            }
            inputs.masks[kind] = of_kind[kind](
                config=self.config,
                inputs_embeds=inputs.near,
                attention_mask=None,
                past_key_values=None,
                position_ids=inputs.text,
            )
        return inputs.masks[kind]

    def _rotary(self, rotary: nn.Module, kind: str, inputs: _Inputs) -> Any:
        arguments = (kind,) if self.family.rotary_by_type else ()
        key = kind if arguments else ""
        if key not in inputs.rotary:
            inputs.rotary[key] = rotary(inputs.near, inputs.axes, *arguments)
        return inputs.rotary[key]

    def _stack(self, number: int, hidden: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Add the next features of images to the hidden states."""
        tokens = hidden.shape[1]
        hidden, rows = hidden + rows[:, :tokens], rows[:, tokens:]
        if number in self.ends:  # every stage hands on as much: what is over is zeros
            missing = self.border * tokens - rows.shape[1]
            rows = torch.cat([rows, rows.new_zeros(len(rows), missing, rows.shape[2])], 1)
        return hidden, rows


def attention_kinds(family: DecoderFamily, config: Any, count: int) -> tuple[str, ...]:
    """Return the kind of each layer's attention. Raises ValueError for one that is not known."""
    kinds = tuple(getattr(config, "layer_types", None) or ())
    if not kinds:
        window = family.window and getattr(config, "sliding_window", None) is not None
        kinds = (WINDOW if window else FULL,) * count
    if unknown := sorted(set(kinds) - {FULL, WINDOW}):
        raise ValueError(
            f"config.layer_types has {', '.join(unknown)}; adapt() knows {FULL} and {WINDOW}: give "
            "split() the layers' names and call= that makes their masks"
        )
    return kinds
