"""`counterpoise plan`: a model's parallelism on a cluster, found before training."""
