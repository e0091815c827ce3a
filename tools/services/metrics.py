"""Metrics of a balancer and of a worker for Prometheus: `--metrics PORT`.

A scrape is answered in a thread of its own, and jobs are for one thread: so the balancer's
loop makes the status report, the one that `counterpoise doctor` shows, when it is asked next, which
is after every message and once a second. Nothing is counted for it.
"""

import logging
import queue
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from socketserver import TCPServer
from typing import Any, Literal

from ...balancer.pool.messages import COSTS, DoPart, FromWorker, PartMade, PartMeasured
from ...balancer.protocol.status_messages import StatusReport
from ...balancer.run.tasks import TASK_HEAD
from ...loader.metrics.families import Collector, Family, Point, prometheus_families
from ..doctor.figures import busy_share, decode_rate

logger = logging.getLogger("counterpoise")

# A loop that does not turn for so long is not running: the scrape fails.
ANSWER_S = 5.0
# How long a connection may be silent.
SCRAPE_IDLE_S = 1.0
JOB = "training_job"


# Name, kind, what it says, and what gives its value, of the report or of one of its peers.
Row = tuple[str, Literal["counter", "gauge"], str, Callable[[Any], float | None]]


def _families(rows: tuple[Row, ...], *labels: str) -> dict[Family, Callable[[Any], float | None]]:
    return {
        Family(f"counterpoise_balancer_{name}", kind, about, (JOB, *labels)): value
        for name, kind, about, value in rows
    }


_OF_JOB = _families((
    ("workers", "gauge", "Workers that are connected.", lambda s: s.workers),
    ("trainers", "gauge", "Trainer processes that are connected.", lambda s: s.trainers),
    ("epoch", "gauge", "Epoch of the run, -1 for none.", lambda s: s.epoch),
    ("step", "gauge", "Earliest step that some rank lacks a part of, -1.", lambda s: s.front),
    ("buffer_bytes", "gauge", "Decoded samples held for ranks.", lambda s: s.held_bytes),
    ("buffer_limit_bytes", "gauge", "The most of them: buffer_bytes.", lambda s: s.budget_bytes),
    ("parts", "gauge", "Parts of microbatches that workers have now.", lambda s: s.parts),
    ("holes", "gauge", "Samples of this run that could not be used.", lambda s: s.holes),
    ("workers_lost_total", "counter", "Workers that died or fell silent.", lambda s: s.lost),
    ("workers_rejected_total", "counter", "Workers that were rejected.", lambda s: s.turned_away),
    ("messages_refused_total", "counter", "Messages and peers refused.", lambda s: s.refused),
    ("failed", "gauge", "Whether the run has ended with an error.", lambda s: bool(s.trouble)),
))  # fmt: skip
_OF_WORKER = _families((
    ("worker_probed_samples_total", "counter", "Samples it has measured.", lambda w: w.probed),
    ("worker_decoded_samples_total", "counter", "Samples it has decoded.", lambda w: w.decoded),
    ("worker_failed_samples_total", "counter", "Samples it could not use.", lambda w: w.failed),
    ("worker_payload_bytes_total", "counter", "Bytes that it has decoded.", lambda w: w.nbytes),
    ("worker_parts", "gauge", "Parts of microbatches that it has now.", lambda w: w.parts),
    ("worker_busy_ratio", "gauge", "Share of the last 15 to 30 s at work.", busy_share),
    ("worker_decode_rate", "gauge", "Samples decoded in a second of work, of the last 15 to 30 s.",
     lambda w: decode_rate(w) or None),
), "worker")  # fmt: skip
_OF_RANKS = _families((
    ("rank_waiting", "gauge", "Whether it has waited for a second.", lambda r: r.is_waiting),
    ("rank_blocked_seconds_total", "counter", "Exposed waits for microbatches.",
     lambda r: r.waited_ms / 1000),
    ("rank_request_age_seconds", "gauge", "Age of its oldest open request.",
     lambda r: r.oldest_request_ms / 1000 if r.oldest_request_ms >= 0 else None),
), "ranks")  # fmt: skip
BALANCER_FAMILIES: tuple[Family, ...] = (*_OF_JOB, *_OF_WORKER, *_OF_RANKS)


def balancer_points(reports: Mapping[str, StatusReport]) -> dict[str, list[Point]]:
    """Return the values of status reports, by job, by the names of their metrics."""
    points: dict[str, list[Point]] = {family.name: [] for family in BALANCER_FAMILIES}
    for job, report in reports.items():
        peers: list[tuple[tuple[str, ...], Any, Any]] = [((job,), _OF_JOB, report)]
        peers += [((job, worker.name), _OF_WORKER, worker) for worker in report.worker_statuses]
        peers += [((job, trainer.ranks), _OF_RANKS, trainer) for trainer in report.trainer_statuses]
        for labels, families, status in peers:
            for family, value_of in families.items():
                if (value := value_of(status)) is not None:
                    points[family.name].append((labels, float(value)))
    return points


class ReportOnRequest(Collector):
    """Status reports that another thread asks for, and the loop's makes.

    make: returns them by job; it is called by the thread that calls `stop`.
    """

    def __init__(self, make: Callable[[], Mapping[str, StatusReport]]) -> None:
        self._make = make
        self._asked = queue.SimpleQueue[queue.SimpleQueue[Mapping[str, StatusReport]]]()

    def watch(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        """Return `stop` for the loop, which also makes the reports that are asked for."""

        def stop_or_report() -> bool:
            while not self._asked.empty():
                self._asked.get().put(self._make())
            return stop()

        return stop_or_report

    def collect(self) -> Iterator[Any]:
        """Yield prometheus_client's families; TimeoutError where the loop does not turn."""
        answer = queue.SimpleQueue[Mapping[str, StatusReport]]()
        self._asked.put(answer)
        try:
            reports = answer.get(timeout=ANSWER_S)
        except queue.Empty:
            raise TimeoutError(f"the balancer's loop has not turned for {ANSWER_S:g} s") from None
        yield from prometheus_families(BALANCER_FAMILIES, balancer_points(reports), {})


def _worker(name: str, about: str, *labels: str) -> Family:
    return Family(f"counterpoise_worker_{name}", "counter", about, (JOB, *labels))


PROBED, DECODED = "probe", "decode"
WORKER_SAMPLES = _worker("samples_total", "Samples that were measured or decoded.", "work")
WORKER_SECONDS = _worker("work_seconds_total", "Time at this work, of all threads.", "work")
WORKER_FAILED = _worker("failed_samples_total", "Samples that could not be used.", "work")
WORKER_BYTES = _worker("payload_bytes_total", "Bytes of the samples that were decoded.")
WORKER_FAMILIES = (WORKER_SAMPLES, WORKER_SECONDS, WORKER_FAILED, WORKER_BYTES)


class WorkCounts(Collector):
    """What a worker has done for each of the jobs that it works for, for Prometheus."""

    def __init__(self) -> None:
        self.counts: defaultdict[tuple[str, tuple[str, ...]], float] = defaultdict(float)

    def count_part(self, job: str, part: DoPart, done: FromWorker) -> None:
        """Count what a job's worker has made of a part."""
        if isinstance(done, PartMade | PartMeasured):
            labels, failed = (job, PROBED if part.form == COSTS else DECODED), len(done.failed)
            self.counts[WORKER_SAMPLES.name, labels] += len(part.task) - TASK_HEAD - failed
            self.counts[WORKER_SECONDS.name, labels] += done.took_us / 1e6
            self.counts[WORKER_FAILED.name, labels] += failed
            if isinstance(done, PartMade):
                self.counts[WORKER_BYTES.name, (job,)] += done.nbytes

    def forget(self, job: str) -> None:
        """Forget a job that is over."""
        for key in [key for key in self.counts if key[1][0] == job]:
            del self.counts[key]

    def collect(self) -> Iterator[Any]:
        """Yield prometheus_client's families."""
        points: dict[str, list[Point]] = {family.name: [] for family in WORKER_FAMILIES}
        for (name, labels), count in list(self.counts.items()):
            points[name].append((labels, count))
        return prometheus_families(WORKER_FAMILIES, points, {})


class _Scrapes(TCPServer):
    """Answers one connection at a time: others wait where they take no file of this process.

    One that is idle is closed, so that a stranger who holds some takes nothing but scrapes.
    """

    allow_reuse_address = True

    def __init__(self, host: str, port: int, answer: Any) -> None:
        (self.address_family, *_, where), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        super().__init__((str(where[0]), port), answer)

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """Log one line of what went wrong: strangers who reach the port can cause it."""
        logger.debug("a scrape of %s failed: %s", client_address, sys.exc_info()[1])


def serve_metrics(where: str, collector: Any) -> None:
    """Serve a collector, and what prometheus_client says of this process, over HTTP.

    where: PORT (on all interfaces), or HOST:PORT. Raises ValueError for anything else, and where
    prometheus_client is missing; OSError where the port is taken.
    """
    host, _, port = where.rpartition(":")
    if not port.isdecimal() or int(port) >= 1 << 16:
        raise ValueError(f"--metrics {where}: give a PORT, or HOST:PORT")
    try:
        import prometheus_client
    except ImportError as error:
        raise ValueError(
            "--metrics needs prometheus_client: pip install counterpoise[metrics]"
        ) from error
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)
    registry.register(collector)
    answer = prometheus_client.MetricsHandler.factory(registry)
    answer.timeout = SCRAPE_IDLE_S
    try:
        server = _Scrapes(host.strip("[]") or "0.0.0.0", int(port), answer)
    except OSError as error:
        raise OSError(
            f"--metrics {where}: cannot listen there: {error.strerror}: stop what does, or choose "
            "another port"
        ) from error
    threading.Thread(target=server.serve_forever, daemon=True, name="metrics").start()
    bound_port = server.server_address[1]
    logger.info("metrics at http://%s:%d/metrics", host or "0.0.0.0", bound_port)
