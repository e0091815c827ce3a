"""Trains a small model of sounds with Lightning.

Run: torchrun --standalone --nproc-per-node 2 lightning_sounds.py
"""

import random

import torch
from lightning import LightningDataModule, LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

import counterpoise as cp

CLASSES = 5


class Sounds(Dataset):
    """Frames of sounds, from 10 to 400 of them, and a class."""

    def __init__(self, size=192, seed=0):
        draw = random.Random(seed)
        self.frames = [min(400, 10 + int(draw.expovariate(1 / 60))) for _ in range(size)]

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.rand(self.frames[index], 8, generator=generator), index % CLASSES


def pad_sounds(samples):
    sounds, classes = zip(*samples)
    return (
        nn.utils.rnn.pad_sequence(list(sounds), batch_first=True),
        torch.tensor([len(sound) for sound in sounds]),
        torch.tensor(classes),
    )


class SoundData(LightningDataModule):
    def train_dataloader(self):
        loader = cp.DataLoader(
            Sounds(),
            batch_size=8,
            shuffle=True,
            num_workers=1,
            collate_fn=pad_sounds,
            drop_last=True,
            balance=cp.Balance("auto", counts="free", seed=5),
        )
        return loader.with_info()

    def val_dataloader(self):
        return DataLoader(Sounds(size=32, seed=1), batch_size=8, collate_fn=pad_sounds)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frames = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, CLASSES)

    def forward(self, sounds, lengths):
        mask = torch.arange(sounds.shape[1]) < lengths[:, None]
        hidden = (self.frames(sounds) * mask[..., None]).sum(1) / lengths[:, None]
        return self.head(hidden)


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.rule = cp.loss_rule("lightning", accumulate=1)

    def training_step(self, batch, batch_idx):
        (sounds, lengths, classes), info = batch
        logits = self.net(sounds, lengths)
        loss_sum = nn.functional.cross_entropy(logits, classes, reduction="sum")
        self.log("loss", loss_sum / max(1, info.samples))
        return self.rule.scale(loss_sum, info, per="sample")

    def validation_step(self, batch, batch_idx):
        sounds, lengths, classes = batch
        right = self.net(sounds, lengths).argmax(-1) == classes
        self.log("accuracy", right.float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    seed_everything(5)
    model = Classifier()
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, datamodule=SoundData())
    print(trainer.callback_metrics)


if __name__ == "__main__":
    main()
