"""`counterpoise bench NAME`: ours and the baselines in the same run, interleaved."""

from ..cli import LazyGroup

BENCHES = {
    "analyze": ("bench.analyze", "The header-only scan against `tar tf` and reading headers."),
    "bubbles": (
        "bench.bubbles.command",
        "Encoder work in the bubbles: Optimus' algorithm and ours.",
    ),
    "faults": ("bench.faults", "Faults, simulated or real: is every batch the same?"),
    "loader": ("bench.loader", "Samples per second against torch's DataLoader."),
    "order": ("bench.order", "Orders of a rank's microbatches: simulated step time."),
    "partition": ("bench.partition", "Samples onto ranks: how far the heaviest is above the mean."),
    "plan": ("bench.plan", "Whole epochs of plans: balance, leftovers, shuffle quality, time."),
    "schedules": ("bench.schedules", "Pipeline schedules: makespan, bubble, memory."),
    "step": ("bench.step", "Pack, partition, order: simulated step time over the ideal."),
    "transport": ("bench.transport", "Payloads over tcp: what encryption and digests cost."),
    "vocab": ("bench.vocab", "Vocabulary passes against the paper's models and measurements."),
}

command = LazyGroup(
    BENCHES,
    name="bench",
    help="Measure ours against baselines; `bench NAME --json` ends with one JSON object.",
)
