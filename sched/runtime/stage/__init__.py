"""Run the stages of a model: forward, backward, and a backward split into two passes."""
