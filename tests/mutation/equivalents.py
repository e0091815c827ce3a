"""Mutants that no test can notice, or need not, by name, each with the reason."""

_KERNELS = "balancer/planning/kernels"
_FILLING = "sched/bubble_filling"
_ALIKE = "they are of equal length"
_VOCABULARY = "sched/runtime/vocabulary"
_NONE = "a first number below 0 says that there is none, and nothing else is read"

EQUIVALENTS: dict[str, str] = {
    "sched/generators/vocabulary:_register: text = text if form is not ALGORITHM_2 else "
    "text.replace('2 barriers', '1 barrier') -> text = text if not form is not ALGORITHM_2 else "
    "text.replace('2 barriers', '1 barrier')": (
        "it runs when its module is imported, before it is planted; written into the file, "
        "test_vocabulary.py notices it"
    ),
    f"{_KERNELS}/pipeline:run_program: if after[k] >= 0 and finish[after[k]] > begin: -> "
    "if after[k] >= 0 and finish[after[k]] >= begin:": "begin is set to the value it has",
    f"{_KERNELS}/pipeline:two_opt: for a in range(order.shape[0] - 1): -> "
    "for a in range(order.shape[0] + 1):": "the last places have no pair behind them",
    f"{_KERNELS}/pack:find_group: break -> continue (#1)": (
        "groups are ranked by their score, so none of those that follow is better"
    ),
    f"{_KERNELS}/pack:find_group: found: Int = -1 -> found: Int = -2": _NONE,
    f"{_KERNELS}/padded:cut_in_two: far: Matrix = np.empty((ranks + 1, ranks + 1), dtype=np.int64) "
    "-> far: Matrix = np.empty((ranks + 1, ranks + 2), dtype=np.int64)": (
        "nothing reads the last column"
    ),
    f"{_KERNELS}/padded:fill_ends: count: Int = most // sizes[0] if samples > 0 else 0 -> "
    "count: Int = most // sizes[0] if samples < 0 else 0": "counted up from 0, if more slowly",
    f"{_KERNELS}/assign:assign_rows: product = 0 -> product = 1": (
        "the product of each rank is one more"
    ),
    f"{_KERNELS}/level:is_level: return above <= abs(whole) >> near -> "
    "return above <= int(whole) >> near": "loads are not below 0",
    f"{_KERNELS}/level:level_contest: failed += 1 -> failed += 2": (
        "accepted: given up after half as many tries, or, of an odd number, by the limit"
    ),
    f"{_KERNELS}/padded_exchange:even_out: failed += 1 -> failed -= 1": (
        "accepted: given up by the limit alone"
    ),
    f"{_KERNELS}/level:best_between: take = q if taken >= 0 else -1 -> "
    "take = q if taken >= 0 else -2": _NONE,
    f"{_KERNELS}/level:find_partner: into: Int = -1 -> into: Int = -2": _NONE,
    f"{_KERNELS}/level:find_partner: back: Int = -1 -> back: Int = -2": _NONE,
    f"{_KERNELS}/excess:lower_excess: best: Int = excess_after(loads, costs, budgets, high, low, "
    "-1, -1) -> best: Int = excess_after(loads, costs, budgets, high, low, -1, -2)": (
        "any number below 0 is no item"
    ),
    f"{_KERNELS}/excess:lower_excess: from_low = -1 if moves and counts[high] > 1 else 0 -> "
    "from_low = -1 if moves and counts[high] >= 1 else 0": (
        "two groups have no less excess as one: squares above a mean are superadditive"
    ),
    f"{_KERNELS}/pack:find_group: if load > top: -> if load >= top:": (
        "top is set to the value it has"
    ),
    f"{_KERNELS}/padded:best_tops: while below - bottom > max(1, below >> 9): -> "
    "while below - bottom > max(1, below >> 10):": "accepted: nearer than promised",
    f"{_KERNELS}/level:find_partner: partner: Int = -1 -> partner: Int = -2": _NONE,
    f"{_KERNELS}/padded_exchange:best_partner: give: Int = -1 -> give: Int = 1": _NONE,
    f"{_KERNELS}/swap:best_exchange: from_low = -1 if moves and counts[high] > 1 else 0 -> "
    "from_low = -2 if moves and counts[high] > 1 else 0": "the same move is tried twice",
    f"{_KERNELS}/excess:excess_after: over: Int = min(max(left - MEAN, 0), _MOST_EXCESS) -> "
    "over: Int = min(max(left - MEAN, 1), _MOST_EXCESS)": (
        "accepted: one more in squares of about 2**40"
    ),
    f"{_FILLING}/kernels/walks:place_all: at[s] = c -> pass": (
        "stretches that were passed end before the last kernel does, so nothing more fits them"
    ),
    f"{_FILLING}/pipelines:enough: wait = int(work.release.max(initial=0)) -> "
    "wait = int(work.release.max(initial=1))": (
        "accepted: a bisection begins a nanosecond a kernel higher"
    ),
    f"{_FILLING}/replay:measured_host: "
    "slots = zip(host.timeline.ranks[rank], opens, closes, strict=True) -> "
    "slots = zip(host.timeline.ranks[rank], opens, closes, strict=False)": _ALIKE,
    f"{_FILLING}/filled_program:_layers: for layer, end in "
    "zip(numbers, ends[at, stage, last].tolist(), strict=True): -> for layer, end in "
    "zip(numbers, ends[at, stage, last].tolist(), strict=False):": _ALIKE,
    f"{_FILLING}/search:fill_bubbles: break -> continue": (
        "the step is as short as it can be, and of the others only a shorter one would be taken"
    ),
    f"{_FILLING}/plan/choose:fitting: how = Splitting(1) -> how = Splitting(2)": (
        "the size is replaced by one that fits"
    ),
    f"{_FILLING}/search:_Search._cost: total = 0 -> total = 1": (
        "accepted: each microbatch costs a nanosecond more"
    ),
    f"{_FILLING}/matching:match: place = [0] * len(done) -> place = [1] * len(done)": (
        "each place is set, or there is no matching"
    ),
    f"{_FILLING}/search:_Search._by_microbatch: done = [0] * self.problem.microbatches -> "
    "done = [1] * self.problem.microbatches": "each is set, as each microbatch is on a pipeline",
    f"{_FILLING}/gaps:_stretches: "
    "names = sorted({slot.what.kind for slot in row} - {GATHER, SCATTER}) -> "
    "names = list({slot.what.kind for slot in row} - {GATHER, SCATTER})": (
        "stretches are sorted by their start afterwards"
    ),
    f"{_FILLING}/jit_place:place: if j == 0 and t < begin + release[q]: -> "
    "if j == 0 and t <= begin + release[q]:": "t is set to the value it has",
    f"{_FILLING}/instance:FilledSchedule.order: "
    "pairs = [pair for p in self.pipelines for pair in zip(p.position, p.microbatches, "
    "strict=True)] -> pairs = [pair for p in self.pipelines for pair in zip(p.position, "
    "p.microbatches, strict=False)]": _ALIKE,
    f"{_FILLING}/setup:dump_setup: return json.dumps(asdict(setup), indent=1) -> "
    "return json.dumps(asdict(setup), indent=2)": "accepted: the same JSON",
    f"{_VOCABULARY}/gradients:add_gradients: break -> continue": (
        "the pieces of columns that follow are padding as well"
    ),
    "sched/checking/completeness:_stages: for node, own in zip(nodes[wrong].tolist(), "
    "home[wrong].tolist(), strict=True): -> "
    "for node, own in zip(nodes[wrong].tolist(), home[wrong].tolist(), strict=False):": _ALIKE,
    "sched/simulation/memory:_curve: points = list(zip(times[last].tolist(), "
    "held[last].tolist(), strict=True)) -> "
    "points = list(zip(times[last].tolist(), held[last].tolist(), strict=False))": _ALIKE,
    "sched/checking/order:collectives: pairs = zip(first, entries, strict=False) -> "
    "pairs = zip(first, entries, strict=True)": (
        "completeness, which is proved first, leaves each rank with as many"
    ),
    "sched/simulation/memory:_messages: send = np.concatenate("
    "[one.sends[:n] for one, n in zip(channels, both, strict=True)]) -> send = np.concatenate("
    "[one.sends[:n] for one, n in zip(channels, both, strict=False)])": _ALIKE,
    "sched/simulation/memory:_messages: receive = np.concatenate("
    "[one.receives[:n] for one, n in zip(channels, both, strict=True)]) -> receive = "
    "np.concatenate([one.receives[:n] for one, n in zip(channels, both, strict=False)])": _ALIKE,
    "sched/simulation/bubbles:_ready_without_transfers: for source, target in "
    "zip(graph.source[rest].tolist(), graph.target[rest].tolist(), strict=True): -> "
    "for source, target in zip(graph.source[rest].tolist(), graph.target[rest].tolist(), "
    "strict=False):": _ALIKE,
    "sched/simulation/simulator:simulate: source, target, delay = (np.concatenate(pair) for "
    "pair in zip((source, target, delay), blocking, strict=True)) -> "
    "source, target, delay = (np.concatenate(pair) for pair in zip((source, target, delay), "
    "blocking, strict=False))": _ALIKE,
    "sched/simulation/simulator:_blocking_edges: following = np.full(graph.passes, -1, "
    "np.int64) -> "
    "following = np.full(graph.passes, -2, np.int64)": _NONE,
    "sched/simulation/simulator:_critical_path: node = before[node] if starts[node] > 0 else -1 -> "
    "node = before[node] if starts[node] > 0 else -2": _NONE,
    "sched/simulation/simulator:_blocking_edges: keep = target >= 0 -> "
    "keep = target > 0": "no pass follows another at place 0",
    "sched/simulation/simulator:_blocking_edges: sent = np.full(len(graph.source), -1, "
    "np.int64) -> "
    "sent = np.full(len(graph.source), 1, np.int64)": (
        "the edges of collectives have no sender, which is asked first"
    ),
    "sched/simulation/simulator:_blocking_edges: sent = np.full(len(graph.source), -1, "
    "np.int64) -> "
    "sent = np.full(len(graph.source), -2, np.int64)": (
        "the edges of collectives have no sender, which is asked first"
    ),
    "sched/simulation/bubbles:_ready_without_transfers: if result[source] > result[target]: -> "
    "if result[source] >= result[target]:": "set to the value it has",
}
