"""Where the delivery cases run: a folder of data, the datasets by name, and remote workers."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.deliveries import data as made, library
from tests.tools.services.commands import Process

HERE = Path(__file__).parent


class Place:
    """A folder with the data of all cases, and a balancer with two workers, once asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[Any] = []
        self._address = ""
        made.write_shards(folder / "shards")
        made.write_shards(folder / "broken", damaged=True)

    def address(self) -> str:
        """Return the address of the balancer; it and its workers are started at first."""
        if not self._address:
            heard = self._start("balancer", "--listen", "tcp://127.0.0.1:0", until="listening on")
            self._address = heard.partition("listening on ")[2].partition(";")[0].strip()
            words = ["--root", str(self.folder), "--cache", str(self.folder / "cache")]
            words += ["--allow", "tests.deliveries.data:Rolled"]
            for _ in range(2):
                self._start("worker", self._address, *words, until="working for")
        return self._address

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, *words: str, until: str) -> str:
        """Start a command; return the line of its standard error that has the words `until`."""
        started = Process(*words)
        self._processes.append(started.process)
        return str(started.wait_for(until))


def real_shards() -> Path | None:
    """Return the folder of the real shards, None where there are none."""
    beside = HERE.resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("COUNTERPOISE_DATA", beside)) / "shards"
    return folder if folder.is_dir() else None


def open_data(name: str, folder: Path) -> Any:
    """Return the dataset of that name."""
    if name.startswith("real "):
        pattern = {"real shards": "*.tar", "real shard": "mixed-00000.tar"}[name]
        transform = library.VisionLanguage(
            tile_size=56, max_tiles=6, tokens_per_tile=4, resize="pillow"
        )
        path = str(real_shards() / pattern)  # type: ignore[operator]
        return library.TarDataset(path, transform, cache=folder / "cache")
    small = made.SMALL
    tar = partial(library.TarDataset, cache=folder / "cache")
    shards, broken = str(folder / "shards" / "*.tar"), str(folder / "broken" / "*.tar")
    makers: dict[str, Callable[[], Any]] = {
        "records": lambda: made.Records(23),
        "broken records": lambda: made.Records(23, broken=(2, 9, 10, 22)),
        "drawn": lambda: made.Drawn(23),
        "stream": made.Stream,
        "list": lambda: [f"sample {index}" for index in range(made.COUNT)],
        "sized": made.Sized,
        "broken sized": lambda: made.Sized(broken=(4, 23), unreadable=(9, 17, 18, 60)),
        "unmeasured": made.Unmeasured,
        "many": made.Named,
        "shards": lambda: tar(shards, library.VisionLanguage(**small)),
        "broken shards": lambda: tar(broken, library.VisionLanguage(**small)),
        "rolled shards": lambda: tar(shards, made.Rolled(**small)),
        "globally rolled shards": lambda: tar(shards, made.GloballyRolled(**small)),
        "bare shards": lambda: tar(shards),
        "remote shards": lambda: library.RemoteDataset("shards/*.tar", arguments=small),
        "remote broken shards": lambda: library.RemoteDataset("broken/*.tar", arguments=small),
        "remote rolled shards": lambda: library.RemoteDataset(
            "shards/*.tar", "tests.deliveries.data:Rolled", small
        ),
    }
    return makers[name]()
