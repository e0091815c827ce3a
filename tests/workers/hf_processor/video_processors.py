"""Video processors of transformers, over three functions of torchvision that torch has itself.

torchvision cannot be installed beside the CPU build of torch. What is torchvision's in a video
processor is resizing and normalizing, which are torch's interpolate and arithmetic; all else is
transformers' own code, and runs here. `make_video_processor(family, ...)` returns one.
"""

import enum
import functools
import importlib
import sys
from types import ModuleType
from typing import Any

import torch


class InterpolationMode(enum.Enum):
    """torchvision's."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"
    BOX = "box"
    HAMMING = "hamming"
    NEAREST_EXACT = "nearest-exact"


def resize(video: torch.Tensor, size: Any, interpolation: Any, antialias: bool) -> torch.Tensor:
    """Return (..., channels, height, width) of another size, as torchvision does."""
    flat = video.flatten(0, -4).float()
    mode = interpolation.value
    made = torch.nn.functional.interpolate(flat, [*size], mode=mode, antialias=antialias)
    if video.dtype == torch.uint8:
        made = made.round().clamp(0, 255)
    return made.to(video.dtype).reshape(*video.shape[:-2], *size)


def normalize(video: torch.Tensor, mean: Any, std: Any, inplace: bool = False) -> torch.Tensor:
    """Return (..., channels, height, width) less the mean, in standard deviations."""
    mean, std = (torch.as_tensor(each, device=video.device).view(-1, 1, 1) for each in (mean, std))
    return (video - mean) / std


@functools.cache
def _functions() -> ModuleType:
    found: Any = ModuleType("torchvision.transforms.v2.functional")
    found.InterpolationMode, found.resize, found.normalize = InterpolationMode, resize, normalize
    found.grayscale_to_rgb = lambda video: video
    return found


def make_video_processor(family: str, name: str, **settings: Any) -> Any:
    """Return a video processor: the class `name` of transformers.models.FAMILY."""
    functions = _functions()
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
    stands_in: dict[str, Any] = {each: ModuleType(each) for each in names}
    stands_in["torchvision.transforms"].v2 = stands_in[names[2]]
    stands_in["torchvision"].transforms = stands_in[names[1]]
    stands_in[names[2]].functional = stands_in[f"{names[2]}.functional"] = functions
    images: Any = importlib.import_module("transformers.image_processing_backends")
    videos: Any = importlib.import_module("transformers.video_processing_utils")
    utils: Any = importlib.import_module("transformers.image_utils")
    # Only while it is imported: nothing else in this process is to take it for torchvision.
    sys.modules.update(stands_in)
    try:
        module = importlib.import_module(f"transformers.models.{family}.video_processing_{family}")
    finally:
        for each in stands_in:
            del sys.modules[each]
    images.tvF = videos.tvF = functions
    images.pil_torch_interpolation_mapping = {
        getattr(utils.PILImageResampling, each.name): each
        for each in InterpolationMode
        if each is not InterpolationMode.NEAREST_EXACT
    }
    return getattr(module, name)(**settings)
