"""Budgets as they are written on a command line."""

from .programs import is_count


def parse_budgets(texts: tuple[str, ...]) -> dict[str, int]:
    """Return {resource: budget} from texts like tiles=9; raises ValueError if one is malformed.

    >>> parse_budgets(("tiles=9", "tokens=4096"))
    {'tiles': 9, 'tokens': 4096}
    """
    budgets = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not is_count(value):
            raise ValueError(
                f"--budget got {text!r:.80}; write RESOURCE=AMOUNT, such as tokens=4096"
            )
        budgets[name] = int(value)
    return budgets
