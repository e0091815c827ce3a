"""The vision-language transform: what is probed is what is decoded."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from PIL import Image

from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.sources.registry import build, registered
from counterpoise.workers.tar.dataset import TarDataset
from counterpoise.workers.vision_language.token_layout import ByteTokenizer
from counterpoise.workers.vision_language.transform import VisionLanguage, image_members

SMALL: dict[str, Any] = {"tile_size": 8, "max_tiles": 4, "tokens_per_tile": 2}


def _cost(sample):
    return {
        "tiles": len(sample["pixel_values"]),
        "tokens": len(sample["input_ids"]),
        "label_tokens": int((sample["labels"] != -100).sum()),
    }


@given(
    sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=4),
    texts=st.lists(st.text(max_size=20), min_size=1, max_size=4),
    placed=st.booleans(),
    form=st.sampled_from(["conversations", "document", "txt"]),
    kind=st.sampled_from(["JPEG", "PNG", "GIF"]),
    thumbnail=st.booleans(),
    orientation=st.integers(1, 8),
)
def test_a_probed_cost_is_what_decoding_turns_out(
    picture, sizes, texts, placed, form, kind, thumbnail, orientation
):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {} if kind == "GIF" else {"exif": exif}
    raw: dict[str, Any] = {"__key__": "k"}
    for number, (width, height) in enumerate(sizes):
        raw[f"img{number}.{kind.lower()}"] = picture(width, height, kind, **options)
    texts = [text.replace("<image>", "") for text in texts]
    if placed:
        texts[0] += "<image>" * len(sizes)
    if form == "conversations":
        pairs = zip(texts, ["human", "gpt"] * 4, strict=False)
        raw["json"] = {"conversations": [{"from": who, "value": text} for text, who in pairs]}
    elif form == "document":
        raw["json"] = {"document": "".join(texts)}
    else:
        raw["txt"] = "".join(texts)
    transform = VisionLanguage(**SMALL, thumbnail=thumbnail)
    probe, sample = transform.probe(raw), transform(raw)
    assert probe.key == "k"
    assert probe.cost == _cost(sample)
    assert probe.nbytes == sum(field.nbytes for field in sample.values())
    assert (sample["input_ids"] == 259).sum() == 2 * len(sample["pixel_values"])
    assert sample["tiles_per_image"].sum() == len(sample["pixel_values"])
    assert len(sample["tiles_per_image"]) == len(sizes)


def test_fields_have_their_shapes_and_types(picture):
    sample = VisionLanguage(**SMALL)({"__key__": "a", "jpg": picture(16, 8), "txt": "hi"})
    assert {name: (field.dtype.str, field.shape) for name, field in sample.items()} == {
        "pixel_values": ("|u1", (3, 3, 8, 8)),
        "tiles_per_image": ("<i4", (1,)),
        "input_ids": ("<i4", (10,)),
        "labels": ("<i4", (10,)),
    }
    assert sample["input_ids"].tolist() == [257, *[259] * 6, 104, 105, 258]
    assert sample["labels"].tolist() == [-100] * 7 + [104, 105, 258]


def test_a_text_alone_has_no_pixels():
    sample = VisionLanguage(**SMALL)({"__key__": "a", "txt": "hi"})
    assert sample["pixel_values"].shape == (0, 3, 8, 8)
    assert sample["tiles_per_image"].shape == (0,)


def test_an_empty_text_gives_no_image_and_no_crash():
    transform = VisionLanguage(**SMALL)
    assert transform({"__key__": "a", "txt": ""})["input_ids"].tolist() == [257, 258]
    assert transform.probe({"__key__": "a", "txt": ""}).cost["tiles"] == 0


def test_images_stand_in_their_natural_order(picture):
    raw = {f"img{n}.png": picture(8, 8, seed=n) for n in (10, 2, 1, 0)}
    assert image_members(raw) == ("img0.png", "img1.png", "img2.png", "img10.png")
    pixels = VisionLanguage(**SMALL)({"__key__": "a", **raw, "txt": "x"})["pixel_values"]
    alone = [VisionLanguage(**SMALL)({"__key__": "a", "png": raw[n]}) for n in image_members(raw)]
    assert np.array_equal(pixels, np.concatenate([one["pixel_values"] for one in alone]))


@pytest.mark.parametrize("data", [b"", b"version https://git-lfs", b"\x89PNG\r\n\x1a\n"])
def test_a_broken_image_is_named_with_its_member(data):
    transform = VisionLanguage(**SMALL)
    for use in (transform, transform.probe):
        with pytest.raises(SampleError, match=r"sample 'a': img1\.jpg: UnidentifiedImageError"):
            use({"__key__": "a", "img1.jpg": data, "txt": "x"})


@pytest.mark.parametrize(
    ("side", "told"), [(60000, "DecompressionBombError"), (2000, "2000x2000 is over the limit")]
)
def test_a_bomb_is_named_with_its_sample_member_and_shard(shard, picture, side, told):
    header = picture(8, 8, "BMP")
    bomb = header[:18] + side.to_bytes(4, "little") * 2 + header[26:]
    path = shard("a.tar", {"k.img1.bmp": bomb, "k.txt": "x"})
    dataset = TarDataset(path, VisionLanguage(**SMALL, max_pixels=1 << 20))
    for action in (dataset.load, dataset.probe):
        with pytest.raises(SampleError, match=rf"sample 'k' of .*a\.tar: img1\.bmp: {told}"):
            action(0)


def test_the_users_tokenizer_and_ids_are_used():
    transform = VisionLanguage(
        tokenizer=lambda text: [len(word) for word in text.split()],
        image_token_id=99,
        eos_token_id=77,
        human="a question follows",
        **SMALL,
    )
    turns = [{"from": "human", "value": "how are you"}, {"from": "gpt", "value": "very well"}]
    sample = transform({"__key__": "a", "json": {"conversations": turns}})
    assert sample["input_ids"].tolist() == [1, 8, 7, 3, 3, 3, 4, 4, 77]
    assert sample["labels"].tolist() == [-100] * 6 + [4, 4, 77]


def test_a_tokenizer_without_image_id_needs_one():
    with pytest.raises(ValueError, match="give image_token_id"):
        VisionLanguage(tokenizer=lambda _: [1])


@pytest.mark.parametrize(
    "setting", [{"tile_size": 0}, {"max_tiles": 0}, {"tokens_per_tile": 0}, {"max_tokens": 0}]
)
def test_settings_are_bounded(setting):
    with pytest.raises(ValueError, match=f"{next(iter(setting))} must be 1 to"):
        VisionLanguage(**setting)


@pytest.mark.parametrize("resize", ["torch", "pillow"])
def test_a_spec_makes_the_same_transform_again(picture, resize):
    transform = VisionLanguage(**SMALL, max_tokens=50, thumbnail=False, resize=resize)
    again = build(json.loads(json.dumps(transform.spec())), registered())
    assert again.fingerprint() == transform.fingerprint()
    raw = {"__key__": "a", "jpg": picture(30, 20), "txt": "hi"}
    for name, field in transform(raw).items():
        assert np.array_equal(field, again(raw)[name])


def test_fingerprints_tell_settings_and_tokenizers_apart():
    class Shouting(ByteTokenizer):
        def __call__(self, text):
            return super().__call__(text.upper())

    class Cutting(Shouting):
        def __call__(self, text):
            return super().__call__(text)[:2048]

    prints = {
        VisionLanguage(**SMALL).fingerprint(),
        VisionLanguage(**{**SMALL, "tile_size": 16}).fingerprint(),
        VisionLanguage(**SMALL, resize="pillow").fingerprint(),
        VisionLanguage(lambda _: [1], image_token_id=2, **SMALL).fingerprint(),
        VisionLanguage(lambda _: [1, 1], image_token_id=2, **SMALL).fingerprint(),
        VisionLanguage(Shouting(), **SMALL).fingerprint(),
        VisionLanguage(Cutting(), **SMALL).fingerprint(),
    }
    assert len(prints) == 7


def test_a_transform_with_a_tokenizer_of_the_users_can_be_pickled() -> None:
    transform = VisionLanguage(tokenizer=_Words(), image_token_id=0)
    again = pickle.loads(pickle.dumps(transform))
    assert again.fingerprint() == transform.fingerprint()


class _Words:
    def __call__(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]


def test_a_tokenizer_that_returns_no_ids_is_refused_with_the_form_that_does():
    def hugging_face(text):
        return {"input_ids": [1] * len(text), "attention_mask": [1] * len(text)}

    transform = VisionLanguage(tokenizer=hugging_face, image_token_id=9)
    for use in (transform.fingerprint, lambda: transform({"__key__": "a", "txt": "words"})):
        with pytest.raises(TypeError, match=r"returned a dict.*add_special_tokens=False"):
            use()


@pytest.mark.parametrize(
    "found",
    [
        [1.0, 2.0], torch.tensor([1.0]), np.array([[1, 2]]), [[1], [2, 3]], [1, None], "12", None,
        np.array([True]), [1 << 31], torch.ones(1, requires_grad=True),
    ],
    ids=lambda found: type(found).__name__,
)  # fmt: skip
def test_what_is_no_list_of_ids_is_an_error_that_names_sample_and_tokenizer(found):
    transform = VisionLanguage(tokenizer=lambda _: found, image_token_id=9)
    for use in (transform, transform.probe):
        with pytest.raises(
            SampleError, match=r"sample 'a': function returned .*flat list of token"
        ):
            use({"__key__": "a", "txt": "words"})
    with pytest.raises(ValueError, match="flat list of token ids: whole numbers"):
        transform.fingerprint()


@pytest.mark.parametrize(
    "found",
    [[1, 2], (1, 2), np.array([1, 2], np.uint64), torch.tensor([1, 2]), [np.int8(1), np.int8(2)]],
    ids=lambda found: type(found).__name__,
)
def test_ids_may_come_in_any_integers(found):
    transform = VisionLanguage(tokenizer=lambda _: found, image_token_id=9)
    ids = transform({"__key__": "a", "txt": "words"})["input_ids"]
    assert (ids.tolist(), ids.dtype) == ([1, 2], np.int32)


def test_a_text_may_have_no_tokens():
    transform = VisionLanguage(tokenizer=lambda _: [], image_token_id=9, eos_token_id=3)
    assert transform({"__key__": "a", "txt": "words"})["input_ids"].tolist() == [3]
