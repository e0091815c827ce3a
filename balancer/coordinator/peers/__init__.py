"""The coordinator's records of workers and ranks, and the reasons to refuse one."""
