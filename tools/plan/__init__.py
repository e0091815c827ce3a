"""`counterpoise plan`: layouts of a model on a cluster, found before training."""
