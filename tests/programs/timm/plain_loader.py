"""timm's train.py with our loader: python plain_loader.py TRAIN_PY ARGUMENTS."""

import runpy
import sys

import torch.utils.data

import counterpoise as cp

torch.utils.data.DataLoader = cp.DataLoader  # type: ignore[misc]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
