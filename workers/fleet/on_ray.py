"""`cp.fleet.Ray`: a balancer and workers beside a training job, on the Ray cluster it runs on.

An actor, the *keeper*, runs the balancer on the node of the trainer that comes first, owns the
workers' actors, and decides how many there are. It is found by its name, so all ranks meet, and it
is detached, so that it outlives a trainer: ranks that are restarted, or become more or fewer, find
workers that are warm. It ends when no trainer has been connected for a while.
"""

import logging
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from ...balancer.transport.keys import PeerKeys, peer_keys, write_keys
from .control import FleetControl
from .processes import FOLDER, BalancerProcess
from .ray_actors import HINT, import_ray, ray_launcher

logger = logging.getLogger(__name__)
NAMESPACE = "counterpoise"
# A keeper that is just ending is asked again so often, until there is another.
TRIES, PAUSE_S = 60, 1.0


@dataclass(frozen=True, slots=True)
class Ray:
    """A fleet on the Ray cluster of this process, for `DataLoader(balancer=)`.

    Keys are made for it: other jobs are not let in. Trainers that give the same name share the
    fleet that the first of them has started.

    Args:
        workers: How many workers, or the fewest and the most; default 1.
        root: Folder below which they read, None for what `options` say; default "/".
        cpus_per_worker: CPUs that a worker's place has, as for Ray's actors; default 1.
        resources: Amounts of Ray's resources that the place has, by name; default none.
        label_selector: Labels that the place's node has: {"ray.io/node-group": "cpu"} keeps workers
            off the trainers' nodes; default any.
        options: Other words of `counterpoise worker`, such as "--allow", "mylab.augment:crop".
        name: Name of the fleet; default the Ray job's, so that all of its ranks share one.
        idle_s: Seconds without a trainer after which the fleet ends; default 60.
    """

    workers: int | tuple[int, int] = 1
    root: str | None = "/"
    cpus_per_worker: float = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    name: str = ""
    idle_s: float = 60.0

    def __post_init__(self) -> None:
        smallest, largest = self.bounds
        if not 1 <= smallest <= largest:
            raise ValueError(f"workers={self.workers}: give a number from 1 on, or (fewest, most)")

    @property
    def bounds(self) -> tuple[int, int]:
        """The fewest and the most workers."""
        return (self.workers, self.workers) if isinstance(self.workers, int) else self.workers

    def join(self) -> tuple[str, PeerKeys]:
        """Return the balancer's address and a trainer's keys; start the fleet if there is none.

        The keys say which job a trainer is of: Ray's, whose id the environment of its processes
        does not have.
        """
        address, keys = self._call("join")
        return address, structs.replace(keys, job=import_ray().get_runtime_context().get_job_id())

    def resize(self, workers: int) -> None:
        """Have `workers` workers now, within the bounds; the job's needs decide from then on."""
        self._call("resize", workers)

    def end(self) -> None:
        """Drain the workers and end the fleet now."""
        self._call("end")

    def _call(self, method: str, *arguments: Any) -> Any:
        ray = import_ray()
        if not ray.is_initialized():
            ray.init(address="auto")
        for tried in range(TRIES):
            keeper = self._keeper(ray)
            try:
                is_here, answer = ray.get(keeper.call.remote(method, arguments))
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayActorError:
                is_here = False
                if tried == TRIES - 1:
                    raise
            if is_here:
                return answer
            time.sleep(PAUSE_S)
        raise TimeoutError("the fleet of this name does not end: give another name=")

    def _keeper(self, ray: Any) -> Any:
        context = ray.get_runtime_context()
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            context.get_node_id(), soft=False
        )
        keeper = ray.remote(Keeper).options(
            name=f"fleet {self.name or context.get_job_id()}", namespace=NAMESPACE,
            get_if_exists=True, lifetime="detached", num_cpus=0, max_concurrency=8,
            scheduling_strategy=here,
        )  # fmt: skip
        return keeper.remote(self)


class Keeper:
    """The actor that has a fleet's balancer and workers."""

    def __init__(self, settings: Ray) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        ray = import_ray()
        self._settings, self._ray = settings, ray
        self._folder = tempfile.TemporaryDirectory(prefix=FOLDER)
        keys = Path(self._folder.name)
        write_keys(keys, {"worker": "worker", "trainer": "trainer"})
        host = ray.util.get_node_ip_address()
        balancer = BalancerProcess(host, ["--keys", str(keys / "balancer")])
        options = {"num_cpus": settings.cpus_per_worker, "resources": dict(settings.resources)}
        if settings.label_selector:
            options["label_selector"] = dict(settings.label_selector)
        root = [] if settings.root is None else ["--root", settings.root]
        words = [*root, *settings.options]
        launch = ray_launcher(balancer.address, words, options, keys / "worker")
        self._trainer = peer_keys(keys / "trainer", "trainer")
        self._address = balancer.address
        self._fleet = FleetControl(launch, balancer, settings.bounds, self._trainer, HINT)
        self._lock, self._is_ending = threading.Lock(), False
        self._used_at, self._failure = time.monotonic(), ""
        self._ends, self._ended = threading.Event(), threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def call(self, method: str, arguments: Sequence[Any]) -> tuple[bool, Any]:
        """Return True and what a method returns; False where the fleet is ending."""
        with self._lock:
            if self._is_ending:
                return False, None
            if self._failure:
                raise RuntimeError(f"the fleet has ended: {self._failure}")
            self._used_at = time.monotonic()
        return True, getattr(self, f"_{method}")(*arguments)

    def _join(self) -> tuple[str, PeerKeys]:
        return self._address, self._trainer

    def _resize(self, workers: int) -> None:
        self._fleet.resize(workers)

    def _end(self) -> None:
        self._ends.set()
        self._ended.wait()

    def _run(self) -> None:
        """Keep the fleet, then end this actor."""
        try:
            self._fleet.run(self._is_over)
        except Exception as error:
            logger.error("%s", error)
            self._failure = str(error)
            time.sleep(min(self._settings.idle_s, 600.0))  # trainers that join are told
        self._ended.set()
        self._folder.cleanup()
        time.sleep(PAUSE_S)  # for the answer of `end`
        self._ray.kill(self._ray.get_runtime_context().current_actor)

    def _is_over(self) -> bool:
        with self._lock:
            if self._fleet.trainers:
                self._used_at = time.monotonic()
            idle_s = time.monotonic() - self._used_at
            self._is_ending = self._ends.is_set() or idle_s > self._settings.idle_s
            return self._is_ending
