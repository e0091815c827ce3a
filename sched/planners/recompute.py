"""The recomputation planner: the cheapest set of layers to recompute within the memory.

OmniBal (2025), section 4.3, in four steps:

1. with every layer recomputed, find what each stage uses (`Stage.base_bytes`);
2. keep the activations of some layers, and find what it uses then (`Trial`);
3. from the differences, what a layer of each kind saves by being recomputed (`savings`);
4. keep as many as fit (`plan_recompute`), try, and if that was too much, keep fewer (`tighten`).

Steps 1 to 3 can be measured, or modelled from shapes (`modelled_stages`). The choice is exact: the
most forward time for the bytes that are free, a knapsack over kinds of layers. A stage holds the
activations of several microbatches at a time, so a kept layer counts once for each of them.

Modelled, sizes are those of `sched.shapes`: a recomputed layer keeps its input only, and while it
is recomputed a stage holds all that the layer keeps.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..ir.typed_json import Whole
from ..shapes import LayerCost, ParallelLayout, chain_memory, in_flight


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's layers and memory.

    `layers[i]`: the kind of its i-th layer. `live`: microbatches whose activations it holds at a
    time (1F1B: the number of stages from it to the end). `base_bytes`: used with every layer
    recomputed. `working_bytes`: the part of it in use only while a layer is recomputed.
    """

    layers: tuple[str, ...]
    live: Whole
    base_bytes: Whole
    working_bytes: Whole = 0

    def __post_init__(self) -> None:
        """Raise ValueError for sizes that contradict each other."""
        if self.live < 1 or not 0 <= self.working_bytes <= self.base_bytes:
            raise ValueError(
                f"a stage with {self.live} microbatches live and {self.working_bytes} of "
                f"{self.base_bytes} bytes for work; give 1 or more, and no more than the whole"
            )


@dataclass(frozen=True, slots=True)
class Trial:
    """Step 2: the layers of each kind kept in a stage, and the bytes used with them."""

    stage: Whole
    kept: Mapping[str, Whole]
    used_bytes: Whole


@dataclass(frozen=True, slots=True)
class Policy:
    """A stage's plan: positions of the layers to recompute, and the bytes it will use."""

    recompute: tuple[int, ...]
    predicted_bytes: int


@dataclass(frozen=True, slots=True)
class Saving:
    """The bytes that recomputing a layer saves per live microbatch, and the time it costs."""

    saved_bytes: int
    forward_ns: int = 1


def savings(
    stages: Sequence[Stage], trials: Sequence[Trial], forward_ns: Mapping[str, int]
) -> dict[str, Saving]:
    """Return each kind's saving (step 3), by least squares over the trials, rounded up.

    Raises ValueError if the trials do not tell the kinds apart, or a saving is negative.

    >>> stages = (Stage(("vit", "vit"), 2, 100), Stage(("vit", "llm"), 1, 100))
    >>> trials = (Trial(0, {"vit": 1}, 160), Trial(1, {"vit": 1, "llm": 1}, 150))
    >>> {kind: saving.saved_bytes for kind, saving in savings(stages, trials, {}).items()}
    {'llm': 20, 'vit': 30}
    """
    kinds = sorted({kind for stage in stages for kind in stage.layers})
    rows = [[stages[t.stage].live * t.kept.get(kind, 0) for kind in kinds] for t in trials]
    more = [trial.used_bytes - stages[trial.stage].base_bytes for trial in trials]
    if not rows or np.linalg.matrix_rank(np.array(rows)) < len(kinds):
        raise ValueError(
            f"the trials do not tell {', '.join(kinds)} apart: keep some layers of each kind, in "
            "numbers that differ between stages"
        )
    solution = np.linalg.lstsq(np.array(rows, float), np.array(more, float), rcond=None)[0]
    if solution.min() < 0:
        kind = kinds[int(solution.argmin())]
        raise ValueError(f"the trials say that keeping a {kind} layer frees memory; measure again")
    # Up, but for what the solver's own rounding adds: a byte too few could be over the limit.
    sizes = [int(np.ceil(np.round(size, 3))) for size in solution]
    return {
        kind: Saving(size, forward_ns.get(kind, 1)) for kind, size in zip(kinds, sizes, strict=True)
    }


def plan_recompute(
    stages: Sequence[Stage], saving: Mapping[str, Saving], limit_bytes: int
) -> tuple[Policy, ...]:
    """Return every stage's layers to recompute (step 4), of the least forward time that fits.

    Raises ValueError for a stage that does not fit with every layer recomputed, and for kinds of
    layers without savings.

    >>> stage = Stage(("vit", "vit", "llm"), 2, base_bytes=100)
    >>> plan_recompute([stage], {"vit": Saving(30, 5), "llm": Saving(20, 4)}, 205)
    (Policy(recompute=(0,), predicted_bytes=200),)
    """
    return tuple(
        _plan(stage, saving, limit_bytes, f"stage {at}") for at, stage in enumerate(stages)
    )


def tighten(
    stage: Stage, saving: Mapping[str, Saving], policy: Policy, used_bytes: int, limit_bytes: int
) -> Policy:
    """Return a policy that keeps fewer layers if more was used than the limit (step 4).

    The error of the prediction is subtracted from the limit. Raises ValueError as
    `plan_recompute` does.
    """
    if used_bytes <= limit_bytes:
        return policy
    return _plan(stage, saving, limit_bytes - (used_bytes - policy.predicted_bytes), "the stage")


def all_or_nothing(stage: Stage, saving: Mapping[str, Saving], limit_bytes: int) -> Policy:
    """Return the usual policy: recompute every layer of a stage, unless all can be kept."""
    nothing = Policy((), predicted_bytes(stage, saving, ()))
    all_layers = tuple(range(len(stage.layers)))
    if nothing.predicted_bytes <= limit_bytes:
        return nothing
    return Policy(all_layers, predicted_bytes(stage, saving, all_layers))


def predicted_bytes(stage: Stage, saving: Mapping[str, Saving], recompute: Sequence[int]) -> int:
    """Return the bytes that a stage uses with these layers recomputed."""
    positions = set(range(len(stage.layers))) - set(recompute)
    more = sum(saving[stage.layers[at]].saved_bytes for at in positions)
    working = stage.working_bytes if recompute else 0
    return stage.base_bytes - stage.working_bytes + working + stage.live * more


def _plan(stage: Stage, saving: Mapping[str, Saving], limit_bytes: int, name: str) -> Policy:
    if unknown := set(stage.layers) - set(saving):
        raise ValueError(f"no saving is known for {sorted(unknown)[0]!r} layers; try one")
    if (all_kept := predicted_bytes(stage, saving, ())) <= limit_bytes:
        return Policy((), all_kept)
    room = limit_bytes - stage.base_bytes
    if room < 0:
        raise ValueError(
            f"{name} uses {stage.base_bytes} bytes with every layer recomputed, {-room} more than "
            f"the limit of {limit_bytes}; use more stages or smaller microbatches"
        )
    keep = _most_time(Counter(stage.layers), saving, room // stage.live)
    # The last layers of a kind are kept: their activations are needed first.
    recompute = []
    for at in reversed(range(len(stage.layers))):
        if keep[stage.layers[at]] > 0:
            keep[stage.layers[at]] -= 1
        else:
            recompute.append(at)
    chosen = tuple(reversed(recompute))
    return Policy(chosen, predicted_bytes(stage, saving, chosen))


def _most_time(counts: Mapping[str, int], saving: Mapping[str, Saving], room: int) -> Counter[str]:
    """Return the number of layers of each kind to keep: most forward time, then most layers.

    A knapsack over kinds: all states that no other beats in bytes and time are carried on, so the
    result is exact.
    """
    states: list[tuple[int, int, int, tuple[int, ...]]] = [(0, 0, 0, ())]
    for kind, count in counts.items():
        gain = saving[kind]
        grown = [
            (size + k * gain.saved_bytes, time + k * gain.forward_ns, layers + k, (*taken, k))
            for size, time, layers, taken in states
            for k in range(count + 1)
            if size + k * gain.saved_bytes <= room
        ]
        grown.sort(key=lambda state: (state[0], -state[1], -state[2]))
        states, best = [], (-1, -1)
        for state in grown:
            if state[1:3] > best:
                states.append(state)
                best = state[1:3]
    taken = max(states, key=lambda state: state[1:3])[3]
    return Counter(dict(zip(counts, taken, strict=True)))


def modelled_stages(
    layers: Sequence[LayerCost], layout: ParallelLayout
) -> tuple[tuple[Stage, ...], dict[str, Saving]]:
    """Return the memory of a layout's stages, one a rank, and savings; layers alike are one kind.

    Raises ValueError if the stages do not add up to the layers, or a rank has several.
    """
    if layout.vpp > 1:
        raise ValueError(f"vpp is {layout.vpp}; recomputation is planned for one stage a rank")
    kinds = _kinds(layers)
    saving = {
        kind: Saving(max(0, layer.activation_bytes - layer.input_bytes), layer.recompute_ns)
        for kind, layer in zip(kinds, layers, strict=True)
    }
    flights = in_flight(layout.schedule, layout.pp, 1, layout.microbatches)
    keeping, again = (chain_memory(layers, replace(layout, recompute=r)) for r in ("none", "all"))
    stages = []
    for positions, live, plain, full in zip(
        layout.ranges(len(layers)), flights, keeping, again, strict=True
    ):
        # Only a rank that recomputes needs room for a whole layer.
        more = max(0, full.working - plain.working)
        stages.append(Stage(tuple(kinds[at] for at in positions), live[0][0], full.total, more))
    return tuple(stages), saving


def exact_policies(
    layers: Sequence[LayerCost], layout: ParallelLayout, policies: Sequence[Policy]
) -> tuple[Policy, ...]:
    """Return modelled policies with the bytes that `memory` says, which are never more.

    The plan counts the largest layer's working set wherever a stage recomputes any.
    """
    exact = replace(layout, recompute=tuple(policy.recompute for policy in policies))
    sizes = (rank_memory.total for rank_memory in chain_memory(layers, exact))
    return tuple(
        replace(policy, predicted_bytes=size) for policy, size in zip(policies, sizes, strict=True)
    )


def _kinds(layers: Sequence[LayerCost]) -> list[str]:
    """Return a name for each layer: its kind, and a number where layers of a kind differ."""
    seen: dict[str, list[tuple[int, int, int]]] = {}
    names = []
    for layer in layers:
        form = (layer.activation_bytes, layer.input_bytes, layer.recompute_ns)
        forms = seen.setdefault(layer.kind, [])
        if form not in forms:
            forms.append(form)
        at = forms.index(form)
        names.append(f"{layer.kind} {at + 1}" if at else layer.kind)
    return names
