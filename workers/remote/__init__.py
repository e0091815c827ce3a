"""A worker of a balancer elsewhere: it makes parts of microbatches, and keeps them for trainers."""
