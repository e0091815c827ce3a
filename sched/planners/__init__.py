"""Layout planners: layers to stages, recomputation, orchestration."""
