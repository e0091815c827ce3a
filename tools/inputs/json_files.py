"""Reads inputs of the layout planners: lists of sizes, and costs of samples of a data set."""

import json
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

# Of the quantiles that `counterpoise analyze` writes, those used here, least first.
_QUANTILES = ((0.0, "min"), (0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (1.0, "max"))


def parse_sizes(text: str, what: str) -> tuple[int, ...]:
    """Return whole numbers of 1 or more that are written with commas between them.

    >>> parse_sizes("22,23", "--layers")
    (22, 23)
    """
    words = text.replace(",", " ").split()
    if not words or any(not word.isdecimal() or int(word) < 1 for word in words):
        raise ValueError(f"{what} got {text!r}; give numbers of 1 or more such as 22,23,24")
    return tuple(map(int, words))


def draw_costs(path: Path, resource: str, count: int, seed: int) -> list[int]:
    """Return the costs of `count` samples, drawn from a data set's costs or an analysis' quantiles.

    `path`: a folder that `counterpoise analyze` wrote, its report.json, or an npz with an array of
    that name. Raises ValueError if it does not have that resource.
    """
    if path.is_dir():
        path = _of_analysis(path)
    random = np.random.default_rng(seed)
    if path.suffix == ".npz":
        costs = _array(path, resource)
        if costs.ndim != 1 or costs.dtype.kind not in "iu" or not len(costs) or costs.min() < 0:
            raise ValueError(f"{path}: {resource} must be a row of whole numbers of 0 or more")
        return [int(cost) for cost in random.choice(costs, count)]
    known = _quantiles(path, resource)
    at = random.random(count)
    places, values = zip(*known, strict=True)
    return [int(cost) for cost in np.rint(np.interp(at, places, values))]


def _of_analysis(folder: Path) -> Path:
    for name in ("index.npz", "report.json"):
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"{folder} has no index.npz and no report.json; run counterpoise analyze")


def _array(path: Path, name: str) -> NDArray[Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if name not in arrays:
                raise ValueError(f"{path} has no array {name!r}; it has {', '.join(arrays)}")
            found: NDArray[Any] = arrays[name]
            return found
    except BadZipFile as error:
        raise ValueError(f"{path} is no npz file: {error}") from None


def _quantiles(path: Path, resource: str) -> list[tuple[float, float]]:
    """Return (share, cost) pairs of a resource in a report of `counterpoise analyze`."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    resources = raw.get("resources") if isinstance(raw, dict) else None
    if not isinstance(resources, dict) or not isinstance(resources.get(resource), dict):
        have = ", ".join(resources) if isinstance(resources, dict) else "none"
        raise ValueError(f"{path} has no resource {resource!r}; it has {have}")
    found = [(at, resources[resource].get(name)) for at, name in _QUANTILES]
    if any(type(value) not in (int, float) or not value >= 0 for _, value in found[1:]):
        raise ValueError(f"{path}: {resource} needs p50, p90, p99 and max, numbers of 0 or more")
    # Older reports have no minimum: 0 is one.
    low = found[0][1]
    return [(0.0, low if isinstance(low, int | float) else 0.0), *found[1:]]
