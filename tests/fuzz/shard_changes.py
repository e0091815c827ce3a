"""Changes shards while a loader reads them: right samples under their keys, or an error."""

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from counterpoise.loader import Balance, DataLoader, LoaderError
from tests.fuzz.outcomes import Outcome, Trial
from tests.fuzz.shards import AGE_S, SHARDS, open_shards, shard_bytes, texts, write_shards

# The part of the trials that runs with a worker's process.
WITH_A_WORKER = 0.04


def balanced(data: Any, workers: int) -> DataLoader:
    """Return a loader that plans."""
    balance = Balance(samples_per_step=6, accumulate=2)
    return DataLoader(
        data, shuffle=True, balance=balance, collate_fn=list, num_workers=workers, ranks=(0, 1)
    )


def plain(data: Any, workers: int) -> DataLoader:
    """Return a loader that does not."""
    return DataLoader(data, 3, shuffle=True, collate_fn=list, num_workers=workers)


# --- changes of a shard at `path`, whose samples are `old`


def rewritten(path: Path, old: dict[str, str], random: Random) -> None:
    """Write other texts under the same keys, in place: the size stays."""
    new = {key: text[::-1] for key, text in old.items()}
    with path.open("r+b") as file:
        file.write(shard_bytes(new))


def reordered(path: Path, old: dict[str, str], random: Random) -> None:
    """Write the same samples in another order, in place."""
    keys = list(old)
    random.shuffle(keys)
    with path.open("r+b") as file:
        file.write(shard_bytes({key: old[key] for key in keys}))


def renamed_over(path: Path, old: dict[str, str], random: Random) -> None:
    """Put another shard in its place, of the same size, perhaps as old as it is."""
    other, before = path.with_suffix(".new"), path.stat()
    other.write_bytes(shard_bytes(texts(random, int(path.stem))))
    if random.random() < 0.5:
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def swapped(path: Path, old: dict[str, str], random: Random) -> None:
    """Exchange it with another shard: both keep size and time."""
    other = path.with_name(f"{(int(path.stem) + 1) % SHARDS}.tar")
    kept = path.with_suffix(".kept")
    path.rename(kept)
    other.rename(path)
    kept.rename(other)


def cut(path: Path, old: dict[str, str], random: Random) -> None:
    """Cut its end off."""
    os.truncate(path, random.randrange(path.stat().st_size))


def longer(path: Path, old: dict[str, str], random: Random) -> None:
    """Write a sample more, in place or as a new file."""
    more = shard_bytes(old | {f"{path.stem}-999": "more"})
    if random.random() < 0.5:
        path.unlink()
    path.write_bytes(more)


def gone(path: Path, old: dict[str, str], random: Random) -> None:
    """Remove it."""
    path.unlink()


def noise(path: Path, old: dict[str, str], random: Random) -> None:
    """Write noise somewhere into it."""
    with path.open("r+b") as file:
        file.seek(random.randrange(path.stat().st_size))
        file.write(random.randbytes(random.choice((1, 64, 2048))))


def copied(path: Path, old: dict[str, str], random: Random) -> None:
    """Put a copy in its place, perhaps with its time: the samples are the same."""
    other = path.with_suffix(".copy")
    random.choice((shutil.copy, shutil.copy2))(path, other)
    other.replace(path)


def touched(path: Path, old: dict[str, str], random: Random) -> None:
    """Give it another time."""
    os.utime(path, (AGE_S, AGE_S))


Change = Callable[[Path, dict[str, str], Random], None]
CHANGES: tuple[Change, ...] = (
    *(rewritten, reordered, renamed_over, swapped, cut, longer, gone, noise, copied, touched),
)


class ShardChanges:
    """Makes shards anew for each trial, and changes one while they are read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def trial(self, random: Random) -> Outcome:
        """Read some batches, change a shard, read on and perhaps a second epoch."""
        folder = self.folder / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        expected = write_shards(folder, random)
        make, change = random.choice((balanced, plain)), random.choice(CHANGES)
        workers = int(random.random() < WITH_A_WORKER)
        loader = make(open_shards(folder), workers)
        taken = random.randint(0, 11)
        what = f"{change.__name__}: after {taken} batches, {make.__name__}, {workers} workers"
        path = folder / f"{random.randrange(SHARDS)}.tar"
        old = {key: text for key, text in expected.items() if key.startswith(f"{path.stem}-")}
        found: list[tuple[str, str]] = []
        try:
            batches = iter(loader)
            found += samples_of(itertools.islice(batches, taken))
            change(path, old, random)
            found += samples_of(batches)
        except (LoaderError, ValueError, OSError, RuntimeError) as error:
            return self._refused(found, expected, error, what)
        finally:
            loader.close()
        if dict(found) == expected and len(found) == len(expected):
            return Outcome("right", what)
        return Outcome("silent", what, f"{len(found)} samples, {wrong(found, expected)}")

    def _refused(
        self, found: list[tuple[str, str]], expected: dict[str, str], error: Exception, what: str
    ) -> Outcome:
        """Return what an error is that followed some samples: those must be right, too."""
        if bad := wrong(found, expected):
            return Outcome("silent", what, f"before {error!r}: {bad}")
        is_named = re.search(r"\d\.tar", str(error)) is not None
        return Outcome(
            "refused" if is_named else "unclear", what, f"{type(error).__name__}: {error}"
        )


def samples_of(batches: Iterator[Any]) -> Iterator[tuple[str, str]]:
    """Yield key and text of each sample."""
    for batch in batches:
        yield from ((key, text) for key, text, _ in batch)


def wrong(found: list[tuple[str, str]], expected: dict[str, str]) -> list[Any]:
    """Return what was delivered and is not what stood there when the data were opened."""
    twice = len(found) - len({key for key, _ in found})
    return [each for each in found if expected.get(each[0]) != each[1]][:3] + ["twice"] * twice


def make_trial(folder: Path) -> Trial:
    """Return the trial of a target."""
    return ShardChanges(folder).trial
