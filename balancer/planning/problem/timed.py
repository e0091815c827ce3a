"""Times in place of costs, where work adds up and a model says what each resource takes.

Ranks wait for each other in the encoder and in the language model apart, so each keeps its column:
what is evened out is its time, the square of attention included. Budgets limit costs, and stay.
"""

from dataclasses import replace

import numpy as np

from ..kernels.arrays import Int64
from .config import PlanConfig
from .options import ATTENTION_PAIRS, LLM
from .padded_work import resource_times


def is_timed(config: PlanConfig) -> bool:
    """Return whether sums are planned by times; padded work looks at them itself."""
    return bool(config.time_ns) and not config.padded


def timed_config(config: PlanConfig) -> PlanConfig:
    """Return the configuration of `timed_costs`: budgets first, then a time for each resource.

    >>> config = PlanConfig(1, 8, 1, ("tiles", "tokens"), (9, None), time_ns=(("tokens", 4),))
    >>> timed_config(config).resources, timed_config(config).budgets
    (('tiles', 'tokens ns'), (9, None))
    """
    limited = [k for k, budget in enumerate(config.budgets) if budget is not None]
    names = [f"{config.resources[k]} ns" for k in _weighed(config)]
    return replace(
        config,
        resources=(*(config.resources[k] for k in limited), *names),
        budgets=(*(config.budgets[k] for k in limited), *(None for _ in names)),
        time_ns=tuple((name, 1) for name in sorted(names)),
    )


def timed_costs(config: PlanConfig, costs: Int64) -> Int64:
    """Return the costs that have budgets, and the time of each resource of samples (n, resources).

    >>> times = (("attention_pairs", 2), ("tokens", 3))
    >>> config = PlanConfig(1, 8, 1, ("tokens",), (9,), time_ns=times)
    >>> timed_costs(config, np.array([[5], [7]])).tolist()
    [[5, 65], [7, 119]]
    """
    limited = [costs[:, k] for k, budget in enumerate(config.budgets) if budget is not None]
    times = resource_times(config, costs)
    return np.stack([*limited, *(times[:, k] for k in _weighed(config))], axis=1)


def _weighed(config: PlanConfig) -> list[int]:
    """Return the numbers of the resources that take time."""
    names = {LLM if name == ATTENTION_PAIRS else name for name, _ in config.time_ns}
    return [k for k, name in enumerate(config.resources) if name in names]
