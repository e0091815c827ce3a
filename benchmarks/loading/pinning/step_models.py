"""Two small models and their training step, for loops that wait for batches."""

from collections.abc import Callable
from typing import Any

MODELS = ("resnet", "vit")


def make_model(name: str, device: str, side: int, classes: int) -> Callable[[Any, Any], None]:
    """Return a function that takes one training step: uint8 images (B, 3, side, side), labels (B,).

    Both are on the device; the step does not wait for it. ValueError for a name not in MODELS.
    """
    import torch

    if name not in MODELS:
        raise ValueError(f"model is {name!r}, allowed are {MODELS}")
    model = _resnet(classes) if name == "resnet" else _vit(side, classes)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(images: Any, labels: Any) -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = torch.nn.functional.cross_entropy(model(images.float() / 255), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _resnet(classes: int) -> Any:
    """Return a residual network of four stages (He et al. 2015, with one block each)."""
    from torch import nn

    class Block(nn.Module):
        """Two convolutions beside a shortcut; halves the sides."""

        def __init__(self, before: int, after: int) -> None:
            super().__init__()
            self.shortcut = nn.Conv2d(before, after, 1, stride=2)
            self.layers = nn.Sequential(
                nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU(),
                nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after),
            )  # fmt: skip

        def forward(self, images: Any) -> Any:
            return nn.functional.relu(self.layers(images) + self.shortcut(images))

    return nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.BatchNorm2d(64), nn.ReLU(),
        Block(64, 128), Block(128, 256), Block(256, 512),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes),
    )  # fmt: skip


def _vit(side: int, classes: int) -> Any:
    """Return a vision transformer of six layers (Dosovitskiy et al. 2020); side in sixteens."""
    import torch
    from torch import nn

    class Vit(nn.Module):
        """Patches of 16 pixels, and the mean of what the layers make of them."""

        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 384, 16, stride=16)
            self.places = nn.Parameter(torch.zeros(1, (side // 16) ** 2, 384))
            layer = nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            self.head = nn.Linear(384, classes)

        def forward(self, images: Any) -> Any:
            found = self.patches(images).flatten(2).transpose(1, 2) + self.places
            return self.head(self.layers(found).mean(1))

    return Vit()
