"""Hostile jobs and shards: nothing is executed, nothing outside the root is read."""

import json
import sys

import pytest

from counterpoise.workers.jsonl.dataset import JsonlDataset
from counterpoise.workers.sources.file_patterns import MAX_NAMES, find_shards
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.sources.registry import open_source
from tests.security.outside import WATCH, open_job, root as root

# --- jobs


@pytest.mark.parametrize(
    "pattern",
    [
        "../../etc/passwd", "../outside/a.tar", "../outside/*.tar", "/etc/passwd", "/etc/*",
        "link/a.tar", "link/*", "passwd.tar", "*/../../outside/a.tar", "link/../a.tar",
        "{a.tar,../outside/a.tar}", "pipe:cat /etc/passwd", "pipe:touch executed",
        "http://127.0.0.1:1/a.tar", "file:///etc/passwd", "~/a.tar", "a.tar\0", "",
        "{1..99999999999}", "{x," + "{a,b}" * 50 + "}", "[" * 5000, "{" * 5000,
        "{" * 5000 + "}" * 5000, "{1..2" * 20_000 + "}" * 20_000, "**/" * 500 + "a.tar",
        "x" * 100_000,
    ],
)  # fmt: skip
def test_a_pattern_that_leaves_the_root_reads_nothing(root, pattern):
    with WATCH as watch, pytest.raises((ValueError, OSError)):
        open_job(root, pattern=["a.tar", pattern])
    assert not watch.executed
    assert [path for path in watch.opened if not path.is_relative_to(root)] == []


@pytest.mark.parametrize(
    "transform",
    [
        "os:system", "subprocess:run", "builtins:eval", "pickle:loads",
        "counterpoise.workers.sources.registry:importlib", "antigravity:x", "os.path:os.system",
        "__main__:x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("nested", [False, True])
def test_a_transform_that_nobody_registered_is_not_even_imported(root, transform, nested):
    spec = {"name": transform, "args": {"command": "touch executed"}}
    if nested:
        name = "counterpoise.workers:VisionLanguage"
        spec = {"name": name, "args": {"tokenizer": spec}}
    before = set(sys.modules)
    with WATCH as watch, pytest.raises(ValueError, match="no such transform"):
        open_job(root, transform=spec)
    assert not watch.executed
    assert "antigravity" not in set(sys.modules) - before


@pytest.mark.parametrize(
    "told",
    [
        {"source": "python"}, {"pattern": 7}, {"pattern": [7]}, {"pattern": None},
        {"transform": "os:system"}, {"transform": ["os:system"]},
        {"transform": {"name": ["os:system"], "args": {}}},
    ],
)  # fmt: skip
def test_a_malformed_description_is_one_clear_error(root, told):
    with WATCH as watch, pytest.raises((ValueError, TypeError)) as raised:
        open_job(root, **told)
    assert not watch.executed
    assert len(str(raised.value)) < 500


def test_too_many_names_are_refused_before_they_are_made(root):
    with pytest.raises(ValueError, match=f"more than {MAX_NAMES} names"):
        find_shards("{1..2000000}.tar", root)


# --- records in JSON


@pytest.mark.parametrize(
    "name",
    [
        "../secret", "/etc/passwd", "link/a.tar", "passwd.tar", "x/../../secret", "~/a.png",
        "pipe:cat /etc/passwd", "http://127.0.0.1:1/a.png", "file:///etc/passwd", "a\0.png",
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_part", [False, True])
def test_a_record_that_names_what_is_outside_reads_nothing(root, name, is_part):
    said = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": name}}]}]
    record = {"messages": said} if is_part else {"text": "a", "image": name}
    (root / "a.jsonl").write_text(json.dumps(record))
    with WATCH as watch:
        source = open_job(root, source="jsonl", pattern=["a.jsonl"])
        assert isinstance(source, JsonlDataset)
        for action in (source.raw, source.probe, source.load):
            with pytest.raises(SampleError):
                action(0)
    assert not watch.executed
    assert [path for path in watch.opened if not path.is_relative_to(root)] == []


@pytest.mark.parametrize("media", ["..", "/etc", "link", "../outside", 3, ["."], {}])
def test_a_folder_of_media_outside_is_refused(root, media):
    (root / "a.jsonl").write_text("{}")
    with WATCH as watch, pytest.raises((ValueError, OSError)):
        open_job(root, source="jsonl", pattern=["a.jsonl"], media=media)
    assert [path for path in watch.opened if not path.is_relative_to(root)] == []


@pytest.mark.parametrize("pattern", ["../outside", "link", "/etc", "../outside/a.tar"])
def test_a_format_is_not_looked_for_outside(root, pattern):
    with WATCH as watch, pytest.raises((ValueError, OSError)):
        open_source({"pattern": [pattern], "transform": None}, root)
    assert [path for path in watch.opened if not path.is_relative_to(root)] == []
