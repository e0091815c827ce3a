"""Runs open_clip's training on CPU ranks, with webdataset 1.0, and in an order that repeats.

open_clip 3.3.0 is written for webdataset 0.2, which marks no end of a shard, and shuffles by a seed
of the time and the process.
"""

from functools import partial
from typing import Any

import webdataset
from webdataset import tariterators

import tests.programs.timm.stand_in  # noqa: F401  DDP is told no device

webdataset.shuffle = partial(webdataset.shuffle, seed=0)
reader: Any = tariterators
reader.tar_file_expander = partial(tariterators.tar_file_expander, eof_value=None)
