"""Workers as actors of a Ray cluster: each runs the worker's command as a process of its own."""

import importlib
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .processes import FOLDER, product_command

# Where a worker waits that was asked for.
HINT = (
    "Ray has no node with what they ask for free; `ray status` shows them as demand, which an "
    "autoscaler meets"
)


def import_ray(feature: str = "a fleet on Ray") -> Any:
    """Return the module ray; ValueError if it is not installed. feature: needs it."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ValueError(f"{feature} needs Ray; pip install 'counterpoise[ray]'") from None


class WorkerActor:
    """Runs a worker until it ends.

    Its process is another one than Ray's: it may be killed for the memory of a sample, and what it
    does with signals and threads is as everywhere else.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._leaves = False

    def run(self, words: Sequence[str], keys: Mapping[str, str]) -> int:
        """Run a worker with these keys, the contents of files; return its exit status."""
        with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
            for name, text in keys.items():
                path = Path(folder, name)
                path.touch(mode=0o600)
                path.write_text(text)
            key_options = ["--keys", folder] if keys else []
            command = product_command([*words, *key_options])
            self._process = subprocess.Popen(command, start_new_session=True)
            if self._leaves:
                self._process.terminate()
            return self._process.wait()

    def ready(self) -> None:
        """Return: the actor has been placed."""

    def drain(self) -> None:
        """Have the worker finish what it has, and end."""
        self._leaves = True
        if self._process is not None:
            self._process.terminate()


class RayWorker:
    """A worker in an actor, which belongs to the process that makes this."""

    def __init__(self, make_actor: Any, words: Sequence[str], keys: Mapping[str, str]) -> None:
        self._ray = import_ray()
        self._actor = make_actor.remote()
        # Where its node is lost Ray runs it on another one.
        self._run = self._actor.run.options(max_task_retries=-1).remote(words, keys)
        self._ready = self._actor.ready.remote()

    def poll(self) -> int | None:
        """Return its exit status once it has ended, and free its place."""
        if not self._ray.wait([self._run], timeout=0)[0]:
            return None
        try:
            return int(self._ray.get(self._run))
        except self._ray.exceptions.RayError:
            return -1
        finally:
            self.kill()

    def terminate(self) -> None:
        """Ask it to finish what it has, and to end; without a place yet it ends now."""
        if self._ray.wait([self._ready], timeout=0)[0]:
            self._actor.drain.remote()
        else:
            self.kill()

    def kill(self) -> None:
        """End its actor."""
        self._ray.kill(self._actor)


def ray_launcher(
    address: str, words: Sequence[str], options: Mapping[str, Any], keys: Path | None = None
) -> Callable[[], RayWorker]:
    """Return what starts a worker on Ray, for the balancer at an address.

    options: of Ray's actors, num_cpus and label_selector, say; keys: a worker's folder.
    """
    make_actor = import_ray().remote(WorkerActor).options(
        max_restarts=-1, max_concurrency=3, **{"scheduling_strategy": "SPREAD", **options}
    )  # fmt: skip
    contents = {} if keys is None else {p.name: p.read_text() for p in keys.iterdir()}
    return lambda: RayWorker(make_actor, ["worker", address, *words], contents)
