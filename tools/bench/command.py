"""`counterpoise bench NAME`: measures ours and the baselines, interleaved in one run."""

from ..console.lazy_group import LazyGroup

BENCHES = {
    "analyze": ("analyze", "The header-only scan against `tar tf` and reading headers."),
    "bubbles": (
        "bubbles.command",
        "Encoder work in the bubbles: Optimus' algorithm and ours.",
    ),
    "coordinator": (
        "coordinator.command",
        "The coordinator's CPU time, by ranks and workers.",
    ),
    "encoder": (
        "encoder.command",
        "Encoders in the bubbles, executed: planned, simulated and measured.",
    ),
    "faults": ("faults", "Faults, simulated or real: is every batch the same?"),
    "fields": ("loading.parts", "Bytes and CPU time of batches by what a rank needs of them."),
    "images": (
        "loading.images.command",
        "CPU time of images, from shards to batches, by pipeline.",
    ),
    "loader": ("loading.loader", "Samples per second against torch's DataLoader."),
    "order": ("planning.order", "Orders of a rank's microbatches: simulated step time."),
    "overhead": ("loading.overhead", "What a balanced loop costs a sample, by process."),
    "partition": (
        "planning.partition",
        "Samples onto ranks: how far the heaviest is above the mean.",
    ),
    "pinned": ("loading.pinning.command", "Batches on their way to a GPU, by how they are pinned."),
    "plan": ("planning.plan", "Whole epochs of plans: balance, leftovers, shuffle quality, time."),
    "runtime": (
        "runtime.command",
        "The pipeline runtime against torch's, and against the simulator.",
    ),
    "schedules": ("schedules", "Pipeline schedules: makespan, bubble, memory."),
    "soak": ("loading.soak", "What grows while loaders run at full speed: memory, files, threads."),
    "start": ("loading.start", "The first batch of a process against torch's DataLoader."),
    "step": ("planning.step", "Pack, partition, order: simulated step time over a bound."),
    "vocab": (
        "vocabulary.simulated",
        "Vocabulary passes against the paper's models and measurements.",
    ),
    "vocabulary": ("vocabulary.layers", "Vocabulary-parallel layers: time and memory, measured."),
    "waits": (
        "planning.waits",
        "Steps without budgets: waiting at every microbatch, and once a step.",
    ),
}

command = LazyGroup(
    __package__,
    BENCHES,
    name="bench",
    help="Measure ours against baselines; `bench NAME --json` ends with one JSON object.",
)
