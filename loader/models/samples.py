"""Short samples that a model takes: tokens that mean nothing else to it, an image or a sound."""

import inspect
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from .copies import TOKENS, configurations
from .kwargs import merge_size, token_types, unwrapped

# The samples of a pack: their tokens of text, and those before each image: one ends the third.
LENGTHS = (9, 3, 12, 7)
IMAGES = ((2,), (), (3, 12), (0,))
# Image tokens that are too many for large models on a CPU, and what is large there.
MANY_TOKENS, LARGE = 64, 50_000_000
PER_TOKEN = ("input_ids", "token_type_ids")
SOUND_MASKS = ("feature_attention_mask", "input_features_mask")
Fields = dict[str, Any]


def make_samples(model: Any, images: bool) -> tuple[list[Fields], list[Fields]]:
    """Return samples, and the same with other tokens and images: fields of a batch of one row.

    images: with one, none or two images at several places, or sounds, of models without images.
    model: a copy, which get_image_features is called of. Raises ValueError for one that takes
    neither in a known form.
    """
    inner = unwrapped(model)
    ids = _ordinary_tokens(inner)
    if len(ids) < 2:
        raise ValueError(f"its vocabulary has {len(ids)} tokens without a meaning of their own")
    places = torch.arange(sum(LENGTHS), device=ids.device)
    variants: tuple[list[Fields], list[Fields]] = [], []
    for variant, shift in zip(variants, (0, len(ids) // 2), strict=True):
        texts = torch.split(ids[(places + shift) % len(ids)], [*LENGTHS])
        for number, (text, before) in enumerate(zip(texts, IMAGES, strict=True)):
            media = before if images else ()
            variant.append(_with_media(inner, text, media, number + 2 * shift))
    if "token_type_ids" in inspect.signature(inner.forward).parameters:
        # a field of the samples, which their processor gives: Gemma 3 trains with it only
        for sample in (*variants[0], *variants[1]):
            sample["token_type_ids"] = token_types(sample, inner)
    return variants


def packed(samples: Sequence[Fields]) -> Fields:
    """Return samples as a packed batch: concatenated, images too, in the contract's form."""
    lengths = [sample["input_ids"].shape[1] for sample in samples]
    device = samples[0]["input_ids"].device
    batch = {
        "position_ids": torch.cat([torch.arange(n, device=device) for n in lengths])[None],
        "cu_seq_lens": torch.tensor([*accumulate(lengths, initial=0)], device=device).int(),
        "max_length": max(lengths),
    }
    return batch | joined(samples)


def joined(samples: Sequence[Fields]) -> Fields:
    """Return the fields of samples, or images, concatenated; of those that have them."""
    fields = {name: [s[name] for s in samples if name in s] for s in samples for name in s}
    return {name: torch.cat(parts, dim=int(name in PER_TOKEN)) for name, parts in fields.items()}


def alone(model: Any, sample: Fields) -> Fields:
    """Return what a processor would give the model for one sample."""
    inner, fields = unwrapped(model), dict(sample)
    taken = inspect.signature(inner.forward).parameters
    if "mm_token_type_ids" in taken:
        fields["mm_token_type_ids"] = token_types(sample, inner)
    more = {"attention_mask": torch.ones_like(fields["input_ids"]), "use_cache": False}
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values())
    return fields | {name: value for name, value in more.items() if takes_all or name in taken}


def _ordinary_tokens(model: Any) -> Tensor:
    """Return token ids of a model's vocabulary that its configuration does not mention."""
    # Without an accessor the first embedding is the text's.
    embedding = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    if embedding is None:
        embedding = next((m for m in model.modules() if isinstance(m, torch.nn.Embedding)), None)
    known = configurations(getattr(model, "config", None))
    sizes = (getattr(config, "vocab_size", None) for config in known)
    size = getattr(embedding, "num_embeddings", None) or next(filter(None, sizes), 0)
    meant: set[int] = set()
    for config in known:
        for name, value in vars(config).items():
            if name.endswith(("token_id", "token_index", "token_ids")):
                meant |= set(value) if isinstance(value, list | tuple) else {value}
    ids = [number for number in range(3, min(int(size), TOKENS)) if number not in meant]
    step = max(len(ids) // (2 * sum(LENGTHS)), 1)
    return torch.tensor(ids[::step], device=next(model.parameters()).device)


def _token(model: Any, medium: str) -> int | None:
    names = (f"{medium}_token_id", f"{medium}_token_index")
    return next((t for name in names if (t := getattr(model.config, name, None)) is not None), None)


def _with_media(model: Any, ids: Tensor, places: Sequence[int], number: int) -> Fields:
    """Return a sample of these tokens with images, or sounds, after some of them."""
    if not places:
        return {"input_ids": ids[None]}
    token, make = _token(model, "image"), _image
    if token is None and (token := _token(model, "audio")) is not None:
        make = _sound
    elif token is None or not hasattr(model, "get_image_features"):
        raise ValueError("it has no image token, or no get_image_features()")
    start = getattr(model.config, "vision_start_token_id", None) if make is _image else None
    if start is not None:  # then a token that ends an image follows it, too
        places = [min(place, len(ids) - 1) for place in places]
    media = [make(model, number + more) for more in range(len(places))]
    parts = [ids[: places[0]]]
    for (begin, end), (_, count) in zip(pairwise((*places, len(ids))), media, strict=True):
        parts += [] if start is None else [ids.new_tensor([start])]
        parts += [ids.new_full((count,), token), ids[begin:end]]
    return {"input_ids": torch.cat(parts)[None], **joined([fields for fields, _ in media])}


def _image(model: Any, number: int) -> tuple[Fields, int]:
    """Return an image's fields and the number of its tokens, by the first form that is taken."""
    errors = []
    for fields in _forms(model, number):
        taken = inspect.signature(model.get_image_features).parameters
        arguments = {name: value for name, value in fields.items() if name in taken}
        try:
            features = model.get_image_features(**arguments)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
            continue
        count = _rows(getattr(features, "pooler_output", features))
        _check_size(model, count, "an image")
        return fields, count
    raise ValueError(f"its images have no known form: {'; '.join(errors)[:200]}")


def _check_size(model: Any, count: int, medium: str) -> None:
    size = sum(parameter.numel() for parameter in model.parameters())
    if count > MANY_TOKENS and size > LARGE and next(model.parameters()).device.type == "cpu":
        raise ValueError(f"{medium} is {count} tokens, too many for a CPU and {size} parameters")


def _sound(model: Any, number: int) -> tuple[Fields, int]:
    """Return the mel frames of a short sound in the filling that encoders ask for, and its tokens.

    As Whisper's feature extractor gives them.
    """
    config = getattr(model.config, "audio_config", None)
    taken = inspect.signature(model.forward).parameters
    mask = next((name for name in taken if name in SOUND_MASKS), None)
    if config is None or mask is None or "input_features" not in taken:
        raise ValueError("its sounds have no known form: input_features with a mask of frames")
    bands = getattr(config, "num_mel_bins", None) or 128
    frames = 2 * (getattr(config, "max_source_positions", None) or 1500)
    _check_size(model, frames // 2, "a sound, filled up,")
    heard = 32 + 16 * (number % 2)  # frames of sound: two lengths, as masks may fit one by chance
    first = next(model.parameters())
    values = torch.arange(bands * frames, dtype=torch.float32) * (0.37 + number)
    real = torch.arange(frames, device=first.device) < heard
    mel = values.sin().reshape(1, bands, frames).to(first.device, first.dtype) * real
    fields = {"input_features": mel, mask: real.long()[None]}
    if hasattr(model, "get_audio_features"):
        features = model.get_audio_features(**fields)
        return fields, _rows(getattr(features, "pooler_output", features))
    counters = (getattr(m, "_get_feat_extract_output_lengths", None) for m in model.modules())
    lengths = next(count for count in counters if count is not None)(torch.tensor(heard))
    return fields, int(lengths[-1])


def _rows(features: Any) -> int:
    if isinstance(features, list | tuple):
        return sum(map(_rows, features))
    return int(features.numel() // features.shape[-1])


def _forms(model: Any, number: int) -> Iterator[Fields]:
    """Yield the fields of an image in each form that is known: patches with a grid, tiles."""
    vision = getattr(model.config, "vision_config", model.config)
    taken = inspect.signature(model.forward).parameters
    first = next(model.parameters())
    channels = getattr(vision, "in_channels", None) or getattr(vision, "num_channels", None) or 3
    patch = getattr(vision, "patch_size", None) or 14

    def pixels(*shape: int) -> Tensor:
        # no generator is drawn from, and images differ
        values = torch.arange(math.prod(shape), dtype=torch.float32) * (0.37 + number)
        return values.sin().reshape(shape).to(first.device, first.dtype)

    if "image_grid_thw" in taken:
        merged = merge_size(model)
        grid = (1, 2 * merged, (2 + number % 2) * merged)
        patches, depth = math.prod(grid), getattr(vision, "temporal_patch_size", 1) or 1
        grids = torch.tensor([grid], device=first.device)
        for shape in ((channels * depth * patch * patch,), (channels, patch, patch)):
            yield {"pixel_values": pixels(patches, *shape), "image_grid_thw": grids}
        return
    if "image_position_ids" in taken:  # Gemma 4: patches beside their places
        side = getattr(vision, "pooling_kernel_size", 1)
        patch = getattr(vision, "model_patch_size", None) or patch
        axes = torch.cartesian_prod(torch.arange(2 * side), torch.arange(side)).to(first.device)
        values = pixels(1, len(axes), channels * patch * patch)
        yield {"pixel_values": values, "image_position_ids": axes[None]}
        return
    size = getattr(vision, "image_size", None) or getattr(model.config, "image_size", None) or 224
    sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
    # one tile; with a dimension of the tiles of an image; with its size; a base tile and two others
    sized = {"image_sizes": torch.tensor([sides], device=first.device)}
    for tiles in ((1,), (1, 1), (1, 2), (1, 3)):
        fields = {"pixel_values": pixels(*tiles, channels, *sides)}
        yield fields
        if "image_sizes" in taken:
            yield {**fields, **sized}
