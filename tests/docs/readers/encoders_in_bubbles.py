"""What the reader of encoders-in-bubbles.md has: what one of runtime.md has, and a mesh."""

from tests.docs.readers.runtime import IMAGE, dp, init_device_mesh, others, pp, vit_layers

mesh = init_device_mesh("cpu", (dp, pp), mesh_dim_names=("dp", "pp"))
__all__ = ["IMAGE", "mesh", "others", "vit_layers"]
