"""A byte budget over the container's memory limit is an error at the start."""

from pathlib import Path

import pytest

from counterpoise import Balance, DataLoader
from counterpoise.loader.remote import factory
from counterpoise.loader.remote.memory_limit import memory_limit, refuse_budget_over_limit

VERSION_1 = "9:name=systemd:/\n4:memory:/pod/box\n3:cpuset:/\n"


def _write(place: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"{text}\n")
    return place


@pytest.mark.parametrize(
    ("files", "groups", "limit"),
    [
        ({"memory.max": "5000"}, "0::/\n", 5000),
        ({"memory.max": "max"}, "0::/\n", None),
        # The least of a group's own and of those around it.
        ({"a/memory.max": "7000", "a/b/memory.max": "9000"}, "0::/a/b\n", 7000),
        ({"a/memory.max": "max", "a/b/memory.max": "9000"}, "0::/a/b\n", 9000),
        # The host's path, in a container.
        ({"memory.max": "4000"}, "0::/system.slice/docker-1f\n", 4000),
        ({"memory/pod/box/memory.limit_in_bytes": "6000"}, VERSION_1, 6000),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, VERSION_1, None),
        ({"memory.max": "1"}, "4:memory:/\n", None),
        ({}, "", None),
        ({}, "0::/gone\n", None),
    ],
)
def test_the_limit_is_found(
    tmp_path: Path, files: dict[str, str], groups: str, limit: int | None
) -> None:
    assert memory_limit(_write(tmp_path, files), groups) == limit


def test_a_budget_up_to_the_limit_is_taken() -> None:
    refuse_budget_over_limit(1000, 1000)
    refuse_budget_over_limit(1 << 50, None)


@pytest.mark.usefixtures("through_balancer")
def test_a_loader_says_so_before_it_starts_a_balancer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "memory_limit", lambda: 3_000_000)

    def never(*_: object) -> None:
        raise AssertionError("a balancer was started")

    monkeypatch.setattr(factory, "EmbeddedBalancer", never)
    loader = DataLoader([1, 2, 3, 4], 2, True, num_workers=1, balance=Balance("fixed"))
    with pytest.raises(ValueError, match=r"together may use 3,000,000 .*buffer_bytes=750000"):
        list(loader)
