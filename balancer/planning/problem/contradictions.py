"""Options of `Balance` and `PlanConfig` that contradict each other."""

from .options import COUNTED


def check_limits(grouping: str, mode: str, limited: bool, fixes_size: bool = False) -> None:
    """Raise ValueError where grouping and mode do not go with budgets, or with none.

    fixes_size: whether samples_per_step says what a step holds, as for padded work.
    """
    if grouping in COUNTED:
        if limited:
            raise ValueError(
                f"grouping {grouping!r} puts batch_size samples into a microbatch and cannot hold "
                "budgets: give none, or use grouping 'balanced'"
            )
    elif mode != "exact" and not limited and not fixes_size and grouping != "auto":
        raise ValueError(
            f"mode {mode!r} needs a budget, such as budgets={{'tokens': 4096}}: "
            "without one, use mode 'exact'"
        )


def check_timed(grouping: str, mode: str, timed: bool) -> None:
    """Raise ValueError where times are given to a plan that does not look at them."""
    if timed and (grouping in (*COUNTED, "isf") or mode == "epoch"):
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
    if counts == "free" and grouping in COUNTED:
        raise ValueError(
            f"counts is 'free', but grouping {grouping!r} puts batch_size samples into every "
            "microbatch: use grouping 'balanced', or leave counts out"
        )
    if counts != "equal" or grouping in COUNTED:
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
    if waits == "step" and partition != "multi_resource":
        raise ValueError(
            f"waits is 'step', but partition {partition!r} does not look at when ranks wait: use "
            "partition 'multi_resource', or leave waits"
        )
