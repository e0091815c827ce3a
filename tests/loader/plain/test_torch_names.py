"""The private names of torch that plain loaders use exist, and no others are used."""

import ast

import torch
import torch.utils.data as torch_data

from counterpoise.loader.plain import torch_names
from tests.imports import ROOT


def test_they_exist() -> None:
    data = torch_data.TensorDataset(torch.arange(2))
    loader = torch_data.DataLoader(data, num_workers=1)
    workers, inline = iter(loader), iter(torch_data.DataLoader(data))
    assert isinstance(workers, torch_names.TorchWorkersIterator)
    assert isinstance(inline, torch_names.TorchInlineIterator)
    assert all(hasattr(loader, name) for name in torch_names.LOADER_NAMES)
    assert all(hasattr(workers, name) for name in torch_names.WORKERS_NAMES)
    assert all(hasattr(inline, name) for name in torch_names.INLINE_NAMES)


def test_nothing_else_of_ours_imports_a_private_name_of_torchs_loader() -> None:
    for path in (ROOT / "loader" / "plain").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                private = [each.name for each in node.names if each.name.startswith("_")]
                assert not private or path.name == "torch_names.py", (path, private)
