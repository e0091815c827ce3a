"""For what ms-swift builds: `counterpoise try trial.py:make_loader --ranks 2`."""

from contextlib import suppress
from pathlib import Path

import yaml
from swift.pipelines import sft_main
from torch.utils.data import DataLoader
from transformers import Trainer

loaders = []


def keep_loader(trainer, *_, **__):
    size, collate = trainer.args.per_device_train_batch_size, trainer.data_collator
    loaders.append(DataLoader(trainer.train_dataset, size, shuffle=True, collate_fn=collate))
    raise SystemExit


def make_loader():
    Trainer.train = keep_loader
    with suppress(SystemExit):
        settings = yaml.safe_load(Path("train.yaml").read_text())
        sft_main([word for name, value in settings.items() for word in (f"--{name}", str(value))])
    return loaders[0]
