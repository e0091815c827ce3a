"""What a video costs is what decoding it gives, whatever its container, codec, rate and size."""

import errno
import io
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")

from counterpoise.workers.media import (
    FrameRule,
    MediaError,
    decode_video,
    probe_video,
    video as module,
)
from tests.workers.media.making import COUNT, FPS, audio, numbers, video

RULES = [
    FrameRule(fps=2), FrameRule(fps=3.3, max_frames=9, multiple=2), FrameRule(frames=7),
    FrameRule(fps=1000), FrameRule(fps=0.01, min_frames=4),
]  # fmt: skip


def probed(data: Any, rule: FrameRule, **given: Any) -> tuple[int, int, int, int]:
    info = probe_video(data, rule, **given)
    return info.frames, info.height, info.width, 3


CONTAINERS = [
    ("mp4", "libx264"), ("webm", "libvpx"), ("matroska", "libx264"), ("avi", "mpeg4"),
    ("mpegts", "libx264"),
]  # fmt: skip
MORE = [
    pytest.param(*each, marks=pytest.mark.long)
    for each in [
        ("mp4", "libx265"), ("mov", "mpeg4"), ("webm", "libvpx-vp9"), ("matroska", "ffv1"),
        ("mp4", "libsvtav1"), ("flv", "libx264"), ("ogg", "libvpx"),
    ]
]  # fmt: skip


@pytest.mark.parametrize(("container", "codec"), [*CONTAINERS, *MORE])
def test_what_is_probed_is_what_is_decoded(container: str, codec: str) -> None:
    data = video(container, codec)
    for rule in RULES:
        found = decode_video(data, rule)
        assert found.shape == probed(data, rule)
        places = [k * COUNT // len(found) for k in range(len(found))]
        assert np.abs(np.subtract(numbers(found), places)).max() <= (codec == "libsvtav1")


def test_rates_are_never_raised_and_numbers_are_kept() -> None:
    data = video(count=25)
    counts = {rule: probe_video(data, rule).frames for rule in RULES}
    assert [*counts.values()] == [5, 8, 7, 25, 4]
    info = probe_video(data)
    assert (info.seconds, info.fps, info.frames) == (2.5, FPS, 5)
    assert probe_video(video(count=3), FrameRule(fps=2, min_frames=4)).frames == 3


@pytest.mark.parametrize("options", [{}, {"movflags": "frag_keyframe+empty_moov"}])
def test_frames_of_a_variable_rate_are_those_that_are_shown_then(options: Any) -> None:
    times = [0, 10, 20, 900, 910, 1500, 1510, 3000, 3100, 3990]
    data = video(count=10, times_ms=times, codec_options={"bf": "0"}, **options)
    rule = FrameRule(frames=8)
    info, found = probe_video(data, rule), decode_video(data, rule)
    length_ms = 1000 * info.seconds
    assert 3990 <= length_ms < 4200
    shown = [max(k for k, at in enumerate(times) if at <= n * length_ms / 8) for n in range(8)]
    assert numbers(found) == shown
    assert info.frames == 8


def test_a_file_without_a_length_is_read_through_and_not_decoded(monkeypatch: Any) -> None:
    data = video("webm", "libvpx", live="1", cluster_time_limit="500")
    whole = video("webm", "libvpx")
    for rule in RULES:
        assert probed(data, rule) == probed(whole, rule) == decode_video(data, rule).shape
        assert (decode_video(data, rule) == decode_video(whole, rule)).all()


def test_sound_that_goes_on_for_longer_is_none_of_a_videos_length() -> None:
    for container in ("webm", "matroska"):
        data = video(container, "libvpx", sound_s=9)
        assert probe_video(data).seconds == COUNT / FPS
        assert len(decode_video(data)) == probe_video(data).frames == 12


@pytest.mark.parametrize("container", ["mp4", "matroska"])
@pytest.mark.parametrize("turned", [90, 180, -90])
def test_turned_videos_are_upright(turned: int, container: str) -> None:
    data, rule = video(container, turned=turned), FrameRule(frames=2)
    found = decode_video(data, rule)
    assert found.shape == probed(data, rule)
    assert found.shape[1:3] == ((48, 64) if turned == 180 else (64, 48))
    # What was at the top left is, turned to the left by so much, at:
    corner = {90: (-1, 0), 180: (-1, -1), -90: (0, -1)}[turned]
    assert found[0][corner].tolist() == pytest.approx([255] * 3, abs=3)
    assert [found[0][y, x, 0] > 200 for y in (0, -1) for x in (0, -1)].count(True) == 1


@pytest.mark.parametrize(("width", "height"), [(63, 47), (2, 2), (17, 200)])
def test_odd_sizes(width: int, height: int) -> None:
    for container, codec in (("avi", "mpeg4"), ("webm", "libvpx")):
        data = video(container, codec, width=width, height=height, count=4)
        found = decode_video(data, FrameRule(frames=3))
        assert found.shape == probed(data, FrameRule(frames=3)) == (3, height, width, 3)


def test_frames_are_resized_by_a_function_that_sees_how_many_there_are() -> None:
    def size(frames: int, height: int, width: int) -> tuple[int, int]:
        return height // 2 + frames, 28 * (width // 28)

    for turned in (0, 90):
        data = video(turned=turned)
        found = decode_video(data, FrameRule(frames=4), size)
        assert found.shape == probed(data, FrameRule(frames=4), size=size)
        assert found.shape == ((4, 28, 56, 3) if not turned else (4, 36, 28, 3))
        assert numbers(found) == [0, 15, 30, 45]
    with pytest.raises(MediaError, match="0 x 64 has no pixels"):
        probe_video(video(), size=lambda _, __, width: (0, width))


@pytest.mark.parametrize(("container", "codec"), [*CONTAINERS, MORE[0], MORE[2]])
def test_seeking_finds_the_frames_that_decoding_all_finds(
    container: str, codec: str, monkeypatch: Any
) -> None:
    data = video(container, codec, count=400, codec_options={"g": "25"})
    rules = [FrameRule(frames=3), FrameRule(fps=0.19)]
    found = [decode_video(data, rule) for rule in rules]
    seeks, sought = list[int](), module._seek_frames

    def counted(video: Any, pts: int) -> Any:
        seeks.append(pts)
        return sought(video, pts)

    monkeypatch.setattr(module, "_seek_frames", counted)
    again = [decode_video(data, rule) for rule in rules]
    assert seeks
    monkeypatch.setattr(module, "SEEK_S", 1e9)
    for rule, *both in zip(rules, found, again, strict=True):
        assert all((each == decode_video(data, rule)).all() for each in both)


def test_where_seeking_comes_out_late_all_frames_are_decoded(monkeypatch: Any) -> None:
    data, rule = video(count=300, codec_options={"g": "25"}), FrameRule(frames=4)
    expected, sought, asked = decode_video(data, rule), module._seek_frames, list[int]()

    def late(video: Any, pts: int) -> Any:
        asked.append(pts)
        return sought(video, pts if pts == video.first.pts else pts + 60_000)

    monkeypatch.setattr(module, "_seek_frames", late)
    assert (decode_video(data, rule) == expected).all()
    assert len(asked) == 2  # once late, once to the beginning, and not again


def test_paths_bytes_and_files_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(video())
    with path.open("rb") as file:
        forms: list[Any] = [path, str(path), path.read_bytes(), bytearray(path.read_bytes()), file]
        assert len({decode_video(form).tobytes() for form in forms}) == 1
        assert len({probe_video(form) for form in forms}) == 1


def cuts(data: bytes) -> list[int]:
    return [0, 1, 30, 300, *(len(data) * k // 20 for k in range(1, 20)), len(data) - 1]


@pytest.mark.parametrize(
    ("container", "codec", "options"),
    [("mp4", "libx264", {"movflags": "faststart"}), ("mp4", "mpeg4", {}), ("webm", "libvpx", {}),
     ("webm", "libvpx", {"live": "1"}), ("avi", "mpeg4", {}), ("mpegts", "mpeg4", {})],
)  # fmt: skip
def test_a_file_that_is_cut_off_gives_what_was_said_or_is_named(
    container: str, codec: str, options: Any
) -> None:
    data, rule, named, given = video(container, codec, **options), FrameRule(fps=2), 0, 0
    for cut in cuts(data):
        try:
            found = decode_video(data[:cut], rule, name="clip.mp4")
        except MediaError as error:
            named += str(error).startswith("clip.mp4: ")
        else:
            assert found.shape == probed(data[:cut], rule)
            given += 1
    assert given + named == len(cuts(data))
    assert named > 3


def test_bytes_that_are_wrong_somewhere_never_raise_anything_else() -> None:
    rng = np.random.default_rng(0)
    for container, codec in (("mp4", "libx264"), ("webm", "libvpx"), ("avi", "mpeg4")):
        data = np.frombuffer(video(container, codec, count=20), np.uint8)
        for _ in range(25):
            damaged = data.copy()
            damaged[rng.integers(0, len(data), 8)] = rng.integers(0, 256, 8)
            try:
                found = decode_video(damaged.tobytes(), FrameRule(frames=3), max_bytes=1 << 24)
            except MediaError:
                continue
            assert found.shape == probed(damaged.tobytes(), FrameRule(frames=3))


def test_a_header_that_lies_makes_nothing_be_allocated() -> None:
    data, rule = video("webm", "libvpx"), FrameRule(frames=20_000)
    with pytest.raises(
        MediaError, match=r"a\.webm: 20000 frames of 48 x 64 pixels are 184,320,000"
    ):
        decode_video(data, rule, max_bytes=1 << 20, name="a.webm")
    with pytest.raises(MediaError, match="over the limit"):
        probe_video(data, rule, max_bytes=1 << 20)
    # VP8 has its size in each key frame: 16383 x 16383, which the decoder refuses itself.
    huge = data.replace(b"\x9d\x01\x2a\x40\x00\x30\x00", b"\x9d\x01\x2a\xff\x3f\xff\x3f")
    assert huge != data
    with pytest.raises(MediaError):
        decode_video(huge, FrameRule(frames=1), name="huge.webm")
    longer = data.replace(b"00:00:06.000000000", b"99:00:06.000000000")
    assert longer != data
    assert probe_video(longer, FrameRule(fps=1, max_frames=6)).frames == 6
    with pytest.raises(MediaError, match=r"last frame is at 5\.90 s, and its header says 356406"):
        decode_video(longer, FrameRule(fps=1, max_frames=6))


@pytest.mark.parametrize("text", [
    "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n/etc/passwd\n#EXT-X-ENDLIST\n",
    "ffconcat version 1.0\nfile /etc/passwd\n", "no video at all" * 99,
])  # fmt: skip
def test_files_that_name_others_are_no_videos(text: str) -> None:
    with pytest.raises(MediaError, match=r"^x: "):
        probe_video(text.encode(), name="x")


def test_what_is_no_video_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        probe_video(tmp_path / "none.mp4")
    path = tmp_path / "empty.mp4"
    path.write_bytes(b"")
    with pytest.raises(MediaError, match=f"^{path}: "):
        probe_video(path)
    with pytest.raises(MediaError, match="there is no video in it"):
        probe_video(audio("OGG"))


class Failing(io.BytesIO):
    """A file on a disk that fails."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() > 900:
            raise OSError(errno.EIO, "disk")
        return super().read(min(size or 0, 64))


def test_a_failing_disk_is_not_the_videos_fault() -> None:
    with pytest.raises(OSError, match="disk") as raised:
        decode_video(Failing(video(count=300, codec_options={"g": "1"})))
    assert raised.value.errno == errno.EIO


@pytest.mark.parametrize("given", [
    {}, {"fps": 2, "frames": 3}, {"fps": 0}, {"frames": -1}, {"fps": float("inf")},
    {"fps": 1, "min_frames": 0}, {"fps": 1, "max_frames": 3, "min_frames": 4},
    {"fps": 1, "multiple": 0},
])  # fmt: skip
def test_rules_that_make_no_sense_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"frame rule|min_frames"):
        FrameRule(**given)


def test_counts_are_those_of_transformers() -> None:
    """The formula of Qwen2VLVideoProcessor.sample_frames, which needs torchvision to import."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        total, rate = int(rng.integers(4, 4000)), Fraction(int(rng.integers(5, 60)))
        fps, least, most = float(rng.uniform(0.1, 4)), 4, int(rng.integers(6, 768))
        capped = min(most, total) // 2 * 2
        wanted = min(max(total / float(rate) * fps, least), capped, total)
        rule = FrameRule(fps=fps, min_frames=least, max_frames=most, multiple=2)
        assert rule.count(total / rate, rate) == int(wanted // 2 * 2)


def test_without_pyav_it_is_said_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"counterpoise\[media\]"):
        probe_video(b"")
