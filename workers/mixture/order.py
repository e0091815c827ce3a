"""The order of a source's samples in an epoch: a shuffle, or the source's own."""

from typing import TYPE_CHECKING, Any

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.shuffle import permutation

if TYPE_CHECKING:
    from ...balancer.planning.mixing.recipe import Recipe


def epoch_order(source: Any, seed: int, epoch: int, shuffle: bool) -> Int64:
    """Return the indexes of an epoch's samples in order: of a mixture as it says, else shuffled."""
    own = _mixture_in(source)
    if own is not None:
        found: Int64 = own.epoch_order(seed, epoch, shuffle)
        return found
    return permutation(len(source), seed, epoch, shuffle)


def epoch_samples(source: Any, shuffle: bool) -> int:
    """Return how many samples an epoch has: of a mixture fewer than it has indexes.

    >>> epoch_samples([1, 2], shuffle=True)
    2
    """
    own = recipe_of(source)
    return len(source) if own is None else own.samples(shuffle)


def refuse_unsaid_costs(source: Any) -> None:
    """Raise ValueError for a mixture of which only some sources say what their samples cost."""
    if _is_recipe(getattr(source, "recipe", None)):
        source.refuse_unsaid_costs()


def rows_of(dataset: Any) -> Any:
    """Return what balanced loops read a data set from: a mixture's rows, else itself.

    Raises ValueError for a mixture inside of another data set, which would have it in no order.
    """
    parts = getattr(dataset, "datasets", ())
    inside = [getattr(dataset, name, None) for name in ("dataset", "records")]
    inside += parts if isinstance(parts, list | tuple) else []
    if any(recipe_of(getattr(each, "rows", None)) is not None for each in inside):
        raise ValueError(
            f"a Mixture inside of a {type(dataset).__name__} has no order of its own: wrap its "
            "sources, as in Mixture({'a': (wrapped(data), 3), ...})"
        )
    rows = getattr(dataset, "rows", None)
    return dataset if recipe_of(rows) is None else rows


def recipe_of(source: Any) -> "Recipe | None":
    """Return the recipe of a source that is the rows of a mixture; None of others."""
    own = _mixture_in(source)
    return None if own is None else own.recipe


def source_of(key: str) -> str:
    """Return the name of the source in a key of a mixture.

    >>> source_of("web@2/dir/cat"), source_of("web/dir@2/cat")
    ('web', 'web')
    """
    return key.partition("/")[0].partition("@")[0]


def _mixture_in(source: Any) -> Any:
    """Return the rows of a mixture, also where costs were given for them (PlainSource)."""
    for each in (source, getattr(source, "dataset", None)):
        if _is_recipe(getattr(each, "recipe", None)):
            return each
    return None


def _is_recipe(thing: Any) -> bool:
    if thing is None:
        return False
    from ...balancer.planning.mixing.recipe import Recipe  # here: most loops have no mixture

    return isinstance(thing, Recipe)
