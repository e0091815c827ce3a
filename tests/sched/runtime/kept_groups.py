"""Process groups that stay: all cases that a process of the pool runs use the same ones.

Making a dozen groups takes longer than what most cases do with them. All processes run the same
cases, so they miss the same groups and make them together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from counterpoise.sched.runtime.job import start
from counterpoise.sched.runtime.links.process_groups import Channel, Groups, make_groups

_LIMIT_S = 60.0


@dataclass
class _Kept:
    """Groups by name, of each kind: channels, communicators, sharers; `known` has others', too."""

    rank: int = -1
    known: tuple[set[Any], ...] = field(default_factory=lambda: (set(), set(), set()))
    own: tuple[dict[Any, Any], ...] = field(default_factory=lambda: ({}, {}, {}))


_kept: dict[tuple[tuple[int, ...], ...], _Kept] = {}


class KeptGroups(Groups):
    """Groups that closing leaves as they are."""

    def close(self) -> None:
        """Leave the groups to the next case."""


def keep_groups() -> None:
    """Let all pipelines that this process makes use groups that stay."""
    vars(start)["make_groups"] = borrow_groups


def borrow_groups(
    pipelines: Sequence[Sequence[int]],
    channels: Sequence[Channel],
    communicators: Mapping[str, Sequence[int]],
    device: torch.device,
    deadline_s: float,
    sharers: Sequence[tuple[int, ...]] = (),
) -> Groups:
    """Return groups as `make_groups` does, of which only those are made that never were."""
    del deadline_s
    kept = _kept.setdefault(tuple(map(tuple, pipelines)), _Kept())
    wanted: tuple[Sequence[Any], ...] = channels, [*communicators], sharers
    new: list[list[Any]] = [
        [name for name in names if name not in known]
        for names, known in zip(wanted, kept.known, strict=True)
    ]
    if kept.rank < 0 or any(new):
        made = make_groups(
            pipelines, new[0], {name: communicators[name] for name in new[1]}, device, _LIMIT_S,
            new[2],
        )  # fmt: skip
        kept.rank = made.rank
        found: tuple[Any, ...] = made.channels, made.communicators, made.sharers
        for names, known, own, groups in zip(new, kept.known, kept.own, found, strict=True):
            known.update(names)
            own.update(groups)
    mine: list[dict[Any, Any]] = [
        {name: own[name] for name in names if name in own}
        for names, own in zip(wanted, kept.own, strict=True)
    ]
    return KeptGroups(kept.rank, device, mine[0], mine[1], mine[2])
