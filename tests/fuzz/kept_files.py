"""Damages kept indexes and costs: the data must open as they are, with the costs that they have."""

import shutil
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.outcomes import Outcome, Trial
from tests.fuzz.shards import open_shards, write_shards


def contents(folder: Path) -> list[Any]:
    """Return keys, costs and samples of all shards."""
    data = open_shards(folder)
    return [(data.key(each), data.probe(each), data[each]) for each in range(len(data))]


class KeptFiles:
    """Shards with their kept files, whole, and what they hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "shards"
        self.folder.mkdir()
        texts = write_shards(self.folder, Random(1))
        self.expected = contents(self.folder)
        assert {key: sample[1] for key, _, sample in self.expected} == texts
        names = [path.name for path in self.folder.iterdir() if path.suffix != ".tar"]
        self.whole = {name: (self.folder / name).read_bytes() for name in sorted(names)}
        assert len(self.whole) == 6, self.whole.keys()

    def trial(self, random: Random) -> Outcome:
        """Damage one or two of the kept files, open the shards, and again with what is kept now."""
        for name, data in self.whole.items():
            self._put(name, data)
        chosen = random.sample(list(self.whole), random.choice((1, 1, 2)))
        done = [self._damage(name, random) for name in chosen]
        what = f"{' and '.join(done)}: {chosen}"
        for time in ("at first", "again"):
            try:
                found = contents(self.folder)
            except Exception as error:  # a kept file is never needed: there is nothing to refuse
                return Outcome("unclear", what, f"{time}: {error!r}")
            if found != self.expected:
                wrong = [
                    pair
                    for pair in zip(found, self.expected, strict=False)
                    if len({*map(str, pair)}) > 1
                ]
                return Outcome("silent", what, f"{time}: {wrong[:2]}")
        return Outcome("right", what)

    def _put(self, name: str, data: bytes) -> None:
        path = self.folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.write_bytes(data)

    def _damage(self, name: str, random: Random) -> str:
        data = bytearray(self.whole[name])
        kind = random.choice(
            ("flip", "flip", "cut", "zeros", "more", "swap", "noise", "lines", "odd")
        )
        at = random.randrange(len(data))
        if kind == "flip":
            for place in (at, *random.choices(range(len(data)), k=random.choice((0, 0, 2)))):
                data[place] ^= 1 << random.randrange(8)
        elif kind == "cut":
            del data[at:]
        elif kind == "zeros":
            data[at : at + 64] = bytes(len(data[at : at + 64]))
        elif kind == "more":
            data += random.randbytes(random.randint(1, 200))
        elif kind == "swap":
            data = bytearray(self.whole[random.choice(list(self.whole))])
        elif kind == "noise":
            data[at : at + 8] = random.randbytes(8)
        elif kind == "lines":
            data[at:at] = random.choice((b"\n", b"{}\n", bytes(8), data[: at // 2]))
        else:
            return self._replace(name, random)
        self._put(name, bytes(data))
        return kind

    def _replace(self, name: str, random: Random) -> str:
        """Put something else than a plain file there, or nothing."""
        path, kind = self.folder / name, random.choice(("gone", "folder", "link", "empty"))
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(random.choice(("/dev/zero", "/etc/hostname", "nowhere", name)))
        elif kind == "empty":
            path.touch()
        return kind


def make_trial(folder: Path) -> Trial:
    """Return the trial of a target."""
    return KeptFiles(folder).trial
