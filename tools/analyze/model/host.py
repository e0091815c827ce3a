"""Derives what a training step asks of CPU workers and of the network, from measured times."""

from typing import Any

from ..scan.rows import Rows

Json = dict[str, Any]
# The schedule whose modelled speed the workers must keep up with.
SCHEDULE = "1f1b"


def host_figures(rows: Rows, pipelines: Json) -> Json:
    """Return CPU time and bytes of a sample, and the workers and bytes per second they lead to.

    Times are None if nothing was timed. The rates need the figures of simulated pipelines.
    """
    times = rows.cpu_times
    known = rows.nbytes[rows.nbytes >= 0]
    found: Json = {
        "probed": times.probed,
        "probe_ms": times.probe_ns / times.probed / 1e6 if times.probed else None,
        "decoded": times.decoded,
        "decode_ms": times.decode_ns / times.decoded / 1e6 if times.decoded else None,
        "bytes_per_sample": float(known.mean()) if len(known) else None,
    }
    schedules = pipelines.get("schedules", [])
    rates = [one["balanced"]["samples_per_s"] for one in schedules if one["schedule"] == SCHEDULE]
    if rates:
        found["samples_per_s"] = rates[0]
        if found["decode_ms"] is not None:
            found["workers"] = rates[0] * found["decode_ms"] / 1000
        if found["bytes_per_sample"] is not None:
            found["bytes_per_s"] = rates[0] * found["bytes_per_sample"]
    return found
