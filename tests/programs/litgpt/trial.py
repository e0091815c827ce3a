"""For what litgpt builds: `counterpoise try trial.py:make_loader --ranks 2`."""

from pathlib import Path

from litgpt.data import JSON
from litgpt.tokenizer import Tokenizer


def make_loader():
    data = JSON(Path("data"), num_workers=1)
    data.connect(Tokenizer("model"), batch_size=4, max_seq_length=1024)
    data.setup()
    return data.train_dataloader()
