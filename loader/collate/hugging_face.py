"""Arguments that a Hugging Face model needs with a packed batch, beside its tokens and labels."""

from collections.abc import Mapping
from typing import Any

NEEDED = ("position_ids", "cu_seq_lens", "max_length")


def hf_kwargs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return what keeps the samples of a packed batch apart in a Hugging Face model's forward().

        model(input_ids=batch["input_ids"], labels=batch["labels"], **cp.hf_kwargs(batch))

    position_ids int64 (1, tokens), by which eager and SDPA attention find where samples begin;
    cu_seq_lens_q, cu_seq_lens_k int32 (B + 1,), max_length_q, max_length_k for flash attention; and
    use_cache=False: models keep a cache by default, in training too, and with one they take
    positions that restart for one sequence and attend across (read in transformers 5.23,
    masking_utils.py). No attention mask may be given beside them. Raises ValueError for a batch
    that is not packed.
    """
    missing = [name for name in NEEDED if name not in batch]
    if missing:
        raise ValueError(
            f"the batch has no {', '.join(missing)}, only {', '.join(map(str, batch))[:200]}: give "
            "one of layout 'packed' (Balance(layout='packed') or collate_packed); a padded batch "
            "goes to the model with its attention_mask instead"
        )
    ends, longest = batch["cu_seq_lens"], batch["max_length"]
    return {
        "position_ids": batch["position_ids"],
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }
