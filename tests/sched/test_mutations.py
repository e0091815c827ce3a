"""Random mutations: the checker complains exactly when an executor cannot do the program.

The executor here shares nothing with the checker: it runs the ranks step by step, as far as each
gets, with queues for messages and a ledger for collectives, and compares what was done with what
a training step is.
"""

import itertools
import random
from collections import Counter, defaultdict, deque
from dataclasses import replace

import pytest

from counterpoise.sched import Edge, Pass, Program, lower, problems, schedule

BASES = [
    ("gpipe", 3, 4), ("1f1b", 4, 6), ("interleaved", 2, 4), ("zb-h1", 3, 5), ("zb-h2", 3, 5),
    ("zbv", 2, 4), ("v-half", 3, 4), ("dualpipev", 2, 5), ("1f1b-alg1", 3, 4), ("1f1b-alg2", 3, 4),
    ("1f1b-naive", 3, 4), ("v-half-alg1", 2, 4), ("interleaved-alg2", 2, 4),
    ("1f1b and encoders", 3, 4),
]  # fmt: skip


def made(name: str, ranks: int, microbatches: int) -> Program:
    """The program of a base; with encoders, every rank encodes a share of the microbatches.

    The features of a microbatch go to stages 0 and 1, and both stages' gradients come back; the
    language model takes the microbatches in another order than the encoders number them in.
    """
    base, _, encoders = name.partition(" and ")
    program = schedule(base, ranks=ranks, microbatches=microbatches)
    if not encoders:
        return program
    rows, edges = [], []
    for rank, row in enumerate(program.ranks):
        own = range(rank, microbatches, ranks)
        forward, backward = ([Pass(rank, kind, m) for m in own] for kind in ("EF", "EB"))
        rows.append((*forward, *row, *backward))
        for m, stage in itertools.product(own, (0, 1)):
            number = microbatches - 1 - m
            edges.append(Edge(Pass(rank, "EF", m), Pass(stage, "F", number)))
            edges.append(Edge(Pass(stage, "B", number), Pass(rank, "EB", m)))
    return replace(program, ranks=tuple(rows), edges=tuple(edges))


class OutOfOrderError(Exception):
    """The executor found something where something else should be."""


class Executor:
    """Runs a program; `fits` says whether it ends well."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.last = program.stages - 1
        self.done: set[Pass] = set()
        self.sent: dict[tuple[int, int], list[Pass]] = defaultdict(list)
        self.got: dict[tuple[int, int], list[Pass]] = defaultdict(list)
        self.entered: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.kinds = {item.kind for row in program.ranks for item in row}
        self.lowered = any("SEND" in kind for kind in self.kinds)
        self.names = {barrier.name for barrier in program.barriers}

    def fits(self) -> bool:
        try:
            self.run()
            self.judge()
        except OutOfOrderError:
            return False
        return True

    def run(self) -> None:
        left = [deque(row) for row in self.program.ranks]
        while any(left):
            moved = False
            for rank, row in enumerate(left):
                while row and self.ready(row[0], rank):
                    self.do(row.popleft(), rank)
                    moved = True
            if not moved:
                raise OutOfOrderError("nobody can go on")

    def ready(self, item: Pass, rank: int) -> bool:
        stage, kind, m = item.stage, item.kind, item.microbatch
        if not all(self.brought(a, rank) for a, b in self.program.edges if b == item):
            return False
        if kind == "F":
            return (not stage or self.arrived(item, "F", stage - 1)) and self.barred(item)
        if kind in "BI":
            own = Pass(stage, "F", m) in self.done
            above = stage == self.last or self.arrived(item, "B", stage + 1)
            return own and above and self.barred(item)
        before = {"W": "I", "T": "S", "E": "L", "G": "E", "C": "S", "SEND_F": "F", "EB": "EF"}
        before |= {f"SEND_X_{one}": one for one in ("EF", "B")}
        if kind in before and Pass(stage, before[kind], m) not in self.done:
            return False
        if kind == "SEND_B" and not self.any_done(stage, m):
            return False
        if kind in self.names:
            return self.made(item, rank)
        return self.barred(item)

    def any_done(self, stage: int, m: int) -> bool:
        return Pass(stage, "B", m) in self.done or Pass(stage, "I", m) in self.done

    def arrived(self, item: Pass, what: str, source: int) -> bool:
        """Whether the input of F or B from another stage is on this rank."""
        here = self.program.placement[item.stage]
        there = self.program.placement[source]
        if here == there or not self.lowered:
            if what == "F":
                return Pass(source, "F", item.microbatch) in self.done
            return self.any_done(source, item.microbatch)
        return self.received(Pass(item.stage, f"RECV_{what}", item.microbatch), (there, here))

    def received(self, receive: Pass, channel: tuple[int, int]) -> bool:
        if receive not in self.got[channel]:
            return False
        return self.got[channel].index(receive) < len(self.sent[channel])

    def brought(self, source: Pass, rank: int) -> bool:
        """Whether the result that an edge brings is on this rank."""
        there = self.of(source)
        if there == rank or not self.lowered:
            return source in self.done
        return self.received(replace(source, kind=f"RECV_X_{source.kind}"), (there, rank))

    def of(self, item: Pass) -> int:
        """The rank of a pass that an edge names."""
        return item.stage if item.kind[0] == "E" else self.program.placement[item.stage]

    def barred(self, item: Pass) -> bool:
        """Whether all barriers that hold this pass are over."""
        ends = {"first": 0, "last": self.last}
        return all(
            self.over(barrier.name, item.microbatch)
            for barrier in self.program.barriers
            for where, kind in barrier.before
            if kind == item.kind and (where == "every" or item.stage == ends[where])
        )

    def over(self, name: str, m: int) -> bool:
        barrier = next(b for b in self.program.barriers if b.name == name)
        sides = range(len(self.program.ranks))
        if name in self.kinds:
            return all(m in self.entered[name][side] for side in sides)
        if barrier.source == "barrier":
            return self.over(barrier.after, m)
        if barrier.source == "last":
            return Pass(self.last, barrier.after, m) in self.done
        return all(Pass(side, barrier.after, m) in self.done for side in sides)

    def made(self, item: Pass, rank: int) -> bool:
        """Whether a rank has what it brings to a barrier."""
        barrier = next(b for b in self.program.barriers if b.name == item.kind)
        if barrier.source == "last":
            own = rank == self.program.placement[self.last]
            return not own or Pass(self.last, barrier.after, item.microbatch) in self.done
        made = "C" if barrier.source == "barrier" else barrier.after
        return Pass(rank, made, item.microbatch) in self.done

    def do(self, item: Pass, rank: int) -> None:
        if "_X_" in item.kind:
            self.carry(item, rank)
        elif item.kind.startswith(("SEND", "RECV")):
            what, sends = item.kind[-1], item.kind.startswith("SEND")
            peer = item.stage + (1 if sends == (what == "F") else -1)
            if not 0 <= peer <= self.last:
                raise OutOfOrderError(f"{item} goes nowhere")
            other = self.program.placement[peer]
            if sends:
                self.sent[rank, other].append(item)
            else:
                self.got[other, rank].append(item)
        if item.kind in self.names:
            self.entered[item.kind][rank].append(item.microbatch)
        for barrier in self.program.barriers:
            implied = barrier.name not in self.kinds and barrier.source == "every"
            if implied and barrier.after == item.kind:
                self.entered[barrier.name][rank].append(item.microbatch)
        self.done.add(item)

    def carry(self, item: Pass, rank: int) -> None:
        """Send or receive a result along the program's edges."""
        source = replace(item, kind=item.kind[7:])
        ends = {(self.of(a), self.of(b)) for a, b in self.program.edges if a == source}
        sends = item.kind.startswith("SEND")
        mine = {(a, b) for a, b in ends if a != b and rank == (a if sends else b)}
        if not mine:
            raise OutOfOrderError(f"{item} goes nowhere")
        for channel in sorted(mine):
            (self.sent if sends else self.got)[channel].append(item)

    def expected(self, send: Pass) -> Pass:
        """The receive that a send must meet."""
        step = {"SEND_F": 1, "SEND_B": -1}.get(send.kind, 0)
        kind = send.kind.replace("SEND", "RECV")
        return Pass(send.stage + step, kind, send.microbatch)

    def judge(self) -> None:
        """After the end: every pass once, messages and collectives matched one by one."""
        for channel in set(self.sent) | set(self.got):
            if [self.expected(p) for p in self.sent[channel]] != self.got[channel]:
                raise OutOfOrderError(f"channel {channel}")
        for name, by_rank in self.entered.items():
            orders = [tuple(by_rank[rank]) for rank in range(len(self.program.ranks))]
            if len(set(orders)) > 1:
                raise OutOfOrderError(f"communicator {name}")
        placed = Counter((rank, p) for rank, row in enumerate(self.program.ranks) for p in row)
        if max(placed.values()) > 1:
            raise OutOfOrderError("a pass is there twice")
        count = Counter(item for row in self.program.ranks for item in row)
        if not all(count[item] for edge in self.program.edges for item in edge):
            raise OutOfOrderError("an edge leads nowhere")
        for rank, row in enumerate(self.program.ranks):
            for item in row:
                staged = item.kind in ("F", "B", "I", "W") or item.kind[:4] in ("SEND", "RECV")
                if item.microbatch not in range(self.program.microbatches):
                    raise OutOfOrderError(f"{item} has no microbatch")
                if "_X_" in item.kind:  # `carry` has seen to it
                    continue
                if staged and not (item.stage <= self.last and self.home(item.stage) == rank):
                    raise OutOfOrderError(f"{item} is not at home")
                if not staged and item.stage != rank:
                    raise OutOfOrderError(f"{item} is not at home")
        self.judge_completeness(count)

    def home(self, stage: int) -> int:
        return self.program.placement[stage]

    def judge_completeness(self, count: Counter[Pass]) -> None:
        for m in range(self.program.microbatches):
            for stage in range(self.last + 1):
                f, b, i, w = (count[Pass(stage, kind, m)] for kind in "FBIW")
                if f != 1 or (b, i, w) not in ((1, 0, 0), (0, 1, 1)):
                    raise OutOfOrderError(f"stage {stage}, microbatch {m}")
            for rank in range(len(self.program.ranks)):
                for kind in self.kinds & {"S", "T", "L", "E", "G", "C", *self.names}:
                    if count[Pass(rank, kind, m)] != 1:
                        raise OutOfOrderError(f"rank {rank}, {kind}, microbatch {m}")


def mutated(program: Program, rng: random.Random) -> Program:
    """The program with one small thing changed."""
    rows = [list(row) for row in program.ranks]
    row = rng.choice([row for row in rows if row])
    at = rng.randrange(len(row))
    item = row[at]
    choice = rng.randrange(8)
    if choice <= 2:  # neighbours change places: often harmless
        row[at - 1], row[at] = row[at], row[at - 1]
    elif choice == 3:
        other = rng.randrange(len(row))
        row[at], row[other] = row[other], row[at]
    elif choice == 4:
        del row[at]
    elif choice == 5:
        row.insert(rng.randrange(len(row)), item)
    elif choice == 6:
        row[at] = replace(item, microbatch=rng.randrange(program.microbatches + 1))
    else:
        kind = {"F": "B", "B": "F", "I": "W", "W": "I", "S": "T", "T": "S"}.get(item.kind, "F")
        stage = rng.randrange(program.stages)
        row[at] = replace(item, kind=kind) if rng.random() < 0.5 else replace(item, stage=stage)
    return replace(program, ranks=tuple(map(tuple, rows)))


@pytest.mark.parametrize("name", [name for name, _, _ in BASES])
def test_the_executor_does_what_is_sound(name: str) -> None:
    ranks, microbatches = next((r, m) for n, r, m in BASES if n == name)
    program = made(name, ranks, microbatches)
    assert Executor(program).fits()
    for ahead in (1, 3):
        assert Executor(lower(program, ahead=ahead)).fits()


@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.long)])
def test_a_mutation_is_reported_exactly_when_the_program_cannot_be_done(count: int) -> None:
    rng = random.Random(count)
    verdicts: Counter[bool] = Counter()
    for _ in range(count):
        name, ranks, microbatches = rng.choice(BASES)
        program = made(name, ranks, microbatches)
        program = mutated(lower(program) if rng.random() < 0.5 else program, rng)
        fits = Executor(program).fits()
        found = problems(program)
        assert fits == (not found), f"{found[:1]}\n{program}"
        verdicts[fits] += 1
    assert min(verdicts.values()) > count // 10
