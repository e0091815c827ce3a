"""A trainer at a balancer elsewhere: it takes its ranks' microbatches by credit."""
