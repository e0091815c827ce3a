"""HFProcessor with videos and sounds: costs from headers, forms of records, and one loop of all."""

import base64
import io
import tarfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("av")

from datasets import Dataset

import counterpoise as cp
from counterpoise import media
from counterpoise.loader.adapters.trainer import for_model
from counterpoise.loader.models.proof import check_packing
from counterpoise.workers import SampleError
from tests.workers.hf_processor.clip_families import AUDIO, ONE_SOUND, VIDEO, make
from tests.workers.hf_processor.families import PICTURE, tokenizer
from tests.workers.hf_processor.models import make_model
from tests.workers.media.making import audio, video, wave

FPS = media.FrameRule(fps=2, max_frames=7)
FIVE = media.FrameRule(frames=5)
ANSWER = {"role": "assistant", "content": "12 apples"}
TEXT = {"type": "text", "text": "How many?"}


@pytest.fixture(scope="module")
def clips() -> list[bytes]:
    """Videos: long and wide, short and high, turned, of one frame."""
    return [
        video(),
        video("webm", "libvpx", count=30, width=32, height=80),
        video(count=19, turned=90),
        video(count=1),
    ]


@pytest.fixture(scope="module")
def sounds() -> list[bytes]:
    """Sounds: at the processor's rate and at others, of one channel and two, short and long."""
    return [
        audio(),
        audio("FLAC", 50_001, 44_100, 2),
        audio("MP3", 24_000, 24_000),
        audio(samples=700),
        audio(samples=16_000 * 31),
    ]


def asked(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts, TEXT]}, ANSWER]}


def shown(value: Any) -> dict[str, Any]:
    return {"type": "video", "video": value}


def played(value: Any) -> dict[str, Any]:
    return {"type": "audio", "audio": value}


@pytest.mark.parametrize("family", VIDEO)
def test_a_probe_says_what_videos_become(family: str, clips: list[bytes]) -> None:
    # LLaVA-OneVision's samples have one number of frames
    rules = (FIVE,) if family == "llava_onevision" else (FPS, FIVE)
    for rule in rules:
        hf = cp.HFProcessor(make(family), frames=rule)
        assert hf.probes_by_size
        seen = {"type": "image", "image": PICTURE}
        records = [asked(shown(each)) for each in clips[:3]] + [
            asked(seen, shown(clips[1]), TEXT, shown(clips[0])),
            asked(),
        ]
        if family != "qwen3_vl" or rule is FIVE:  # which takes none of one frame
            records.append(asked(shown(clips[3])))
        for record in records:
            sample = hf(record)
            assert hf.probe(record).cost == hf.cost(sample)


@pytest.mark.parametrize("family", AUDIO)
def test_a_probe_says_what_sounds_become(family: str, sounds: list[bytes]) -> None:
    hf = cp.HFProcessor(make(family))
    assert hf.probes_by_size
    records = [asked(played(each)) for each in sounds]
    if family not in ONE_SOUND:
        records.append(asked(played(sounds[1]), TEXT, played(sounds[0])))
    for record in records:
        sample = hf(record)
        assert hf.probe(record).cost == hf.cost(sample)
        assert hf.cost(sample)["mel_frames"] > 0
    assert hf.cost(sample)["label_tokens"] == len(hf.tokenizer("12 apples<|im_end|>\n").input_ids)


def test_a_sample_has_what_the_processor_makes_of_the_frames_and_sounds(
    clips: list[bytes], sounds: list[bytes]
) -> None:
    processor = make("qwen2_5_omni")
    hf = cp.HFProcessor(processor, frames=FPS)
    sample = hf(asked(shown(clips[1]), played(sounds[1])))
    text = processor.apply_chat_template(
        asked(shown(None), played(None))["messages"], tokenize=False, add_generation_prompt=False
    )
    frames, samples = media.decode_video(clips[1], FPS), media.decode_audio(sounds[1])
    theirs = processor(
        text=[text], videos=[frames], audio=[samples], return_tensors="pt",
        videos_kwargs={"do_sample_frames": False},
    )  # fmt: skip
    assert sample["input_ids"].tolist() == theirs["input_ids"][0].tolist()
    for name in ("pixel_values_videos", "video_grid_thw", "input_features"):
        assert np.array_equal(sample[name], theirs[name].numpy())


def test_frames_have_the_times_at_which_they_are_shown(clips: list[bytes]) -> None:
    hf = cp.HFProcessor(make("qwen3_vl"), frames=media.FrameRule(fps=1))
    said = hf.tokenizer.decode(hf(asked(shown(clips[0])))["input_ids"])  # 6 s: at 0, 1, ... 5 s
    assert [f"<{time} seconds>" in said for time in ("0.5", "2.5", "4.5")] == [True] * 3
    half = cp.HFProcessor(make("qwen2_5_vl"), frames=media.FrameRule(fps=1, multiple=2))
    assert half(asked(shown(clips[0])))["second_per_grid_ts"].tolist() == [2.0]


def test_all_forms_of_records_are_the_same_sample(sounds: list[bytes], tmp_path: Path) -> None:
    processor = make("qwen2_5_omni")
    hf = cp.HFProcessor(processor, frames=FIVE, media_root=tmp_path)
    clip, sound = video(count=12), sounds[0]
    (tmp_path / "a.mp4").write_bytes(clip)
    (tmp_path / "a.wav").write_bytes(sound)
    coded = base64.b64encode(sound).decode()
    said = [
        {"from": "human", "value": "<video><audio>How many?"},
        {"from": "gpt", "value": "12 apples"},
    ]
    columns = {"videos": [clip], "audios": [sound]}
    forms: list[Mapping[str, Any]] = [
        asked(shown(clip), played(sound)),
        asked({"type": "video", "path": "a.mp4"}, {"type": "audio", "url": "a.wav"}),
        asked(
            {"type": "video_url", "video_url": {"url": "a.mp4"}},
            {"type": "input_audio", "input_audio": {"data": coded, "format": "wav"}},
        ),
        asked(shown({"bytes": clip, "path": None}), {"type": "audio", "base64": coded}),
        asked(shown(clip), played({"array": media.decode_audio(sound), "sampling_rate": 16_000})),
        asked(shown(clip), played(media.decode_audio(sound))),
        {"conversations": said, **columns},
        {"messages": [{"role": "user", "content": "How many?"}, ANSWER], **columns},
        {**asked({"type": "video"}, {"type": "audio"}), "video": clip, "audio": sound},
        {"__key__": "a", "json": {"conversations": said}, "mp4": clip, "wav": sound},
        {"__key__": "a", "json": asked(shown("a.mp4"), played("wav")), "mp4": clip, "wav": sound},
        hf_row(clip, sound),
    ]
    expected, cost = hf(forms[0]), hf.probe(forms[0]).cost
    for form in forms[1:]:
        found = hf(form)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in found)
        assert hf.probe(form).cost == cost


def hf_row(clip: bytes, sound: bytes) -> Mapping[str, Any]:
    """The row of a data set of Hugging Face that has files in columns."""
    from counterpoise.workers.hf_processor.source import with_files

    data = Dataset.from_list([{
        "messages": [{"role": "user", "content": "How many?"}, ANSWER],
        "videos": [{"bytes": clip, "path": None}], "audios": [{"bytes": sound, "path": None}],
    }])  # fmt: skip
    row: Mapping[str, Any] = with_files(data)[0]
    return row


def test_words_of_html_are_text_where_there_is_no_video() -> None:
    hf = cp.HFProcessor(make("qwen2_vl"), frames=FPS)
    told = {"messages": [{"role": "user", "content": "what is <video>, <audio>?"}, ANSWER]}
    assert "<video>, <audio>" in hf.tokenizer.decode(hf(told)["input_ids"])


def test_a_sample_without_clips_has_no_fields_of_them() -> None:
    assert (
        not {"input_features", "pixel_values_videos"}
        & cp.HFProcessor(make("qwen2_5_omni"), frames=FPS)(asked()).keys()
    )


# Errors


@pytest.mark.parametrize(
    ("family", "parts", "message"),
    [
        ("qwen2_vl", [shown(b"none")], "give HFProcessor frames="),
        ("qwen2_vl framed", [shown(b"none" * 99)], "a video (0): "),
        ("qwen2_vl framed", [played(b"")], "1 sounds, and Qwen2VLProcessor takes none"),
        ("internvl framed", [shown(b"")], "give the frames as images"),
        (
            "qwen2_audio",
            [played("https://a.org/b.wav")],
            "a sound is at 'https://a.org/b.wav', and",
        ),
        ("qwen2_audio", [played("b.wav")], "give media_root="),
        ("qwen2_audio", [played(np.zeros((2, 9)))], "needed are floats (samples,) at 16000 Hz"),
        ("qwen2_audio", [played({"array": [0.5], "sampling_rate": 8000})], "at 8000 Hz, needed"),
        ("qwen2_audio", [shown(b"")], "1 videos, and Qwen2AudioProcessor takes none"),
        ("qwen2_audio", [{"type": "audio"}], "1 placeholders for 0 sounds: give as many <audio>"),
    ],
)
def test_what_cannot_be_taken_says_why(family: str, parts: list[Any], message: str) -> None:
    name, _, framed = family.partition(" ")
    hf = cp.HFProcessor(make(name), frames=FPS if framed else None)
    for look in (hf, hf.probe):
        with pytest.raises(SampleError) as error:
            look({"id": "p7", **asked(*parts)})
        assert message in str(error.value)
        assert "sample 'p7'" in str(error.value)


def test_a_text_model_takes_no_sound() -> None:
    with pytest.raises(SampleError, match=r"1 sounds, and .* takes none"):
        cp.HFProcessor(tokenizer())(asked(played(audio())))


def test_videos_of_llava_onevision_have_one_number_of_frames(clips: list[bytes]) -> None:
    hf = cp.HFProcessor(make("llava_onevision"), frames=FPS)
    for look in (hf, hf.probe):
        with pytest.raises(SampleError, match=r"6 and 7 frames.*FrameRule\(frames=8\)"):
            look(asked(shown(clips[0]), shown(clips[1])))
    samples = [hf(asked(shown(each))) for each in clips[:2]]
    with pytest.raises(ValueError, match="pixel_values_videos"):
        hf.collate_samples(samples)


def test_clips_are_never_cut(sounds: list[bytes]) -> None:
    processor = make("qwen2_audio")
    whole = cp.HFProcessor(processor)(asked(played(sounds[0])))
    cut = cp.HFProcessor(processor, max_length=30, overlong="cut")
    for look in (cut, cut.probe):
        with pytest.raises(SampleError, match="the last image, video or sound ends at token"):
            look(asked(played(sounds[0])))
    assert len(whole["input_ids"]) > 30


def test_what_is_no_processor_of_chats_says_so() -> None:
    from transformers import WhisperFeatureExtractor, WhisperProcessor

    words = tokenizer()
    words.__class__ = type("WhisperTokenizerFast", (type(words),), {})
    processor = make("qwen2_audio")
    processor.__class__ = type("Whisper", (WhisperProcessor,), {})
    assert isinstance(processor.feature_extractor, WhisperFeatureExtractor)
    with pytest.raises(TypeError, match="it is no processor of chats"):
        cp.HFProcessor(processor)(asked(played(wave(16_000, 16_000)[:, 0])))


def test_another_feature_extractor_is_run_to_be_measured(sounds: list[bytes]) -> None:
    hf = cp.HFProcessor(make("gemma3n"))
    assert not hf.probes_by_size
    for record in (asked(played(sounds[1]), TEXT, played(sounds[0])), asked()):
        sample = hf(record)
        assert hf.probe(record).cost == hf.cost(sample)
    # 20,011 samples, filled up to a multiple of 128: windows of 513 each 160
    assert hf.probe(asked(played(sounds[0]))).cost["mel_frames"] == (20_096 - 513) // 160 + 1


def test_the_rule_of_frames_travels_to_workers_elsewhere() -> None:
    hf = cp.HFProcessor("/models/qwen", frames=FPS)
    arguments = hf.spec()["args"]
    assert cp.HFProcessor(**arguments).frames == FPS
    assert arguments["frames"]["fps"] == 2


# One loop


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 samples: each with a chat, and 0 to 2 images, videos and sounds."""
    draw = np.random.default_rng(0)
    videos = [video(count=count, width=48 + 16 * k, height=48) for k, count in enumerate((5, 30))]
    heard = [("wav", audio(samples=9_000)), ("flac", audio("FLAC", 40_000, 44_100, 2))]
    file = io.BytesIO()
    PICTURE.save(file, "PNG")
    path = tmp_path_factory.mktemp("clips") / "all.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(30):
            text = "how many apples " * int(draw.integers(1, 6))
            chat = f'[{{"from": "human", "value": "{text}"}}, {{"from": "gpt", "value": "12"}}]'
            bodies = {"json": chat.encode()}
            bodies |= {f"i{k}.png": file.getvalue() for k in range(draw.integers(0, 3))}
            bodies |= {f"v{k}.mp4": videos[k] for k in range(draw.integers(0, 3))}
            for k in range(draw.integers(0, 3)):
                bodies[f"a{k}.{heard[k][0]}"] = heard[k][1]
            for name, body in bodies.items():
                info = tarfile.TarInfo(f"s{number:02}.{name}")
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
    return path


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_one_loop_of_texts_images_videos_and_sounds(shard: Path, layout: Any) -> None:
    hf = cp.HFProcessor(make("qwen2_5_omni"), frames=FPS)
    data = cp.TarDataset(shard, hf)
    budgets = {
        "tokens": 700, "patches": 1200, "frames": 24, "mel_frames": 500, "label_tokens": 40,
    }  # fmt: skip
    loader = cp.DataLoader(
        data, shuffle=True, num_workers=1,
        balance=cp.Balance(budgets=budgets, samples_per_step=10, accumulate="auto", layout=layout),
    )  # fmt: skip
    costs = {f"s{n:02}": Counter(data.probe(n).cost) for n in range(30)}
    assert all(sum(each[name] for each in costs.values()) for name in budgets)
    seen = []
    for batch, info in loader.with_info():
        total = sum((costs[key] for key in info.keys), Counter())
        padded = ("tokens", "frames", "mel_frames") if layout == "padded" else ()
        for name in budgets:
            most = max(costs[key][name] for key in info.keys)
            planned = len(info.keys) * most if name in padded else total[name]
            assert info.costs[name] == planned
        assert all(info.costs[name] <= most for name, most in budgets.items()) or info.samples == 1
        patches = len(batch.get("pixel_values", ())) + len(batch.get("pixel_values_videos", ()))
        assert patches == total["patches"]
        assert int((batch["labels"] != -100).sum()) == total["label_tokens"]
        if "feature_attention_mask" in batch:
            assert int(batch["feature_attention_mask"].sum()) == total["mel_frames"]
            assert batch["input_features"].shape[1:] == (16, 200)
        if "video_grid_thw" in batch:
            assert int(batch["video_grid_thw"][:, 0].sum()) * 2 == total["frames"]
        seen += info.keys
    assert sorted(seen) == sorted(costs)


# In a model


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_audio_short"])
def test_a_pack_is_trained_as_its_samples_one_by_one(family: str, clips: list[bytes]) -> None:
    processor = make(family)
    hf = cp.HFProcessor(processor, frames=FPS)
    model = make_model(family.removesuffix("_short"), processor)
    records = [asked(played(audio(samples=n))) for n in (9_000, 14_321)]
    if family == "qwen2_5_vl":
        seen = {"type": "image", "image": PICTURE}
        records = [asked(shown(clips[0]), seen), asked(shown(clips[1]), shown(clips[2])), asked()]
    samples = [hf(each) for each in records]

    def trained(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of the losses, and all gradients."""
        model.zero_grad()
        given = {name: value for name, value in batch.items() if name != "labels"}
        for name in given.keys() & {"pixel_values", "pixel_values_videos", "input_features"}:
            given[name] = given[name].double()
        logits = model(**given).logits[:, :-1].flatten(0, 1)
        labels = batch["labels"][:, 1:].flatten()
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        loss.backward()
        every = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        return loss.detach(), torch.cat([each.flatten() for each in every])

    packed = trained(for_model(cp.loader.collate_packed(samples), model))
    single = [trained(hf.collate_samples([each])) for each in samples]
    for of_pack, of_each in zip(packed, zip(*single, strict=True), strict=True):
        assert torch.allclose(of_pack, sum(of_each), rtol=1e-9, atol=1e-9)
    assert check_packing(model, images=True).status == "exact"


@pytest.mark.long
@pytest.mark.parametrize("family", [*VIDEO, *AUDIO[:-1]])
def test_a_probe_says_what_random_clips_become(family: str) -> None:
    draw = np.random.default_rng(2)
    processor = make(family)
    for _ in range(30):
        if family in VIDEO:
            rule = media.FrameRule(
                fps=float(draw.choice([0.7, 1, 2, 3.3])), min_frames=2,
                max_frames=int(draw.integers(2, 12)), multiple=int(draw.integers(1, 3)),
            )  # fmt: skip
            if family == "llava_onevision" or draw.random() < 0.3:
                rule = media.FrameRule(frames=int(draw.integers(2, 9)))
            width, height = (2 * draw.integers(8, 70, 2)).tolist()
            clip = video(
                *draw.choice([("mp4", "libx264"), ("webm", "libvpx")]).tolist(),
                count=int(draw.integers(1, 70)), width=width, height=height,
                turned=int(draw.choice([0, 90])) if draw.random() < 0.3 else 0,
            )  # fmt: skip
            hf, record = cp.HFProcessor(processor, frames=rule), asked(shown(clip), shown(clip))
        else:
            kind = str(draw.choice(["WAV", "FLAC", "MP3"]))
            sound = audio(
                kind, int(draw.integers(1_000, 900_000)), int(draw.choice([16_000, 44_100]))
            )
            hf, record = cp.HFProcessor(processor), asked(played(sound))
        assert hf.probe(record).cost == hf.cost(hf(record))
