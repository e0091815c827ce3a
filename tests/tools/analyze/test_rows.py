"""Merging what scans find: the same whole, however it was cut."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from counterpoise.tools.analyze.counts import by_source, data_figures, duplicates, reasons
from counterpoise.tools.analyze.scan.rows import (
    Failure,
    Rows,
    load_rows,
    merge,
    no_rows,
    save_rows,
    select_resources,
    select_rows,
)


def rows(
    costs: list[tuple[int, int]], sources: str = "", keys: str = "", bad: tuple[Failure, ...] = ()
) -> Rows:
    """One letter a row says its source and its key."""
    names = tuple(dict.fromkeys(sources or "s" * len(costs)))
    number = {name: at for at, name in enumerate(names)}
    return Rows(
        ("tiles", "tokens"),
        np.array(costs, np.int64).reshape(-1, 2),
        np.array([number[name] for name in sources or "s" * len(costs)], np.int64),
        names,
        tuple(keys),
        bad,
    )


def same(a: Rows, b: Rows) -> bool:
    named = [[one.sources[k] for k in one.source_of.tolist()] for one in (a, b)]
    return (
        np.array_equal(a.costs, b.costs)
        and named[0] == named[1]
        and (a.keys, a.failures, a.resources) == (b.keys, b.failures, b.resources)
    )


letters = st.sampled_from("abc")
parts = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99), letters), max_size=4), max_size=6
)


@given(parts, st.integers(0, 6))
def test_merging_is_associative(found: list[list[tuple[int, int, str]]], cut: int) -> None:
    every = [
        rows([row[:2] for row in part], "".join(r[2] for r in part), "".join(r[2] for r in part))
        if part
        else no_rows([Failure("x", "s", "unreadable", "why")])
        for part in found
    ]
    halves = [merge(every[:cut]), merge(every[cut:])]
    assert same(merge(halves), merge(every))


def test_parts_with_other_costs_are_refused() -> None:
    none = np.zeros(1, np.int64)
    other = Rows(("pixels",), np.zeros((1, 1), np.int64), none, ("s",))
    with pytest.raises(ValueError, match=r"tiles, tokens, another of pixels; .* --resource"):
        merge([rows([(1, 2)]), other])


def test_a_kept_part_reads_back_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    part = rows([(1, 2), (3, 4)], "ab", "xy", (Failure("k", "a", "truncated", "ends"),))
    assert save_rows(tmp_path / "part.npz", part)
    back = load_rows(tmp_path / "part.npz")
    assert back is not None
    assert same(back, part)
    (tmp_path / "part.npz").write_bytes(b"PK half")
    assert load_rows(tmp_path / "part.npz") is None


def test_a_key_counts_as_duplicate_from_its_second_time_on() -> None:
    found = rows([(1, 1)] * 5, keys="abaca")
    assert duplicates(found).tolist() == [2, 4]
    assert duplicates(rows([(1, 1)] * 3)).tolist() == []


def test_every_sample_is_counted_under_its_source() -> None:
    bad = (Failure("u", "b", "unreadable", "why"), Failure("t", "c", "truncated", "why"))
    found = rows([(1, 1)] * 4, "aabb", "pqpr", bad)
    counts = {one["source"]: one for one in by_source(found, np.array([2]), np.array([0, 2]))}
    figures = ("samples", "fine", "unreadable", "truncated", "duplicate", "over_budget")
    assert [[counts[s][name] for name in figures] for s in "abc"] == [
        [2, 1, 0, 0, 0, 1],
        [3, 1, 1, 0, 1, 1],
        [1, 0, 0, 1, 0, 0],
    ]
    assert counts["b"]["keys"] == {"unreadable": ["u"], "duplicate": ["p"], "over_budget": ["p"]}


def test_reasons_that_differ_in_numbers_only_are_one() -> None:
    bad = tuple(Failure(f"k{n}", "s", "unreadable", f"byte {n} of 9") for n in range(3))
    first, second = reasons(rows([], bad=(*bad, Failure("z", "s", "shard", "no tar"))))
    assert (first["count"], first["reason"], first["keys"]) == (
        3,
        "byte 0 of 9",
        ["k0", "k1", "k2"],
    )
    assert (second["count"], second["kind"]) == (1, "shard")


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300))
def test_quantiles_are_values_of_the_data_that_hold_their_share(values: list[int]) -> None:
    found = data_figures(rows([(0, value) for value in values]), len(values), {})
    found = found["resources"]["tokens"]
    assert found["max"] == max(values)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert found[name] in values
        assert sum(value <= found[name] for value in values) >= share * len(values)


def test_only_the_costs_named_stay() -> None:
    assert select_resources(rows([(1, 2), (3, 4)]), ("tokens",)).costs.tolist() == [[2], [4]]
    with pytest.raises(
        ValueError, match="no cost 'bytes'; name one of tiles, tokens with --resource"
    ):
        select_resources(rows([(1, 2)]), ("bytes",))


def test_taking_rows_keeps_what_belongs_to_them() -> None:
    found = select_rows(rows([(1, 2), (3, 4), (5, 6)], "aba", "xyz"), np.array([2, 0]))
    assert found.costs.tolist() == [[5, 6], [1, 2]]
    assert found.keys == ("z", "x")
