"""A balanced loader whose costs and work are found when it is first needed."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

from torch.utils.data import DistributedSampler

from ...balancer.planning.problem.balance import DEFAULTS, Balance
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.options import Counts, Waits
from ...balancer.planning.problem.shuffle import permutation
from ...workers.sources.interface import PlainSource, Source, source_name
from ..balanced.arguments import find_resources, said_or_adopted
from ..balanced.late import LateBalancedLoader
from ..balanced.microbatches import BalancedLoader
from ..peers import meet
from ..resume.ledger import BalancedLedger, parse_ledger
from ..step.errors import LoaderError
from ..step.ranks import Place, RankArguments, has_process_group
from ..step.waiting import tell
from .choice import Choice, padded_if_said, plan_of, said_work
from .first_samples import FIRST, Answer, Question
from .forecast import logger, start_line, warn_of_means
from .worker import ask_worker

Build = Callable[[Choice, Balance, PlanConfig, Place], BalancedLoader]
# Ranks come, and reading a few hundred samples is over, within so long.
FOUND_S = 1800.0
_FOUND = "found"
# What is learned after a loader was made: costs and work, and what a framework does.
LEARNED = ("balance", "choice", "ignores_labels", "model_times", "model", "_told")


@dataclass(slots=True)
class AutoSettings:
    """All that `auto` needs to find costs and to plan; `build` makes the loader of a plan.

    collate: the user's, or torch's default. standalone: whether a balancer runs elsewhere.
    ignores_labels: whether a microbatch that weighs nothing has labels of -100. model_times: what
    the model takes of each resource, where a framework has told; model: whose times they are.
    """

    balance: Balance
    source: Source | None
    dataset: Any
    key: Callable[[int], str] | None
    collate: Callable[[list[Any]], Any]
    batch_size: int
    drop_last: bool
    shuffle: bool
    buffer_bytes: int
    name: str
    standalone: bool
    context: BaseContext | None
    begin: Callable[[int], None] | None
    build: Build
    choice: Choice | None = None
    ignores_labels: bool = False
    model_times: Mapping[str, int] | None = None
    model: str = ""
    _told: bool = field(default=False, init=False)

    def make(self, place: Place, waits: Waits | None) -> BalancedLoader:
        """Return the loader of a place, with costs that are found now unless they are known."""
        wanted, told = said_or_adopted(self.balance, waits), None
        if self.choice is None:
            found = self._find(place, wanted)
            self.choice, told = found.choice, found.forecast
        balance, plan = self._plan(self.choice, place, wanted)
        if 0 in place.played and not self._told:
            count = None if self.source is None else len(self.source)
            whose = self.model if balance.time_ns and self.balance.time_ns is None else ""
            tell(logger, start_line(self.choice, plan, told, count, self.batch_size, whose))
            warn_of_means(self.choice, balance)
            self._told = True
        loader = self.build(self.choice, balance, plan, place)
        if loader.spare is not None:
            loader.spare.ignores_labels = self.ignores_labels
        return loader

    def adopt(self, accumulate: int, counts: Counts | None, ignores_labels: bool) -> bool:
        """Take what a framework says where the user has not; return whether that is another plan.

        accumulate: the microbatches of a step in this process; counts: None leaves them.
        """
        given, self.ignores_labels = self.balance, ignores_labels or self.ignores_labels
        if given.accumulate == DEFAULTS.accumulate and accumulate > 1:
            self.balance = replace(given, accumulate=accumulate)
        if given.counts is None and counts is not None:
            self.balance = replace(self.balance, counts=counts)
        self._told = self._told and self.balance == given
        return self.balance != given

    def adopt_times(self, times: Mapping[str, int], model: str) -> bool:
        """Take what a model takes, where the user has not said; return whether that is news."""
        is_news = self.balance.time_ns is None and times != self.model_times
        self.model_times, self.model = times, model
        self._told = self._told and not is_news
        return is_news

    def _plan(self, choice: Choice, place: Place, wanted: Balance) -> tuple[Balance, PlanConfig]:
        return plan_of(
            choice,
            wanted,
            ranks=place.ranks,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            model_times=self.model_times,
        )

    def _find(self, place: Place, wanted: Balance) -> Answer:
        """Find the choice, or wait for the process that does; the same for all."""
        if self.source is None:  # the workers elsewhere have the samples, and measure them
            names = find_resources(None, self.balance)
            said = "costs are those of the workers' transform"
            return Answer(
                Choice(None, names, padded_if_said(self.balance, names), True, said), None, 0
            )
        if place.is_alone or (self.standalone and not has_process_group()):
            return self._ask(place, self.source, wanted)
        settings = {
            "balance": json.loads(wanted.to_json()),
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "ranks": place.ranks,
            "model_times": dict(self.model_times or {}),
        }
        share = _through_group if place.sharers > 1 else _among_ranks
        find = partial(self._ask, place, self.source, wanted)
        return share(place, f"{self.name}/auto", self.source, json.dumps(settings), find)

    def _ask(self, place: Place, source: Source, wanted: Balance) -> Answer:
        order = permutation(len(source), self.balance.seed, 0, self.shuffle)
        question = Question(
            source=source,
            dataset=self.dataset,
            key=self.key,
            order=tuple(order[:FIRST].tolist()),
            knows_costs=not isinstance(source, PlainSource) or source.knows_costs,
            collate=self.collate if said_work(self.balance) is None else list,
            balance=wanted,
            ranks=place.ranks,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            model_times=self.model_times,
        )
        found = ask_worker(question, self.context, self.begin)
        size = self._plan(found.choice, place, wanted)[1].samples_per_step
        needed = size * found.held_bytes
        if needed > self.buffer_bytes:
            raise ValueError(
                f"what samples cost is known when they are decoded, and a step's {size} samples of "
                f"about {found.held_bytes:,} bytes do not fit into buffer_bytes="
                f"{self.buffer_bytes:,}: give DataLoader(buffer_bytes={2 * needed}), or a dataset "
                "with probe(index), or a table of costs: DataLoader(cost={...})"
            )
        return found


class LateAutoLoader(LateBalancedLoader):
    """Finds costs at the first use, or takes them from a ledger."""

    def __init__(
        self,
        arguments: RankArguments,
        settings: AutoSettings,
        follows: DistributedSampler[Any] | None = None,
    ) -> None:
        super().__init__(arguments, settings.make, at_once=False, follows=follows)
        self._settings = settings

    def get_at_resume(self, state: Any = None) -> BalancedLoader:
        """Return the loader for the ranks of now and the choice that a state has."""
        if (choice := _choice_in(state)) is not None and choice != self._settings.choice:
            self._settings.choice = choice
            self.forget()
        return super().get_at_resume(state)

    @property
    def counts(self) -> Counts:
        """The counts of the plan: "equal" is batch_size samples a microbatch, "free" is any."""
        return self._settings.balance.counts or "equal"

    def snapshot(self) -> dict[str, Any]:
        """Return what a copy of this begins with: also what was found, and what frameworks told."""
        learned = {name: getattr(self._settings, name) for name in LEARNED}
        return {**super().snapshot(), "learned": learned}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Begin with what another has left and has learned; before the first use."""
        for name, value in snapshot["learned"].items():
            setattr(self._settings, name, value)
        super().restore(snapshot)

    def adopt(
        self, accumulate: int = 1, counts: Counts | None = None, ignores_labels: bool = False
    ) -> None:
        """Take what a framework says where the user has not; before the first batch."""
        played = self._arguments.virtual_ranks or 1
        rows = accumulate // played if accumulate % played == 0 else 1
        if self._settings.adopt(rows, counts, ignores_labels):
            self._plan_anew()

    def adopt_times(self, times: Mapping[str, int], model: str) -> None:
        """Take the times of a model, by its configuration's name; before the first batch."""
        if self._settings.adopt_times(times, model):
            self._plan_anew()


def _choice_in(state: Any) -> Choice | None:
    """Return the choice in a ledger; None in anything else, which the loader says more about."""
    try:
        ledger = parse_ledger(state)
    except ValueError:
        return None
    if not isinstance(ledger, BalancedLedger) or not ledger.auto:
        return None
    return Choice.from_json(ledger.auto)


def _among_ranks(
    place: Place, name: str, source: Source, settings: str, find: Callable[[], Answer]
) -> Answer:
    """Return what rank 0 finds, on every rank; LoaderError on the others where it cannot."""
    data = f"{source_name(source)}, {len(source)} samples"
    peers = meet(place, name, {"configuration": settings, "data": data}, FOUND_S)
    failed: Exception | None = None
    told: dict[str, Any] = {}
    try:
        if peers.rank == 0:
            try:
                told = {"answer": find().to_values()}
            except Exception as error:
                failed, told = error, {"failed": str(error)}
        peers.post(_FOUND, json.dumps(told).encode())
        since = time.monotonic()
        # By rank 0, too: it may be the one that passes things on for its host.
        while (values := peers.gather(_FOUND)) is None:
            if time.monotonic() - since > FOUND_S:
                raise LoaderError(
                    f"what samples cost was not found within {FOUND_S:.0f} s: "
                    f"{peers.why_missing(_FOUND)}"
                )
            time.sleep(peers.pause_s())
    finally:
        peers.close()
    if failed is not None:
        raise failed
    told = json.loads(values[0])
    if "failed" in told:
        raise LoaderError(f"{peers.members[0]} could not find what samples cost: {told['failed']}")
    return Answer.from_values(told["answer"])


def _through_group(
    place: Place, name: str, source: Source, settings: str, find: Callable[[], Answer]
) -> Answer:
    """Return what one of processes that share ranks finds, as their balancer is found."""
    # here: only such processes need it
    from ..connect.rendezvous import Rendezvous, digest, open_meeting

    data = digest(source_name(source), str(len(source)))
    peers = Rendezvous(open_meeting(place), name, place.played[0], data, settings)
    if not peers.claim():
        return Answer.from_values(peers.wait_for_found())
    try:
        found = find()
    except Exception as error:
        peers.give_up(str(error), "find what samples cost")
        raise
    peers.share_found(found.to_values())
    return found
