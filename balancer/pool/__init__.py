"""A job's pool of workers on the network: who makes which part of a microbatch, and keeps it."""
