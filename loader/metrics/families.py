"""The metrics of a loader by their names in Prometheus, and the collector that gives them.

Names are in base units and counters end in _total, as Prometheus' conventions say. A test holds
the dashboard, the alerts and docs/reference/metric-names.md against this table.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

# What is compared of a step: as planned, as delivered, and its samples dealt out as they came.
FORECAST, DELIVERED, RANDOM = "forecast", "delivered", "random"

Labels = tuple[str, ...]
# A value, and those of its labels.
Point = tuple[Labels, float]
# Values of a metric by its name.
Points = Mapping[str, Iterable[Point]]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name, its kind, what it says, and the names of its labels."""

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    labels: Labels = ()


def _counter(name: str, about: str, *labels: str) -> Family:
    return Family(f"counterpoise_loader_{name}", "counter", about, labels)


def _gauge(name: str, about: str, *labels: str) -> Family:
    return Family(f"counterpoise_loader_{name}", "gauge", about, labels)


# By the name in stats().
LOADER_FAMILIES = {
    "batches": _counter("batches_total", "Batches, or microbatches, handed out."),
    "steps": _counter("steps_total", "Optimizer steps begun; of a plain loop batches."),
    "samples": _counter("samples_total", "Samples handed out, by source of a mixture.", "source"),
    "bytes": _counter("bytes_total", "Bytes of the batches handed out."),
    "start_seconds": _counter(
        "start_seconds_total", "Waits for the first batch of each iteration."
    ),
    "wait_seconds": _counter("blocked_seconds_total", "Exposed waits for all other batches."),
    "train_seconds": _counter("train_seconds_total", "Time between a batch and the next request."),
    "last_step_wait_seconds": _gauge("step_blocked_seconds", "Exposed wait of the last step."),
    "work_seconds": _counter(
        "work_seconds_total", "Time that this machine's workers read, decoded and collated."
    ),
    "workers": _gauge("workers", "Worker processes of this loader."),
    "queue_batches": _gauge("queue_batches", "Batches that are ready and not handed out."),
    "holes": _counter("holes_total", "Samples that could not be used, by reason.", "reason"),
    "costs": _counter("costs_total", "Costs of the microbatches, padding among it.", "resource"),
    "padding": _counter("padding_total", "What of the costs is padding.", "resource"),
    "step_costs": _gauge("step_costs", "Costs of this process in its last step.", "resource"),
    "imbalance": _gauge(
        "step_imbalance_ratio",
        "Most of a rank over the mean of ranks in the last step, as planned and without holes.",
        "kind", "resource",
    ),
}  # fmt: skip


def loader_points(stats: Mapping[str, Any]) -> dict[str, list[Point]]:
    """Return the values of stats() by the names of their metrics; those not known are left out."""
    points_by_metric: dict[str, list[Point]] = {}
    points: list[Point]
    for key, family in LOADER_FAMILIES.items():
        value = stats[key]
        if key == "samples":
            points = [((name,), count) for name, count in stats["sources"].items()]
            points = points or [(("",), value)]
        elif len(family.labels) == 2:
            points = [
                ((kind, name), number)
                for kind, numbers in value.items()
                for name, number in numbers.items()
            ]
        elif family.labels:
            points = [((name,), number) for name, number in value.items()]
        else:
            points = [] if value is None else [((), value)]
        points_by_metric[family.name] = points
    return points_by_metric


def prometheus_families(
    families: Iterable[Family], points: Points, common: Mapping[str, str]
) -> Iterator[Any]:
    """Yield prometheus_client's families with their values; `common` are labels that all have."""
    try:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ImportError as error:
        raise ImportError(
            "metrics need prometheus_client: pip install counterpoise[metrics]"
        ) from (error)
    for family in families:
        kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        metric = kind(family.name, family.about, labels=(*common, *family.labels))
        for labels, value in points.get(family.name, ()):
            metric.add_metric((*common.values(), *labels), value)
        yield metric


class Collector:
    """What is registered with prometheus_client: others here have metrics of the same names."""

    def describe(self) -> list[Any]:
        """Return nothing: what there is is known when it is collected."""
        return []


class LoaderCollector(Collector):
    """Gives a loader's metrics to a registry of prometheus_client.

    Labels of all: rank, and loader, the DataLoader's name.
    """

    def __init__(self, stats: Callable[[], dict[str, Any]], name: str) -> None:
        self._stats, self._name = stats, name
        self._reported: dict[tuple[str, Labels], float] = {}
        self._in_ray: dict[str, Any] = {}

    def collect(self) -> Iterator[Any]:
        """Yield prometheus_client's families."""
        return prometheus_families(LOADER_FAMILIES.values(), *self._now())

    def _now(self) -> tuple[dict[str, list[Point]], dict[str, str]]:
        """Return the values of now, and the labels of all."""
        stats = self._stats()
        return loader_points(stats), {"rank": str(stats["rank"]), "loader": self._name}

    def to_ray(self) -> None:
        """Give the values of now to Ray's metrics, which each node exports as ray_counterpoise_*.

        To be called in a Ray worker every so often, once a step, say.
        """
        from ray.util.metrics import Counter, Gauge

        points, common = self._now()
        for family in LOADER_FAMILIES.values():
            if family.name not in self._in_ray:
                make = Counter if family.kind == "counter" else Gauge
                name = family.name.removesuffix("_total")  # Ray puts it there again
                self._in_ray[family.name] = make(name, family.about, (*common, *family.labels))
            metric = self._in_ray[family.name]
            for labels, value in points[family.name]:
                tags = common | dict(zip(family.labels, labels, strict=True))
                if family.kind == "gauge":
                    metric.set(value, tags)
                    continue
                grown = value - self._reported.get((family.name, labels), 0)
                if grown > 0:
                    metric.inc(grown, tags)
                    self._reported[family.name, labels] = value
