"""Rules of Hugging Face's image processors: what they make of an image, from its size alone.

A probe runs the family's own processor, with all that it does to the text, over a stand-in for its
image processor (`SizedImages`), which makes no pixels: one rule for each image processor says how
many patches or tiles an image becomes and what the text is expanded by. The rules were read in
transformers 5.23, and use its functions where it has them. Where none fits, samples are loaded.

Two words: a *tile* is a square that the encoder takes as an image; *patches* are counted where the
encoder takes images of any size, cut to patches of one size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

Unit = Literal["tiles", "patches"]
Size = tuple[int, int]
Inputs = dict[str, Any]
# What the processor is given for the text, and the tiles or patches of each image.
Rule = Callable[["SizedImages"], tuple[Inputs, list[int]]]


class NoRuleError(ValueError):
    """An image processor's settings are none that a rule knows: samples are to be loaded."""


class SizedImages:
    """A stand-in of an image processor; sizes: (height, width) of each image, in pixels.

    makes_pixels: the real one makes its fields, and nothing is left out. units: tiles or patches of
    each image, once it has been called; None where no rule fits.
    """

    def __init__(
        self, real: Any, rule: Rule, sizes: Sequence[Size], makes_pixels: bool = False
    ) -> None:
        self.real, self.sizes, self.makes_pixels = real, sizes, makes_pixels
        self.units: list[int] | None = []
        self._rule, self._call_settings = rule, dict[str, Any]()

    def __call__(self, images: Any, **settings: Any) -> Inputs:
        """Return what the real one gives besides pixels; settings: those of this call."""
        self._call_settings, inputs = settings, Inputs()
        try:
            inputs, self.units = self._rule(self)
        except NoRuleError:
            self.units = None
            if not self.makes_pixels:
                raise
        return self.real(images, **settings) if self.makes_pixels else inputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def fetch_images(self, images: Any) -> Any:
        """Return the images: all of them are here."""
        return images

    def setting(self, name: str) -> Any:
        """Return a setting: of this call, else the image processor's own."""
        override = self._call_settings.get(name)
        return getattr(self.real, name, None) if override is None else override

    def settings(self, *names: str) -> dict[str, Any]:
        """Return several settings by name."""
        return {name: self.setting(name) for name in names}

    def counted(self, settings: Mapping[str, Any]) -> list[Any]:
        """Return what the real one says that each image becomes."""
        count = self.real.get_number_of_image_patches
        return [count(height, width, settings) for height, width in self.sizes]


def find_rule(processor: Any) -> Rule | None:
    """Return the rule of a processor's images; None where they must be loaded to be measured."""
    images = getattr(processor, "image_processor", None)
    if images is None:
        return None
    # Pil and Fast are the same image processor by other libraries.
    name = type(images).__name__.removesuffix("Pil").removesuffix("Fast")
    rule = RULES.get(name)
    # Images that are not resized are of any size, which no rule expects.
    return rule if rule is not None and getattr(images, "do_resize", True) else None


def find_unit(processor: Any) -> Unit:
    """Return whether a processor's images are counted in tiles or in patches."""
    names = getattr(getattr(processor, "image_processor", None), "model_input_names", ())
    is_pixtral = type(processor).__name__ == "PixtralProcessor"
    return "patches" if "image_grid_thw" in names or is_pixtral else "tiles"


def _edge(size: Any, name: str) -> int:
    """Return an edge of a size, which is a mapping or has attributes; 0 for none."""
    edge = size.get(name) if isinstance(size, Mapping) else getattr(size, name, None)
    return int(edge or 0)


def _edges(size: Any) -> Size:
    return _edge(size, "height"), _edge(size, "width")


def _qwen_grids(images: SizedImages) -> tuple[Inputs, list[int]]:
    # Qwen2-VL, Qwen2.5-VL, Qwen3-VL: patches in a grid; a call's size is told as pixels
    size = images.setting("size")
    settings = {
        "min_pixels": images.setting("min_pixels") or _edge(size, "shortest_edge"),
        "max_pixels": images.setting("max_pixels") or _edge(size, "longest_edge"),
        **images.settings("patch_size", "merge_size"),
    }
    patches = images.counted(settings)
    grids = np.array([[1, 1, count] for count in patches]).reshape(-1, 3)
    return {"image_grid_thw": grids}, patches


def _one_tile(images: SizedImages) -> tuple[Inputs, list[int]]:
    # LLaVA (CLIP, SigLIP), PaliGemma
    size = images.setting("crop_size" if images.setting("do_center_crop") else "size")
    height, width = _edges(size)
    if not height:
        raise NoRuleError("images keep their shape: do_center_crop is off, and size has no height")
    pixels = np.broadcast_to(np.float32(0), (len(images.sizes), 3, height, width))
    return {"pixel_values": pixels}, [1] * len(images.sizes)


def _pinpoint_tiles(images: SizedImages) -> tuple[Inputs, list[int]]:
    # LLaVA-NeXT: the best of some resolutions, cut to tiles, and one tile of the whole
    from transformers.image_processing_utils import select_best_resolution

    size, crop = images.setting("size"), images.setting("crop_size")
    side = _edge(size, "height") or _edge(size, "shortest_edge")
    tile = _edge(crop, "height") or side
    pinpoints = images.setting("image_grid_pinpoints")
    best = [select_best_resolution(image_size, pinpoints) for image_size in images.sizes]
    counts = [1 + -(-height // tile) * -(-width // tile) for height, width in best]
    shape = (3, tile, tile) if crop else (3, side, _edge(size, "width") or side)
    pixels = [np.broadcast_to(np.float32(0), (max(counts), *shape)) for _ in counts]
    return {"pixel_values": pixels, "image_sizes": list(images.sizes)}, counts


def _onevision_tiles(images: SizedImages) -> tuple[Inputs, list[int]]:
    # LLaVA-OneVision: as LLaVA-NeXT where an image is alone, else a tile for each
    inputs, counts = _pinpoint_tiles(images)
    if len(counts) != 1:
        counts = [1] * len(counts)
    return {**inputs, "batch_num_images": [len(counts)]}, counts


def _canvas_tiles(images: SizedImages) -> tuple[Inputs, list[int]]:
    # InternVL: tiles of the best grid, and one of the whole
    settings = images.settings("min_patches", "max_patches", "crop_to_patches")
    counts = images.counted({**settings, "patch_size": images.setting("size")})
    return {"pixel_values": np.zeros((sum(counts), 0)), "num_patches": counts}, counts


def _row_tiles(images: SizedImages) -> tuple[Inputs, list[int]]:
    # Idefics3, SmolVLM: rows and columns of tiles, and one of the whole
    grids = images.counted(images.settings("do_image_splitting", "max_image_size", "size"))
    rows, columns = [row for _, row, _ in grids], [column for _, _, column in grids]
    counts = [row * column + 1 for row, column in zip(rows, columns, strict=True)]
    return {"rows": [rows], "cols": [columns]}, counts


def _crops(images: SizedImages) -> tuple[Inputs, list[int]]:
    # Gemma 3: the whole, and its crops where it is long
    names = ("min_crop_size", "max_num_crops", "min_ratio_to_activate")
    settings = images.settings(*(f"pan_and_scan_{name}" for name in names))
    crops = [0] * len(images.sizes)
    if images.setting("do_pan_and_scan"):
        # The real cut, of an array that takes no memory.
        blank = (np.broadcast_to(np.uint8(0), (3, *size)) for size in images.sizes)
        real = images.real  # one of torchvision's cuts images of one size at once
        cut = getattr(real, "pan_and_scan", None) or real.pan_and_scan_batched
        crops = [len(cut(image, **settings)) for image in blank]
    return {"num_crops": crops}, [1 + count for count in crops]


def _pixtral_patches(images: SizedImages) -> tuple[Inputs, list[int]]:
    # Pixtral, Mistral 3: images keep their shape; a call's patch has the tokens' side
    from transformers.models.pixtral import image_processing_pil_pixtral as pixtral

    size, patch = images.setting("size"), images.setting("patch_size")
    sides = (patch, patch) if isinstance(patch, int) else _edges(patch)
    longest = _edge(size, "longest_edge")
    most = (longest, longest) if longest else _edges(size)
    resized = []
    for height, width in images.sizes:
        blank = np.broadcast_to(np.uint8(0), (3, height, width))
        resized.append(pixtral.get_resize_output_image_size(blank, most, sides, "channels_first"))
    side = _edge(images.real.patch_size, "height")
    return {"image_sizes": resized}, list(patches_of_sizes(resized, side))


def patches_of_sizes(sizes: Sequence[Any], side: int) -> Iterator[int]:
    """Yield the patches of images of (height, width) that are cut to squares of `side` pixels."""
    for height, width in sizes:
        yield (int(height) // side) * (int(width) // side)


RULES: dict[str, Rule] = {
    "CLIPImageProcessor": _one_tile,
    "Gemma3ImageProcessor": _crops,
    "GotOcr2ImageProcessor": _canvas_tiles,
    "Idefics3ImageProcessor": _row_tiles,
    "LlavaImageProcessor": _one_tile,
    "LlavaNextImageProcessor": _pinpoint_tiles,
    "LlavaOnevisionImageProcessor": _onevision_tiles,
    "PixtralImageProcessor": _pixtral_patches,
    "Qwen2VLImageProcessor": _qwen_grids,
    "SiglipImageProcessor": _one_tile,
    "SmolVLMImageProcessor": _row_tiles,
}
