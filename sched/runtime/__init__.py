"""Run schedules on real tensors: the one package of `sched` that imports torch."""
