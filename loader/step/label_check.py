"""Compares the label tokens that costs declare with the labels that are in the samples.

A wrong count is a wrong denominator of every loss, which no training loop notices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...workers.sources.labels import IGNORED, count_label_tokens, labels_of
from .errors import LoaderError

# Microbatches of a process that are compared; what is counted wrong is so in the first ones.
COMPARED = 16
# Keys that an error names.
QUOTED = 4


@dataclass(slots=True)
class LabelCheck:
    """Compares the first microbatches that have labels.

    `resource` is the name of the count. Labels may stand at their token, so that a sample's first
    predicts nothing (`shifted`, always so in layouts "padded" and "packed"), or at the token before
    theirs: where collate_fn makes the batch either may be, for all samples alike.
    """

    resource: str
    shifted: bool
    left: int = COMPARED
    _fits: tuple[bool, bool] = (True, True)

    def compare(self, samples: Sequence[Any], declared: int, keys: Sequence[str]) -> None:
        """Raise LoaderError for a microbatch whose samples have another number of label tokens.

        A sample without labels has none; without labels in any of them nothing is compared.
        """
        labels = [labels_of(sample) for sample in samples] if self.left > 0 else []
        found = [each for each in labels if each is not None]
        if not found:
            return
        at_token = sum(map(count_label_tokens, found))
        before = sum(int(np.count_nonzero(each != IGNORED)) for each in found)
        self._compare(at_token, before, declared, keys)

    def compare_counts(
        self, at_token: int, before: int, declared: int, keys: Sequence[str]
    ) -> None:
        """Do what `compare` does, of samples whose labels a worker has counted in both ways."""
        if self.left > 0:
            self._compare(at_token, before, declared, keys)

    def _compare(self, at_token: int, before: int, declared: int, keys: Sequence[str]) -> None:
        self.left -= 1
        # one reading has to fit all microbatches, not another one each time
        fits = self._fits[0] and declared == at_token, self._fits[1] and declared == before
        if not any(fits[:1] if self.shifted else fits):
            raise LoaderError(
                f"the cost {self.resource!r} of samples {', '.join(keys[:QUOTED])} says that they "
                f"have {declared} label tokens, and their labels have {at_token} (other than -100, "
                "and not a sample's first): a loss per token would be divided by the wrong number; "
                "count them so in the cost, or name the one that does: Balance(label_tokens=...)"
            )
        self._fits = fits
