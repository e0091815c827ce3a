"""Looks at what a model computes of packed samples, before it is trained on them.

Two short samples are packed and given to a small copy of the model (`copies.py`), as it computes in
training but for dropout, without gradients. Other tokens in the first must leave the logits of the
second as they are, and the logits of both must be those that the model gives to each alone. What
cannot be run here (flash attention on a CPU, forward() with fields of its own) is "not proved", and
what is not proved is never called exact. A model that runs a sample alone and raises for the pack
is refused: training would raise, too.
"""

import copy
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from .copies import configurations, in_float32, small_copies
from .kwargs import hf_kwargs, unwrapped, without_parallelism
from .samples import Fields, alone, labelled, make_samples, named, packed

logger = logging.getLogger(__name__)
# How far logits may be apart, of the largest of them; what has 16 bits is compared in float32.
TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-4}
TOLERANCE_HALF = 5e-2
# What a model's own earlier tokens move its logits by, in tolerances, or no leak would show.
VISIBLE = 10
# Attention implementations that are tried where the model's own mixes samples.
OTHERS = ("sdpa", "eager")
PADDED = 'give the loader Balance(layout="padded")'
Status = Literal["exact", "refused", "not proved"]
# Fields of batches for which a model is looked at with images, or sounds.
SEEN = frozenset({"pixel_values", "pixel_values_videos", "input_features"})
# (batch, model) -> what forward() is told besides the batch's fields
Told = Callable[[Any, Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Proof:
    """What a model does with packed samples; `reason` says why, and what would be right.

    raises: a pack raises, where a sample alone does not.
    """

    status: Status
    reason: str = ""
    raises: bool = False


_PROVED: dict[Any, Proof] = {}


def check_packing(model: Any, images: bool = False) -> Proof:
    """Return whether a model keeps packed samples apart; ValueError where it mixes them.

    images: samples with an image each, or a sound (of models without images); else of text. The
    model is left as it is: weights, mode, gradients, buffers and random numbers. Takes under 2 s
    the first time, and nothing for another model of the same class and configuration.
    """
    proof = prove_packing(model, images)
    if proof.status == "refused":
        raise ValueError(proof.reason)
    if proof.status == "not proved":
        _warn_once(proof.reason)
    return proof


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("%s", reason)


def prove_packing(model: Any, images: bool = False, told: Told = hf_kwargs) -> Proof:
    """Return what a model computes of two packed samples, told of them by `told`."""
    model = without_parallelism(model)
    key = _key(model, images, told)
    if key not in _PROVED or key is None:
        device = next((each.device for each in model.parameters()), torch.device("cpu"))
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            _PROVED[key] = _prove(model, images, told)
    return _PROVED[key]


def _key(model: Any, images: bool, told: Told) -> Any:
    """Return what tells models apart that may compute otherwise; None where that is not known."""
    inner = unwrapped(model)
    config: Any = getattr(inner, "config", None)
    first = next(inner.parameters(), None)
    if not hasattr(config, "to_dict") or first is None or "forward" in vars(inner):
        return None
    attention = [getattr(each, "_attn_implementation", "") for each in configurations(config)]
    said = str((config.to_dict(), attention, getattr(model, "peft_config", "")))
    forward = (type(model).forward, type(inner).forward)
    return type(inner), forward, said, first.dtype, first.device.type, images, told


def _prove(model: Any, images: bool, told: Told) -> Proof:
    inner = unwrapped(model)
    who, error = type(inner).__name__, "it has no parameters"
    what = "packed samples with images (or sounds)" if images else "packed samples"
    for make in small_copies(model, images):
        try:
            small = make()
            samples = make_samples(small, images)
            separate = [_logits(small, alone(small, each)) for each in samples[:2]]
            again = _logits(small, alone(small, samples[1]))
            if not _apart(again, separate[1]).max() <= TOLERANCES[torch.float32]:
                small.eval()  # what it draws at random was not found
                separate = [_logits(small, alone(small, each)) for each in samples[:2]]
            break
        except Exception as found:  # a model may raise anything: then nothing is known of it
            error = f"{type(found).__name__}: {found}"
    else:
        ran = Proof("not proved", f"cannot be run here ({error[:300]})")
        return replace(ran, reason=_advised(ran, who, what, None, (), told))
    try:
        proof = _look(small, samples, separate, told)
    except Exception as found:
        reason = f"takes no packed batch: {type(found).__name__}: {found}"[:500]
        proof = Proof("refused", reason, raises=True)
    return replace(proof, reason=_advised(proof, who, what, small, samples, told))


def _look(small: Any, samples: Any, separate: list[Tensor], told: Told) -> Proof:
    """Return what is found by a copy's own type, and in float32 where that has 16 bits."""
    dtype = separate[0].dtype
    if dtype in TOLERANCES:
        return _compare(small, samples, separate, told, TOLERANCES[dtype])
    whole = in_float32(small)
    fields = [_in_float32(each) for each in samples]
    try:
        exact = [_logits(whole, alone(whole, each)) for each in fields[:2]]
    except Exception:  # an attention that has 16 bits only
        return _compare(small, samples, separate, told, TOLERANCE_HALF, is_rough=True)
    _logits_of_pack(small, samples[:2], told)  # it runs
    return _compare(whole, fields, exact, told, TOLERANCES[torch.float32])


def _in_float32(sample: Fields) -> Fields:
    return {k: v.float() if v.is_floating_point() else v for k, v in sample.items()}


def _compare(
    small: Any,
    samples: Any,
    separate: list[Tensor],
    told: Told,
    tolerance: float,
    is_rough: bool = False,
) -> Proof:
    """Return whether logits of packed samples are their own, and no other's business.

    is_rough: rounding may send single tokens elsewhere (routers of experts): the middle of all
    tokens is compared with those of the sample alone.
    """
    first, second, changed = samples
    before, after = _logits_of_pack(small, (first, second), told)
    moved = _apart(_logits_of_pack(small, (changed, second), told)[1], after).max()
    if moved > tolerance:
        return Proof(
            "refused", f"mixes them: a sample's tokens move another's logits by {moved:.1e}"
        )
    off = max(
        (each.median() if is_rough else each.max())
        for each in (_apart(before, separate[0]), _apart(after, separate[1]))
    )
    if not off <= tolerance:  # NaN, too
        return Proof(
            "refused",
            f"gives them other logits than alone, by {off:.1e} of the largest (positions, or what "
            "is after them)",
        )
    # last, as models that leak need not be looked at; any window sees the tokens before the last
    other = {**second, "input_ids": second["input_ids"].clone()}
    other["input_ids"][:, -3:-1] = changed["input_ids"][:, -3:-1]
    own = _apart(_logits(small, alone(small, other))[:, -1:], separate[1][:, -1:]).max()
    if own < VISIBLE * tolerance:
        return Proof("not proved", f"is moved by its own earlier tokens by {own:.1e} only")
    return Proof("exact")


def _logits_of_pack(model: Any, samples: Sequence[Fields], told: Told) -> tuple[Tensor, Tensor]:
    """Return the logits of each of two samples in one pack."""
    batch, begin = packed(samples), samples[0]["input_ids"].shape[1]
    given = {k: v for k, v in batch.items() if k not in ("cu_seq_lens", "max_length")}
    logits = _logits(model, given | told(batch, model))
    return logits[:, :begin], logits[:, begin:]


def _logits(model: Any, given: Fields) -> Tensor:
    """Return logits (1, tokens, vocabulary); ValueError for a forward() that gives no such.

    Where it gives a loss only, each sample's own takes their place: (1, tokens, 1).
    """
    ids = given["input_ids"]
    output, tokens = model(**given, **labelled(model, ids, slice(None))), ids.shape
    logits = named(output, "logits")
    if isinstance(logits, Tensor) and logits.shape[:2] == tokens:
        return logits
    ends = given.get("cu_seq_lens_q", torch.tensor([0, tokens[1]])).tolist()
    losses = []
    for begin, end in pairwise(ends):
        loss = named(model(**given, **labelled(model, ids, slice(begin + 1, end))), "loss")
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError(f"forward() gives neither logits of {tuple(tokens)} tokens nor a loss")
        losses.append(loss.reshape(1, 1, 1).expand(1, end - begin, 1))
    return torch.cat(losses, 1)


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """Return each token's distance, (tokens,), of the largest logit that is finite."""
    one, other = (
        each.double().nan_to_num(posinf=0.0, neginf=0.0, nan=1e9) for each in (one, other)
    )
    middle = other.mean(-1, keepdim=True) if other.shape[-1] > 1 else 0.0
    size = (other - middle).abs().max().clamp(min=1e-12)
    return ((one - other).abs().amax(-1) / size).flatten()


def _advised(proof: Proof, who: str, what: str, small: Any, samples: Any, told: Told) -> str:
    """Return a proof's reason with the model's name, and what would be right."""
    if proof.status == "exact":
        return ""
    if proof.status == "not proved":
        return f"whether {who} keeps {what} apart is not proved: it {proof.reason}"
    used = getattr(getattr(unwrapped(small), "config", None), "_attn_implementation", None)
    tried = [each for each in OTHERS if used not in (None, each)]
    right = [each for each in tried if _works(small, each, samples, told)]
    instead = "".join(f'give the model attn_implementation="{each}", or ' for each in right)
    where = f" (with {used} attention)" if used else ""
    return f"{who} does not keep {what} apart{where}: it {proof.reason}; {instead}{PADDED}"


def _works(small: Any, attention: str, samples: Any, told: Told) -> bool:
    """Return whether a copy keeps samples apart with another attention implementation."""
    try:
        other = copy.deepcopy(small)
        for each in configurations(unwrapped(other).config):
            each._attn_implementation = attention
        separate = [_logits(other, alone(other, each)) for each in samples[:2]]
        return _look(other, samples, separate, told).status == "exact"
    except Exception:  # not every model has it
        return False
