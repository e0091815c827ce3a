"""The format of files is found by their names; a format of one's own is a file of code."""

import importlib.metadata
import json

import pytest

from counterpoise.workers import JsonlDataset, TarDataset
from counterpoise.workers.sources import registry
from counterpoise.workers.sources.failures import DataChangedError
from counterpoise.workers.sources.interface import Probe, SampleError
from counterpoise.workers.sources.records import RecordDataset
from counterpoise.workers.sources.registry import SOURCE_GROUP, find_format, open_data, open_source


class Words(RecordDataset):
    """A format of a user's own: a sample in each paragraph of text files."""

    FORMAT, EXTENSIONS, MARKERS = "words", (".words",), (".words-meta",)

    def __init__(self, pattern, transform=None, root=None, cache=None, cost=None, upper=False):
        self.arguments = {"upper": upper}
        super().__init__(pattern, transform, root, cache, cost)

    def open_files(self):
        self._texts = [path.read_text().split("\n\n") for path in self.files]
        return [len(texts) for texts in self._texts]

    def name(self, number, row):
        return f"{self.files[number].stem}/{row}"

    def read(self, number, row, headers):  # noqa: ARG002
        text = self._texts[number][row]
        if not text:
            raise ValueError("no words")
        return {"txt": text.upper() if self.arguments["upper"] else text}

    def file_digest(self, number):
        return str(hash(tuple(map(len, self._texts[number]))))


class Counted:
    deterministic = True

    def __init__(self):
        self.probes = 0

    def __call__(self, raw):
        return raw["txt"].split()

    def probe(self, raw):
        self.probes += 1
        return Probe(raw["__key__"], {"words": len(raw["txt"].split())}, 8)

    def fingerprint(self):
        return "counted"


@pytest.fixture
def folder(tmp_path, monkeypatch, shard):
    point = importlib.metadata.EntryPoint("words", f"{__name__}:Words", SOURCE_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] * (group == SOURCE_GROUP))
    for name, text in {"a": "one two\n\nthree", "b": "\n\nfour five six"}.items():
        (tmp_path / f"{name}.words").write_text(text)
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "a.jsonl").write_text('{"text": "a"}\n')
    shard("tar/a.tar", {"0.txt": b"a"})
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        ("tar/a.tar", TarDataset), ("tar", TarDataset), ("t*/*", TarDataset),
        ("json/a.jsonl", JsonlDataset), ("json", JsonlDataset), ("json/*.jsonl", JsonlDataset),
        ("json/{a,a}.jsonl", JsonlDataset), ("*.words", Words), ("a.words", Words), (".", Words),
    ],
)  # fmt: skip
def test_files_are_opened_by_the_class_of_their_format(folder, pattern, kind):
    assert type(open_data(folder / pattern)) is kind
    assert type(open_data(pattern, root=folder)) is kind
    spec = {"pattern": [pattern], "transform": None}
    assert type(open_source(spec, folder)) is kind
    assert type(open_data(spec, root=folder)) is kind


def test_a_marker_tells_a_folder(folder):
    (folder / "marked").mkdir()
    (folder / "marked" / ".words-meta").mkdir()
    assert find_format(folder / "marked") == "words"


def test_a_folder_of_a_store_is_one_of_shards():
    assert [find_format(each) for each in ("s3://a/b", "s3://a/*.tar", "s3://a/b.jsonl")] == [
        "tar", "tar", "jsonl",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (["tar/a.tar", "json/a.jsonl"], "files of several formats: .*make a source of each"),
        ("none", r"has no data of a known format; known are tar \(\*\.tar\), .*words \(\*\.words"),
        ("../out", "leaves the root"),
        ("/etc", "leaves the root"),
        ("link", "leaves the root"),
        (["ftp://a/b"], "is no local path"),
    ],
)
def test_what_has_no_format_is_refused(folder, pattern, reason):
    root = folder / "root"
    root.mkdir()
    (root / "none").mkdir()
    (root / "link").symlink_to(folder)
    for name in ("tar", "json"):
        (folder / name).rename(root / name)
    with pytest.raises(ValueError, match=reason):
        find_format(pattern, root)


def test_a_format_of_ones_own_has_all_that_others_have(folder, tmp_path):
    transform = Counted()
    source = open_data(folder, transform, cache=tmp_path / "cache")
    assert [source.key(index) for index in range(4)] == ["a/0", "a/1", "b/0", "b/1"]
    assert source[3] == ["four", "five", "six"]
    assert source.probe(3).cost == {"words": 3}
    again = open_data(folder, transform, cache=tmp_path / "cache")
    assert again.known(3) == again.probe(3) == source.probe(3)
    assert transform.probes == 1
    with pytest.raises(SampleError, match=r"sample 'b/0' of .*b\.words: no words"):
        source.probe(2)
    assert source.data_digest(2)
    assert source.data_digest(2) != source.data_digest()
    assert not source.data_digest(3)


def test_a_description_takes_the_fields_of_the_format_and_no_others(folder):
    loud = Words([str(folder / "a.words")], upper=True)
    spec = json.loads(json.dumps(loud.spec()))
    assert open_source(spec, None)[0]["txt"] == "ONE TWO"
    for name in ("root", "cache", "cost", "other"):
        with pytest.raises(ValueError, match=f"not described by {name}"):
            open_source({**spec, name: 1}, None)


class Squares:
    """A map-style data set of a user's own."""

    def __init__(self, count=3):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"x": index**2}


class Unlisted(Words):
    FORMAT = ""


def test_what_the_operator_allows_is_opened_by_its_name(folder):
    allowed = [f"{__name__}:{name}" for name in ("Squares", "Unlisted")]
    told = {"source": allowed[0], "pattern": [], "transform": None, "count": 5}
    opened = open_source(told, folder, allowed)
    assert [opened[index]["x"] for index in range(len(opened))] == [0, 1, 4, 9, 16]
    spec = Unlisted(str(folder / "a.words")).spec()
    assert spec["source"] == allowed[1]
    assert open_source(spec, folder, allowed)[1]["txt"] == "three"
    for each in (told, spec):
        with pytest.raises(ValueError, match=r"no such source format: .*--allow package"):
            open_source(each, folder)
    with pytest.raises(ValueError, match=r"Squares does not take \['sides'\]"):
        open_source({"source": allowed[0], "sides": 4}, folder, allowed)
    with pytest.raises(ValueError, match="takes no transform"):
        open_source({**told, "transform": {"name": "a:b", "args": {}}}, folder, allowed)


def test_a_format_of_ones_own_sees_that_its_files_change_and_refuses_none(tmp_path):
    path = tmp_path / "a.words"
    path.write_text("one\n\ntwo")
    data = Words(tmp_path)
    assert not data.reopen_if_changed()
    path.write_text("one\n\ntwo\n\nthree")
    with pytest.raises(DataChangedError, match="changed after it was indexed"):
        data.check(0)
    assert data.reopen_if_changed()
    assert (len(data), data.key(2)) == (3, "a/2")
    data.open_files = lambda: [0]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="no samples in 1 files"):
        data.open()
