"""counterpoise: balanced data loading and pipeline schedules for vision-language training.

Importing the package is cheap: it imports neither torch nor zmq. Take what you need from
`counterpoise.loader`, `counterpoise.workers`, `counterpoise.balancer` and `counterpoise.sched`.
"""

__version__ = "0.1.0"
