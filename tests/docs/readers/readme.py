"""What a reader of README.md has before its first block: data, model, optimizer, pipeline."""

from types import SimpleNamespace

import torch
from torch.nn.utils.rnn import pad_sequence

Sample = dict[str, torch.Tensor]


class _Texts(torch.utils.data.Dataset[Sample]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Sample:
        tokens = torch.arange(2 + index * 7 % 50)
        return {"input_ids": tokens, "labels": tokens}


dataset = _Texts()


def collate(samples: list[Sample]) -> Sample:
    """Return padded rows."""
    return {
        name: pad_sequence([sample[name] for sample in samples], batch_first=True)
        for name in ("input_ids", "labels")
    }


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Embedding(256, 1)

    def forward(self, batch: Sample) -> torch.Tensor:
        """Return a sum over label tokens; it need not be a good one."""
        scores: torch.Tensor = self.scores(batch["input_ids"])[..., 0]
        return scores[batch["labels"] >= 0].sum()


model = _Model()
optimizer = torch.optim.SGD(model.parameters())
# A pipeline needs a process group; tests/docs/readers/runtime.py has one.
pipe = SimpleNamespace(step=lambda _: SimpleNamespace(loss=torch.zeros(())))
