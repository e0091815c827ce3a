"""Speech in Lightning, with the loader of NeMo Speech: torchrun train.py [CHECKPOINT].

A recurrent net, so that what a cut gives does not depend on the padding after it.
"""

import sys

import lightning as L  # noqa: N812
import torch
from lhotse import CutSet
from lhotse.dataset import DynamicBucketingSampler, K2SpeechRecognitionDataset
from lhotse.dataset.input_strategies import AudioSamples
from torch.utils.data import DataLoader

SECONDS = 60  # of a rank's batch, with padding
FRAME = 40  # samples of sound
speech = K2SpeechRecognitionDataset(return_cuts=True, input_strategy=AudioSamples())


class SpeechModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.GRU(FRAME, 32, batch_first=True)
        self.head = torch.nn.Linear(32, 128)

    def train_dataloader(self):
        return self.make_loader("cuts.jsonl", shuffle=True)

    def val_dataloader(self):
        return self.make_loader("eval/cuts.jsonl", shuffle=False)

    def make_loader(self, path, shuffle):
        sampler = DynamicBucketingSampler(
            CutSet.from_jsonl_lazy(path), max_duration=SECONDS, num_buckets=10, shuffle=shuffle,
            rank=self.global_rank, world_size=self.trainer.world_size,
        )  # fmt: skip
        return DataLoader(speech, sampler=sampler, batch_size=None, num_workers=1)

    def training_step(self, batch, _):
        return self.measure_loss(batch)

    def validation_step(self, batch, _):
        self.log("val_loss", self.measure_loss(batch), sync_dist=True)

    def measure_loss(self, batch):
        """Return the mean loss of a batch's cuts."""
        sound, lengths = batch["inputs"], batch["supervisions"]["num_samples"]
        whole = torch.nn.functional.pad(sound, (0, -sound.shape[1] % FRAME))
        frames = whole.unflatten(1, (-1, FRAME))
        scores = self.head(self.net(frames)[0]).log_softmax(-1)
        texts = [torch.tensor([*text.encode()]) for text in batch["supervisions"]["text"]]
        return torch.nn.functional.ctc_loss(
            scores.transpose(0, 1), torch.cat(texts), -(-lengths // FRAME),
            torch.tensor([*map(len, texts)]), reduction="none",
        ).mean()  # fmt: skip

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
        return [optimizer], [{"scheduler": warmup, "interval": "step"}]


def train(model_class):
    keep = L.pytorch.callbacks.ModelCheckpoint(
        "checkpoints", "{step}", save_top_k=-1, every_n_train_steps=5
    )
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=20, use_distributed_sampler=False,
        val_check_interval=10, check_val_every_n_epoch=None, callbacks=[keep], logger=False,
        enable_progress_bar=False,
    )  # fmt: skip
    L.seed_everything(0)
    trainer.fit(model_class(), ckpt_path=sys.argv[1] if sys.argv[1:] else None)


if __name__ == "__main__":
    train(SpeechModel)
