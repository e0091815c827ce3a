"""The process groups of a pipeline: settings that stop all streams are refused."""

import pytest
import torch

from counterpoise.sched.runtime.links.process_groups import make_groups, refuse_one_connection

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def test_one_connection_per_device_is_refused_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    with pytest.raises(ValueError, match="unset it, or set it to 8 or more"):
        make_groups([(0, 1)], [(0, 1)], {}, CUDA, 10.0)


@pytest.mark.parametrize("value", [None, "8", "32"])
def test_other_settings_are_accepted(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", value)
    refuse_one_connection(CUDA)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    refuse_one_connection(CPU)
