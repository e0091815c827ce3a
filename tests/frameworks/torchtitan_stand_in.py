"""Stands for the parts of torchtitan 0.3.0 that the adapter uses, where it is not installed.

torchtitan pins other versions of what the frameworks here need, so `make test-frameworks` runs the
adapter with the real one in an environment of its own.
"""

import importlib.util
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful

OVERRIDES: dict[str, tuple[type, Any]] = {}


class Configurable:
    """What is made by the `build` of its Config."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        def build(self, **named: Any) -> Any:
            assert not {each.name for each in fields(self)} & named.keys()
            return type(self)._owner(config=replace(self), **named)  # type: ignore[attr-defined]

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        config = cls.__dict__.get("Config")
        if config is not None:
            assert "__slots__" in config.__dict__
            assert all(each.kw_only for each in fields(config) if each.init)
            config._owner = cls


class BaseDataLoader(Stateful, ABC, Configurable):
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        dataset: str = ""
        dataset_path: str | None = None

    @abstractmethod
    def __iter__(self) -> Any: ...


def override(*, target: type, description: str = "") -> Any:
    """Note a function that replaces configs, under the name that --override.imports has."""

    def note(factory: Any) -> Any:
        OVERRIDES[f"{factory.__module__}.{factory.__name__}"] = (target, factory)
        return factory

    return note


def derive(source: Any, target: Any, **deltas: Any) -> Any:
    """Return a `target` with the fields that it shares with `source`, and others."""
    shared = {each.name for each in fields(source)} & {each.name for each in fields(target)}
    return target(**{name: getattr(source, name) for name in shared} | deltas)


def install() -> None:
    """Put the stand-in where torchtitan would be, unless it is installed."""
    if "torchtitan" in sys.modules or importlib.util.find_spec("torchtitan") is not None:
        return
    contents: dict[str, dict[str, Any]] = {
        "torchtitan": {},
        "torchtitan.config": {"derive": derive, "override": override},
        "torchtitan.components": {},
        "torchtitan.components.dataloader": {"BaseDataLoader": BaseDataLoader},
    }
    for name, named in contents.items():
        module = ModuleType(name)
        module.__path__ = []  # a package without files
        module.__dict__.update(named)
        sys.modules[name] = module
    BaseDataLoader.__module__ = "torchtitan.components.dataloader"
