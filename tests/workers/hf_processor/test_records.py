"""Records of all forms become the same chat, and wrong ones are errors that name them."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from counterpoise.workers import SampleError
from counterpoise.workers.hf_processor.files import open_pixels, read_size
from counterpoise.workers.hf_processor.records import find_key, read_record

MARKED = "<image>what is it?"
IMAGE, TEXT = {"type": "image"}, {"type": "text", "text": "what is it?"}
ANSWER = {"role": "assistant", "content": "a cat"}
SAID = [
    {"role": "user", "content": [IMAGE, TEXT]},
    {"role": "assistant", "content": [{"type": "text", "text": "a cat"}]},
]
LLAVA = [{"from": "human", "value": "<image>what is it?"}, {"from": "gpt", "value": "a cat"}]
CAT = b"the cat's bytes"
URL = "https://example.com/cat.jpg"


def part(**what):
    return {"messages": [{"role": "user", "content": [what, TEXT]}, ANSWER]}


FORMS = {
    "TRL": {"messages": [{"role": "user", "content": "what is it?"}, ANSWER], "images": [CAT]},
    "marks": {
        "messages": [{"role": "user", "content": "<image>what is it?"}, ANSWER],
        "image": CAT,
    },
    "HF": {"messages": [{"role": "user", "content": [IMAGE, TEXT]}, ANSWER], "images": [CAT]},
    "HF inside": part(type="image", image=CAT),
    "HF in a table": part(type="image", image=CAT, url=None, text=None),
    "OpenAI": part(type="image_url", image_url={"url": CAT}),
    "LLaVA": {"id": "7", "image": CAT, "conversations": LLAVA},
    "ShareGPT in a tar": {"__key__": "a", "json": {"conversations": LLAVA}, "jpg": CAT},
    "a list in a tar": {"__key__": "a", "json": LLAVA, "jpg": CAT},
    "null": {"messages": None, "conversations": LLAVA, "image": None, "images": [CAT]},
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_are_one_chat(form):
    chat = read_record(FORMS[form])
    assert list(chat.messages) == SAID
    assert chat.images == (CAT,)
    assert not chat.is_document


def test_images_stand_where_they_are_named_and_the_rest_in_order():
    content = [{"type": "image", "image": b"b"}, IMAGE, TEXT, IMAGE]
    chat = read_record(
        {"messages": [{"role": "user", "content": content}, ANSWER], "images": [1, 2]}
    )
    assert chat.images == (b"b", 1, 2)


def test_images_without_a_place_come_before_what_the_user_says_first():
    system = {"role": "system", "content": "be brief"}
    chat = read_record({"messages": [system, *FORMS["TRL"]["messages"]], "images": [1, 2]})
    assert [each["role"] for each in chat.messages] == ["system", "user", "assistant"]
    assert chat.messages[1]["content"] == [IMAGE, IMAGE, TEXT]


def test_a_document_is_learned_whole():
    chat = read_record({"__key__": "a", "json": {"document": "see <image>here"}, "jpg": CAT})
    assert chat.is_document
    assert chat.messages[0]["content"][1] == IMAGE
    assert read_record({"text": "just words"}).is_document
    assert read_record({"__key__": "a", "txt": "just words"}).is_document


def test_calls_of_tools_and_other_keys_stay():
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]}
    answer = {"role": "tool", "content": "12", "name": "look"}
    chat = read_record(
        {"messages": [SAID[0] | {"content": "?"}, call, answer, ANSWER], "tools": [1]}
    )
    assert chat.messages[1] == {**call, "content": []}
    assert chat.messages[2]["name"] == "look"
    assert chat.tools == [1]


def test_the_name_is_that_of_the_tar_or_of_the_record():
    named = [{"__key__": "a", "id": 1}, {"id": 3}, {"key": "k"}, {}, 3]
    assert [find_key(each) for each in named] == ["a", "3", "k", "", ""]


ASKED = [{"role": "user", "content": "?"}]
WRONG = {
    "1 placeholders for 2 images": {"messages": SAID, "images": [1, 2]},
    "2 placeholders for 0 images": {"messages": [*SAID, SAID[0]]},
    "turn 0 is from 'narrator'; known are system": {"messages": [{"role": "narrator"}]},
    r"messages is \[\], needed is a list of at least one": {"messages": []},
    "messages is 'hello', needed is a list": {"messages": "hello"},
    r"no turn of the assistant, of which to learn \(turns of: user\)": {
        "messages": [{"role": "user", "content": "?"}]
    },
    "turn 0 has no text: its content is 3": {"messages": [{"role": "user", "content": 3}]},
    "turn 0 is a str, not an object": {"messages": ["hello"]},
    "no text: needed is one of messages, conversations.*has: question": {"question": "?"},
    "known are parts of the types text, image": part(type="file", file="v.pdf"),
    "a list of lists: one record at a time .* use .over": {"messages": [SAID, SAID]},
    "document is a int, not a text": {"document": 3},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_record_is_named_and_says_what_is_needed(message):
    record = {"__key__": "p7", "json": WRONG[message]}
    if "images" in WRONG[message]:
        record = {"id": "p7", **WRONG[message]}
    with pytest.raises(SampleError, match=f"sample 'p7': .*{message}"):
        read_record(record)


def test_what_is_no_mapping_is_no_record():
    with pytest.raises(SampleError, match="a record is a str, needed is a mapping"):
        read_record("hello")


def file_of(image: Image.Image, form="PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
PICTURE = Image.fromarray(PIXELS)
BYTES = file_of(PICTURE)
DATA_URL = f"data:image/png;base64,{base64.b64encode(BYTES).decode()}"


@pytest.mark.parametrize(
    ("image", "record"),
    [
        (PICTURE, {}), (PIXELS, {}), (BYTES, {}), (io.BytesIO(BYTES), {}),
        ({"bytes": BYTES, "path": None}, {}), ({"bytes": None, "path": "in/cat.png"}, {}),
        (DATA_URL, {}), ("in/cat.png", {}), (Path("in/cat.png"), {}),
        ("img0.png", {"__key__": "a/p7", "img0.png": BYTES}),
        ("a/p7.img0.png", {"__key__": "a/p7", "img0.png": BYTES}),
        ("p7.IMG0.png", {"__key__": "a/p7", "img0.png": BYTES}),
        (URL, {"__key__": "a", URL: BYTES}),
    ],
)  # fmt: skip
def test_images_of_all_kinds_are_the_same_pixels(image, record, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/cat.png").write_bytes(BYTES)
    assert read_size(image, record, tmp_path, 100) == (8, 6)
    opened = open_pixels(image, record, tmp_path, 100)
    assert opened.mode == "RGB"
    assert np.array_equal(np.asarray(opened), PIXELS)


def test_files_are_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    PICTURE.save(file, "PNG", exif=exif)
    assert read_size(file.getvalue(), {}, None, 100) == (6, 8)
    assert open_pixels(file.getvalue(), {}, None, 100).size == (6, 8)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (URL, "is at 'https://example.com/cat.jpg', and nothing is fetched"),
        ("s3://bucket/cat.jpg", "nothing is fetched"), ("cat.png", "there is none below"),
        ("../secret.png", "which is not below"), ("/etc/passwd", "which is not below"),
        ("data:image/png;base64,@@@", "is no base64"),
        (7, "an image is a int; known are Pillow's images"),
        (PIXELS.astype(np.float32), "needed is uint8"), (b"no image", "UnidentifiedImageError"),
        (file_of(Image.new("RGB", (11, 11))), "over the limit of 100 pixels"),
    ],
)  # fmt: skip
def test_an_image_that_cannot_be_opened_says_why(image, message, tmp_path):
    for look in (open_pixels, read_size):
        with pytest.raises(ValueError, match=message):
            look(image, {}, tmp_path, 100)


def test_files_are_refused_where_no_folder_is_given():
    with pytest.raises(ValueError, match="give media_root="):
        open_pixels("cat.png", {}, None, 100)
