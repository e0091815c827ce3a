"""Lightning's Trainer.fit, its checkpoints, and ckpt_path."""

from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint

from ..lightning_cases import trainer
from ..tiny import numbers_of
from .runs import Found, Run, ranks, weights


class Module(LightningModule):
    """Trains the tiny model, and notes the samples of each microbatch."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run, self.whole = run, run.model()
        self.seen: list[tuple[int, list[int]]] = []

    def training_step(self, given: Any, _: int) -> torch.Tensor:
        batch, info = given if self.run.is_balanced else (given, None)
        self.seen.append((self.trainer.global_step, numbers_of(batch)))
        return self.run.share(self.whole(batch), batch, info, divided_by=self.run.accumulate)

    def configure_optimizers(self) -> Any:
        return self.run.optimizer(self.whole)


def train(run: Run) -> Found:
    module = Module(run)
    loader = run.loader() if ranks() > 1 else run.sharded_loader(0, 1)
    given = loader.with_info() if run.is_balanced else loader
    named: dict[str, Any] = {"max_steps": run.steps, "max_epochs": -1}
    if run.save and not run.resume and run.kind != "torch":
        named["enable_checkpointing"] = True
        named["callbacks"] = ModelCheckpoint(
            run.folder, "at-{step}", every_n_train_steps=run.save, save_top_k=-1
        )
    made = trainer(accumulate_grad_batches=run.accumulate, **named)
    made.fit(
        module, given, ckpt_path=f"{run.folder}/at-step={run.save}.ckpt" if run.resume else None
    )
    return module.seen, weights(module.whole)
