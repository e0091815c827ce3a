"""Run encoders in the bubbles of a pipeline: their layers are passes, their features are edges."""
