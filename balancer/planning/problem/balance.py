"""`Balance`: how samples are balanced, as one value that can be checked, printed and saved.

Each option's default is defined here and its values in options.py, nowhere else. DataLoader and
BalancedBatchSampler take a Balance; PlanConfig is its resolved form, with ranks and resources.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .frozen_mapping import FrozenMapping
from .layout import Layout, LayoutName, as_layout
from .options import (
    ENCODER,
    NAMES,
    OPTIONS,
    Accumulate,
    Counts,
    Dispatch,
    GroupingName,
    Mode,
    OrderingName,
    Oversize,
    PartitionName,
    Waits,
    Work,
    check_option,
    contradictions,
)
from .pipeline_costs import job_section
from .shapes import Shapes, against_shapes, resolve_shapes

VERSION = 1
# The options that are copied, so that a Balance stays what was checked.
_MAPPINGS = ("budgets", "time_ns", "pipeline", "align", "buckets")


@dataclass(frozen=True, slots=True, repr=False)
class Balance:
    """The rules by which samples become microbatches and steps; wrong values raise ValueError.

    docs/reference/balance.md says which go together.

    grouping          "balanced" or "isf" fill budgets; "fixed" puts batch_size samples into each
                      microbatch, in their order; "auto" is "balanced" with costs and work that
                      DataLoader finds, and steps of ranks x accumulate x batch_size samples
    budgets           the most of each resource in a microbatch: {"tokens": 4096}
    samples_per_step  of a global batch; in modes "window" and "epoch" the number expected. None:
                      from batch_size (DataLoader), or from the budgets (BalancedBatchSampler)
    accumulate        microbatches per rank and step; "auto": as many as the step's budgets need
    mode              "exact": samples_per_step samples; "window", "epoch": what microbatches filled
                      from a window of samples, or from the whole epoch, hold
    partition         of microbatches to ranks: "multi_resource" evens out every resource
    ordering          of a rank's microbatches in its `pipeline`: {"schedule": "1f1b" or
                      "interleaved", "stages": 4, "profile": the path of a cost profile}, which is
                      read where the loader is made
    waits             when ranks meet: each "microbatch" (FSDP), or once a "step" (DDP with
                      no_sync). None: as a framework's adapter says, else each microbatch
    work              what does not add up as tiles do costs the sum of samples ("packed"), or their
                      number x the largest ("padded"). None: padded with layout "padded"
    counts            "equal" numbers of samples, for loops that weigh microbatches alike; "free",
                      for loops that weigh with StepInfo. None: equal with "auto", else free
    time_ns           of each resource's unit, {"tokens": 40}, and of "attention_pairs", longest
                      times longest of each sample. None: a tile counts as 307 tokens, others by
                      their means
    dispatch          "images" are encoded by other ranks than their samples', as `ImageDispatch`
                      spreads them: only the language model's work is balanced
    all_or_none       the resource, such as "tiles", that at each microbatch index all ranks have or
                      none has, for sharded encoders (FSDP), which every rank has to enter. Indices
                      stay mixed where a step has too few (see dummy_tile)
    align, cp         samples are padded to a multiple, {"tokens": 16}, and of 2 x cp tokens
    buckets           microbatches are padded to one of these, {"tokens": [4096, 8192]}
    max_shapes        so many buckets of tokens, evenly spaced up to their budget
    oversize          a sample over budget gets a microbatch ("alone"), is left out ("refuse"), or
                      ends the run ("error")
    seed              for the shuffle and every other random choice
    layout            "torch" (collate_fn makes the batch), "padded", "packed", or a Layout
    label_tokens      the resource that counts tokens with a label; "batch": they are counted in
                      collate_fn's batches, a step's before its first is handed out. None:
                      "label_tokens"; "batch" where collate_fn makes labels that no sample has
    shift_labels      the loss compares position i with label i + 1; False: with label i, for labels
                      that are shifted already
    pad_id            the padding token of layouts "padded" and "packed"
    dummy_tile        the side of the zero tile that their batches without images get; 0: none

    >>> balance = Balance(budgets={"tiles": 9, "tokens": 4096}, accumulate="auto")
    >>> balance
    Balance(budgets={'tiles': 9, 'tokens': 4096}, accumulate='auto')
    >>> Balance.from_json(balance.to_json()) == balance
    True
    """

    grouping: GroupingName = "balanced"
    budgets: Mapping[str, int] = FrozenMapping[int]({})
    samples_per_step: int | None = None
    accumulate: Accumulate = 1
    mode: Mode = "exact"
    partition: PartitionName = "multi_resource"
    ordering: OrderingName = "given"
    pipeline: Mapping[str, Any] | None = None
    waits: Waits | None = None
    work: Work | None = None
    counts: Counts | None = None
    time_ns: Mapping[str, int] | None = None
    dispatch: Dispatch = "samples"
    all_or_none: str | None = None
    align: Mapping[str, int] = FrozenMapping[int]({})
    cp: int = 1
    buckets: Mapping[str, Sequence[int]] = FrozenMapping[Sequence[int]]({})
    max_shapes: int | None = None
    oversize: Oversize = "alone"
    seed: int = 0
    layout: LayoutName | Layout = "torch"
    pad_id: int = 0
    dummy_tile: int = 0
    label_tokens: str | None = None
    shift_labels: bool = True

    def __post_init__(self) -> None:
        for name in OPTIONS:
            check_option(name, getattr(self, name))
        for name in _MAPPINGS:
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, FrozenMapping(given))
        self._set_sizes()
        for contradiction in self._contradictions():
            raise ValueError(contradiction)

    @property
    def resolved_waits(self) -> Waits:
        """When ranks wait, as it is planned."""
        return self.waits or "microbatch"

    @property
    def resolved_work(self) -> Work:
        """The work that is planned: `work`, else what the layout makes of it."""
        sums = self.grouping == "isf" or self.mode == "epoch"
        layout = as_layout(self.layout)
        pads = layout is not None and layout.pads
        return self.work or ("padded" if pads and not sums else "packed")

    @property
    def shapes(self) -> Shapes:
        """How samples and microbatches are padded, by resource."""
        return resolve_shapes(self.align, self.cp, self.buckets, self.max_shapes, self.budgets)

    @property
    def limited(self) -> bool:
        """True if any resource has a budget."""
        return bool(self.budgets)

    @property
    def is_padded(self) -> bool:
        """True if microbatches cost count x largest."""
        return self.resolved_work == "padded"

    @property
    def dispatched(self) -> tuple[str, ...]:
        """The resources that travel, whatever samples cost."""
        return ENCODER if self.dispatch == "images" else ()

    def _contradictions(self) -> Iterator[str]:
        yield from against_shapes(self.shapes, self)
        if limited := [name for name in self.dispatched if name in self.budgets]:
            yield (
                f"dispatch is 'images', so what a rank encodes of {limited[0]} does not follow "
                f"from its microbatches: leave {limited[0]} out of budgets, or use dispatch "
                "'samples'"
            )
        yield from contradictions(self)
        if self.grouping == "auto":
            yield from self._against_auto()
        if self.ordering != "given" and self.pipeline is None:
            yield (
                f"ordering is {self.ordering!r}, and no pipeline is given to order for: give one "
                "such as pipeline={'schedule': '1f1b', 'stages': 4, 'profile': 'costs.json'}"
            )
        if self.ordering == "given" and self.pipeline is not None:
            yield (
                "pipeline is given, and ordering 'given' looks at none: use ordering 'two_opt', or "
                "leave pipeline out"
            )

    def _against_auto(self) -> Iterator[str]:
        """Yield the options that contradict what grouping "auto" finds or keeps."""
        if self.samples_per_step is not None or self.accumulate == "auto":
            yield (
                "grouping 'auto' keeps steps of ranks x accumulate x batch_size samples: leave "
                "samples_per_step, give accumulate as a number, or use grouping 'balanced'"
            )
        if self.mode == "epoch":
            yield "grouping 'auto' plans in mode 'exact' or 'window', not in 'epoch'"
        for name in ("partition", "ordering", "dispatch"):
            if getattr(self, name) != getattr(DEFAULTS, name):
                yield (
                    f"{name} is {getattr(self, name)!r}, and grouping 'auto' chooses it: leave it, "
                    "or use grouping 'balanced'"
                )

    def _set_sizes(self) -> None:
        """Sort buckets, and make the largest of each the budget where none is given."""
        sizes = {name: tuple(sorted({*some})) for name, some in self.buckets.items()}
        object.__setattr__(self, "buckets", FrozenMapping(sizes))
        tops = {name: some[-1] for name, some in sizes.items()}
        object.__setattr__(self, "budgets", FrozenMapping({**tops, **self.budgets}))

    def __repr__(self) -> str:
        """Return the expression that makes this value; only what differs from the defaults."""
        given = ", ".join(
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if getattr(self, each.name) != each.default
        )
        return f"Balance({given})"

    def to_json(self) -> str:
        """Return a JSON object with every option and "version", for `from_json`."""
        options = {name: getattr(self, name) for name in OPTIONS}
        options |= {name: dict(options[name]) for name in _MAPPINGS if options[name] is not None}
        if isinstance(self.layout, Layout):
            options["layout"] = self.layout.to_dict()
        return json.dumps({"version": VERSION, **options}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Balance":
        """Return the Balance in a JSON object; options that it does not name have their default.

        Raises ValueError for text that is no JSON object, another version, an unknown option or a
        value that is not allowed.
        """
        try:
            given = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(given, dict):
            raise ValueError(f"needed is a JSON object, got {type(given).__name__}")
        version = given.pop("version", None)
        if type(version) is not int or version != VERSION:
            raise ValueError(f"version is {version!r}, allowed is {VERSION}")
        if unknown := sorted(given.keys() - OPTIONS.keys()):
            from ...near_names import near_name

            name = unknown[0]
            raise ValueError(
                f"{name} is {given[name]!r}, but Balance has no {name}; it has {', '.join(OPTIONS)}"
                f"{near_name(name, OPTIONS)}"
            )
        if isinstance(given.get("layout"), dict):
            given["layout"] = Layout.from_dict(given["layout"])
        return cls(**given)

    def save(self, path: str | Path) -> None:
        """Write `to_json()` to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Balance":
        """Return the Balance in a file: one that `save` or `counterpoise analyze` wrote.

        Of a job's plan (`counterpoise plan job`) it is the section "balance", and the costs that
        its ordering reads are the plan's. Raises ValueError, with the file's name, for whatever
        `from_json` refuses.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            section = job_section(text)
            if section is None:
                return cls.from_json(text)
            if section.get("pipeline"):
                section["pipeline"] = {**section["pipeline"], "profile": str(path)}
            return cls.from_json(json.dumps(section))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def as_balance(balance: "Balance | str") -> Balance:
    """Return balance; a string is shorthand for Balance(grouping=balance).

    >>> as_balance("isf")
    Balance(grouping='isf')
    """
    if isinstance(balance, Balance):
        return balance
    if isinstance(balance, str):
        options: dict[str, Any] = {"grouping": balance}
        return Balance(**options)
    more = f"; budgets go into Balance(budgets={balance!r})" if isinstance(balance, Mapping) else ""
    raise TypeError(
        f"balance is {balance!r}, allowed are a Balance or the name of a grouping: "
        f"{', '.join(map(repr, NAMES['grouping']))}{more}"
    )


def budgets_of(balance: Balance, resources: tuple[str, ...]) -> tuple[int | None, ...]:
    """Return a balance's budget for each resource, None for no limit; ValueError for others.

    >>> budgets_of(Balance(budgets={"tokens": 4096}), ("tiles", "tokens"))
    (None, 4096)
    """
    if unknown := [name for name in balance.budgets if name not in resources]:
        raise ValueError(
            f"budgets name {', '.join(unknown)}, but samples cost {', '.join(resources)}: give "
            f"cost={{{unknown[0]!r}: [...]}}, or a function of a sample, or budgets for these"
        )
    return tuple(balance.budgets.get(name) for name in resources)


# The defaults of every option, for PlanConfig and the signatures that repeat one.
DEFAULTS = Balance()
