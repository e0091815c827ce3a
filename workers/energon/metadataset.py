"""Opens Energon's metadatasets, YAML files that mix prepared folders, as mixtures of ours.

A metadataset may name others; what is opened is the folders they lead to, each with its share. As
in Energon, weights of an inner blend are parts of its own weight, repetitions multiply, and a range
of samples may only be of a folder, while shares of one hold wherever they are written.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..mixture.mixture import Mixture
from ..sources.interface import Cost, Sample
from ..sources.records import Transform
from .config import file_error, read_mapping, resolve
from .dataset import EnergonDataset
from .folder import Subset, is_prepared

CLASSES = ("Metadataset", "MetadatasetV2")
MOST_FOLDERS = 1000
BLENDS = {"datasets": "weight", "blend": "weight", "blend_epochized": "repetitions"}
CONFIGS = ("dataset_config", "split_config")
KNOWN = ("path", "split_part", "subset", "subflavors", "subflavor", *CONFIGS, *BLENDS.values())
ORDERS = "shuffle_over_epochs_multiplier"
REFUSED = {
    "join": "samples joined from several folders: write them into one folder",
    "aux": "auxiliary data, which a cooker would read: write them into the samples",
    ORDERS: "shuffling over several epochs, or with replacement: leave it out",
}


@dataclass(frozen=True)
class Leaf:
    """A folder that a metadataset leads to; `share` is its weight, or its repetitions."""

    folder: Path
    split: str
    settings: Mapping[str, Any]
    share: float = 1.0


def open_metadataset(
    path: str | Path,
    split: str = "train",
    transform: Transform | None = None,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    cost: Callable[[Sample], Cost] | None = None,
    *,
    concatenated: bool | None = None,
    **mixing: Any,
) -> Any:
    """Open an Energon metadataset: a Mixture with the same shares, or an EnergonDataset of one.

    Sources are called by their folders' names. A `blend` repeats each source that has been through,
    and its epoch ends with the first that has; an epoch of a `blend_epochized` has the samples
    times their repetitions. Raises a ValueError that names the file for one that cannot be read,
    for cycles, and for what only Energon can do: joins, auxiliary data, code.

    Args:
        path: The metadataset's YAML file.
        split: A name among its splits: "train" (the default), "val", "test".
        transform: A function of the raw sample; default: images are decoded. See RecordDataset.
        root: The folder that all that is read must be below; default: none.
        cache: The folder of indexes and costs; default $COUNTERPOISE_CACHE, else beside the files.
        cost: A function of a loaded sample; default: the transform's probe, or the headers.
        concatenated: Whether to give the folders one after the other, each sample once (torch's
            ConcatDataset), as Energon validates; default: for all splits but "train".
        mixing: More arguments of Mixture, as epoch=100_000.
    """
    base = None if root is None else Path(root)
    top = Path(path).expanduser()
    if base is not None:
        top = resolve(base, str(path), base, base, leaves=True)
    unit, leaves = _find_leaves(_Here(top, split, base))
    opened = [
        EnergonDataset(
            leaf.folder.absolute(), leaf.split, transform, root, cache, cost, **leaf.settings
        )
        for leaf in leaves
    ]
    if not unit:
        return opened[0]
    if split != "train" if concatenated is None else concatenated:
        from torch.utils.data import ConcatDataset

        parts: Any = opened  # sources, which torch knows by their methods
        return ConcatDataset(parts)
    shares = [leaf.share for leaf in leaves]
    if unit == "repetitions":
        shares = [int(len(data) * share) for data, share in zip(opened, shares, strict=True)]
        mixing = {"epoch": sum(shares), **mixing}
    pairs = zip(opened, shares, strict=True)
    return Mixture(dict(zip(_name_leaves(leaves, split), pairs, strict=True)), **mixing)


def _name_leaves(leaves: list[Leaf], split: str) -> Iterator[str]:
    """Yield a name for each folder; one that is there twice gets a number."""
    seen = dict[str, int]()
    for leaf in leaves:
        name = leaf.folder.name.replace("@", "-") or "root"
        name += "" if leaf.split == split else f"-{leaf.split}"
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}"


@dataclass(frozen=True)
class _Here:
    """A metadataset's split, and what those that led to it said; trail: their files."""

    path: Path
    split: str
    root: Path | None
    outer: Subset = field(default_factory=Subset)
    tags: Mapping[str, Any] = field(default_factory=dict)
    trail: tuple[Path, ...] = ()


def _find_leaves(here: _Here) -> tuple[str, list[Leaf]]:
    """Return what shares of a metadataset's split are ("" for one folder's), and its folders."""
    path, resolved = here.path, here.path.resolve()
    if resolved in here.trail:
        raise file_error(path, f"leads back to itself, by {' > '.join(map(str, here.trail))}")
    config = read_mapping(path)
    if (kind := config.get("__class__", CLASSES[0])) not in CLASSES:
        raise file_error(path, f"is a {kind!s:.80}; metadatasets are {' and '.join(CLASSES)}")
    parts = config.get("splits")
    if not isinstance(parts, dict) or not isinstance(parts.get(here.split), dict):
        have = ", ".join(map(str, parts)) if isinstance(parts, dict) else "none"
        raise file_error(path, f"there is no split {here.split!r:.80}, splits are: {have}")
    about, here = parts[here.split], replace(here, trail=(*here.trail, resolved))
    how = next((blend for blend in BLENDS if blend in about), "")
    if not how:
        return _follow_reference(here, about)
    _check_reference(path, about, (how, "subset"))
    if not isinstance(about[how], list) or not about[how]:
        raise file_error(path, f"{how} is no list of folders")
    unit, all_leaves = BLENDS[how], list[Leaf]()
    here = replace(here, outer=_read_subset(here, about))
    shares = [_read_share(path, reference, unit) for reference in about[how]]
    # Weights of a blend are parts of its own weight; repetitions multiply.
    whole = sum(shares) if unit == "weight" else 1.0
    for reference, share in zip(about[how], shares, strict=True):
        inner, leaves = _follow_reference(here, reference)
        if inner not in ("", unit):
            raise file_error(path, "mixes blend with blend_epochized, which is no share of either")
        all_leaves += [replace(leaf, share=leaf.share * share / (whole or 1)) for leaf in leaves]
        if len(all_leaves) > MOST_FOLDERS:
            raise file_error(path, f"leads to over {MOST_FOLDERS} folders")
    return unit, all_leaves


def _follow_reference(here: _Here, about: Any) -> tuple[str, list[Leaf]]:
    """Return what a reference to a folder or another metadataset leads to."""
    path = here.path
    _check_reference(path, about, KNOWN)
    target = resolve(path.parent, about.get("path"), here.root, path, leaves=True)
    split, subflavors = about.get("split_part") or here.split, about.get("subflavors") or {}
    if not isinstance(subflavors, dict) or not isinstance(split, str):
        raise file_error(path, "subflavors are no mapping, or split_part is no text")
    # Energon would import what a mapping of __module__ names.
    if "'__module__'" in repr(subflavors):
        raise file_error(path, "subflavors have code (__module__), which is not run")
    if about.get("subflavor") is not None:
        subflavors = {"__subflavor__": about["subflavor"], **subflavors}
    subset, tags = _read_subset(here, about), {**subflavors, **here.tags}
    configs = {name: about[name] for name in CONFIGS if about.get(name) is not None}
    if target.is_file() and target.suffix in (".yaml", ".yml"):
        if subset.is_absolute or configs:
            raise file_error(path, "a range of samples, or configs, of a metadataset: give shares")
        return _find_leaves(_Here(target, split, here.root, subset, tags, here.trail))
    if target.suffix == ".jsonl":
        raise file_error(path, f"{target.name} is JSONL: mix cp.JsonlDataset in a cp.Mixture")
    if not is_prepared(target):
        raise FileNotFoundError(f"{target} (from {path}) is no prepared folder and no metadataset")
    settings = {"subset": astuple(subset), "subflavors": tags, **configs}
    return "", [Leaf(target, split, settings)]


def _check_reference(path: Path, about: Any, known: tuple[str, ...]) -> None:
    if not isinstance(about, dict):
        raise file_error(path, f"a reference is {about!r:.80}, needed is a mapping with path")
    for name, value in about.items():
        if name in REFUSED and not (name == ORDERS and value == 1):
            raise file_error(path, f"{name} cannot be expressed: {REFUSED[name]}")
        if name not in (*known, ORDERS):
            raise file_error(path, f"{name!r:.80} is not known here; known are {', '.join(known)}")


def _read_subset(here: _Here, about: Mapping[str, Any]) -> Subset:
    bounds = about.get("subset") or {"range": []}
    try:
        subset = Subset.parse(bounds.get("range") if isinstance(bounds, dict) else bounds)
        return subset.within(here.outer)
    except ValueError as error:
        raise file_error(here.path, str(error)) from None


def _read_share(path: Path, about: Any, unit: str) -> float:
    share = about.get(unit, 1) if isinstance(about, dict) else 1
    if type(share) not in (int, float) or not 0 <= share < math.inf:
        raise file_error(path, f"{unit} is {share!r:.80}, needed is a number that is not negative")
    return float(share)
