"""`counterpoise demo --pipeline`: the example that trains on a pipeline, in a small form."""

from .show import PipelineDemo, show_pipeline, with_pipeline_options

__all__ = ["PipelineDemo", "show_pipeline", "with_pipeline_options"]
