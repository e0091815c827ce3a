"""Only what was registered can be named from elsewhere."""

import functools
import importlib.metadata
import os

import pytest

from counterpoise.workers.sources import registry
from counterpoise.workers.sources.registry import (
    TRANSFORM_GROUP,
    TRANSFORMS,
    build,
    find_import_name,
    make_spec,
    registered,
)
from counterpoise.workers.tar import members

ALLOWED = "counterpoise.workers.tar.members:decode_member"


def test_what_is_not_registered_is_refused_with_the_list():
    for name in (
        "os:system",
        "counterpoise.workers.vision_language.token_layout:os",
        "nonsense",
        ALLOWED,
    ):
        with pytest.raises(ValueError, match=r"no such transform: .*VisionLanguage.*--allow"):
            build({"name": name, "args": {}}, registered())


def test_an_allowed_function_gets_its_arguments():
    allowed = registered([ALLOWED])
    assert build({"name": ALLOWED, "args": {}}, allowed) is members.decode_member
    assert build({"name": ALLOWED, "args": {"data": b"7"}}, allowed)("cls") == 7


def test_entry_points_register_names(monkeypatch):
    point = importlib.metadata.EntryPoint("any", ALLOWED, TRANSFORM_GROUP)
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [point] * (group == TRANSFORM_GROUP)
    )
    assert build({"name": ALLOWED, "args": {}}, registered()) is members.decode_member


def test_nested_specs_are_held_to_the_same_list():
    inner = {"name": "os:system", "args": {}}
    with pytest.raises(ValueError, match="no such transform: 'os:system'"):
        build({"name": TRANSFORMS[0], "args": {"tokenizer": inner}}, registered())


@pytest.mark.parametrize("spec", [None, "os:system", {}, {"name": 1, "args": {}}, {"name": "a:b"}])
def test_a_malformed_spec_is_refused(spec):
    with pytest.raises(ValueError, match="given as name and args"):
        build(spec, registered())


@pytest.mark.parametrize("name", ["gone.away:thing", "counterpoise.workers.tar.members:gone"])
def test_an_allowed_name_must_exist(name):
    with pytest.raises(ValueError, match=r"no such transform: .*cannot be imported"):
        build({"name": name, "args": {}}, registered([name]))


def test_an_allowed_name_must_be_callable():
    name = "counterpoise.workers.tar.members:PICKLED"
    with pytest.raises(ValueError, match="not callable"):
        build({"name": name, "args": {}}, registered([name]))


def test_arguments_must_fit():
    with pytest.raises(ValueError, match=r"does not take \['colour'\]"):
        build({"name": TRANSFORMS[0], "args": {"colour": 1}}, registered())


@pytest.mark.parametrize("name", ["os", "os.system", "os:", ":x", "a b:c", "os:system()"])
def test_an_allowed_name_must_have_the_form(name):
    with pytest.raises(ValueError, match=r"write package\.module:function"):
        registered([name])


def test_specs_of_functions_and_partials():
    assert make_spec(members.decode_member) == {"name": ALLOWED, "args": {}}
    assert make_spec(functools.partial(members.decode_member, data=b"1"))["args"] == {"data": b"1"}


def test_what_has_no_importable_name_has_no_spec():
    for nameless in (lambda raw: raw, functools.partial(print, 1), object()):
        with pytest.raises(ValueError, match="cannot be named for a remote worker"):
            make_spec(nameless)
    assert find_import_name(os.path.join) == "posixpath:join"


@pytest.mark.parametrize("name", TRANSFORMS)
def test_what_is_built_in_travels_under_its_public_name(name):
    made = build({"name": name, "args": {}}, TRANSFORMS)
    assert find_import_name(type(made)) == name
    assert make_spec(made)["name"] == name
    assert registry.import_named(name) is type(made)
