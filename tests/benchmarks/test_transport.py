"""`bench transport`: every way is measured, and digests are checked."""

import json

from benchmarks.__main__ import group
from benchmarks.transport import WAYS


def test_every_way_is_measured(capfd):
    words = ["transport", "--pairs", "1", "--frames", "3", "--frame-bytes", "5000"]
    group.main([*words, "--json"], standalone_mode=False)
    report = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert [*report["ways"]] == sorted(WAYS)
    for figures in report["ways"].values():
        assert figures["mb_per_s"] > 0
        assert figures["cpu_ratio"]["low"] <= figures["cpu_ratio"]["median"]


def test_the_digests_tell_payloads_apart():
    for name in ("blake2b", "hmac-sha256"):
        assert WAYS[name].digest(b"a" * 100) != WAYS[name].digest(b"a" * 99 + b"b")


def test_without_cryptography_seals_are_left_out_and_the_rest_is_measured(capfd, monkeypatch):
    monkeypatch.setattr("benchmarks.transport.is_available", lambda: False)
    words = ["transport", "--pairs", "1", "--frames", "2", "--frame-bytes", "500"]
    group.main([*words, "--json"], standalone_mode=False)
    printed = capfd.readouterr()
    report = json.loads(printed.out.splitlines()[-1])
    assert set(report["ways"]) == set(WAYS) - {"sealed"}
    assert "pip install 'counterpoise[plain-payloads]'" in printed.err
