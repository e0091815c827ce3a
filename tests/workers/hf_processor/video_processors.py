"""What of transformers imports torchvision: over torchvision, or over what torch has of it.

PyPI's torchvision cannot be imported beside the CPU build of torch. Of it image and video
processors resize, pad and normalize, which are torch's interpolate, pad and arithmetic; all else
is transformers' own code, and runs here. `make_video_processor(family, ...)` returns a video
processor, `image_processor_class(...)` the class that is the default where torchvision is.
"""

import enum
import functools
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np
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
    flat = video.reshape(-1, *video.shape[-3:]).float()
    mode = interpolation.value
    made = torch.nn.functional.interpolate(flat, [*size], mode=mode, antialias=antialias)
    if video.dtype == torch.uint8:
        made = made.round().clamp(0, 255)
    return made.to(video.dtype).reshape(*video.shape[:-2], *size)


def normalize(video: torch.Tensor, mean: Any, std: Any, inplace: bool = False) -> torch.Tensor:
    """Return (..., channels, height, width) less the mean, in standard deviations."""
    mean, std = (torch.as_tensor(each, device=video.device).view(-1, 1, 1) for each in (mean, std))
    return (video - mean) / std


def pad(images: torch.Tensor, padding: Any, fill: Any = 0, **_: Any) -> torch.Tensor:
    """Return (..., height, width) with (left, top, right, bottom) more pixels."""
    left, top, right, bottom = padding if len(padding) == 4 else [*padding, *padding] * 2
    value = fill[0] if isinstance(fill, tuple | list) else fill
    return torch.nn.functional.pad(images, (left, right, top, bottom), value=value)


def crop(images: torch.Tensor, top: int, left: int, height: int, width: int) -> torch.Tensor:
    """Return a part of (..., height, width)."""
    return images[..., top : top + height, left : left + width]


def pil_to_tensor(image: Any) -> torch.Tensor:
    """Return (channels, height, width) of an image of Pillow's."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@functools.cache
def _functions() -> ModuleType:
    found: Any = ModuleType("torchvision.transforms.v2.functional")
    found.InterpolationMode, found.resize, found.normalize = InterpolationMode, resize, normalize
    found.pad, found.crop, found.pil_to_tensor = pad, crop, pil_to_tensor
    found.grayscale_to_rgb = lambda images: images
    return found


def load(name: str) -> Any:
    """Return a module of transformers that imports torchvision."""
    if importlib.util.find_spec("torchvision") is not None:
        return importlib.import_module(name)
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
        module = importlib.import_module(name)
    finally:
        for each in stands_in:
            del sys.modules[each]
    images.tvF = videos.tvF = utils.tvF = functions
    images.pil_torch_interpolation_mapping = {
        getattr(utils.PILImageResampling, each.name): each
        for each in InterpolationMode
        if each is not InterpolationMode.NEAREST_EXACT
    }
    return module


def make_video_processor(family: str, name: str, **settings: Any) -> Any:
    """Return a video processor: the class `name` of transformers.models.FAMILY."""
    module = load(f"transformers.models.{family}.video_processing_{family}")
    return getattr(module, name)(**settings)


def image_processor_class(family: str, name: str) -> Any:
    """Return the image processor `name` of transformers.models.FAMILY that torchvision computes."""
    module = f"transformers.models.{family}.image_processing_{family}"
    if not hasattr(sys.modules.get(module), name):  # families.py has a stand-in for Pixtral's
        sys.modules.pop(module, None)
    return getattr(load(module), name)
