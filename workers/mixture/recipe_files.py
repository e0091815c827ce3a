"""Reads a mixture's recipe: sources by their descriptions, from a file of YAML or JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..sources.registry import open_source

# What a recipe says; a source's own fields are those of its description.
RECIPE = ("sources", "by", "epoch", "repeat", "schedule", "temperature", "begin", "seed")

# A larger file of YAML or JSON is data.
LARGEST = 1 << 20


def open_recipe(
    recipe: Any, root: str | Path | None, allow: tuple[str, ...], cache: str | Path | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a recipe's sources, opened, some with a weight, and its other fields."""
    if not isinstance(recipe, Mapping) or not isinstance(recipe.get("sources"), Mapping):
        raise ValueError(f"a recipe of a mixture has sources by name, got {recipe!r:.200}")
    if unknown := [name for name in recipe if name not in RECIPE]:
        raise ValueError(f"a recipe has {', '.join(RECIPE)}; not {unknown[0]!r}")
    settings, sources = {**recipe}, dict[str, Any]()
    for name, described in settings.pop("sources").items():
        if not isinstance(described, Mapping):
            raise ValueError(
                f"source {name!r} is {described!r:.80}: describe it as {{source: tar, pattern: "
                "..., weight: 3}"
            )
        spec = {**described}
        weight = spec.pop("weight", None)
        try:
            opened = open_source(spec, root, allow, cache)
        except ValueError as error:
            raise ValueError(f"source {name!r} of the mixture: {error}") from error
        sources[name] = opened if weight is None else (opened, weight)
    return sources, settings


def read_recipe(path: str | Path) -> Any:
    """Return what a file of YAML or JSON holds; ValueError where that is none."""
    text = Path(path).read_text()
    if Path(path).suffix == ".json":
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path} is no JSON: {error}") from None
    import yaml  # here: nothing else of mixtures needs it

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {error}") from None


def is_recipe(source: str | Path) -> bool:
    """Return True for a recipe of a mixture: a small file of YAML or JSON that has sources."""
    path = Path(source)
    if path.suffix not in (".yaml", ".yml", ".json") or not path.is_file():
        return False
    try:
        recipe = read_recipe(path) if path.stat().st_size <= LARGEST else None
    except ValueError:
        if path.suffix != ".json":  # which may be lines
            raise
        recipe = None
    return isinstance(recipe, dict) and "sources" in recipe
