"""`counterpoise bench NAME`: ours and the baselines in the same run, interleaved."""

from .cli import LazyGroup

BENCHES = {
    "loader": "bench_loader",
    "order": "bench_order",
    "partition": "bench_partition",
    "plan": "bench_plan",
    "schedules": "bench_schedules",
    "step": "bench_step",
    "vocab": "bench_vocab",
}

command = LazyGroup(
    BENCHES,
    name="bench",
    help="Measure ours against baselines; `bench NAME --json` ends with one JSON object.",
)
