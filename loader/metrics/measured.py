"""The half of DataLoader that counts: `keep_stats=`, `stats()`, `report()`, `metrics()`.

A loop that counts nothing imports nothing more, and has nothing more to do for a batch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .families import LoaderCollector
    from .stats import LoopStats

# True, "report", the path of a file, or "report" and a path
KeepStats = bool | str | Path | tuple[str | Path, ...]


class MeasuredLoader:
    """What a DataLoader counts of its loop."""

    keep_stats: "KeepStats" = False
    _stats: "LoopStats | None" = None
    # Of a DataLoader.
    batch_size: int | None
    ranks: Any = None
    _late: Any
    _plain: Any

    def _keep_stats(self, keep: "KeepStats") -> None:
        """Begin to count where it is asked for."""
        self.keep_stats = keep
        if keep is not False:
            from .stats import LoopStats  # here: other loops need nothing of it

            choices: tuple[Any, ...] = keep if isinstance(keep, tuple) else (keep,)
            paths = [Path(choice) for choice in choices if choice not in (True, "report")]
            for path in paths:
                if not path.parent.is_dir():
                    raise ValueError(f"keep_stats={str(path)!r}: there is no folder {path.parent}")
            if len(paths) > 1:
                raise ValueError(f'keep_stats is {keep!r:.80}: give one file, and "report"')
            self._stats = LoopStats(paths[0] if paths else None, reports="report" in choices)

    def stats(self, flat: bool = False) -> dict[str, Any]:
        """Return what this loop has delivered and waited for so far; metric-names.md explains it.

        flat: by one name each, for TensorBoard, W&B and log_dict. ValueError without keep_stats.
        """
        from .stats import flattened

        stats = self._need_stats("stats()")
        connection = getattr(getattr(self._late, "made", None), "_connection", None)
        if (session := getattr(connection, "session", None)) is not None:
            stats.ready = session.ready_batches
        summary = stats.summary()
        return flattened(summary) if flat else summary

    def report(self, forecast: str | Path | None = None) -> str:
        """Return three lines on this loop so far: data, ranks, samples; report.md explains them.

        The figures are those of `stats()`. forecast: the report.json of `counterpoise analyze`,
        whose figures stand beside. ValueError without keep_stats, and for a file that is no
        forecast.
        """
        from .report import read_forecast, report_lines

        self._need_stats("report()")
        foretold = None if forecast is None else read_forecast(Path(forecast))
        return "\n".join(report_lines(self.stats(), foretold))

    def metrics(self) -> "LoaderCollector":
        """Return the same for Prometheus: prometheus_client.REGISTRY.register(loader.metrics()).

        ValueError without keep_stats, ImportError (when collected) without counterpoise[metrics].
        """
        from .families import LoaderCollector

        self._need_stats("metrics()")
        return LoaderCollector(self.stats, getattr(self.ranks, "name", ""))

    def _need_stats(self, method: str) -> "LoopStats":
        if self._stats is None:
            raise ValueError(f"{method} needs counts: give DataLoader(keep_stats=True), or a file")
        return self._stats

    def _timed(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Return a plain loop's iterator, timed if that is asked for."""
        if self._stats is None:
            return iterator
        from .stats import TimedIterator

        return TimedIterator(iterator, self, self._stats)
