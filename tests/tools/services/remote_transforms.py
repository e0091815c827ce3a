"""Transforms of a user's own, which a worker runs if it is started with --allow."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.workers.sources.interface import Probe


class Measured:
    """Makes fields of a few bytes."""

    def __init__(self, offset=0):
        self.offset = offset

    def probe(self, raw):
        return Probe(raw["__key__"], {"tiles": 0, "tokens": len(raw), "label_tokens": 1}, None)

    def __call__(self, raw):
        return {"length": np.array([len(raw) + self.offset]), "name": raw["__key__"]}


class AsSet(Measured):
    """Makes what cannot go to another host."""

    def __call__(self, raw):
        return {raw["__key__"]}


class Stumble(Measured):
    """Raises what nobody expects."""

    def __call__(self, raw):
        raise KeyError(f"no such member in {len(raw)}")


class Costly(Measured):
    """Finds a cost that cannot be planned for every key that ends with 7."""

    def __init__(self, cost):
        super().__init__()
        self.cost = float(cost) if isinstance(cost, str) else cost

    def probe(self, raw):
        cost: Any = self.cost if raw["__key__"].endswith("7") else 3
        return Probe(raw["__key__"], {"tiles": 0, "tokens": cost, "label_tokens": 1}, None)


class Bare(Costly):
    """Finds a number in place of a probe for every key that ends with 7."""

    def probe(self, raw):
        return self.cost if raw["__key__"].endswith("7") else Measured.probe(self, raw)


class Sluggish(Measured):
    """Takes as long as this process' environment says."""

    def __call__(self, raw):
        time.sleep(float(os.environ.get("SLUGGISH_S", "0")))
        return super().__call__(raw)


class Counted(Measured):
    """Takes the time that this process' environment says, and writes the job's letter to a pipe."""

    def __call__(self, raw):
        with Path(os.environ["DECODE_ORDER"]).open("wb", buffering=0) as pipe:
            pipe.write(raw["__key__"][:1].encode())
        time.sleep(float(os.environ["DECODE_S"]))
        return super().__call__(raw)
