"""What the reader of pipeline-checkpoints.md has: what one of runtime.md has, a mesh and a loss."""

from tests.docs.readers.runtime import (
    AdamW,
    dp,
    folder,
    init_device_mesh,
    loader,
    my_stages,
    number,
    others,
    pp,
    step,
)

mesh, loss = init_device_mesh("cpu", (dp, pp), mesh_dim_names=("dp", "pp")), others["loss"]
__all__ = ["AdamW", "folder", "loader", "loss", "mesh", "my_stages", "number", "step"]
