"""What audio costs is what decoding it gives, whatever its format, channels and rate."""

import errno
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")  # with which the files are made

import soundfile

from counterpoise.workers.media import MediaError, audio as module, decode_audio, probe_audio
from counterpoise.workers.media.files import CalledFile
from tests.workers.media.making import audio, wave

FORMATS: list[tuple[str, Any]] = [
    ("WAV", {}), ("WAV", {"subtype": "FLOAT"}), ("FLAC", {}), ("MP3", {}), ("AIFF", {}),
    ("OGG", {"subtype": "VORBIS"}), ("OGG", {"subtype": "OPUS"}),
]  # fmt: skip


OTHERS = (8_000, 22_050, 44_100)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(
    "rate", [16_000, 48_000, *(pytest.param(rate, marks=pytest.mark.long) for rate in OTHERS)]
)
@pytest.mark.parametrize(("kind", "options"), FORMATS)
def test_what_is_probed_is_what_is_decoded(
    kind: str, options: Any, rate: int, channels: int
) -> None:
    if options == {"subtype": "OPUS"} and rate in (22_050, 44_100):
        pytest.skip("Opus has no such rate")
    data = audio(kind, 20_011, rate, channels, **options)
    for wanted in (16_000, None, 24_000):
        info, found = probe_audio(data, wanted), decode_audio(data, wanted)
        assert found.shape == (info.samples,)
        assert found.dtype == np.float32
        assert info.samples == -(-20_011 * (wanted or rate) // rate)
        assert (info.sampling_rate, info.channels) == (wanted or rate, channels)
        assert info.seconds == pytest.approx(20_011 / rate, abs=1e-3)
    both = decode_audio(data, mono=False)
    assert both.shape == (channels, probe_audio(data).samples)
    assert np.abs(both.mean(0) - decode_audio(data)).max() < 1e-5


def test_sound_is_the_mean_of_its_channels() -> None:
    expected = wave(20_011, 16_000, 2).mean(1)
    assert np.abs(decode_audio(audio("WAV", channels=2, subtype="FLOAT")) - expected).max() < 1e-6
    assert np.abs(decode_audio(audio("FLAC", channels=2)) - expected).max() < 1e-4


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_a_tone_stays_that_tone_at_another_rate(rate: int) -> None:
    found = decode_audio(audio("WAV", 2 * rate, rate, subtype="FLOAT"))
    expected = wave(32_000, 16_000)[:, 0]
    middle = slice(400, -400)  # the ends are filtered together with the silence around them
    assert np.abs(found - expected)[middle].max() < 5e-3


def test_what_the_new_rate_cannot_have_is_filtered_out() -> None:
    times = np.arange(44_100) / 44_100
    file = io.BytesIO()
    soundfile.write(file, np.sin(2 * np.pi * 12_000 * times), 44_100, format="WAV")
    assert np.abs(decode_audio(file.getvalue())[400:-400]).max() < 0.01


@pytest.mark.parametrize("samples", [0, 1, 7, 65_536, 65_537])
def test_short_files_and_blocks(samples: int) -> None:
    data = audio("WAV", samples, 44_100)
    assert len(decode_audio(data)) == probe_audio(data).samples == -(-samples * 160 // 441)


@pytest.mark.parametrize(("kind", "options"), FORMATS)
def test_a_file_that_is_cut_off_gives_what_was_said_or_is_named(
    kind: str, options: Any, tmp_path: Path
) -> None:
    data, named, whole = audio(kind, 48_000, 48_000, 2, **options), 0, 0
    path = tmp_path / "sound"
    for cut in [0, 1, 30, 60, *(len(data) * k // 9 for k in range(1, 9)), len(data) - 1]:
        path.write_bytes(data[:cut])
        try:
            found = decode_audio(path)
        except MediaError as error:
            named += str(error).startswith(f"{path}: ")
        else:
            assert len(found) == probe_audio(path).samples <= 16_000
            whole += 1
    assert named + whole == 13
    assert named >= 2


def test_an_mp3_without_a_length_is_measured_by_decoding() -> None:
    av = pytest.importorskip("av")
    for options in ({"write_xing": "0"}, {}):
        file = io.BytesIO()
        with av.open(file, "w", format="mp3", options=options) as made:
            stream = made.add_stream("libmp3lame", rate=44_100)
            stream.bit_rate = 128_000
            frame = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(wave(200_000, 44_100).T), format="fltp", layout="mono"
            )
            frame.sample_rate, frame.pts = 44_100, 0
            made.mux(stream.encode(frame))
            made.mux(stream.encode())
        data = file.getvalue()
        assert module._says_length(CalledFile(io.BytesIO(data))) == (options == {})
        for each in (data, b"ID3\4\0\0\0\0\x02\x01" + bytes(257) + data):
            assert len(decode_audio(each, None)) == probe_audio(each, None).samples >= 200_000


def test_an_mp3_that_cannot_be_read_to_its_end_is_refused() -> None:
    loud = np.random.default_rng(0).normal(0, 0.3, 400_000)
    file = io.BytesIO()
    with soundfile.SoundFile(
        file, "w", 44_100, 1, format="MP3", bitrate_mode="VARIABLE", compression_level=0.2
    ) as made:
        made.write(np.concatenate([loud, np.zeros(900_000)]))
    data = file.getvalue()
    assert probe_audio(data, None).samples == 1_300_000
    second = data.index(b"\xff\xfb", data.index(b"Xing"))
    with pytest.raises(MediaError, match=r"x\.mp3: an MP3 of changing bit rate without a length"):
        probe_audio(data[second:], name="x.mp3")


def test_a_header_that_lies_makes_nothing_be_allocated() -> None:
    data = bytearray(audio("FLAC"))
    data[22:26] = b"\x7f\xff\xff\xff"  # the number of samples
    with pytest.raises(MediaError, match=r"a: 2,147,483,647 samples a channel are 8,589,934,588 b"):
        decode_audio(bytes(data), name="a")
    with pytest.raises(MediaError):  # a bound that allows it: what is there is read
        decode_audio(bytes(data), max_bytes=1 << 40)
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    with pytest.raises(MediaError, match="its header does not say how long it is"):
        probe_audio(bytes(data))
    with pytest.raises(MediaError, match="20,011 samples a channel are 80,044 bytes, over the li"):
        probe_audio(audio(), max_bytes=80_043)


def test_a_rate_that_is_raised_counts_for_the_bound() -> None:
    slow = bytearray(audio(rate=16_000))
    slow[24:28] = (1_000).to_bytes(4, "little")  # as if it were 16 times as long
    with pytest.raises(MediaError, match="320,176 samples a channel are 1,280,704 bytes"):
        decode_audio(bytes(slow), max_bytes=1 << 20)


def test_rates_that_no_filter_can_convert_are_refused() -> None:
    data = audio(rate=15_991)
    with pytest.raises(MediaError, match=r"15991 Hz cannot be made 16000 Hz.*sampling_rate=None"):
        probe_audio(data)
    assert probe_audio(data, None).samples == 20_011
    odd = bytearray(audio())
    odd[24:28] = (3).to_bytes(4, "little")
    with pytest.raises(MediaError, match="at 3 Hz: allowed are"):
        probe_audio(bytes(odd))
    with pytest.raises(ValueError, match="sampling_rate is 16, allowed are 1000"):
        decode_audio(audio(), 16)


@pytest.mark.parametrize("data", [b"", b"no sound", bytes(9999), b"RIFF" + bytes(99)])
def test_what_is_no_sound_says_so(data: bytes) -> None:
    with pytest.raises(MediaError, match=r"^0\.wav: "):
        probe_audio(data, name="0.wav")


def test_bytes_that_are_wrong_somewhere_never_raise_anything_else() -> None:
    rng = np.random.default_rng(0)
    for kind, options in FORMATS:
        data = np.frombuffer(audio(kind, 8_000, **options), np.uint8)
        for _ in range(15):
            damaged = data.copy()
            damaged[rng.integers(0, min(len(data), 400), 3)] = rng.integers(0, 256, 3)
            try:
                found = decode_audio(damaged.tobytes(), max_bytes=1 << 24)
            except MediaError:
                continue
            assert len(found) == probe_audio(damaged.tobytes(), max_bytes=1 << 24).samples


def test_paths_and_files_and_a_failing_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    path.write_bytes(audio("FLAC"))
    with path.open("rb") as file:
        assert probe_audio(path) == probe_audio(str(path)) == probe_audio(file)
        assert (decode_audio(path) == decode_audio(file)).all()
    with pytest.raises(FileNotFoundError):
        probe_audio(tmp_path / "none.wav")

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 20_000:
                raise OSError(errno.EIO, "disk")
            return super().read(size)

    with pytest.raises(OSError, match="disk"):
        decode_audio(Failing(audio("WAV")))
