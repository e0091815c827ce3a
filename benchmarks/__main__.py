"""Run a bench: `python -P -m benchmarks NAME ARGS`, as `make bench NAME=... ARGS=...` does.

The last line of standard output is the JSON object, with --json; all else goes to standard error.
"""

from counterpoise.tools.cli import main
from counterpoise.tools.console.commands import LazyGroup

BENCHES = {
    "analyze": ("analyze", "The header-only scan against `tar tf` and reading headers."),
    "balancer": ("balancer.command", "A balancer's CPU time a sample by ranks, and its memory."),
    "decoding": ("loading.decoding", "CPU time of images, from shards to batches, by pipeline."),
    "encoder": (
        "encoder.command", "Encoders in the bubbles, executed: planned, simulated and measured.",
    ),
    "faults": ("faults", "Faults, simulated: is every batch the same?"),
    "gpu": ("gpu.command", "Everything that waits for a GPU, on the devices that are there."),
    "job": ("job", "A plan for four processes run from its job.json, measured and simulated."),
    "local": ("loading.local", "Balanced loops with known costs, against our plain loop."),
    "matrix": ("loading.matrix", "Loops against torch's, by size of samples and batches."),
    "metrics": ("loading.metrics", "What counting costs a trainer, on and off."),
    "order": ("planning.order", "Orders of a rank's microbatches: simulated step time."),
    "overlap": ("runtime.overlap", "Tensor-parallel layers: collectives beside their products."),
    "padded": ("planning.padded", "Plans of padded steps, against transformers' and others."),
    "papers": ("papers.command", "Every table and figure of four papers, and ours beside it."),
    "peers": ("loading.matrix", "The matrix with others' loaders, in their own environment."),
    "picture": (
        "planning.picture", "A step of 8 ranks, random and balanced, drawn for the README.",
    ),
    "published": ("planning.published", "Epochs of published samplers' plans, beside ours."),
    "rollouts": ("planning.rollouts", "Rollouts dealt to ranks and microbatches, beside verl's."),
    "row_groups": ("loading.row_groups", "Samples of parquet files, by the size of row groups."),
    "runtime": (
        "runtime.command", "The pipeline runtime against torch's, and against the simulator.",
    ),
    "shapes": ("planning.shapes", "One shape a microbatch, beside two published samplers."),
    "stores": ("stores.command", "Epochs from an S3 that is far away, by system."),
    "start": ("loading.start", "The first batch of a process against torch's DataLoader."),
    "step": ("planning.step", "Pack, partition, order: simulated step time over a bound."),
    "threads": ("planning.threads", "Planning beside other threads: throughput, and waits."),
    "transports": (
        "loading.transports", "Processes that share a rank: direct and inline, beside torch.",
    ),
    "vocabulary_layers": (
        "vocabulary.layers", "Vocabulary-parallel layers: time and memory, measured.",
    ),
    "waits": (
        "planning.waits", "Steps without budgets: waiting at every microbatch, and once a step.",
    ),
}  # fmt: skip

group = LazyGroup(
    "benchmarks",
    BENCHES,
    name="bench",
    help="Measure ours against baselines: make bench NAME=... ARGS='... --json'.",
)


if __name__ == "__main__":
    main(group=group)
