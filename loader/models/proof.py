"""Looks at what a model computes of packed samples, before it is trained on them.

Short samples are packed and given to a small copy of the model (`copies.py`), as it computes in
training but for dropout, without gradients. They differ in length, and in the number and places of
their images, as a mask that is right for one may be wrong for the next. Other tokens in the first
must leave the logits of the others as they are, and the logits of all must be those that the model
gives to each alone (check_equivalence asks the same of a loss and of the user's samples). What
cannot be run here (flash attention on a CPU, forward() with fields of its own) is "not proved", and
what is not proved is never called exact. A model that runs a sample alone and raises for the pack
is refused: training would raise, too.
"""

import copy
import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .copies import configurations, in_float32, small_copies
from .kwargs import hf_kwargs, unwrap_parallelism, unwrapped
from .samples import Fields, alone, make_samples, packed

logger = logging.getLogger(__name__)
# How far logits may be apart, of the largest of them; what has 16 bits is compared in float32.
TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-4}
TOLERANCE_HALF = 5e-2
# What a model's own earlier tokens move its logits by, in tolerances, or no leak would show.
VISIBLE = 10
# Attention implementations that are tried where the model's own mixes samples.
OTHERS = ("sdpa", "eager")
PADDED = 'give the loader Balance(layout="padded")'
# Fields of batches for which a model is looked at with images, or sounds.
SEEN = frozenset({"pixel_values", "pixel_values_videos", "input_features"})
# Samples, and the same with other tokens
Samples = Sequence[list[Fields]]


@dataclass(frozen=True, slots=True)
class Proof:
    """A finding about a model and packed samples; `reason` says why, and what would be right.

    raises: a pack raises, where a sample alone does not.
    """

    status: Literal["exact", "refused", "not proved"]
    reason: str = ""
    raises: bool = False


_PROVED: dict[Any, Proof] = {}


def check_packing(model: Any, images: bool = False) -> Proof:
    """Return whether a model keeps packed samples apart; ValueError where it mixes them.

    images: samples with images, or sounds (of models without images); else of text, and a warning
    says where images would be refused. The model is left as it is: weights, mode, gradients,
    buffers and random numbers. Takes seconds the first time, for a class and configuration.
    """
    proof = prove_packing(model, images)
    if proof.status == "refused":
        raise ValueError(proof.reason)
    if proof.status == "not proved":
        _warn_once(proof.reason)
    if not images and hasattr(unwrapped(model), "get_image_features"):
        pictured = prove_packing(model, images=True)
        if pictured.status == "refused":
            _warn_once(f"the first packed batch with images will raise: {pictured.reason}")
    return proof


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("%s", reason)


def prove_packing(model: Any, images: bool = False) -> Proof:
    """Return what a model computes of packed samples with the arguments of hf_kwargs."""
    model = unwrap_parallelism(model)
    key = _key(model, images)
    if key is None or key not in _PROVED:
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            _PROVED[key] = _prove(model, images)
    return _PROVED[key]


def _key(model: Any, images: bool) -> Any:
    """Return what tells models apart that may compute otherwise; None where that is not known."""
    inner = unwrapped(model)
    config: Any = getattr(inner, "config", None)
    first = next(inner.parameters(), None)
    if not hasattr(config, "to_dict") or first is None or "forward" in vars(inner):
        return None
    attention = [getattr(part, "_attn_implementation", "") for part in configurations(config)]
    settings = str((config.to_dict(), attention, getattr(model, "peft_config", "")))
    forward = (type(model).forward, type(inner).forward)
    return type(inner), forward, settings, first.dtype, first.device.type, images


def _apart(logits: Tensor, reference: Tensor) -> Tensor:
    """Return each token's distance, (tokens,), of the largest value that is finite."""
    pair = (logits, reference)
    logits, reference = (t.double().nan_to_num(nan=1e9, posinf=0.0, neginf=0.0) for t in pair)
    size = (reference - reference.mean(-1, keepdim=True)).abs().max().clamp(min=1e-12)
    return ((logits - reference).abs().amax(-1) / size).flatten()


def _prove(model: Any, images: bool) -> Proof:
    inner, error = unwrapped(model), ""
    kind = "packed samples with images (or sounds)" if images else "packed samples"
    name = type(inner).__name__
    if getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        return Proof("refused", f"{name} is an encoder-decoder and takes no packs: {PADDED}")
    for make in small_copies(model, images):
        try:
            small = make()
            samples = make_samples(small, images)
            separate = _separate(small, samples)
            again = _logits(small, alone(small, samples[0][0]))
            if not _apart(again, separate[0]).max() <= TOLERANCES[torch.float32]:
                small.eval()  # what it draws at random was not found
                separate = _separate(small, samples)
            break
        except Exception as failure:  # a model may raise anything: then nothing is known of it
            error = f"cannot be run here ({f'{type(failure).__name__}: {failure}'[:300]})"
    else:
        return Proof("not proved", f"whether {name} keeps {kind} apart is not proved: it {error}")
    try:
        proof = _look(small, samples, separate)
    except Exception as failure:
        reason = f"takes no packed batch: {type(failure).__name__}: {failure}"[:500]
        proof = Proof("refused", reason, raises=True)
    if proof.status != "refused":
        reason = f"whether {name} keeps {kind} apart is not proved: it {proof.reason}"
        return Proof(proof.status, reason if proof.reason else "")
    used = getattr(getattr(unwrapped(small), "config", None), "_attn_implementation", None)
    tried = [way for way in OTHERS if used not in (None, way)]
    right = [way for way in tried if _works(small, way, samples)]
    instead = "".join(f'give the model attn_implementation="{way}", or ' for way in right)
    where = f" (with {used} attention)" if used else ""
    reason = f"{name} does not keep {kind} apart{where}: it {proof.reason}; {instead}{PADDED}"
    return Proof("refused", reason, proof.raises)


def _look(small: Any, samples: Samples, separate: list[Tensor]) -> Proof:
    """Return what is found by a copy's own type, and in float32 where that has 16 bits."""
    dtype = separate[0].dtype
    if dtype in TOLERANCES:
        return _compare(small, samples, separate, TOLERANCES[dtype])
    whole = in_float32(small)
    fields = [
        [{k: v.float() if v.is_floating_point() else v for k, v in s.items()} for s in variant]
        for variant in samples
    ]
    try:
        exact = _separate(whole, fields)
    except Exception:  # an attention that has 16 bits only
        return _compare(small, samples, separate, TOLERANCE_HALF, is_rough=True)
    _in_pack(small, samples[0])  # it runs
    return _compare(whole, fields, exact, TOLERANCES[torch.float32])


def _compare(
    small: Any, samples: Samples, separate: list[Tensor], tolerance: float, is_rough: bool = False
) -> Proof:
    """Return whether logits of packed samples are their own, whatever the others are.

    In two orders, as what is counted from the start of a pack may be right for its first sample.
    is_rough: rounding may send single tokens elsewhere (routers of experts): the middle of each
    sample's tokens is compared with those of the sample alone.
    """
    originals, changed = samples
    for order in (range(len(originals)), range(len(originals))[::-1]):
        pack, expected = [originals[k] for k in order], [separate[k] for k in order]
        logits, after = _in_pack(small, pack), _in_pack(small, [changed[order[0]], *pack[1:]])
        moved = max(float(_apart(*pair).max()) for pair in zip(after[1:], logits[1:], strict=True))
        if moved > tolerance:
            reason = f"mixes them: a sample's tokens move another's logits by {moved:.1e}"
            return Proof("refused", reason)
        apart = [_apart(*pair) for pair in zip(logits, expected, strict=True)]
        off = max(float(far.median() if is_rough else far.max()) for far in apart)
        if not off <= tolerance:  # NaN, too
            return Proof(
                "refused",
                f"gives them other logits than alone, by {off:.1e} of the largest (positions, "
                "masks of images, or what is after them)",
            )
    # last, as models that leak need not be looked at; any window sees the tokens before the last
    sample = {**originals[0], "input_ids": originals[0]["input_ids"].clone()}
    sample["input_ids"][:, -3:-1] = changed[0]["input_ids"][:, -3:-1]
    moved = float(_apart(_logits(small, alone(small, sample))[:, -1:], separate[0][:, -1:]).max())
    if moved < VISIBLE * tolerance:
        return Proof("not proved", f"is moved by its own earlier tokens by {moved:.1e} only")
    return Proof("exact")


def _works(small: Any, attention: str, samples: Samples) -> bool:
    """Return whether a copy keeps samples apart with another attention implementation."""
    try:
        copied = copy.deepcopy(small)
        for config in configurations(unwrapped(copied).config):
            config._attn_implementation = attention
        return _look(copied, samples, _separate(copied, samples)).status == "exact"
    except Exception:  # not every model has it
        return False


def _separate(model: Any, samples: Samples) -> list[Tensor]:
    return [_logits(model, alone(model, sample)) for sample in samples[0]]


def _in_pack(model: Any, samples: Sequence[Fields]) -> list[Tensor]:
    """Return the logits of each sample in one pack."""
    batch = packed(samples)
    fields = {k: v for k, v in batch.items() if k not in ("cu_seq_lens", "max_length")}
    logits = _logits(model, fields | hf_kwargs(batch, model))
    return [*torch.split(logits, [sample["input_ids"].shape[1] for sample in samples], dim=1)]


def _logits(model: Any, fields: Fields) -> Tensor:
    """Return logits (1, tokens, vocabulary); ValueError for a forward() that gives no such."""
    out, shape = model(**fields), tuple(fields["input_ids"].shape)
    logits = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", None)
    if not isinstance(logits, Tensor) or tuple(logits.shape[:2]) != shape:
        raise ValueError(f"forward() gives no logits of {shape} tokens")
    return logits
