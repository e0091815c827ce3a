"""Handler of what ranks say of pulling payloads from workers.

A rank that cannot pull from a worker asks for its microbatches again, as lost, and they are decoded
again. So that this does not go on, the worker sends what it decodes inline from then on, to all: a
network where one rank reaches it and another does not is not what direct pulls are for.
"""

from collections.abc import Callable, Mapping

from ..protocol.messages import PullFailed, StopServing
from ..protocol.transitions import Action, Event
from .effects import Handler
from .peers.records import WorkerPeer
from .run_control import RunControl
from .state import CoordinatorState
from .worker_handlers import MAX_RUBBISH

# Characters of a rank's reason that are kept.
MAX_REASON = 300


class PullHandlers:
    """The action of the table that concerns pulls."""

    def __init__(
        self, state: CoordinatorState, runs: RunControl, apply: Callable[..., object]
    ) -> None:
        """`apply(peer, event, content)` applies an event to another peer than the message's."""
        self.state = state
        self.runs = runs
        self.apply = apply

    def table(self) -> Mapping[Action, Handler]:
        """Return the handler of the action."""
        return {Action.JUDGE_PULL: self.judge}

    def judge(self, peer: bytes, failed: PullFailed) -> None:
        """Blame a worker whose payloads are rubbish; have one that is out of reach send inline."""
        worker = self.state.servers.find(failed.token)
        if worker is None:
            return  # it is gone, or has said hello again since
        if failed.is_rubbish:
            worker.rubbish += 1
            if worker.rubbish >= MAX_RUBBISH:
                self.apply(worker.peer, Event.TURNED_AWAY, failed.reason[:MAX_REASON])
        elif worker.why_inline:
            # It still serves: it may not have heard it.
            self.state.send(worker.peer, StopServing(worker.why_inline))
        else:
            name = self.state.ranks[peer].hello.name or f"rank {self.state.ranks[peer].hello.ranks}"
            self._stop_serving(worker, f"{name} cannot pull: {failed.reason}"[:MAX_REASON])

    def _stop_serving(self, worker: WorkerPeer, reason: str) -> None:
        """Have a worker send inline; what only it has, and no rank was sent, is decoded again."""
        worker.why_inline = reason
        self.state.send(worker.peer, StopServing(reason))
        if self.state.job is not None and self.state.job.transport == "direct":
            self.runs.fail(
                "worker",
                f"worker {worker.hello.name}: {reason}; let ranks reach its address (counterpoise "
                'worker --serve), or leave transport="direct"',
            )
        elif self.state.run is not None:
            self.state.run.delivery.decoding.drop_those_of(worker.peer)
