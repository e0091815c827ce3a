"""Records of all forms come out in the form of a tar's samples."""

import base64
import io
from typing import Any

import pytest

from counterpoise.workers import VisionLanguage
from counterpoise.workers.hf_processor.records import read_record
from counterpoise.workers.jsonl.record_form import raw_form

PNG = "data:image/png;base64," + base64.b64encode(b"pixels").decode()


def read(name):
    return f"<{name}>".encode()


def form(record):
    raw = raw_form(record, read)
    return raw["json"], {name: raw[name] for name in raw if name != "json"}


def url(text):
    return {"type": "image_url", "image_url": {"url": text}}


def test_a_record_without_media_is_itself():
    record = {"text": "hi", "image": None, "images": [], "n": 1}
    assert raw_form(record, read) == {"json": record}


@pytest.mark.parametrize(
    ("columns", "members"),
    [
        ({"image": "a/b.PNG"}, {"png": b"<a/b.PNG>"}),
        ({"images": ["b.webp"]}, {"webp": b"<b.webp>"}),
        ({"images": ["a", "b.gif"]}, {"img0.jpg": b"<a>", "img1.gif": b"<b.gif>"}),
        ({"images": [None, {"path": "x.png"}, {"url": "y.jpg"}]},
         {"img0.png": b"<x.png>", "img1.jpg": b"<y.jpg>"}),
        ({"image": PNG}, {"png": b"pixels"}),
        ({"image": "a.gif", "video": "b.avi", "audios": ["c.mp3", "d"]},
         {"gif": b"<a.gif>", "avi": b"<b.avi>", "audio0.mp3": b"<c.mp3>", "audio1.wav": b"<d>"}),
    ],
)  # fmt: skip
def test_columns_become_members(columns, members):
    assert form({"text": "t", **columns}) == ({"text": "t", **columns}, members)


def test_columns_of_bytes_leave_the_record():
    record = {"text": "t", "images": [{"bytes": b"1", "path": "a.png"}, {"bytes": b"2"}]}
    assert form(record) == ({"text": "t"}, {"img0.png": b"1", "img1.jpg": b"2"})


def test_parts_that_name_a_file_name_its_member():
    said: list[Any] = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [url("a.png"), {"type": "text", "text": "and"}, url(PNG)]},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}], "weight": 1},
    ]
    record, members = form({"messages": said})
    assert members == {"img0.png": b"<a.png>", "img1.png": b"pixels"}
    assert record["messages"] == [
        said[0],
        {
            "role": "user",
            "content": [
                {"type": "image", "image": "img0.png"},
                {"type": "text", "text": "and"},
                {"type": "image", "image": "img1.png"},
            ],
        },
        said[2],
    ]
    assert said[1]["content"][0] == url("a.png")


def test_sounds_in_parts_become_members_too():
    sound = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    record, members = form({"messages": [{"role": "user", "content": [sound]}]})
    assert members == {"wav": b"hi"}
    assert record["messages"][0]["content"] == [{"type": "audio", "audio": "wav"}]


def test_parts_without_a_name_stand_for_the_columns():
    said = [{"role": "user", "content": [{"type": "image"}, {"type": "image"}]}]
    record = {"messages": said, "images": ["a.jpg", "b.jpg"]}
    assert form(record) == (record, {"img0.jpg": b"<a.jpg>", "img1.jpg": b"<b.jpg>"})


@pytest.mark.parametrize(
    "columns",
    [
        {"messages": "no"}, {"messages": [1, None, "x", {"content": 3}, {"content": [1]}]},
        {"conversations": {}}, {"messages": [{"content": [{"type": ["image"]}]}]},
        {"messages": [{"content": [{"type": None}]}]},
    ],
)  # fmt: skip
def test_what_is_no_chat_is_left_to_the_transform(columns):
    assert form(columns) == (columns, {})


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"image": 3}, r"^image \(jpg\) is 3: needed is a path"),
        ({"image": ""}, r"^image \(jpg\) is '': needed is a path"),
        ({"images": ["a.png", {"width": 1}]}, r"image \(img1.jpg\) is {'width': 1}: needed is a"),
        ({"audio": ""}, r"^audio \(wav\) is '': needed is a path"),
        ({"image": "data:image/png;base64,?"}, r"png\): 'data:image/png;base64' is no base64"),
        ({"image": [["a"]]}, "needed is a path"),
    ],
)
def test_a_reference_that_is_none_is_named(columns, reason):
    with pytest.raises(ValueError, match=reason):
        form(columns)


def test_headers_are_read_from_files():
    raw = raw_form({"images": [PNG, "a.png"]}, lambda name: io.BytesIO(name.encode()), True)
    assert [raw["img0.png"].read(), raw["img1.png"].read()] == [b"pixels", b"a.png"]


CHAT = [
    {"role": "user", "content": [{"type": "text", "text": "What"}, url("b.png"), url("a.jpg")]},
    {"role": "assistant", "content": "a cat"},
]
FORMS: list[dict[str, Any]] = [
    {"messages": CHAT},
    {"messages": [{"role": "user", "content": "What<image><image>"}, CHAT[1]],
     "images": ["b.png", "a.jpg"]},
    {"conversations": [{"from": "human", "value": "What<image><image>"},
                       {"from": "gpt", "value": "a cat"}], "images": ["b.png", "a.jpg"]},
]  # fmt: skip


@pytest.mark.parametrize("record", FORMS)
def test_all_forms_are_the_same_to_both_transforms(record, picture):
    files = {"b.png": picture(9, 5), "a.jpg": picture(30, 8, "JPEG")}
    raw = {"__key__": "k", **raw_form(record, files.__getitem__)}
    chat = read_record(raw)
    parts = ["text", "image", "image"]
    assert [part["type"] for part in chat.messages[0]["content"]] == parts
    found = [raw.get(each, each) if isinstance(each, str) else each for each in chat.images]
    assert found == [files["b.png"], files["a.jpg"]]
    transform = VisionLanguage(tile_size=8, max_tiles=4, tokens_per_tile=2)
    again = {"__key__": "k", **raw_form(FORMS[2], files.__getitem__)}
    (sample, other) = (transform(raw), transform(again))
    assert all((sample[name] == other[name]).all() for name in sample)
