"""counterpoise: balanced data loading and pipeline schedules for vision-language training.

Importing the package is cheap: it imports neither torch nor zmq. Take what you need from
`counterpoise.loader`, `counterpoise.workers`, `counterpoise.balancer` and `counterpoise.sched`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .balancer.protocol.software_version import VERSION

        return VERSION
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
