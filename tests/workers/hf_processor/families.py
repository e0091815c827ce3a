"""Tiny processors of every family, made from scratch: a BPE of a few hundred tokens, small images.

`make(family)` returns a new one. Nothing is downloaded and torchvision is not needed: image
processors are transformers' PIL ones, and what two families import only for videos is stood in for.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

IMAGE = (
    "{% if part.type == 'image' %}IMAGE{% elif part.type == 'video' %}VIDEO"
    "{% elif part.type == 'audio' %}AUDIO{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
)
CONTENT = (
    "{% if message.content is string %}{{ message.content }}{% else %}"
    f"{{% for part in message.content or [] %}}{IMAGE}{{% endfor %}}{{% endif %}}"
)
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}CONTENT<|im_end|>\n{% endgeneration %}"
    "{% else %}CONTENT<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
).replace("CONTENT", CONTENT)
TEXTS = (
    "How many apples has she got? She has 12 apples, and gives 5 of them to a friend.",
    "What does the figure show? A light ray that is refracted at the surface of a lens.",
    "The quick brown fox jumps over the lazy dog, again and again, until it is tired.",
)


# A record of text, and one with an image.
TEXT = {
    "messages": [
        {"role": "user", "content": "How many apples?"},
        {"role": "assistant", "content": "12 apples"},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": "5 of them"},
    ]
}
PICTURE = Image.fromarray(np.random.default_rng(0).integers(1, 256, (40, 90, 3), np.uint8))
SEEN = {**TEXT, "images": [PICTURE]}


def chat_template(image: str = "", marks: bool = True, video: str = "", audio: str = "") -> str:
    """Return a template in ChatML, with {% generation %} around what the assistant says."""
    text = CHAT.replace("IMAGE", image).replace("VIDEO", video).replace("AUDIO", audio)
    if marks:
        return text
    return text.replace("{% generation %}", "").replace("{% endgeneration %}", "")


@functools.cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer.to_str()


def tokenizer(
    *special: str, image: str = "", video: str = "", audio: str = "", **named: str
) -> Any:
    """Return a fast tokenizer with special tokens; `named` become its attributes, as image_token.

    image, video, audio: the token that a template puts where one is.
    """
    marks = ["<|im_start|>", "<|im_end|>", *special, *named.values()]
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained()), eos_token="<|im_end|>", pad_token="<pad>",
        bos_token="<s>", extra_special_tokens=named,
    )  # fmt: skip
    made.add_special_tokens({"additional_special_tokens": list(dict.fromkeys(marks))})
    made.chat_template = chat_template(image, video=video, audio=audio)
    return made


def image_processor(kind: str) -> Any:
    """Return a class of image processors: Pillow's, which need no torchvision."""
    return getattr(importlib.import_module("transformers"), f"{kind}ImageProcessorPil")


def qwen(name: str, size: int = 8, video_processor: Any = None, **settings: Any) -> Any:
    """Return Qwen's: patches of `size` pixels, merged by 2 x 2."""
    import transformers

    image = "<|vision_start|><|image_pad|><|vision_end|>"
    words = tokenizer(
        "<|vision_start|>", "<|vision_end|>", image=image, image_token="<|image_pad|>",
        video=image.replace("image", "video"),
        video_token="<|video_pad|>", vision_bos_token="<|vision_start|>",
        vision_eos_token="<|vision_end|>",
    )  # fmt: skip
    pixels = image_processor("Qwen2VL")(
        patch_size=size, merge_size=2, min_pixels=(4 * size) ** 2, max_pixels=(20 * size) ** 2,
        **settings,
    )  # fmt: skip
    return _made(getattr(transformers, name), pixels, words, video_processor=video_processor)


def llava() -> Any:
    """Return LLaVA's: one square of 28 pixels an image, cut to 4 x 4 patches and a CLS."""
    from transformers import LlavaProcessor

    pixels = image_processor("Llava")(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
    )
    words = tokenizer(image="<image>", image_token="<image>")
    return _made(
        LlavaProcessor, pixels, words, patch_size=7, num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
    )  # fmt: skip


def llava_next() -> Any:
    """Return LLaVA-NeXT's: squares of 28 pixels on a grid, and one of the whole."""
    from transformers import LlavaNextProcessor

    grids = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
    pixels = image_processor("LlavaNext")(
        size={"shortest_edge": 28},
        crop_size={"height": 28, "width": 28},
        image_grid_pinpoints=grids,
    )
    words = tokenizer(image="<image>", image_token="<image>")
    return _made(
        LlavaNextProcessor, pixels, words, patch_size=7, num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
    )  # fmt: skip


def llava_onevision(video_processor: Any = None) -> Any:
    """Return LLaVA-OneVision's: squares of 28 pixels; several images have one square each."""
    from transformers import LlavaOnevisionProcessor

    grids = [[28 * rows, 28 * columns] for rows in range(1, 5) for columns in range(1, 5)]
    pixels = image_processor("LlavaOnevision")(
        size={"height": 28, "width": 28}, image_grid_pinpoints=grids
    )
    words = tokenizer(
        image="<image>", video="<video>", image_token="<image>", video_token="<video>"
    )
    return _made(
        LlavaOnevisionProcessor, pixels, words, num_image_tokens=16,
        video_processor=video_processor,
        vision_feature_select_strategy="full", vision_aspect_ratio="anyres_max_4",
    )  # fmt: skip


def internvl(video_processor: Any = None) -> Any:
    """Return InternVL's: tiles of 28 pixels, 4 tokens each."""
    from transformers import InternVLProcessor

    pixels = image_processor("GotOcr2")(
        size={"height": 28, "width": 28}, crop_to_patches=True, min_patches=1, max_patches=6
    )
    words = tokenizer(
        image="<IMG_CONTEXT>", video="<video>", start_image_token="<img>", end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>", video_token="<video>",
    )  # fmt: skip
    return _made(
        InternVLProcessor, pixels, words, image_seq_length=4, video_processor=video_processor
    )


GRID = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))


def idefics3() -> Any:
    """Return Idefics3's: tiles of 28 pixels and one of the whole, 4 tokens each."""
    from transformers import Idefics3Processor

    pixels = image_processor("Idefics3")(
        size={"longest_edge": 112}, max_image_size={"longest_edge": 28}
    )
    words = tokenizer(
        "<fake_token_around_image>", "<image>", "<global-img>", *GRID, image="<image>"
    )
    return _made(Idefics3Processor, pixels, words, image_seq_len=4)


def smolvlm() -> Any:
    """Return SmolVLM's, as Idefics3's; num2words, of which its videos are told, is stood in for."""
    from transformers.models.smolvlm import processing_smolvlm

    processing_smolvlm.num2words = processing_smolvlm.num2words or str
    pixels = image_processor("SmolVLM")(
        size={"longest_edge": 112}, max_image_size={"longest_edge": 28}
    )
    words = tokenizer(
        "<fake_token_around_image>", "<image>", "<global-img>", *GRID, image="<image>"
    )
    return _made(
        processing_smolvlm.SmolVLMProcessor, pixels, words, image_seq_len=4, video_processor=None
    )


def gemma3(pan_and_scan: bool = False) -> Any:
    """Return Gemma 3's: one square of 28 pixels an image, 4 tokens; and crops where asked."""
    from transformers import Gemma3Processor

    crops: dict[str, Any] = {
        "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 16,
        "pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2,
    }  # fmt: skip
    pixels = image_processor("Gemma3")(size={"height": 28, "width": 28})
    words = tokenizer(
        image="<start_of_image>", image_token="<image_soft_token>", boi_token="<start_of_image>",
        eoi_token="<end_of_image>",
    )  # fmt: skip
    made = _made(Gemma3Processor, pixels, words, image_seq_length=4)
    if pan_and_scan:
        made.images_kwargs = {**made.images_kwargs, **crops}
    return made


def paligemma() -> Any:
    """Return PaliGemma's: one square of 28 pixels an image, 4 tokens; no template."""
    from transformers import PaliGemmaProcessor

    pixels = image_processor("Siglip")(size={"height": 28, "width": 28})
    pixels.image_seq_length = 4
    words = tokenizer(image_token="<image>")
    words.chat_template = None
    return _made(PaliGemmaProcessor, pixels, words)


def pixtral(merge: int = 1) -> Any:
    """Return Pixtral's (merge=2: Mistral 3's): patches of 7 pixels, rows ended by a token."""
    from transformers.models.pixtral import image_processing_pil_pixtral

    # Its module takes a function from the torchvision one, and the PIL one has the same.
    name = "transformers.models.pixtral.image_processing_pixtral"
    stand_in: Any = ModuleType(name)
    stand_in.get_resize_output_image_size = (
        image_processing_pil_pixtral.get_resize_output_image_size
    )
    sys.modules.setdefault(name, stand_in)
    module = importlib.import_module("transformers.models.pixtral.processing_pixtral")
    pixels = image_processor("Pixtral")(
        size={"longest_edge": 70}, patch_size={"height": 7, "width": 7}
    )
    words = tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]", image="[IMG]")
    return _made(module.PixtralProcessor, pixels, words, patch_size=7, spatial_merge_size=merge)


def _made(kind: Any, image_processor: Any, words: Any, **settings: Any) -> Any:
    """Return a processor with its tokenizer's template."""
    if "video_processor" in settings:
        settings["video_processor"] = settings["video_processor"] or _NoVideos()
        kind = without_check(kind)
    return kind(
        image_processor=image_processor, tokenizer=words, chat_template=words.chat_template,
        **settings,
    )  # fmt: skip


class _NoVideos(dict[str, Any]):
    """Stands in for a video processor, which needs torchvision; its settings are none."""

    model_input_names = ()
    merge_size, temporal_patch_size, num_frames, fps = 2, 2, 8, 1
    _auto_class = None  # what save_pretrained asks for


@functools.cache
def without_check(kind: Any) -> Any:
    """Return a class of the same name that takes any video processor."""

    def check(self: Any, name: str, argument: Any) -> Any:
        return None if name == "video_processor" else super(made, self).check_argument_for_proper_class(name, argument)  # fmt: skip  # noqa: E501

    body = {"check_argument_for_proper_class": check, "__module__": __name__}
    made: Any = type(kind.__name__, (kind,), body)
    globals()[kind.__name__] = made  # so that workers of another process find it
    return made


FAMILIES: dict[str, Callable[[], Any]] = {
    "qwen2_vl": functools.partial(qwen, "Qwen2VLProcessor"),
    "qwen2_5_vl": functools.partial(qwen, "Qwen2_5_VLProcessor"),
    "qwen3_vl": functools.partial(qwen, "Qwen3VLProcessor"), "llava": llava,
    "llava_next": llava_next, "llava_onevision": llava_onevision, "internvl": internvl,
    "idefics3": idefics3, "smolvlm": smolvlm, "gemma3": gemma3,
    "gemma3_crops": functools.partial(gemma3, pan_and_scan=True), "paligemma": paligemma,
    "pixtral": pixtral, "mistral3": functools.partial(pixtral, merge=2),
}  # fmt: skip


def make(family: str) -> Any:
    """Return a new tiny processor of a family."""
    return FAMILIES[family]()
