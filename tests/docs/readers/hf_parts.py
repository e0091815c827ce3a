"""What the reader of hf-parts.md has: what one of hf-pipeline.md has, a mesh and weights."""

from tests.docs.readers.hf_pipeline import (
    AutoModelForCausalLM,
    config,
    dp,
    folder,
    init_device_mesh,
    pp,
    step,
    torch,
    trained,
)

mesh = init_device_mesh("cpu", (dp, pp), mesh_dim_names=("dp", "pp"))
__all__ = ["AutoModelForCausalLM", "config", "folder", "mesh", "step", "torch", "trained"]
