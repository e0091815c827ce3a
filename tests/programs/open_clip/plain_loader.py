"""open_clip's training with our loader around its pipeline: the arguments are open_clip's."""

import runpy
from functools import partial

import webdataset
from webdataset import tariterators

import counterpoise as cp

webdataset.WebLoader = cp.DataLoader
webdataset.shuffle = partial(webdataset.shuffle, seed=0)
tariterators.tar_file_expander = partial(tariterators.tar_file_expander, eof_value=None)
runpy.run_module("open_clip_train.main", run_name="__main__")
