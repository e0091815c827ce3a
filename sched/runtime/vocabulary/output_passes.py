"""The passes of the output layer over one shard, as functions between plain tensors.

    algorithm 1    S: logits, statistics                 | T: dX, dW, db              |
    algorithm 2    S: logits, statistics, early products | C: dX |  T: dW, db
    naive          L: logits, their maximum | E: statistics | G: dX, dW, db           |

A bar is a collective: the maximum or the statistics are gathered, or the shards' parts of dX are
added up. What a pass leaves for a later one is its `LocalSoftmax`, so an executor may put the
passes wherever `check` lets it. Between S and T a rank holds X and, unless they are computed a
second time, its logits in the model's precision.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from .gradients import (
    EarlyProducts,
    WeightGradients,
    add_gradients,
    empty_products,
    fill_products,
    rescale,
)
from .logits import Head, cap, compute_logits, token_pieces
from .loss import (
    LossOptions,
    Normalizer,
    Targets,
    local_maximum,
    local_statistics,
    statistics_dtype,
)


@dataclass(frozen=True, slots=True)
class LocalSoftmax:
    """A shard's part of a microbatch's softmax, from its first pass until it has been used.

    `hidden`: X (tokens, hidden). `logits`: (tokens, rows) before the softcap, or None if they are
    not kept. `statistics`: (3 or 4, tokens), or the maximum alone, (1, tokens), after L. `early`:
    Algorithm 2's products, until C.
    """

    hidden: Tensor
    targets: Targets
    logits: Tensor | None
    statistics: Tensor
    early: EarlyProducts | None = None


def pass_s(
    hidden: Tensor,
    targets: Targets,
    head: Head,
    options: LossOptions,
    *,
    keep_logits: bool,
    early: bool,
) -> LocalSoftmax:
    """Return logits and statistics of a microbatch; with `early`, Algorithm 2's products too."""
    kept = compute_logits(hidden, head) if keep_logits else None
    precise = statistics_dtype(hidden.dtype)
    statistics = hidden.new_zeros(options.statistics, hidden.shape[0], dtype=precise)
    products = empty_products(hidden, head, options) if early else None
    for tokens in token_pieces(hidden.shape[0], head.rows):
        logits, slope = _real_logits(hidden, kept, head, tokens, options)
        maximum = local_maximum(logits)
        exponentials = (logits - maximum[:, None]).exp_()
        some = _some(targets, tokens)
        statistics[:, tokens] = local_statistics(logits, maximum, exponentials, some, options)
        if products is not None:
            fill_products(products, tokens, exponentials, slope, head, options)
    return LocalSoftmax(hidden, targets, kept, statistics, products)


def pass_c(
    local: LocalSoftmax, normalizer: Normalizer, head: Head, options: LossOptions
) -> tuple[Tensor, LocalSoftmax]:
    """Return the shard's part of dX by Algorithm 2, and what is left of `local` for T."""
    if local.early is None:
        raise ValueError("C needs the early products of Algorithm 2; run S with early=True")
    found = rescale(local.early, local.statistics, normalizer, local.targets, head, options)
    return found, replace(local, early=None)


def pass_t(
    local: LocalSoftmax,
    normalizer: Normalizer,
    head: Head,
    options: LossOptions,
    into: WeightGradients,
    *,
    input_gradient: bool,
) -> Tensor | None:
    """Add the weight gradients of a microbatch, and return the shard's part of dX if asked for.

    This is T of both algorithms, and G.
    """
    if not into.wanted and not input_gradient:
        return None
    return add_gradients(
        local.hidden,
        local.logits,
        head,
        normalizer,
        local.targets,
        options,
        into,
        input_gradient=input_gradient,
    )


def pass_l(
    hidden: Tensor, targets: Targets, head: Head, options: LossOptions, *, keep_logits: bool
) -> LocalSoftmax:
    """Return logits and each token's maximum, (1, tokens)."""
    kept = compute_logits(hidden, head) if keep_logits else None
    maximum = hidden.new_zeros(1, hidden.shape[0], dtype=statistics_dtype(hidden.dtype))
    for tokens in token_pieces(hidden.shape[0], head.rows):
        logits, _ = _real_logits(hidden, kept, head, tokens, options)
        maximum[0, tokens] = local_maximum(logits)
    return LocalSoftmax(hidden, targets, kept, maximum)


def pass_e(local: LocalSoftmax, gathered: Tensor, head: Head, options: LossOptions) -> LocalSoftmax:
    """Return the statistics relative to the maximum of all shards.

    `gathered`: the maxima of all shards, (ranks, 1, tokens).
    """
    maximum = gathered.amax(0)[0]
    statistics = local.statistics.new_zeros(options.statistics, local.hidden.shape[0])
    for tokens in token_pieces(local.hidden.shape[0], head.rows):
        logits, _ = _real_logits(local.hidden, local.logits, head, tokens, options)
        exponentials = (logits - maximum[tokens, None]).exp_()
        some = _some(local.targets, tokens)
        statistics[:, tokens] = local_statistics(
            logits, maximum[tokens], exponentials, some, options
        )
    return replace(local, statistics=statistics)


def _real_logits(
    hidden: Tensor, kept: Tensor | None, head: Head, tokens: slice, options: LossOptions
) -> tuple[Tensor, Tensor | None]:
    """Return some tokens' logits without padding, after the softcap, and its derivative."""
    raw = compute_logits(hidden[tokens], head) if kept is None else kept[tokens]
    return cap(raw[:, : head.real], options.softcap)


def _some(targets: Targets, tokens: slice) -> Targets:
    return Targets(targets.column[tokens], targets.owned[tokens], targets.weight[tokens])
