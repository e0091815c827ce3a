"""The error of a run that cannot go on."""


class RunError(Exception):
    """A run cannot go on: broken data, an impossible plan, ranks that disagree.

    raised: the error of the user's code that ends the run. comes_again: whether the microbatch that
    could not be made a few times comes again if the loop goes on.
    """

    def __init__(
        self, text: str, raised: Exception | None = None, comes_again: bool = False
    ) -> None:
        super().__init__(text)
        self.raised = raised
        self.comes_again = comes_again
