"""Megatron-Energon's prepared folders of tar shards, and its metadatasets, which mix them."""
