"""`counterpoise balancer`, `worker` and `keygen`."""
