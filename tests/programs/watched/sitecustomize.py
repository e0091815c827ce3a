"""Has the ranks of a program note what they train on: a folder for PYTHONPATH.

llamafactory-cli, swift and axolotl start their ranks themselves, so nothing that a test imports is
in those; Python imports this file in each. Where RECORD is set, transformers' Trainer is observed
as soon as a program has imported it. Builds of torchvision and torchaudio for CUDA, which package
registries have, do not load under a CPU build of torch: here they do without their operators.
"""

import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from typing import Any

Step = Callable[[Any], None]


def observe(_: Any) -> None:
    """Have transformers' Trainer note what it trains on."""
    if "RECORD" in os.environ:
        from tests.programs.recording import observe_trainer

        observe_trainer()


def observe_v1(trainer_module: Any) -> None:
    """Have LLaMA-Factory's v1 trainer note what it trains on."""
    if "RECORD" in os.environ:
        from tests.programs.llamafactory import observe_v1

        observe_v1.observe_v1(trainer_module)


def is_for_gpus(package: str) -> bool:
    """Return whether a package is a build for CUDA under a CPU build of torch."""
    return version("torch").endswith("+cpu") and not version(package).endswith("+cpu")


def declare_operators(_: Any) -> None:
    """Declare the operators of which torchvision registers shapes where it could not load them."""
    if is_for_gpus("torchvision"):
        import torch

        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["library"] = library  # its operators go where it is collected


def leave_operators(loading: Any) -> None:
    """Have torchaudio do as where it was built without operators."""
    if is_for_gpus("torchaudio"):
        loading._load_lib = lambda _: False


BEFORE: dict[str, Step] = {"torchvision": declare_operators}
AFTER: dict[str, Step] = {
    "transformers.trainer": observe,
    "llamafactory.v1.trainers.sft_trainer": observe_v1,
    "torchaudio._extension.utils": leave_operators,
}


class Finder(MetaPathFinder):
    """Finds modules as ever, and has something done before or after some are executed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return how a module is loaded; None for those that nothing is done about."""
        if name not in BEFORE.keys() | AFTER.keys():
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_with_steps(module: Any) -> None:
            BEFORE.get(name, bool)(module)
            execute(module)
            AFTER.get(name, bool)(module)

        spec.loader.exec_module = execute_with_steps  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder())
