"""Defines the loader's own error."""


class LoaderError(RuntimeError):
    """The loader cannot continue: broken data, an impossible plan, a dead balancer."""
