"""The options of a scan, and the transform, dataset and cost function that they name."""

import importlib
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ....workers.sources.interface import Source, as_source
from ....workers.vision_language.transform import VisionLanguage


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """The settings of a scan: plain values only, since they travel to other machines.

    transform: arguments of VisionLanguage, used unless transform_path names another transform;
    cost_path: import path of a function from a loaded sample to its cost; resources: the costs to
    keep, all by default; cache: folder for indexes and costs, beside the shards by default.
    """

    transform: tuple[tuple[str, Any], ...] = ()
    transform_path: str = ""
    cost_path: str = ""
    resources: tuple[str, ...] = ()
    decode: bool = False
    source_field: str = "source"
    cache: str = ""


@lru_cache(maxsize=4)
def make_transform(options: ScanOptions) -> Any:
    """Return the transform at transform_path (called first if it is a class), or VisionLanguage."""
    if options.transform_path:
        return _instance(options.transform_path)
    arguments = dict(options.transform)
    tokenizer = arguments.pop("tokenizer", "")
    if not tokenizer:
        return VisionLanguage(**arguments)
    found = _instance(tokenizer)
    if arguments.get("image_token_id") is None and getattr(found, "image_id", None) is None:
        # Which token stands for an image changes no cost, and here only costs are looked at.
        arguments["image_token_id"] = 0
    return VisionLanguage(found, **arguments)


@lru_cache(maxsize=4)
def open_dataset(path: str, options: ScanOptions) -> Source:
    """Return the map-style dataset at package.module:name; a class or function is called first."""
    found = import_object(path)
    is_dataset = hasattr(found, "__getitem__") and not isinstance(found, type)
    return as_source(found if is_dataset else found(), cost=cost_function(options))


def cost_function(options: ScanOptions) -> Any:
    """Return the function at cost_path, None if none is named."""
    return import_object(options.cost_path) if options.cost_path else None


def import_object(path: str) -> Any:
    """Return the object at package.module:name; ValueError if there is none."""
    module, _, name = path.partition(":")
    # An installed script does not look in the current folder, where a user's module often is.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{path}: {error}; run from a folder where it can be imported, or set PYTHONPATH"
        ) from None
    except AttributeError:
        raise ValueError(f"{path}: module {module} has no {name!r}; check the name") from None


def _instance(path: str) -> Any:
    found = import_object(path)
    return found() if isinstance(found, type) else found
