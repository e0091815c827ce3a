"""What every process of a pool imports, once for all: the server that they are forked from has it.

Imported before anything else of a framework, as some read the environment when they are imported.
"""

import gc
import os

os.environ |= {
    "ACCELERATE_USE_CPU": "true",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

import accelerate  # noqa: F401
import lightning  # noqa: F401
import torch  # noqa: F401
import transformers.trainer  # noqa: F401
from trl import DPOTrainer, SFTTrainer  # noqa: F401

import counterpoise.loader  # noqa: F401

# Trainer collects garbage at each end, and so does the pool after each case: what stays for all
# cases is spared, which took a third of a second each time.
gc.collect()
gc.freeze()
