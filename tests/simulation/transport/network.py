"""A simulated network and clock: messages take time, and faults lose, delay or double them.

Theory of operation. A *line* joins a peer to the balancer, with two ways ("up" to the balancer,
"down" to the peer). A way keeps its messages in order, as a ZeroMQ connection does. While a
disturbance is on, messages of a *party* (all lines of one process) are lost, late, doubled, or
overtake each other; a copy comes at any time after the first. A line that breaks loses what is
under way on it, both ways.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

Action = Callable[[], None]
DISTURBANCES = ("drop", "delay", "duplicate", "reorder", "cut")
# A message is lost with this chance while its party drops messages.
DROPPED = 0.5
# The most that a delayed message is late, that one may be overtaken by, and that a copy comes
# after the first, in seconds.
LATE_S = 1.0
OVERTAKEN_S = 0.2
COPY_S = 2.0


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A fault of the network that hits a party's messages; `way` is "up", "down" or "" for both."""

    kind: str
    way: str
    until: float


@dataclass(slots=True)
class SimulatedNetwork:
    """The events to come, in time order; everything drawn comes from `random`."""

    random: random.Random
    delay_s: float
    duplicate: float = 0.0
    now: float = 0.0
    _serial: int = 0
    _events: list[tuple[float, int, Action]] = field(default_factory=list)
    _latest: dict[tuple[bytes, str], float] = field(default_factory=dict)
    _breaks: dict[str, int] = field(default_factory=dict)
    _disturbances: dict[str, list[Disturbance]] = field(default_factory=dict)

    def at(self, after_s: float, action: Action) -> None:
        """Do something later."""
        self._serial += 1
        heapq.heappush(self._events, (self.now + after_s, self._serial, action))

    def step(self) -> bool:
        """Run the next event; return False if there is none."""
        if not self._events:
            return False
        self.now, _, action = heapq.heappop(self._events)
        action()
        return True

    def disturb(self, party: str, disturbance: Disturbance) -> None:
        """Begin a disturbance."""
        self._disturbances.setdefault(party, []).append(disturbance)

    def sever(self, party: str) -> None:
        """Break all lines of a party: what is under way on them is lost."""
        self._breaks[party] = self._breaks.get(party, 0) + 1

    def send(self, party: str, line: bytes, way: str, arrive: Action) -> None:
        """Send a message on a party's line: `arrive` happens when and if it gets there."""
        on = {each.kind for each in self._disturbances_of(party, way)}
        if "cut" in on or ("drop" in on and self.random.random() < DROPPED):
            return
        twice = "duplicate" in on or (self.duplicate and self.random.random() < self.duplicate)
        life = self._breaks.get(party, 0)

        def deliver() -> None:
            if self._breaks.get(party, 0) == life:
                arrive()

        travel_s = self._travel_s(line, way, on)
        self.at(travel_s, deliver)
        if twice:
            self.at(travel_s + self.random.random() * COPY_S, deliver)

    def _travel_s(self, line: bytes, way: str, on: set[str]) -> float:
        delay_s = self.random.random() * 2 * self.delay_s
        if "delay" in on:
            delay_s += self.random.random() * LATE_S
        if "reorder" in on:
            return delay_s + self.random.random() * OVERTAKEN_S
        arrival = max(self.now + delay_s, self._latest.get((line, way), 0.0) + 1e-9)
        self._latest[line, way] = arrival
        return arrival - self.now

    def _disturbances_of(self, party: str, way: str) -> list[Disturbance]:
        weather = self._disturbances.get(party)
        if not weather:
            return []
        weather[:] = [each for each in weather if each.until > self.now]
        return [each for each in weather if each.way in ("", way)]
