"""Names of jobs, and of peers: each says in its name which job it belongs to.

A peer's name (its ROUTER identity) is "JOB|REST": what serves several jobs knows from it whose a
message is, also of a peer that it has never heard of. REST ends with what cannot be guessed: a peer
that connects under another's name would get what is sent to that one.
"""

import os
import re
import sys

# The job of those that name none, where nothing started them that gives runs a name.
DEFAULT_JOB = "default"
MAX_JOB = 64
_SEPARATOR = "|"
_JOB = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_JOB - 1}}}")
# The names of runs of torchrun (without --rdzv-id "none"), Slurm and Ray.
_RUN_IDS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "RAY_JOB_ID")
# What RAY_JOB_ID is in the processes of Ray's workers, whatever job they are of.
_NO_RAY_JOB = "ffffffff"
# Characters of the readable part of a name: a ROUTER takes 255 in all.
_READABLE = 120


def checked_job(job: str) -> str:
    """Return a job's name; ValueError for one that cannot be.

    >>> checked_job("run-7")
    'run-7'
    """
    if not _JOB.fullmatch(job):
        raise ValueError(
            f"{job!r:.100} cannot be a job's name: use up to {MAX_JOB} letters, digits, - _ and ., "
            "a letter or digit first"
        )
    return job


def default_job() -> str:
    """Return the job's name where none is given: the run id of torchrun, Slurm or Ray."""
    run_ids = (os.environ.get(name, "") for name in _RUN_IDS)
    job = next((run_id for run_id in run_ids if run_id not in ("", "none")), DEFAULT_JOB)
    if job == _NO_RAY_JOB and (ray := sys.modules.get("ray")) is not None:
        job = ray.get_runtime_context().get_job_id()
    return re.sub(r"[^A-Za-z0-9._-]", "-", job).lstrip("._-")[:MAX_JOB] or DEFAULT_JOB


def peer_name(job: str, readable: str) -> bytes:
    """Return a new name for a peer of a job ("" for one that asks which jobs there are)."""
    return f"{job}{_SEPARATOR}{readable:.{_READABLE}}.{os.urandom(16).hex()}".encode()


def read_job(peer: bytes) -> str:
    """Return the job in a peer's name; that of a name without one is the default.

    >>> read_job(b"run-7|rank-0.1234"), read_job(b"rank-0.1234"), read_job(b"|fleet.1234")
    ('run-7', 'default', '')
    """
    job, separator, _ = peer.partition(_SEPARATOR.encode())
    return job.decode("ascii", "replace")[:MAX_JOB] if separator else DEFAULT_JOB
