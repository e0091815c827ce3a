"""All samples of the real shards can be probed; what was probed is what decoding turns out."""

import json

import pytest

from counterpoise.workers.images.decode import image_size
from counterpoise.workers.tar.dataset import TarDataset
from counterpoise.workers.vision_language.transform import VisionLanguage


@pytest.fixture(scope="module")
def dataset(data, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return TarDataset(str(data / "shards" / "*.tar"), VisionLanguage(), cache=cache)


def test_every_sample_can_be_probed(dataset):
    assert len(dataset) == 1336
    probes = [dataset.probe(index) for index in range(len(dataset))]
    assert len({probe.key for probe in probes}) == 1336
    for index, probe in enumerate(probes):
        told = dataset.raw(index)["json"]
        assert (probe.cost["tiles"] > 0) == (told["n_images"] > 0)
        assert probe.cost["tokens"] > 256 * probe.cost["tiles"]
        assert probe.cost["label_tokens"] > 0


def test_sizes_are_those_of_the_metadata(dataset):
    for index in range(0, len(dataset), 11):
        raw = dataset.raw(index)
        told = raw["json"]["images"]
        names = [f"img{n}" for n in range(len(told))] if len(told) > 1 else [""]
        for name, image in zip(names, told, strict=False):
            (member,) = (
                m for m in raw if m.startswith(name) and m.split(".")[-1] in ("jpg", "png")
            )
            assert image_size(raw[member]) == (image["width"], image["height"])


def test_probed_costs_are_the_decoded_sizes(dataset):
    for index in range(0, len(dataset), 53):
        probe, sample = dataset.probe(index), dataset[index]
        assert probe.cost == {
            "tiles": len(sample["pixel_values"]),
            "tokens": len(sample["input_ids"]),
            "label_tokens": int((sample["labels"] != -100).sum()),
        }
        assert probe.nbytes == sum(field.nbytes for field in sample.values())


def test_raw_samples_are_those_that_webdataset_reads(dataset, data):
    import webdataset

    shards = [str(path) for path in dataset.files]
    theirs = webdataset.WebDataset(shards, shardshuffle=False)
    for index, sample in enumerate(theirs):
        ours = dataset.raw(index)
        ours["json"] = sample["json"] if ours["json"] == json.loads(sample["json"]) else None
        assert ours == {
            name: sample[name] for name in sample if name not in ("__url__", "__local_path__")
        }
    assert index == len(dataset) - 1
