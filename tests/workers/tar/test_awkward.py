"""The awkward files of the real data: each decodes, or is given up with Pillow's reason."""

import json
import warnings
from functools import partial

import pytest

from counterpoise.workers.sources.dead_letters import append_letter, read_letters
from counterpoise.workers.sources.failures import SkippedSample, load_with_retries
from counterpoise.workers.tar.dataset import TarDataset
from counterpoise.workers.vision_language.transform import VisionLanguage

TRANSFORMS = [None, VisionLanguage(tile_size=28, tokens_per_tile=4)]


@pytest.fixture(scope="module")
def manifest(data):
    return {
        entry["file"]: entry for entry in json.loads((data / "awkward/manifest.json").read_text())
    }


@pytest.fixture
def awkward(data, manifest, shard):
    """A shard with every awkward file under its own key, and the file of each key."""
    names = {f"{number:02}": name for number, name in enumerate(manifest)}
    members = {
        f"{key}.{name.rpartition('.')[2]}": (data / "awkward" / name).read_bytes()
        for key, name in names.items()
    }
    return shard("awkward.tar", members), names


@pytest.mark.parametrize("transform", TRANSFORMS, ids=["plain", "vision_language"])
def test_exactly_the_broken_ones_are_dead_lettered(awkward, manifest, transform, tmp_path):
    path, names = awkward
    dataset = TarDataset(path, transform)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for index in range(len(dataset)):
            key = dataset.key(index)
            try:
                outcome = load_with_retries(
                    partial(dataset.__getitem__, index), lambda _: pytest.fail("a retry")
                )
            except Exception as error:
                skipped = SkippedSample.from_error(error, key)
                letter = SkippedSample(key, skipped.reason, skipped.kind, str(path))
                append_letter(tmp_path / "dead.jsonl", letter)
                continue
            if names[key].endswith(".txt"):
                assert not any("jpg" in name or "png" in name for name in outcome)
                assert transform is None or len(outcome["pixel_values"]) == 0
    letters = {names[letter.key]: letter for letter in read_letters(tmp_path / "dead.jsonl")}
    broken = {name for name, entry in manifest.items() if "error" in entry["observed_pillow"]}
    assert set(letters) == broken
    for name, letter in letters.items():
        observed = manifest[name]["observed_pillow"]["error"]
        assert observed.partition(" 'out")[0] in letter.reason
        assert letter.kind == "data"


def test_those_that_decode_have_the_size_they_are_known_to_have(awkward, manifest):
    path, names = awkward
    dataset = TarDataset(path)
    for index in range(len(dataset)):
        observed = manifest[names[dataset.key(index)]]["observed_pillow"]
        if "error" in observed or not observed:
            continue
        (image,) = (value for name, value in dataset[index].items() if name != "__key__")
        width, height = observed["size"]
        turned = observed["orientation"] >= 5
        assert image.shape == ((width, height, 3) if turned else (height, width, 3))
        assert dataset.probe(index).cost["pixels"] == width * height
