"""The options of `Balance`: the values that each can have, and which contradict each other."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

from ...near_names import near_name
from .layout import Layout, LayoutName

GroupingName = Literal["balanced", "isf", "fixed", "auto"]
Mode = Literal["exact", "window", "epoch"]
PartitionName = Literal["multi_resource", "greedy", "given"]
OrderingName = Literal["given", "disttrain", "two_opt"]
Oversize = Literal["alone", "refuse", "error"]
Waits = Literal["microbatch", "step"]
WorkName = Literal["packed", "padded"]
Counts = Literal["equal", "free"]
Dispatch = Literal["samples", "images"]
Accumulate = int | Literal["auto"]

# Of options that have one of a few names: these.
NAMES: Mapping[str, tuple[Any, ...]] = {
    "grouping": get_args(GroupingName), "mode": get_args(Mode),
    "partition": get_args(PartitionName), "ordering": get_args(OrderingName),
    "waits": get_args(Waits), "work": get_args(WorkName), "counts": get_args(Counts),
    "dispatch": get_args(Dispatch), "oversize": get_args(Oversize), "layout": get_args(LayoutName),
}  # fmt: skip
# How two of them are written in a Balance, whose other options are its arguments.
_WRITTEN = {
    "dispatch": "images=Images(dispatch={})",
    "ordering": "pipeline=PipelineOrder(..., ordering={})",
}
# Resources that add up in every batch, padded or not: work="padded" is about all others.
ADD_UP = ("tiles", "patches", "images", "label_tokens")
# Known of samples for their loss: ranks do not wait for it, and evening it out would cost evenness
# in what they do wait for.
NO_WORK = ("label_tokens",)
# Resources of the encoder alone, which dispatch "images" spreads over ranks after planning.
ENCODER = ("tiles", "patches", "images")
# In time_ns: the pairs of positions that attention looks at, longest squared, of the resource LLM.
ATTENTION_PAIRS, LLM = "attention_pairs", "tokens"

# A test of an option's value, and the words for what passes it.
Check = tuple[Callable[[Any], bool], str]


def is_positive(value: object) -> bool:
    """Return True for an int (not a bool) of 1 or more."""
    return type(value) is int and value >= 1


def _is_budgets(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and is_positive(most) for name, most in value.items()
    )


def _is_buckets(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and isinstance(sizes, list | tuple)
        and sizes
        and all(map(is_positive, sizes))
        for name, sizes in value.items()
    )


def _allow_names(option: str, or_none: bool = False) -> Check:
    values = NAMES[option]
    return (
        lambda value: (isinstance(value, str) and value in values) or (or_none and value is None),
        f"are {', '.join(map(repr, values))}{' or None' * or_none}",
    )


_COUNT: Check = (lambda value: value is None or is_positive(value), "is a positive integer or None")
_INTEGER: Check = (lambda value: type(value) is int, "is an integer")
_RESOURCE: Check = (
    lambda value: value is None or (isinstance(value, str) and bool(value)),
    "is the name of a resource or None",
)
OPTIONS: Mapping[str, Check] = {
    "grouping": _allow_names("grouping"),
    "budgets": (
        _is_budgets,
        "is a positive integer for each resource, such as {'tokens': 4096}; "
        "leave out a resource without limit",
    ),
    "samples_per_step": _COUNT,
    "accumulate": (
        lambda value: value == "auto" or is_positive(value),
        "is a positive integer or 'auto'",
    ),
    "mode": _allow_names("mode"),
    "partition": _allow_names("partition"),
    "ordering": _allow_names("ordering"),
    "profile": (lambda value: isinstance(value, str), "is the path of a cost profile"),
    "waits": _allow_names("waits", or_none=True),
    "work": _allow_names("work", or_none=True),
    "counts": _allow_names("counts", or_none=True),
    "time_ns": (
        lambda value: value is None or (_is_budgets(value) and bool(value)),
        "is a positive integer for at least one resource, such as {'tokens': 40}, or None",
    ),
    "dispatch": _allow_names("dispatch"),
    "all_or_none": _RESOURCE,
    "align": (
        _is_budgets,
        "is a positive integer for each resource, such as {'tokens': 16}; "
        "all_or_none='tiles' is about ranks with and without images",
    ),
    "cp": (is_positive, "is the number of context-parallel ranks"),
    "buckets": (
        lambda value: is_positive(value) or _is_buckets(value),
        "are sizes of a microbatch for each resource, such as {'tokens': [4096, 8192]}, or their "
        "number",
    ),
    "bucket_by": _RESOURCE,
    "oversize": _allow_names("oversize"),
    "seed": _INTEGER,
    "layout": (
        lambda value: isinstance(value, Layout) or _allow_names("layout")[0](value),
        f"{_allow_names('layout')[1]}, or a cp.Layout",
    ),
    "dummy_tile": (lambda value: type(value) is int and value >= 0, "is 0 or a positive integer"),
    "label_tokens": _RESOURCE,
}


def check_option(name: str, value: object) -> None:
    """Raise ValueError, with name, value and what is allowed, for a value an option cannot have.

    >>> check_option("mode", "step")
    Traceback (most recent call last):
    ValueError: mode is 'step', allowed are 'exact', 'window', 'epoch'; did you mean waits='step'?
    """
    is_allowed, allowed = OPTIONS[name]
    if not is_allowed(value):
        elsewhere = [
            _WRITTEN.get(option, f"{option}={{}}").format(repr(value))
            for option, names in NAMES.items()
            if str(value) in names
        ]
        meant = f"; did you mean {' or '.join(elsewhere)}?" if elsewhere else ""
        near = near_name(value, NAMES.get(name, ()))
        raise ValueError(f"{name} is {value!r}, allowed {allowed}{near or meant}")


def contradictions(rules: Any) -> Iterator[str]:
    """Yield what the options of a Balance, or of its PlanConfig, say against each other."""
    grouping, mode, counts = rules.grouping, rules.mode, rules.counts
    if grouping == "fixed" and rules.limited:
        yield (
            "grouping 'fixed' puts batch_size samples into a microbatch and cannot hold "
            "budgets: give none, or use grouping 'balanced'"
        )
    # Where the number of samples decides what a step holds, budgets need not.
    is_sized = grouping in ("fixed", "auto") or rules.is_padded or counts == "equal"
    is_sized = is_sized or (rules.bucket_by is not None and mode == "window")
    if mode != "exact" and not (rules.limited or is_sized):
        yield (
            f"mode {mode!r} needs a budget, such as budgets={{'tokens': 4096}}: "
            "without one, use mode 'exact'"
        )
    if rules.waits == "step" and rules.partition != "multi_resource":
        yield (
            f"waits is 'step', but partition {rules.partition!r} does not look at when ranks wait: "
            "use partition 'multi_resource', or leave waits"
        )
    if rules.is_padded and grouping == "isf":
        yield (
            "grouping 'isf' fills microbatches by sums, and work is 'padded': use grouping "
            "'balanced'"
        )
    if rules.is_padded and mode == "epoch":
        yield "mode 'epoch' groups by sums, and work is 'padded': use mode 'exact' or 'window'"
    if rules.time_ns and (grouping in ("fixed", "isf") or mode == "epoch"):
        yield (
            f"time_ns weighs what grouping 'balanced' plans in modes 'exact' and 'window', not "
            f"{grouping!r} in {mode!r}: leave time_ns out"
        )
    if counts == "free" and grouping == "fixed":
        yield (
            "counts is 'free', but grouping 'fixed' puts batch_size samples into every "
            "microbatch: use grouping 'balanced', or leave counts out"
        )
    if counts == "equal" and grouping != "fixed":
        if grouping == "isf" or mode == "epoch":
            yield (
                "counts 'equal' is planned by grouping 'balanced' in modes 'exact' and 'window', "
                f"not by {grouping!r} in {mode!r}"
            )
        # "auto" says instead which accumulate has room for such a sample (planning/steps.py).
        if rules.limited and rules.oversize == "alone" and grouping != "auto":
            yield (
                "counts 'equal' has no microbatch for a sample over budget, which oversize 'alone' "
                "would put by itself: use oversize 'refuse' or 'error', or counts 'free'"
            )
    if rules.all_or_none is not None:
        yield from _against_all_or_none(rules)
    if rules.bucket_by is not None:
        yield from _against_bucket_by(rules)


def _against_all_or_none(rules: Any) -> Iterator[str]:
    """Yield why microbatches cannot be arranged so that all ranks have a resource, or none has."""
    says = f"images: all_or_none is {rules.all_or_none!r}, "
    needs = {"grouping": "balanced", "partition": "multi_resource", "ordering": "given"}
    for name, needed in needs.items():
        if (value := getattr(rules, name)) != needed:
            yield (
                f"{says}which needs {name} {needed!r}, and {name} is {value!r}: leave one of them "
                "out"
            )
    if rules.is_padded:
        yield (
            f"{says}and work is 'padded', where microbatches of like sizes run side by side: use "
            "work 'packed', or leave all_or_none out"
        )
    if rules.all_or_none in rules.dispatched:
        yield (f"{says}and with dispatch 'images' it travels to other ranks: leave one of them out")


def _against_bucket_by(rules: Any) -> Iterator[str]:
    """Yield why microbatches cannot be of one value of a cost each."""
    says = f"shapes: bucket_by is {rules.bucket_by!r}, "
    if rules.mode == "exact":
        yield (
            f"{says}and the samples that mode 'exact' puts into a step rarely divide into "
            "microbatches of one shape: use mode 'window', or mode 'epoch' with a budget or "
            "grouping 'fixed'"
        )
    mixing = {
        "grouping 'isf'": rules.grouping == "isf", "work 'padded'": rules.is_padded,
        "all_or_none": rules.all_or_none is not None,
    }  # fmt: skip
    for option in (name for name, is_asked in mixing.items() if is_asked):
        yield f"{says}and {option} is for microbatches of many shapes: leave one of them out"


def list_padded(work: str | None, resources: tuple[str, ...]) -> tuple[str, ...]:
    """Return the resources of which a microbatch costs count x largest, for `work`.

    >>> list_padded("padded", ("tiles", "patches", "tokens"))
    ('tokens',)
    """
    return tuple(name for name in resources if work == "padded" and name not in ADD_UP)


def list_dispatched(dispatch: str, resources: tuple[str, ...]) -> tuple[str, ...]:
    """Return the resources that planning leaves alone, since their images travel.

    Raises ValueError if there are none, or if nothing would be left to balance.

    >>> list_dispatched("images", ("tiles", "tokens"))
    ('tiles',)
    """
    if dispatch != "images":
        return ()
    travelling = tuple(name for name in resources if name in ENCODER)
    if not travelling:
        raise ValueError(
            f"images: dispatch is 'images', but samples cost {', '.join(resources)}, no tiles, "
            "patches or images: let cost() or probe() count as tiles what they cost the encoder, "
            "or use dispatch 'samples'"
        )
    if all(name in (*ENCODER, *NO_WORK) for name in resources):
        raise ValueError(
            f"images: dispatch is 'images', and samples cost {', '.join(travelling)} only, which "
            "travel: add what they cost the language model, such as tokens, or use dispatch "
            "'samples'"
        )
    return travelling
