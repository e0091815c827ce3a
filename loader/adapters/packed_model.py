"""Checks before training that a Hugging Face model keeps the samples of a packed batch apart.

What hf_kwargs gives works where the model's forward() takes it and its attention uses it. Read in
transformers 5.23, masking_utils.py: eager, SDPA and flex attention find where samples begin by
position_ids in causal models without a cache; flash attention by cu_seq_lens, in all of them; for
an attention without a mask function no mask is made at all.
"""

import inspect
from typing import Any

from ..collate.hugging_face import NEEDED, hf_kwargs
from ..collate.layouts import collate_packed

TOLD = (
    "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "use_cache",
)  # fmt: skip
MASKED = ("eager", "sdpa", "flex_attention")
CAUSAL = ("ForCausalLM", "ForConditionalGeneration")
INSTEAD = 'or give the loader Balance(layout="padded")'


def is_packing(loader: Any) -> bool:
    """Return whether a loader's batches are known to be packed before the first one."""
    given = getattr(loader, "_given", None)
    return loader.collate_fn is collate_packed or (
        given is not None and given.balance.layout == "packed"
    )


def is_packed(batch: Any) -> bool:
    """Return whether a batch is what collate_packed makes."""
    return isinstance(batch, dict) and all(name in batch for name in NEEDED)


def for_model(batch: Any) -> Any:
    """Return a packed batch as the arguments of a Hugging Face model; any other as it is."""
    if not is_packed(batch):
        return batch
    kept = {name: value for name, value in batch.items() if name not in NEEDED}
    return {**kept, **hf_kwargs(batch)}


def check_keeps_apart(model: Any) -> None:
    """Raise ValueError for a model whose samples would attend across their borders."""
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    _check_forward(model)
    config = getattr(model, "config", None)
    if config is not None:
        _check_attention(model, config)


def _check_forward(model: Any) -> None:
    """Positions must be an argument by name: what only goes into **kwargs may be ignored."""
    taken = inspect.signature(model.forward).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
    missing = [
        name for name in TOLD if name not in taken and (name == "position_ids" or not takes_all)
    ]
    if missing:
        raise ValueError(
            f"the forward() of {type(model).__name__} takes no {', '.join(missing)}, which keep "
            f"packed samples apart: let it take and use them, {INSTEAD}"
        )
    if "use_cache" not in taken and getattr(getattr(model, "config", None), "use_cache", False):
        raise ValueError(
            f"the forward() of {type(model).__name__} takes no use_cache, and with a cache packed "
            "samples attend across their borders: set model.config.use_cache = False"
        )


def _check_attention(model: Any, config: Any) -> None:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    attention = getattr(text, "_attn_implementation", None)
    if attention is None or "flash" in attention:
        return
    if attention not in MASKED:
        raise ValueError(
            f"attention {attention!r} makes no mask of position_ids, so packed samples attend "
            f'across their borders: give attn_implementation="sdpa" or a flash one, {INSTEAD}'
        )
    if getattr(model, "loss_type", None) not in CAUSAL:
        raise ValueError(
            f"{type(model).__name__} is no causal language model, and {attention} attention does "
            "not keep packed samples apart there: give "
            f'attn_implementation="flash_attention_2", {INSTEAD}'
        )
