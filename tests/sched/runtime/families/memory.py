"""Print what loading and saving its part of a model needs of each process, in bytes.

Run: torchrun --nproc-per-node 2 memory.py FOLDER KIND SCHEDULE
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh

from counterpoise.sched.runtime import adapt

SHARD = 20_000_000
LARGE: dict[str, Any] = {"vocab_size": 8192, "hidden_size": 512, "num_hidden_layers": 8}
LARGE |= {"num_attention_heads": 8, "num_key_value_heads": 8, "pad_token_id": 0}
EXPERTS = {"num_experts": 8, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}
MORE: dict[str, dict[str, Any]] = {"llama": {"intermediate_size": 2048}, "qwen2_moe": EXPERTS}


def config_of(kind: str, **small: Any) -> Any:
    return transformers.AutoConfig.for_model(kind, **{**LARGE, **MORE[kind], **small})


def memory(field: str) -> int:
    """Return VmRSS, or VmHWM, the most of it since `forget`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def forget() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def load_and_save(mesh: Any, config: Any, schedule: str, weights: Any, out: Path) -> dict[str, int]:
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    adapted = adapt(model)
    before = forget()
    pipe = adapted.pipeline(mesh, schedule, weights=weights)
    found = {"load": memory("VmHWM") - before}
    found["share"] = sum(t.nbytes for m in pipe.modules() for t in [*m.parameters(), *m.buffers()])
    before = forget()
    adapted.save_pretrained(out, pipe, shard_bytes=SHARD)
    found["save"] = memory("VmHWM") - before
    pipe.close()
    return found


if __name__ == "__main__":
    folder, kind, schedule = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    dist.init_process_group("gloo")
    where = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "pp"))
    # what is imported and made once is no part of a model
    tiny = config_of(kind, vocab_size=64, hidden_size=16, num_hidden_layers=2, intermediate_size=16)
    load_and_save(where, tiny, schedule, 0, folder / "tiny")
    found = load_and_save(where, config_of(kind), schedule, str(folder / "model"), folder / "saved")
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
