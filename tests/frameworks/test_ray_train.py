"""Ray Train's prepare_data_loader, which puts another sampler into loaders that it is given."""

from types import SimpleNamespace

import pytest
import torch

from .tiny import balanced, numbers_of


def test_a_balanced_loader_keeps_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    utilities = pytest.importorskip("ray.train.v2.torch.train_loop_utils")  # 2 s: not on collection
    import ray.train.torch

    context = SimpleNamespace(get_world_size=lambda: 2, get_world_rank=lambda: 1)
    monkeypatch.setattr(ray.train, "get_context", lambda: context)
    monkeypatch.setattr(ray.train.torch, "get_device", lambda: torch.device("cpu"))
    prepared = utilities.prepare_data_loader(balanced(ranks=(0, 1), num_workers=0))
    planned = [numbers_of(batch) for batch in balanced(ranks=(0, 1), num_workers=0)]
    assert [numbers_of(batch) for batch in prepared] == planned
    assert len(prepared) == len(planned) == 4
