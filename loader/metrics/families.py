"""The metrics of a loader by their names in Prometheus, and the collector that gives them.

Names are in base units and counters end in _total, as Prometheus' conventions say. The table is the
reference: the dashboard, the alerts and docs/guides/metrics.md are held against it by a test.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
    found: dict[str, list[Point]] = {}
    points: list[Point]
    for key, family in LOADER_FAMILIES.items():
        value = stats[key]
        if key == "samples":
            points = [((name,), count) for name, count in stats["sources"].items()]
            points = points or [(("",), value)]
        elif len(family.labels) == 2:
            points = [((kind, n), each) for kind, own in value.items() for n, each in own.items()]
        elif family.labels:
            points = [((name,), each) for name, each in value.items()]
        else:
            points = [] if value is None else [((), value)]
        found[family.name] = points
    return found


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
    for each in families:
        kind = CounterMetricFamily if each.kind == "counter" else GaugeMetricFamily
        made = kind(each.name, each.about, labels=(*common, *each.labels))
        for labels, value in points.get(each.name, ()):
            made.add_metric((*common.values(), *labels), value)
        yield made


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

        found, common = self._now()
        for each in LOADER_FAMILIES.values():
            if each.name not in self._in_ray:
                made = Counter if each.kind == "counter" else Gauge
                name = each.name.removesuffix("_total")  # Ray puts it there again
                self._in_ray[each.name] = made(name, each.about, (*common, *each.labels))
            metric = self._in_ray[each.name]
            for labels, value in found[each.name]:
                tags = common | dict(zip(each.labels, labels, strict=True))
                if each.kind == "gauge":
                    metric.set(value, tags)
                    continue
                grown = value - self._reported.get((each.name, labels), 0)
                if grown > 0:
                    metric.inc(grown, tags)
                    self._reported[each.name, labels] = value
