"""The commands that run a job on several machines: `counterpoise balancer`, `worker`, `keygen`."""
