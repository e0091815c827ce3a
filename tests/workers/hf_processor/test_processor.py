"""HFProcessor, by tiny processors of every family: costs, samples and errors."""

import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import counterpoise as cp
from counterpoise.workers import SampleError, TarDataset
from tests.workers.hf_processor.families import FAMILIES, PICTURE, SEEN, TEXT, make, tokenizer


def outcome(action: Any, *given: Any) -> Any:
    """What an action returns, or the text of the SampleError that it raises."""
    try:
        return action(*given)
    except SampleError as error:
        return str(error)


def assert_probed_as_loaded(family: str, real: TarDataset, indices: Any) -> None:
    hf = cp.HFProcessor(make(family))
    assert hf.probes_by_size
    refused = 0
    for index in indices:
        probed = outcome(lambda: hf.probe(real.raw(index, headers=True)).cost)  # noqa: B023
        loaded = outcome(lambda: hf.cost(hf(real.raw(index))))  # noqa: B023
        assert probed == loaded
        refused += isinstance(probed, str)
    # PaliGemma takes no sample without an image.
    assert refused == 0 or (family == "paligemma" and refused < len(indices))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_probe_says_what_loading_gives(family: str, real: TarDataset) -> None:
    assert_probed_as_loaded(family, real, range(7, len(real), len(real) // 30))


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_a_probe_says_what_loading_gives_of_all_real_samples(family: str, real: TarDataset) -> None:
    assert len(real) >= 1000
    assert_probed_as_loaded(family, real, range(len(real)))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_probe_says_what_loading_gives_of_images_of_any_size(family: str) -> None:
    # Long and tiny images are where resizing and grids round.
    hf, draw = cp.HFProcessor(make(family)), np.random.default_rng(1)
    for _ in range(6):
        sizes = draw.integers(1, 200, (draw.integers(1, 4), 2)).tolist()
        if family.startswith("qwen"):
            sizes = [(max(a, b // 20), max(b, a // 20)) for a, b in sizes]
        record = {**TEXT, "images": [Image.new("RGB", (a, b), (9, 9, 9)) for a, b in sizes]}
        assert hf.probe(record).cost == hf.cost(hf(record))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample_has_no_batch_axis_and_labels_of_the_assistant_alone(family: str) -> None:
    processor = make(family)
    sample = cp.HFProcessor(processor)(SEEN)
    ids, labels = sample["input_ids"], sample["labels"]
    assert ids.ndim == 1
    assert ids.dtype == labels.dtype == np.int64
    for name in ("token_type_ids", "mm_token_type_ids", "labels"):
        assert sample.get(name, ids).shape == ids.shape
    assert "attention_mask" not in sample
    learned = processor.tokenizer.decode(ids[labels != -100])
    if family == "paligemma":
        assert learned == "5 of them<|im_end|>"
    else:
        assert learned == "12 apples<|im_end|>\n5 of them<|im_end|>\n"
    assert (labels[labels != -100] == ids[labels != -100]).all()
    if family not in ("pixtral", "mistral3") and "image_grid_thw" not in sample:
        assert sample["pixel_values"].ndim == 4


# PaliGemma has no template, and takes no sample without an image.
TEMPLATED = [name for name in FAMILIES if name != "paligemma"]


@pytest.mark.parametrize("family", TEMPLATED)
def test_a_sample_without_images_has_the_same_fields_without_rows(family: str) -> None:
    hf = cp.HFProcessor(make(family))
    seen, unseen = hf(SEEN), hf(TEXT)
    assert seen.keys() == unseen.keys()
    for name in seen.keys() - {"input_ids", "labels", "token_type_ids", "mm_token_type_ids"}:
        assert unseen[name].size == 0 or unseen[name].ndim == 0
        assert unseen[name].dtype == seen[name].dtype


@pytest.mark.parametrize("family", TEMPLATED)
def test_what_a_sample_has_is_what_the_processor_returns(family: str) -> None:
    processor = make(family)
    hf = cp.HFProcessor(processor)
    parts = [{"type": "image", "image": PICTURE}, {"type": "text", "text": "How many?"}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "text", "text": "12"}]},
    ]
    theirs = processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_tensors=None
    )
    ours = hf({"messages": messages})
    assert ours["input_ids"].tolist() == theirs["input_ids"][0]
    for name in ("token_type_ids", "mm_token_type_ids"):
        assert (name in theirs) == (name in ours)
        if name in theirs:
            assert ours[name].tolist() == list(theirs[name][0])
    pixels = np.asarray(theirs["pixel_values"])
    assert np.array_equal(ours["pixel_values"], pixels.reshape(ours["pixel_values"].shape))
    for name in ("image_grid_thw", "image_sizes"):
        assert (name in theirs) == (name in ours)
        if name in theirs:
            assert np.array_equal(ours[name], theirs[name])


def test_tiles_that_fill_an_image_up_are_left_out() -> None:
    images = [Image.new("RGB", size, (200, 10, 10)) for size in ((50, 50), (120, 20))]
    sample = cp.HFProcessor(make("llava_next"))({**TEXT, "images": images})
    assert sample["image_sizes"].tolist() == [[50, 50], [20, 120]]
    assert len(sample["pixel_values"]) == (2 * 2 + 1) + (3 + 1)


def test_pali_gemma_sees_all_before_the_last_answer_at_once() -> None:
    sample = cp.HFProcessor(make("paligemma"))(SEEN)
    assert np.array_equal(sample["token_type_ids"] == 1, sample["labels"] != -100)


# Lengths and errors


def test_what_is_over_max_length_is_refused_or_cut() -> None:
    words = tokenizer()
    whole = cp.HFProcessor(words)(TEXT)
    most = len(whole["input_ids"]) - 3
    with pytest.raises(SampleError, match=rf"'p7': {most + 3} tokens are over max_length={most}"):
        cp.HFProcessor(words, max_length=most)({"id": "p7", **TEXT})
    cut = cp.HFProcessor(words, max_length=most, overlong="cut")
    for name in ("input_ids", "labels"):
        assert cut(TEXT)[name].tolist() == whole[name][:most].tolist()
    assert cut.probe(TEXT).cost == cut.cost(cut(TEXT))
    with pytest.raises(SampleError, match="nothing is learned: no label in 5 tokens"):
        cp.HFProcessor(words, max_length=5, overlong="cut")(TEXT)


@pytest.mark.parametrize("family", FAMILIES)
def test_images_are_never_cut(family: str) -> None:
    processor = make(family)
    whole = cp.HFProcessor(processor)(SEEN)
    for most in range(1, len(whole["input_ids"]), 7):
        hf = cp.HFProcessor(processor, max_length=most, overlong="cut")
        probed = outcome(lambda: hf.probe(SEEN).cost)  # noqa: B023
        found = outcome(lambda: hf(SEEN))  # noqa: B023
        if isinstance(found, str):
            assert "none is cut in its middle" in found or "nothing is learned" in found
            assert probed == found
            continue
        assert probed == hf.cost(found)
        assert np.array_equal(found["pixel_values"], whole["pixel_values"])
        assert found["input_ids"].tolist() == whole["input_ids"][:most].tolist()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": []}, "needed is a list of at least one turn"),
        ({**TEXT, "images": [b"none"]}, "UnidentifiedImageError"),
        ({**TEXT, "images": ["http://a.org/b.jpg"]}, "nothing is fetched"),
        (
            {"messages": [{"role": "user", "content": "a <|image_pad|>"}, TEXT["messages"][1]]},
            "1 <|image_pad|> tokens in the text but no images",
        ),
    ],
)
def test_what_is_wrong_with_a_record_is_said_with_its_name(record: Any, message: str) -> None:
    hf = cp.HFProcessor(make("qwen2_vl"))
    for action in (hf, hf.probe):
        assert message in str(outcome(action, {"id": "p7", **record}))
        assert "sample 'p7'" in str(outcome(action, {"id": "p7", **record}))


def test_what_the_template_refuses_is_said_with_the_name() -> None:
    hf = cp.HFProcessor(tokenizer(), chat_template="{{ raise_exception('must alternate') }}")
    with pytest.raises(SampleError, match=r"'p7': the chat template refuses .* must alternate"):
        hf({"id": "p7", **TEXT})


def test_a_text_model_takes_no_images() -> None:
    with pytest.raises(SampleError, match=r"1 images, and .* takes none"):
        cp.HFProcessor(tokenizer())(SEEN)


def test_wrong_arguments_say_what_is_allowed() -> None:
    words = tokenizer()
    for given, message in (
        ({"processor": 3}, "give an AutoProcessor or a tokenizer"),
        ({"overlong": "drop"}, "overlong is 'drop', allowed are 'refuse', 'cut'"),
        ({"max_length": 0}, "at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            cp.HFProcessor(**{"processor": words, **given})
    words.chat_template = None
    with pytest.raises(TypeError, match="has no chat template: give chat_template="):
        cp.HFProcessor(words)(TEXT)


def test_what_has_no_rule_is_loaded_to_be_measured_and_says_so(caplog: Any) -> None:
    processor = make("llava")
    processor.image_processor.do_resize = False
    hf = cp.HFProcessor(processor)
    assert not hf.probes_by_size
    with caplog.at_level(logging.WARNING):
        costs = [hf.probe(SEEN).cost for _ in range(2)]
    assert costs == [hf.cost(hf(SEEN))] * 2
    assert [each.getMessage() for each in caplog.records] == [
        "LlavaProcessor: no rule says what an image or a sound becomes "
        "(LlavaImageProcessorPil): samples are loaded to be measured"
    ]


def test_settings_that_no_rule_fits_are_loaded_to_be_measured(caplog: Any) -> None:
    processor = make("llava")
    processor.image_processor.do_center_crop = False
    hf = cp.HFProcessor(processor)
    assert hf(SEEN)["pixel_values"].shape == (1, 3, 28, 63)
    with caplog.at_level(logging.WARNING):
        assert hf.probe(SEEN).cost == hf.cost(hf(SEEN))
    assert "images keep their shape: do_center_crop is off" in caplog.text


# Where it runs


def test_it_is_light_until_it_is_used(tmp_path: Path) -> None:
    code = (
        "import sys, pickle, counterpoise as cp; hf = cp.HFProcessor('gone'); pickle.dumps(hf); "
        "hf.spec(); sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


def test_a_copy_makes_the_same() -> None:
    for family in FAMILIES:
        hf = cp.HFProcessor(make(family))
        copied = pickle.loads(pickle.dumps(hf))
        assert copied(SEEN)["input_ids"].tolist() == hf(SEEN)["input_ids"].tolist()
        assert copied.fingerprint() == hf.fingerprint()
