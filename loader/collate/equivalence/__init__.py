"""Checks that a model computes the same from every layout: losses, gradients, and what differs."""
