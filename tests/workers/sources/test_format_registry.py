"""A data format is one class and one entry; a description from elsewhere names it."""

import importlib.metadata

import pytest

from counterpoise.loader import RemoteDataset
from counterpoise.workers import PlainSource, TarDataset
from counterpoise.workers.sources import registry
from counterpoise.workers.sources.registry import SOURCE_GROUP, open_source, source_formats


class Lines(PlainSource):
    """A format of a user's own: lines of text files."""

    @classmethod
    def from_spec(cls, spec, root, allowed, cache):  # noqa: ARG003
        return cls((root / spec["pattern"][0]).read_text().splitlines())


@pytest.fixture
def lines(monkeypatch):
    point = importlib.metadata.EntryPoint("lines", f"{__name__}:Lines", SOURCE_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] * (group == SOURCE_GROUP))


def test_an_entry_is_all_that_a_format_needs(lines, tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    source = open_source(RemoteDataset("a.txt", None, source="lines").spec(), tmp_path)
    assert [source[index] for index in range(len(source))] == ["one", "two"]


def test_tar_is_built_in_and_cannot_be_replaced(monkeypatch, shard):
    point = importlib.metadata.EntryPoint("tar", "os:system", SOURCE_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] * (group == SOURCE_GROUP))
    path = shard("a.tar", [("0.txt", b"hello")])
    assert isinstance(open_source(RemoteDataset("a.tar", None).spec(), path.parent), TarDataset)
    assert source_formats()["tar"] == "counterpoise.workers:TarDataset"


@pytest.mark.parametrize("spec", [{}, {"source": "zip"}, {"source": 3}, {"source": ["tar"]}])
def test_what_is_not_registered_is_refused_with_the_list(lines, spec):
    with pytest.raises(
        ValueError, match=r"no such source format: .*; registered are .*lines, .*tar"
    ):
        open_source(spec, None)


def test_an_entry_that_cannot_be_imported_is_named(monkeypatch):
    point = importlib.metadata.EntryPoint("gone", "gone.away:Format", SOURCE_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] * (group == SOURCE_GROUP))
    with pytest.raises(ValueError, match=r"no such source format: 'gone\.away:Format' cannot be"):
        open_source({"source": "gone"}, None)
