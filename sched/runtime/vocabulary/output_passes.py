"""The passes of the output layer over one shard, as functions between plain tensors.

With z the logits after the softcap, y those before it, s = dz/dy, p = exp(z - log Z), w the token's
weight, and the rest as in `loss`, the gradient of logit j is

    dy_j = w s_j [(1 + 2 l log Z) p_j - (1 - e) [j = g] - e/V]

and dX = dY W, dW = dY^T X, db = sum over tokens of dY.

Algorithm 2 multiplies with W before log Z is known. With m the shard's own maximum,

    dX = w [(1 + 2 l log Z) exp(m - log Z) P - Q]
    P = (s exp(z - m)) W        Q = (s ((1 - e) G + e/V)) W       G the labels, one-hot

P keeps exp(z - m) undivided, where the paper has the softmax of the shard: the largest column then
is exactly 1 in any precision. P and Q almost cancel for a token that is predicted well, so both are
in the precision of statistics, and only their difference is rounded.

    algorithm 1    S: logits, statistics                 | T: dX, dW, db              |
    algorithm 2    S: logits, statistics, early products | C: dX |  T: dW, db
    naive          L: logits, their maximum | E: statistics | G: dX, dW, db           |

A bar is a collective: the maximum or the statistics are gathered, or the shards' parts of dX are
added up. What a pass leaves for a later one is its `LocalSoftmax`, so an executor may put the
passes wherever `check` lets it. Between S and T a rank holds X and, unless they are computed a
second time, its logits in the model's precision.

Logits of a shard are computed in pieces, so that single-precision copies of them stay small: some
tokens and all columns for the statistics, all tokens and some columns for the weights' gradient.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .loss import LABEL, LossOptions, Targets, local_maximum, local_statistics, statistics_dtype

# Logits in a piece: 64 MiB in single precision.
PIECE = 2**24
# Columns of a piece come in multiples of this, for the alignment of matrix products.
_ALIGNED = 128


@dataclass(frozen=True, slots=True)
class Head:
    """One rank's columns of the output layer, without gradients.

    `weight`: (rows, hidden), `bias`: (rows,) or None, padding included. `start`: the vocabulary's
    number of the first row. `real`: the number of rows that are no padding. `size`: of the whole
    vocabulary.
    """

    weight: Tensor
    bias: Tensor | None
    start: int
    real: int
    size: int

    @property
    def rows(self) -> int:
        """Return the number of rows, padding included."""
        return self.weight.shape[0]


def token_pieces(tokens: int, columns: int, piece: int = PIECE) -> Iterator[slice]:
    """Yield slices of the tokens whose logits of all columns are about one piece each.

    >>> list(token_pieces(5, 10, piece=20))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, piece // max(1, columns))
    yield from (slice(at, min(at + step, tokens)) for at in range(0, tokens, step))


def column_pieces(tokens: int, columns: int, piece: int = PIECE) -> Iterator[slice]:
    """Yield slices of the columns whose logits of all tokens are about one piece each."""
    step = max(_ALIGNED, piece // max(1, tokens) // _ALIGNED * _ALIGNED)
    yield from (slice(at, min(at + step, columns)) for at in range(0, columns, step))


def compute_logits(hidden: Tensor, head: Head, columns: slice = slice(None)) -> Tensor:
    """Return logits (tokens, columns), before the softcap, in the model's precision."""
    bias = None if head.bias is None else head.bias[columns]
    return F.linear(hidden, head.weight[columns], bias)


def cap(logits: Tensor, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """Return logits after the softcap, and its derivative (None for 1), precise as statistics."""
    precise = logits.to(statistics_dtype(logits.dtype))
    if softcap is None:
        return precise, None
    bent = (precise / softcap).tanh_()
    return bent * softcap, 1 - bent.square()


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices in the precision of statistics.

    >>> multiply(torch.ones(1, 2).bfloat16(), torch.ones(2, 1).bfloat16()).dtype
    torch.float32
    """
    precise = statistics_dtype(a.dtype)
    if a.dtype == precise:
        return a @ b
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=precise)
    # Other devices cannot return a sum in higher precision than its factors.
    return a.to(precise) @ b.to(precise)


def pad_columns(values: Tensor, columns: int) -> Tensor:
    """Return values (tokens, some) with zeros up to that many columns."""
    lacking = columns - values.shape[1]
    return F.pad(values, (0, lacking)) if lacking else values


@dataclass(frozen=True, slots=True)
class EarlyProducts:
    """The products of Algorithm 2 that are made before log Z is known.

    `attraction`: P (tokens, hidden). `smoothing`: the part of Q that is due to label smoothing,
    (hidden,) or with a softcap (tokens, hidden); None without smoothing.
    """

    attraction: Tensor
    smoothing: Tensor | None


def _times_weight(values: Tensor, head: Head) -> Tensor:
    return multiply(pad_columns(values, head.rows).to(head.weight.dtype), head.weight)


def _attraction(log_normalizer: Tensor, options: LossOptions) -> Tensor | float:
    """Return what the softmax counts in the gradient: 1 + 2 l log Z."""
    return 1 + 2 * options.z_loss * log_normalizer if options.z_loss else 1.0


def _logit_gradient(
    logits: Tensor,
    first: int,
    log_normalizer: Tensor,
    targets: Targets,
    options: LossOptions,
    size: int,
) -> Tensor:
    """Return dY of columns from `first` on, of logits (tokens, columns) before the softcap."""
    capped, slope = cap(logits, options.softcap)
    gradient = (capped - log_normalizer[:, None]).exp_()
    attraction = _attraction(log_normalizer, options)
    if isinstance(attraction, Tensor):
        gradient *= attraction[:, None]
    if options.label_smoothing:
        gradient -= options.label_smoothing / size
    column = targets.column - first
    here = targets.owned & (column >= 0) & (column < logits.shape[1])
    minus = here.to(gradient.dtype) * (options.label_smoothing - 1)
    gradient.scatter_add_(1, column.masked_fill(~here, 0)[:, None], minus[:, None])
    if slope is not None:
        gradient *= slope
    return gradient.mul_(targets.weight[:, None])


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
    kept_logits = compute_logits(hidden, head) if keep_logits else None
    precise = statistics_dtype(hidden.dtype)
    statistics = hidden.new_zeros(options.statistics, hidden.shape[0], dtype=precise)
    products, share = None, options.label_smoothing / head.size
    if early:
        attraction, smoothing = hidden.new_zeros(hidden.shape, dtype=precise), None
        if options.label_smoothing:
            # Without a softcap it is the same for all tokens. Padding rows are zero, add nothing.
            plain = options.softcap is None
            smoothing = head.weight.sum(0, dtype=precise) * share if plain else attraction.clone()
        products = EarlyProducts(attraction, smoothing)
    for tokens in token_pieces(hidden.shape[0], head.rows):
        logits, slope = _real_logits(hidden, kept_logits, head, tokens, options)
        maximum = local_maximum(logits)
        exponentials = (logits - maximum[:, None]).exp_()
        part = _take_tokens(targets, tokens)
        statistics[:, tokens] = local_statistics(logits, maximum, exponentials, part, options)
        if products is None:
            continue
        if slope is not None:
            exponentials = exponentials * slope
            if products.smoothing is not None:
                products.smoothing[tokens] = _times_weight(slope * share, head)
        products.attraction[tokens] = _times_weight(exponentials, head)
    return LocalSoftmax(hidden, targets, kept_logits, statistics, products)


def pass_c(
    local: LocalSoftmax, log_normalizer: Tensor, head: Head, options: LossOptions
) -> tuple[Tensor, LocalSoftmax]:
    """Return the shard's part of dX by Algorithm 2, and what is left of `local` for T."""
    products, targets = local.early, local.targets
    assert products is not None
    scale = (local.statistics[0] - log_normalizer).exp_() * _attraction(log_normalizer, options)
    label = targets.owned.to(scale.dtype) * (1 - options.label_smoothing)
    if options.softcap is not None:
        label = label * (1 - (local.statistics[LABEL] / options.softcap).square())
    hidden_gradient = products.attraction * (scale * targets.weight)[:, None]
    rows = head.weight[targets.column].to(hidden_gradient.dtype)
    hidden_gradient -= rows * (label * targets.weight)[:, None]
    if products.smoothing is not None:
        hidden_gradient -= products.smoothing * targets.weight[:, None]
    return hidden_gradient, replace(local, early=None)


def pass_t(
    local: LocalSoftmax,
    log_normalizer: Tensor,
    head: Head,
    options: LossOptions,
    into: tuple[Tensor | None, Tensor | None],
    *,
    input_gradient: bool,
) -> Tensor | None:
    """Add the weight gradients of a microbatch, and return the shard's part of dX if asked for.

    This is T of both algorithms, and G. Logits that were not kept are computed a second time.
    `into`: the gradients of weight and bias, None for a frozen one.
    """
    of_weight, of_bias = into
    if of_weight is None and of_bias is None and not input_gradient:
        return None
    hidden, precise = local.hidden, statistics_dtype(local.hidden.dtype)
    hidden_gradient = hidden.new_zeros(hidden.shape, dtype=precise) if input_gradient else None
    for columns in column_pieces(hidden.shape[0], head.rows):
        real = min(columns.stop, head.real) - columns.start
        if real <= 0:
            # Only padding is left, which has no gradient.
            break
        logits = local.logits
        raw = compute_logits(hidden, head, columns) if logits is None else logits[:, columns]
        gradient = _logit_gradient(
            raw[:, :real], columns.start, log_normalizer, local.targets, options, head.size
        )
        if of_bias is not None:
            of_bias[columns.start : columns.start + real] += gradient.sum(0)
        gradient = pad_columns(gradient, columns.stop - columns.start).to(hidden.dtype)
        if of_weight is not None:
            rows = of_weight[columns]
            # The factors may be in a lower precision.
            if rows.dtype == hidden.dtype:
                rows.addmm_(gradient.t(), hidden)
            else:
                rows += multiply(gradient.t(), hidden)
        if hidden_gradient is not None:
            hidden_gradient += multiply(gradient, head.weight[columns])
    return hidden_gradient


def pass_l(
    hidden: Tensor, targets: Targets, head: Head, options: LossOptions, *, keep_logits: bool
) -> LocalSoftmax:
    """Return logits and each token's maximum, (1, tokens)."""
    kept_logits = compute_logits(hidden, head) if keep_logits else None
    maximum = hidden.new_zeros(1, hidden.shape[0], dtype=statistics_dtype(hidden.dtype))
    for tokens in token_pieces(hidden.shape[0], head.rows):
        logits, _ = _real_logits(hidden, kept_logits, head, tokens, options)
        maximum[0, tokens] = local_maximum(logits)
    return LocalSoftmax(hidden, targets, kept_logits, maximum)


def pass_e(local: LocalSoftmax, gathered: Tensor, head: Head, options: LossOptions) -> LocalSoftmax:
    """Return the statistics relative to the maxima of all shards, (ranks, 1, tokens)."""
    maximum = gathered.amax(0)[0]
    statistics = local.statistics.new_zeros(options.statistics, local.hidden.shape[0])
    for tokens in token_pieces(local.hidden.shape[0], head.rows):
        logits, _ = _real_logits(local.hidden, local.logits, head, tokens, options)
        exponentials = (logits - maximum[tokens, None]).exp_()
        statistics[:, tokens] = local_statistics(
            logits, maximum[tokens], exponentials, _take_tokens(local.targets, tokens), options
        )
    return replace(local, statistics=statistics)


def _real_logits(
    hidden: Tensor, kept_logits: Tensor | None, head: Head, tokens: slice, options: LossOptions
) -> tuple[Tensor, Tensor | None]:
    """Return some tokens' logits without padding, after the softcap, and its derivative."""
    raw = compute_logits(hidden[tokens], head) if kept_logits is None else kept_logits[tokens]
    return cap(raw[:, : head.real], options.softcap)


def _take_tokens(targets: Targets, tokens: slice) -> Targets:
    return Targets(*(tensor[tokens] for tensor in targets))
