"""The plans of units as text, for checkpoints: who encodes what, and in which order.

A plan follows from schedule and layout, by rules that another version may have improved. A job that
is resumed goes on with the one that it had: its programs, edges and orders are in the checkpoint,
beside a digest of the layout that they are for. Another layout is planned anew.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from ...ir.passes import format_pass, parse_pass
from ...ir.program import Program, parse_program
from ...ir.typed_json import read_json
from .layout import Units
from .plan import UnitPlan, plan_units


@dataclass(frozen=True, slots=True)
class _PlanText:
    """A plan: its programs, and for each seat beside the language model's, replica and pass."""

    programs: tuple[str, ...]
    order: dict[str, tuple[tuple[int, str], ...]]


@dataclass(frozen=True, slots=True)
class _SavedPlans:
    """The plans of a job by number of microbatches."""

    layout: str
    plans: dict[str, _PlanText]
    version: int = 1


def layout_digest(units: Units, layers: Sequence[int]) -> str:
    """Return a digest of all that a plan follows from but the schedule: 16 hexadecimal digits.

    `layers`: of each encoder. Plans are of ranks, whatever number of processes each has.
    """
    every = (units.backbone, units.encoder, units.generator)
    sizes = [None if size is None else (size.dp, size.pp) for size in every]
    text = json.dumps([sizes, units.ahead, list(layers)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plans_text(layout: str, plans: Mapping[int, UnitPlan]) -> str:
    """Return plans as JSON, by number of microbatches; `layout`: the digest of theirs."""
    texts = {
        str(count): _PlanText(
            tuple(map(str, plan.programs)),
            {
                str(seat): tuple((replica, format_pass(item)) for replica, item in row)
                for seat, row in sorted(plan.order.items())
            },
        )
        for count, plan in sorted(plans.items())
    }
    return msgspec.json.encode(_SavedPlans(layout, texts)).decode()


def read_plans(text: str, layout: str) -> dict[int, UnitPlan]:
    """Return the plans that JSON text has for a layout, none if it is of another one.

    Raises ValueError, in one line, for what `plans_text` cannot have written.
    """
    saved = read_json(text, _SavedPlans, "the units' plans") if text else _SavedPlans("", {})
    if saved.layout != layout:
        return {}
    return {int(count): _plan_of(plan) for count, plan in saved.plans.items()}


def _plan_of(text: _PlanText) -> UnitPlan:
    return UnitPlan(
        tuple(map(parse_program, text.programs)),
        {
            int(seat): tuple((replica, parse_pass(item)) for replica, item in row)
            for seat, row in text.order.items()
        },
    )


@dataclass(slots=True)
class KnownPlans:
    """The plans of a job, those of its checkpoint before any other.

    `base`: the program of a number of microbatches of one replica. `make`: the plan of such a
    program. `layout`: its digest. `known`: by number of microbatches.
    """

    base: Callable[[int], Program]
    make: Callable[[Program], UnitPlan]
    layout: str
    known: dict[int, UnitPlan]

    def of(self, microbatches: int) -> UnitPlan:
        """Return the plan of a number of microbatches of each replica."""
        base, found = self.base(microbatches), self.known.get(microbatches)
        if found is None or found.programs[0].ranks[: len(base.ranks)] != base.ranks:
            # It is not known, or the job has another schedule now.
            found = self.known[microbatches] = self.make(base)
        return found

    def text(self) -> str:
        """Return all plans that were asked for or known before, as JSON."""
        return plans_text(self.layout, self.known)


def known_plans(
    base: Callable[[int], Program], units: Units, layers: Sequence[int], saved: str
) -> KnownPlans:
    """Return the plans of a job. `saved`: the text in its checkpoint, "" without one.

    Raises ValueError as `read_plans` does.
    """
    layout = layout_digest(units, layers)
    make = partial(plan_units, units=units, layers=layers)
    return KnownPlans(base, make, layout, read_plans(saved, layout))
