"""Samples of one source, chosen and ordered: what a selection and a mixture have in common."""

from abc import abstractmethod

from .interface import Probe, Sample, Source, View


class ChosenSamples(View):
    """Samples of one source under indexes of its own; `find_row` says what index each has there."""

    def __init__(self, source: Source) -> None:
        super().__init__([source])
        self.source = source

    @abstractmethod
    def find_row(self, index: int) -> int:
        """Return a sample's index in the source; IndexError outside 0 <= index < len."""

    def __getitem__(self, index: int) -> Sample:
        return self.source[self.find_row(index)]

    def origin(self, index: int) -> tuple[Source, int]:
        """Return the source, made of no others, that has the sample, and its index there."""
        return self.source.origin(self.find_row(index))

    def key(self, index: int) -> str:
        """Return the sample's name, which is the source's."""
        return self.source.key(self.find_row(index))

    def load(self, index: int, epoch: int, seed: int) -> Sample:
        """Load the sample; random choices follow from (seed, epoch, key)."""
        return self.source.load(self.find_row(index), epoch, seed)

    def probe(self, index: int) -> Probe:
        """Find the sample's cost."""
        return self.source.probe(self.find_row(index))

    def known(self, index: int) -> Probe | None:
        """Return the sample's cost if it has been kept."""
        return self.source.known(self.find_row(index))

    def measure(self, sample: Sample) -> dict[str, int]:
        """Return a loaded sample's cost; only where probing loads it (decode_first)."""
        return self.source.measure(sample)

    @property
    def decode_first(self) -> bool:
        """Return whether a sample has to be loaded to learn its cost."""
        return self.source.decode_first

    @property
    def resources(self) -> tuple[str, ...] | None:
        """The names of all that samples cost; None: those that the first sample has."""
        return self.source.resources

    def fingerprint(self) -> str:
        """Return the source's hash of all that decides which bytes come out."""
        return self.source.fingerprint()
