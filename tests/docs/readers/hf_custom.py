"""What the reader of hf-custom.md has: what one of hf-pipeline.md has, a mesh and a model."""

from tests.docs.readers.hf_pipeline import (
    AutoModelForCausalLM,
    config,
    cross_entropy,
    dp,
    init_device_mesh,
    layers_of_stages,
    mine_of_them,
    pp,
)

mesh = init_device_mesh("cpu", (dp, pp), mesh_dim_names=("dp", "pp"))
model = AutoModelForCausalLM.from_config(config)
__all__ = ["config", "cross_entropy", "layers_of_stages", "mesh", "mine_of_them", "model"]
