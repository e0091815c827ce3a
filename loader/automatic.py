"""balance="auto": a balanced loader whose costs and work are found when it is first needed.

They are found once for all ranks, by a worker that reads the first samples, or come from a ledger.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from torch.utils.data import default_collate

from ..balancer.planning.forecast import Outlook
from ..balancer.planning.problem.balance import DEFAULTS, Balance
from ..balancer.planning.problem.config import PlanConfig
from ..balancer.planning.problem.options import LLM, Counts, Waits, list_padded
from ..balancer.protocol.job_spec import LABEL_TOKENS
from ..balancer.protocol.records import read_record
from ..workers.discovery import FIRST
from ..workers.discovery.fields import WHOLE
from ..workers.mixture.order import epoch_order, epoch_samples
from ..workers.sources.interface import Source, source_name
from .assembly import make_planned
from .auto.answer import Answer, Question
from .auto.choice import Choice, PlanTerms, make_source, read_work
from .auto.first_samples import ask_worker
from .balanced.arguments import adopt_waits, find_resources
from .balanced.microbatches import BalancedLoader
from .balanced.settings import LoaderSettings
from .late import LateBalancedLoader
from .resume.ledger import BalancedLedger, parse_ledger
from .step.ranks import Place, has_process_group
from .step.waiting import tell

logger = logging.getLogger(__name__)
# Reading a few hundred samples is over within so long.
FOUND_S = 1800.0
# Attributes that are learned after a loader was made: costs and work, and a framework's ways.
LEARNED = ("_balance", "_choice", "_model_times", "_model", "_means", "_has_told")


class LateAutoLoader(LateBalancedLoader):
    """Finds costs at the first use, or takes them from a ledger.

    _model_times: what the model takes of each resource, where a framework has told; _model: whose
    times they are.
    """

    _is_made_at_once = False  # which would start a worker

    def __init__(self, settings: LoaderSettings) -> None:
        super().__init__(settings.arguments, self._find_and_make)
        self._settings = settings
        self._balance = settings.arguments.balance
        self._batch_size = settings.batch_size or 1
        self._choice: Choice | None = None
        self._model_times: Mapping[str, int] | None = None
        self._model = ""
        self._means: str | None = None
        self._has_told = False

    def get_at_resume(self, state: Any = None) -> BalancedLoader:
        """Return the loader for the ranks of now and the choice that a state has."""
        if (choice := _read_choice(state)) is not None and choice != self._choice:
            self._choice = choice
            self.forget()
        return super().get_at_resume(state)

    @property
    def counts(self) -> Counts:
        """The counts of the plan: "equal" is batch_size samples a microbatch, "free" is any."""
        return self._balance.counts or "equal"

    def snapshot(self) -> dict[str, Any]:
        """Return the beginning of a copy: also the costs found, and the ways of a framework."""
        return {**super().snapshot(), "learned": {name: getattr(self, name) for name in LEARNED}}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Begin with what another has left and has learned; before the first use."""
        for name, value in snapshot["learned"].items():
            setattr(self, name, value)
        super().restore(snapshot)

    def adopt(
        self, accumulate: int = 1, counts: Counts | None = None, means: str | None = None
    ) -> None:
        """Take what a framework says where the user has not; before the first batch.

        accumulate: the microbatches of a step in this process; counts: None leaves them. means:
        what equal counts do to its losses, "" for nothing; None leaves it to `warn_of_means`.
        """
        self._means = means if means is not None else self._means
        played = self._ranks.virtual or 1
        rows = accumulate // played if accumulate % played == 0 else 1
        balance = self._balance
        if balance.accumulate == DEFAULTS.accumulate and rows > 1:
            self._balance = replace(balance, accumulate=rows)
        if balance.counts is None and counts is not None:
            self._balance = replace(self._balance, counts=counts)
        if self._balance != balance:
            self._has_told = False
            self._plan_anew()

    def adopt_times(self, times: Mapping[str, int], model: str) -> None:
        """Take the times of a model, by its configuration's name; before the first batch."""
        is_news = self._balance.time_ns is None and times != self._model_times
        self._model_times, self._model = times, model
        if is_news:
            self._has_told = False
            self._plan_anew()

    def _find_and_make(self, place: Place, waits: Waits | None) -> BalancedLoader:
        """Return the loader of a place, with costs that are found now unless they are known."""
        whole, forecast = self._settings, None
        terms = PlanTerms(
            balance=adopt_waits(self._balance, waits), ranks=place.ranks,
            batch_size=self._batch_size, drop_last=whole.drop_last, shuffle=whole.arguments.shuffle,
            model_times=self._model_times,
        )  # fmt: skip
        if self._choice is None:
            answer = self._find(place, terms)
            self._choice, forecast = answer.choice, answer.forecast
        choice = self._choice
        is_remote = whole.arguments.balancer.address is not None
        if choice.costs is not None and choice.resources and is_remote:
            raise ValueError(
                f"costs ({', '.join(choice.resources)}) were found by loading samples here, and "
                "workers elsewhere measure with the transform, which says none: give it a method "
                "probe(raw)"
            )
        balance, plan = terms.plan(choice)
        if 0 in place.played and not self._has_told:
            count = None if whole.source is None else epoch_samples(whole.source, terms.shuffle)
            whose = self._model if balance.time_ns and self._balance.time_ns is None else ""
            tell(logger, start_line(choice, plan, forecast, count, self._batch_size, whose))
            warn_of_means(choice, balance, self._means)
            self._has_told = True
        settings = replace(
            whole,
            arguments=replace(whole.arguments, balance=balance),
            source=make_source(choice, whole.source, whole.dataset, whole.arguments.key),
            resources=plan.resources,
        )
        return make_planned(settings, plan, place, choice.to_json())

    def _find(self, place: Place, terms: PlanTerms) -> Answer:
        """Find the choice, or wait for the process that does; the same for all."""
        arguments, source = self._settings.arguments, self._settings.source
        if source is None:  # the workers elsewhere have the samples, and measure them
            names = find_resources(None, self._balance)
            costs_text = "costs are those of the workers' transform"
            padded = list_padded(read_work(self._balance), names)
            return Answer(Choice(None, names, padded, True, costs_text), None, 0)
        find = partial(self._ask, source, terms)
        if place.is_alone or (arguments.balancer.address is not None and not has_process_group()):
            return find()
        if not has_process_group():
            raise ValueError(
                f'ranks= makes this process {place}, and balance="auto" finds once for '
                "all ranks what samples cost, which without torch.distributed cannot find each "
                "other: call torch.distributed.init_process_group() before the loader is first "
                'used, or give balance="balanced" and a table of costs, cost={...}'
            )
        settings = {
            "balance": json.loads(terms.balance.to_json()),
            "batch_size": terms.batch_size,
            "shuffle": terms.shuffle,
            "ranks": terms.ranks,
            "model_times": dict(terms.model_times or {}),
        }
        name, text = f"{arguments.ranks.name}/auto", json.dumps(settings)
        return _find_once(place, name, source, text, find, self._settings.timeout_s or FOUND_S)

    def _ask(self, source: Source, terms: PlanTerms) -> Answer:
        whole, arguments = self._settings, self._settings.arguments
        order = epoch_order(source, self._balance.seed, 0, arguments.shuffle)
        collate = arguments.collate_fn or default_collate
        question = Question(
            source=source, dataset=whole.dataset, key=arguments.key,
            order=tuple(order[:FIRST].tolist()),
            collate=collate if read_work(self._balance) is None else list, terms=terms,
        )  # fmt: skip
        answer = ask_worker(question, whole.start, whole.timeout_s)
        size = terms.plan(answer.choice)[1].samples_per_step
        needed = size * answer.held_bytes
        if needed > arguments.buffer_bytes:
            raise ValueError(
                f"what samples cost is known when they are decoded, and a step's {size} samples of "
                f"about {answer.held_bytes:,} bytes do not fit into buffer_bytes="
                f"{arguments.buffer_bytes:,}: give DataLoader(buffer_bytes={2 * needed}), or a "
                "dataset with probe(index), or a table of costs: DataLoader(cost={...})"
            )
        return answer


def _read_choice(state: Any) -> Choice | None:
    """Return the choice in a ledger; None in anything else, which the loader says more about."""
    try:
        ledger = parse_ledger(state)
    except ValueError:
        return None
    if not isinstance(ledger, BalancedLedger) or not ledger.auto:
        return None
    return Choice.from_json(ledger.auto)


def _find_once(
    place: Place, name: str, source: Source, settings: str, find: Callable[[], Answer],
    longest_s: float,
) -> Answer:  # fmt: skip
    """Return the answer of the process that comes first; LoaderError on the others without one.

    longest_s: how long it may take to find it.
    """
    # here: a loop on its own meets no other
    from .remote.rendezvous import Rendezvous, open_meeting

    facts = {"configuration": settings, "data": f"{source_name(source)}, {len(source)} samples"}
    peers = Rendezvous(open_meeting(place), name, facts, "looked for what samples cost")
    if peers.claim():
        with peers.telling("find what samples cost"):
            answer = find()
        peers.publish(asdict(answer))
    else:
        record = peers.wait_for_answer("found what they cost", longest_s)
        answer = read_record(Answer, record, "auto")
    peers.forget()
    return answer


def start_line(
    choice: Choice, plan: PlanConfig, outlook: Outlook | None, samples: int | None, batch_size: int,
    model: str = "",
) -> str:  # fmt: skip
    """Return the line: costs, work, forecast, what gains nothing, and what is left out.

    samples: of an epoch, None where only the workers know. model: whose times weigh the costs.
    """
    is_told = choice.varies or bool(choice.unrecognised)
    parts = [choice.costs_said, choice.work_said if is_told else ""]
    parts.append(f"times computed from {model}" if model else "")
    if outlook is not None:
        rows = plan.first_accumulate
        # In one unit, random order's step: where batches are padded, ranks may wait a larger share
        # of a step that is much shorter, and still wait less.
        resource, largest = next(iter(outlook.largest.items()))
        works, waits = outlook.time * (1 - outlook.waiting), outlook.time * outlook.waiting
        parts.append(
            f"step {outlook.time:.2f} of random order's: ranks work {works:.2f} and wait "
            f"{waits:.2f} instead of {1 - outlook.waited:.2f} and {outlook.waited:.2f}; largest "
            f"microbatch {largest:,} {_unit(choice, resource)} instead of "
            f"{outlook.largest_random[resource]:,} "
            f"(forecast from {outlook.samples} samples for {plan.ranks} ranks x {rows} "
            "microbatches)"
        )
    if not choice.varies:
        parts.append(f"microbatches of {batch_size} in the reference order")
        if choice.unrecognised:
            parts.append('if you know what batches are, say work="padded" or work="packed"')
    elif outlook is None:
        parts.append("no forecast")
    is_one = plan.equal_counts and plan.least_microbatches == plan.ranks and plan.mode == "exact"
    if is_one and choice.padded:
        parts.append(
            'one padded microbatch a step of equal counts cannot gain: counts="free" with weights '
            'would, or a larger accumulate, or mode="window"'
        )
    if samples is not None and plan.mode == "exact":
        remainder = samples % plan.samples_per_step
        if left := remainder - plan.last_kept(remainder):
            parts.append(f"the last {left:,} of {samples:,} samples of each epoch stay out")
    return 'balance="auto": ' + "; ".join(part for part in parts if part)


def _unit(choice: Choice, resource: str) -> str:
    """Return what the numbers of a resource are: of a field "images", say, elements."""
    costs = choice.found_costs
    fields = {cost.name: cost.field for cost in costs.found} if costs else {}
    kind = fields[resource].kind if resource in fields else "tiles"
    unit = "characters" if kind == "text" else WHOLE[kind]
    return resource if resource == LLM or unit in ("tiles", resource) else f"{unit} of {resource}"


def warn_of_means(choice: Choice, balance: Balance, means: str | None = None) -> None:
    """Warn where a mean over a microbatch's tokens weighs short samples more.

    That is where tokens are padded, or texts of which they are made; others only if samples have
    labels for each of their parts. means: what a framework knows of that, "" for no such loss.
    """
    costs = choice.found_costs
    texts = [cost.name for cost in costs.found if cost.field.is_text] if costs else []
    has_tokens = {LLM, *texts} & {*choice.padded} or LABEL_TOKENS in choice.resources
    if balance.counts == "free" or means == "" or not (choice.padded and has_tokens):
        return
    advice = (
        "microbatches have samples of like lengths and equal counts: a loss that is a mean over a "
        "microbatch's tokens weighs the tokens of short samples more; exact is the sum of losses "
        "in `for batch, info in loader.with_info(): cp.scale_loss(loss_sum, info).backward()`, "
        'with Balance("auto", counts="free") if you like; Fabric takes with_info(), too: '
        "fabric.setup_dataloaders(loader.with_info())"
    )
    tell(logger, means or advice, logging.WARNING)
