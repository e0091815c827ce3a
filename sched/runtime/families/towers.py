"""The towers of Qwen-VL models layer by layer: a block each, the ends with the first and last one.

What a tower's forward makes for all blocks (borders of images and windows, rotary embeddings,
places of learned positions) is made once for a microbatch, of its grids alone. DeepStack's features
are made by the layers that they are of, and go up beside the hidden states.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..stage.splitting import hold


class TowerPlace(NamedTuple):
    """The place of a block: its number, whether it attends inside of windows alone.

    `deep`: which of the features for layers of the language model are made of its result, -1 for
    none, and `stacked`, how many there are. `unit`: patches that are merged. `width`: of features.
    """

    number: int
    windowed: bool
    deep: int
    stacked: int
    unit: int
    width: int


class TowerLayer(nn.Module):
    """A block, or its attention or MLP alone, under the names that modules have in the tower."""

    def __init__(self, place: TowerPlace, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.place, self._names = place, tuple(modules)
        for name, module in modules.items():
            hold(self, name, module)

    def pieces(self) -> list["TowerLayer"]:
        """Return attention, with what is before it, and MLP, with what is after it, apart."""
        halves: tuple[dict[str, nn.Module], dict[str, nn.Module]] = {}, {}
        for name in self._names:
            before = name.endswith(("norm1", "attn", "_embed"))
            halves[not before][name] = self.get_submodule(name)
        return [TowerLayer(self.place, half) for half in halves]

    def forward(
        self,
        x: Tensor,
        *deep: Tensor,
        borders: tuple[Mapping[str, Any], Mapping[str, Any]],
        rotary: tuple[Tensor, Tensor],
        order: Tensor | None,
        places: tuple[Tensor, Tensor] | None,
    ) -> Any:
        """Return hidden states (patches, width) and features, or features alone at the end."""
        at = {name.rpartition(".")[2]: self.get_submodule(name) for name in self._names}
        if "patch_embed" in at:
            x = at["patch_embed"](x)
            if places is not None:
                x = x + (at["pos_embed"](places[0]) * places[1][:, :, None]).sum(1).to(x.dtype)
            x = x if order is None else _ordered(x, order)
            # of one size in all layers, so that any rank can hand them on
            shape = len(x) // self.place.unit, self.place.width
            deep = tuple(x.new_zeros(shape) for _ in range(self.place.stacked))
        if "attn" in at:
            border = borders[self.place.windowed]
            x = x + at["attn"](at["norm1"](x), position_embeddings=rotary, **border)
        if "mlp" in at:
            x = x + at["mlp"](at["norm2"](x))
            if (number := self.place.deep) >= 0:
                deep = (*deep[:number], at[str(number)](x), *deep[number + 1 :])
        if "merger" not in at:
            return (x, *deep) if deep else x
        x = at["merger"](x)
        x = x if order is None else x[torch.argsort(order)]
        return torch.cat([x, *deep], -1) if deep else x


@dataclass(frozen=True, eq=False, slots=True)
class TowerConstants:
    """Makes what the layers of a tower need beside hidden states.

    `points`: of learned positions on a side, 0 without.
    """

    config: Any
    rotary: nn.Module
    dtype: torch.dtype
    points: int

    def __call__(self, image_grid_thw: Tensor) -> dict[str, Any]:
        """Return for grids (images, 3) what TowerLayer is called with by keyword."""
        from transformers import vision_utils as vision

        config, grids, merged = self.config, image_grid_thw, self.config.spatial_merge_size
        x = torch.empty(0, dtype=self.dtype, device=grids.device)
        rotary = self.rotary(x, vision.get_vision_position_ids(grids, merged))
        whole = dict(zip(_BORDERS, vision.get_vision_attention_seqlens(grids, config), strict=True))
        places, order, inside = None, None, whole
        if self.points:
            places = vision.get_vision_interpolation_indices_and_weights(
                grids, self.points, "bilinear", align_corners=True, spatial_merge_size=merged
            )
        if (window := getattr(config, "window_size", None)) is not None:
            order, ends = vision.get_vision_window_index(grids, merged, window, config.patch_size)
            inside = dict(zip(_BORDERS, (ends, vision.get_max_seqlen(ends, config)), strict=True))
            rotary = tuple(_ordered(angles, order) for angles in rotary)
        return {"borders": (whole, inside), "rotary": rotary, "order": order, "places": places}


_BORDERS = ("cu_seqlens", "max_seqlen")


def cut_tower(tower: Any) -> tuple[list[nn.Module], TowerConstants]:
    """Return the layers of a tower of Qwen2-VL, Qwen2.5-VL or Qwen3-VL, and their constants."""
    config, count = tower.config, len(tower.blocks)
    stacked = [*getattr(tower, "deepstack_visual_indexes", ())]
    full = getattr(tower, "fullatt_block_indexes", range(count))
    width = getattr(config, "out_hidden_size", config.hidden_size)
    layers: list[nn.Module] = []
    for number in range(count):
        deep = stacked.index(number) if number in stacked else -1
        names = [f"blocks.{number}.{part}" for part in ("norm1", "attn", "norm2", "mlp")]
        names += [f"deepstack_merger_list.{deep}"] * (deep >= 0)
        names += ["patch_embed", *(["pos_embed"] * hasattr(tower, "pos_embed"))] * (number == 0)
        names += ["merger"] * (number == count - 1)
        place = TowerPlace(
            number, number not in full, deep, len(stacked), config.spatial_merge_size**2, width
        )
        layers.append(TowerLayer(place, {name: tower.get_submodule(name) for name in names}))
    dtype = next(tower.parameters()).dtype
    rotary, points = tower.rotary_pos_emb, getattr(tower, "num_grid_per_side", 0)
    return layers, TowerConstants(config, rotary, dtype, points)


def _ordered(x: Tensor, order: Tensor) -> Tensor:
    """Return rows of patches with the merged ones in this order."""
    unit = len(x) // len(order)
    return x.reshape(len(order), unit, -1)[order].reshape(len(x), -1)
