"""Which text a sample has, and where its images stand in it."""

import pytest

from counterpoise.workers.vision_language.token_layout import Turn, turns


def _human(text):
    return {"from": "human", "value": text}


def _gpt(text):
    return {"from": "gpt", "value": text}


def test_llava_and_openai_forms_are_the_same():
    llava = {"json": {"conversations": [_human("a <image> b"), _gpt("c")]}}
    openai = {
        "json": [{"role": "user", "content": "a <image> b"}, {"role": "assistant", "content": "c"}]
    }
    wanted = (Turn("human", ("a ", " b")), Turn("assistant", ("c",)))
    assert turns(llava, 1) == turns(openai, 1) == wanted


def test_a_document_is_one_turn():
    raw = {"json": {"conversations": None, "document": "x<image>y<image>"}}
    assert turns(raw, 2) == (Turn("document", ("x", "y", "")),)


@pytest.mark.parametrize(
    "raw", [{"txt": "a cat"}, {"json": {"caption": "a cat"}}, {"json": {"id": 7}, "txt": "a cat"}]
)
def test_a_caption_follows_its_image(raw):
    assert turns(raw, 1) == (Turn("document", ("", "a cat")),)


def test_images_without_placeholders_come_first():
    raw = {"json": {"conversations": [_human("a"), _gpt("b")]}}
    assert turns(raw, 2)[0] == Turn("human", ("", "", "a"))
    assert turns(raw, 2)[1] == Turn("assistant", ("b",))


@pytest.mark.parametrize("images", [1, 3])
def test_placeholders_and_images_must_agree(images):
    raw = {"json": {"conversations": [_human("<image><image>"), _gpt("b")]}}
    with pytest.raises(ValueError, match=f"2 <image> placeholders for {images} images"):
        turns(raw, images)


def test_a_placeholder_without_any_image_is_an_error():
    with pytest.raises(ValueError, match="1 <image> placeholders for 0 images"):
        turns({"txt": "see <image>"}, 0)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (7, "is a int, not an object"),
        ({"conversations": [_human("a"), {"from": "gpt"}]}, "turn 1 has no text"),
    ],
)
def test_malformed_text_is_named(told, reason):
    with pytest.raises(ValueError, match=reason):
        turns({"json": told}, 0)


def test_a_sample_of_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"no text and no image \(members: mp3\)"):
        turns({"__key__": "a", "mp3": b""}, 0)


def test_an_image_alone_and_an_empty_text_alone_are_samples():
    assert turns({"jpg": b""}, 1) == (Turn("document", ("", "")),)
    assert turns({"txt": ""}, 0) == (Turn("document", ("",)),)
