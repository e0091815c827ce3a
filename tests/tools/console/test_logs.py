"""The log of a service as text and as JSON."""

import json
import logging

from counterpoise.tools.console.logs import JsonLines, TextLines


def record(text, *args, **extra):
    made = logging.LogRecord("counterpoise", logging.WARNING, __file__, 1, text, args, None)
    made.__dict__.update(extra)
    return made


def test_json_has_an_object_a_line_with_its_fields():
    line = JsonLines().format(record("job %s\nends", "a", event="job", job="a", key="k\x1b7"))
    assert "\n" not in line
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "warning", "event": "job", "job": "a", "key": "k\x1b7", "message": "job a\nends",
    }  # fmt: skip


def test_text_is_one_line_that_nothing_acts_on():
    line = TextLines().format(record("worker %s has come", "w\n1970 forged\x1b[2J"))
    assert line.endswith(" worker w\\n1970 forged\\x1b[2J has come")
    assert "\n" not in line
