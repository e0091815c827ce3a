"""What a reader of README.md has before its first block: data, tokenizer, model, optimizer."""

from types import SimpleNamespace

import torch
from torch.utils.data import TensorDataset

dataset = TensorDataset(torch.arange(64))


def my_tokenizer(text: str) -> list[int]:
    """Return a text's bytes as ids."""
    return list(text.encode())


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Embedding(256, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return a sum over label tokens; it need not be a good one."""
        scores: torch.Tensor = self.scores(batch["input_ids"])[..., 0]
        return scores[batch["labels"] >= 0].sum()


model = _Model()
optimizer = torch.optim.SGD(model.parameters())
# A pipeline needs a process group; tests/docs/readers/runtime.py has one.
pipe = SimpleNamespace(
    step=lambda _: SimpleNamespace(loss=torch.zeros(())), clip_grad_norm_=lambda _: None
)
