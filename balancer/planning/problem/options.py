"""The options of `Balance`: the values that each can have, and which contradict each other."""

from collections.abc import Callable, Mapping
from typing import Literal, get_args

from .layout import Layout, LayoutName
from .pipeline_costs import SCHEDULES, is_pipeline

GroupingName = Literal["balanced", "isf", "fixed", "auto"]
Mode = Literal["exact", "window", "epoch"]
PartitionName = Literal["multi_resource", "greedy", "given"]
OrderingName = Literal["given", "disttrain", "two_opt", "multi_start"]
Oversize = Literal["alone", "refuse", "error"]
Waits = Literal["microbatch", "step"]
Work = Literal["packed", "padded"]
Counts = Literal["equal", "free"]
Dispatch = Literal["samples", "images"]
Accumulate = int | Literal["auto"]

GROUPINGS: tuple[GroupingName, ...] = get_args(GroupingName)
MODES: tuple[Mode, ...] = get_args(Mode)
PARTITIONS: tuple[PartitionName, ...] = get_args(PartitionName)
ORDERINGS: tuple[OrderingName, ...] = get_args(OrderingName)
OVERSIZE: tuple[Oversize, ...] = get_args(Oversize)
WAITS: tuple[Waits, ...] = get_args(Waits)
WORK: tuple[Work, ...] = get_args(Work)
COUNTS: tuple[Counts, ...] = get_args(Counts)
DISPATCHES: tuple[Dispatch, ...] = get_args(Dispatch)
LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)
# Resources that add up in every batch, padded or not: work="padded" is about all others.
ADD_UP = ("tiles", "patches", "images", "label_tokens")
# Known of samples for their loss: ranks do not wait for it, and evening it out would cost evenness
# in what they do wait for.
NO_WORK = ("label_tokens",)
# Resources of the encoder alone, which dispatch "images" spreads over ranks after planning.
ENCODER = ("tiles", "patches", "images")
# In time_ns: the pairs of positions that attention looks at, longest squared, of the resource LLM.
ATTENTION_PAIRS, LLM = "attention_pairs", "tokens"


def is_positive(value: object) -> bool:
    """Return True for an int (not a bool) of 1 or more."""
    return type(value) is int and value >= 1


def _is_budgets(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and is_positive(most) for name, most in value.items()
    )


def _is_times(value: object) -> bool:
    return value is None or (_is_budgets(value) and bool(value))


def _is_buckets(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and isinstance(sizes, list | tuple)
        and sizes
        and all(map(is_positive, sizes))
        for name, sizes in value.items()
    )


Check = tuple[Callable[[object], bool], str]


# Of options that have one of a few names: these.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "grouping": GROUPINGS, "mode": MODES, "partition": PARTITIONS, "ordering": ORDERINGS,
    "waits": WAITS, "work": WORK, "counts": COUNTS, "dispatch": DISPATCHES, "oversize": OVERSIZE,
    "layout": LAYOUTS,
}  # fmt: skip


def _one_of(option: str, or_none: bool = False) -> Check:
    values = _NAMES[option]
    return (
        lambda value: (isinstance(value, str) and value in values) or (or_none and value is None),
        f"are {', '.join(map(repr, values))}{' or None' * or_none}",
    )


_COUNT: Check = (lambda each: each is None or is_positive(each), "is a positive integer or None")
_RESOURCE: Check = (
    lambda value: value is None or (isinstance(value, str) and bool(value)),
    "is the name of a resource or None",
)
# For each option a test of its value, and the words for what passes it.
OPTIONS: Mapping[str, Check] = {
    "grouping": _one_of("grouping"),
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
    "mode": _one_of("mode"),
    "partition": _one_of("partition"),
    "ordering": _one_of("ordering"),
    "pipeline": (
        is_pipeline,
        "is a mapping such as {'schedule': '1f1b', 'stages': 4, 'profile': 'costs.json'}, with a "
        f"schedule of {', '.join(map(repr, SCHEDULES))}, or None",
    ),
    "waits": _one_of("waits", or_none=True),
    "work": _one_of("work", or_none=True),
    "counts": _one_of("counts", or_none=True),
    "time_ns": (
        _is_times,
        "is a positive integer for at least one resource, such as {'tokens': 40}, or None",
    ),
    "dispatch": _one_of("dispatch"),
    "all_or_none": _RESOURCE,
    "align": (
        _is_budgets,
        "is a positive integer for each resource, such as {'tokens': 16}; "
        "all_or_none='tiles' is about ranks with and without images",
    ),
    "cp": (is_positive, "is the number of context-parallel ranks"),
    "buckets": (
        _is_buckets,
        "are sizes of a microbatch for each resource, such as {'tokens': [4096, 8192]}",
    ),
    "max_shapes": _COUNT,
    "fixed": (lambda value: type(value) is bool, "are True and False"),
    "oversize": _one_of("oversize"),
    "seed": (lambda value: type(value) is int, "is an integer"),
    "layout": (
        lambda value: isinstance(value, Layout) or _one_of("layout")[0](value),
        f"{_one_of('layout')[1]}, or a cp.Layout",
    ),
    "pad_id": (lambda value: type(value) is int, "is an integer"),
    "dummy_tile": (
        lambda value: type(value) is int and value >= 0,
        "is 0 or a positive integer",
    ),
    "label_tokens": _RESOURCE,
    "shift_labels": (lambda value: type(value) is bool, "are True and False"),
    "report": (lambda value: type(value) is bool, "are True and False"),
}


def check_option(name: str, value: object) -> None:
    """Raise ValueError, with name, value and what is allowed, for a value an option cannot have.

    >>> check_option("mode", "step")
    Traceback (most recent call last):
    ValueError: mode is 'step', allowed are 'exact', 'window', 'epoch'; did you mean waits='step'?
    """
    is_allowed, allowed = OPTIONS[name]
    if not is_allowed(value):
        from ...near_names import near_name  # here: who writes no wrong name needs no near one

        elsewhere = [f"{each}={value!r}" for each, named in _NAMES.items() if str(value) in named]
        meant = f"; did you mean {' or '.join(elsewhere)}?" if elsewhere else ""
        near = near_name(value, _NAMES.get(name, ()))
        raise ValueError(f"{name} is {value!r}, allowed {allowed}{near or meant}")


def check_limits(grouping: str, mode: str, limited: bool, fixes_size: bool = False) -> None:
    """Raise ValueError where grouping and mode do not go with budgets, or with none.

    fixes_size: whether samples_per_step says what a step holds, as for padded work.
    """
    if grouping == "fixed":
        if limited:
            raise ValueError(
                "grouping 'fixed' puts batch_size samples into a microbatch and cannot hold "
                "budgets: give none, or use grouping 'balanced'"
            )
    elif mode != "exact" and not limited and not fixes_size and grouping != "auto":
        raise ValueError(
            f"mode {mode!r} needs a budget, such as budgets={{'tokens': 4096}}: "
            "without one, use mode 'exact'"
        )


def check_timed(grouping: str, mode: str, timed: bool) -> None:
    """Raise ValueError where times are given to a plan that does not look at them."""
    if timed and (grouping in ("fixed", "isf") or mode == "epoch"):
        raise ValueError(
            f"time_ns weighs what grouping 'balanced' plans in modes 'exact' and 'window', not "
            f"{grouping!r} in {mode!r}: leave time_ns out"
        )


def check_padded(grouping: str, mode: str, padded: bool) -> None:
    """Raise ValueError where padded work cannot be planned."""
    if padded and grouping == "isf":
        raise ValueError(
            "grouping 'isf' fills microbatches by sums, and work is 'padded': use grouping "
            "'balanced'"
        )
    if padded and mode == "epoch":
        raise ValueError(
            "mode 'epoch' groups by sums, and work is 'padded': use mode 'exact' or 'window'"
        )


def check_counts(
    counts: str | None, grouping: str, mode: str, oversize: str, limited: bool
) -> None:
    """Raise ValueError where microbatches of equal or free counts contradict other options."""
    if counts == "free" and grouping == "fixed":
        raise ValueError(
            "counts is 'free', but grouping 'fixed' puts batch_size samples into every "
            "microbatch: use grouping 'balanced', or leave counts out"
        )
    if counts != "equal" or grouping == "fixed":
        return
    if grouping not in ("balanced", "auto") or mode == "epoch":
        raise ValueError(
            "counts 'equal' is planned by grouping 'balanced' in modes 'exact' and 'window', not "
            f"by {grouping!r} in {mode!r}"
        )
    # "auto" says instead which accumulate has room for such a sample (planning/steps.py).
    if limited and oversize == "alone" and grouping != "auto":
        raise ValueError(
            "counts 'equal' has no microbatch for a sample over budget, which oversize 'alone' "
            "would put by itself: use oversize 'refuse' or 'error', or counts 'free'"
        )


def check_waits(waits: str, partition: str) -> None:
    """Raise ValueError where nothing would be planned for waiting once a step."""
    check_option("waits", waits)
    if waits == "step" and partition != "multi_resource":
        raise ValueError(
            f"waits is 'step', but partition {partition!r} does not look at when ranks wait: use "
            "partition 'multi_resource', or leave waits"
        )


def padded_of(work: str, resources: tuple[str, ...]) -> tuple[str, ...]:
    """Return the resources of which a microbatch costs count x largest, for `work`.

    >>> padded_of("padded", ("tiles", "patches", "tokens"))
    ('tokens',)
    """
    return tuple(name for name in resources if name not in ADD_UP) if work == "padded" else ()


def check_dispatch(dispatch: str, budgets: Mapping[str, int]) -> None:
    """Raise ValueError where microbatches are to hold budgets of images that travel."""
    if dispatch == "images" and (limited := [name for name in ENCODER if name in budgets]):
        raise ValueError(
            f"dispatch is 'images', so what a rank encodes of {limited[0]} does not follow from "
            f"its microbatches: leave {limited[0]} out of budgets, or use dispatch 'samples'"
        )


def dispatched_of(dispatch: str, resources: tuple[str, ...]) -> tuple[str, ...]:
    """Return the resources that planning leaves alone, since their images travel.

    Raises ValueError if there are none, or if nothing would be left to balance.

    >>> dispatched_of("images", ("tiles", "tokens"))
    ('tiles',)
    """
    if dispatch != "images":
        return ()
    found = tuple(name for name in resources if name in ENCODER)
    if not found:
        raise ValueError(
            f"dispatch is 'images', but samples cost {', '.join(resources)}, no tiles, patches "
            "or images: let cost() or probe() count as tiles what they cost the encoder, or use "
            "dispatch 'samples'"
        )
    if all(name in (*ENCODER, *NO_WORK) for name in resources):
        raise ValueError(
            f"dispatch is 'images', and samples cost {', '.join(found)} only, which travel: "
            "add what they cost the language model, such as tokens, or use dispatch 'samples'"
        )
    return found


def check_all_or_none(
    all_or_none: str | None, grouping: str, partition: str, ordering: str, padded: bool,
    travelling: tuple[str, ...], resources: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Raise ValueError where microbatches cannot be arranged so that all ranks have a resource.

    travelling: resources of images that travel. resources: what samples cost; () where it is not
    known yet.
    """
    if all_or_none is None:
        return
    for name, value, needed in (
        ("grouping", grouping, "balanced"),
        ("partition", partition, "multi_resource"),
        ("ordering", ordering, "given"),
    ):
        if value != needed:
            raise ValueError(
                f"all_or_none is {all_or_none!r}, which needs {name} {needed!r}, and {name} is "
                f"{value!r}: leave one of them out"
            )
    if padded:
        raise ValueError(
            f"all_or_none is {all_or_none!r}, and work is 'padded', where microbatches of like "
            "sizes run side by side: use work 'packed', or leave all_or_none out"
        )
    if all_or_none in travelling:
        raise ValueError(
            f"all_or_none is {all_or_none!r}, and with dispatch 'images' it travels to other "
            "ranks: leave one of them out"
        )
    if resources and all_or_none not in resources:
        raise ValueError(
            f"all_or_none names {all_or_none}, but samples cost {', '.join(resources)}"
        )
