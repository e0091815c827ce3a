"""A job that a balancer serves: its run, which plays all ranks, its pool and its parties."""
