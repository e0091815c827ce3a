"""The demo's tokenizer cuts long texts, and goes to the workers with its transform."""

import pickle

import numpy as np
import pytest

from counterpoise.tools.demo.transform import ClippedBytes
from counterpoise.workers import VisionLanguage


@pytest.mark.parametrize("text", ["", "short", "long " * 50, "naïve 漢字 🙂" * 9])
def test_no_text_is_longer_than_the_limit(text: str) -> None:
    tokenizer = ClippedBytes(12)
    assert tokenizer(text) == list(text.encode()[:12])
    assert tokenizer.array(text).tolist() == tokenizer(text)


def test_the_transform_can_be_sent_to_workers() -> None:
    raw = {"__key__": "a", "json": {"document": "word " * 100}}
    sent = pickle.loads(pickle.dumps(VisionLanguage(ClippedBytes(9), tile_size=4)))
    assert np.array_equal(
        sent(raw)["input_ids"], VisionLanguage(ClippedBytes(9), tile_size=4)(raw)["input_ids"]
    )


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="give 1 or more"):
        ClippedBytes(0)
