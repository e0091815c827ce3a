"""Defines the loader's own error."""

from ...workers.sources.visible_text import visible


class LoaderError(RuntimeError):
    """The loader cannot continue: broken data, an impossible plan, a dead balancer."""

    def __str__(self) -> str:
        """Return the message; what workers on other machines wrote into it is made visible."""
        return visible(super().__str__())


class ComesAgainError(LoaderError):
    """A microbatch that could not be made a few times: it comes again if the loop goes on."""
