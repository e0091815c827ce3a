"""For what Axolotl builds: `counterpoise try trial.py:make_loader --ranks 2`."""

from contextlib import suppress

from axolotl.cli.train import do_cli
from transformers import Trainer

loaders = []


def keep_loader(trainer, *_, **__):
    trainer.accelerator.prepare = lambda loader: loader
    loaders.append(trainer.get_train_dataloader())
    raise SystemExit


def make_loader():
    Trainer.train = keep_loader
    with suppress(SystemExit):
        do_cli("train.yaml")
    return loaders[0]
