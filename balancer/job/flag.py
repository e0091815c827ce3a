"""Says whether the remote wing is the new one (ADR 63), until the old one is gone."""

import os

VARIABLE = "COUNTERPOISE_WING"


def uses_pools() -> bool:
    """Return whether the balancer plays all ranks over pools of workers on the network."""
    return os.environ.get(VARIABLE) == "pools"
