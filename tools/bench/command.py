"""`counterpoise bench NAME`: measures ours and baselines on the user's own machine, interleaved."""

from ..console.lazy_group import LazyGroup

BENCHES = {
    "loader": ("loader", "Samples per second against torch's DataLoader."),
}

command = LazyGroup(
    __package__,
    BENCHES,
    name="bench",
    help="Measure ours against baselines; `bench NAME --json` ends with one JSON object.",
)
