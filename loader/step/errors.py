"""The loader's one error of its own."""


class LoaderError(RuntimeError):
    """The loader cannot go on: broken data, an impossible plan, a balancer that is gone."""
