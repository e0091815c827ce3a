"""Balances and loaders from flat options, so that a test can change one like any other."""

from typing import Any

from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.balancer.planning.problem.layout import Layout
from counterpoise.balancer.planning.problem.values import Images, PipelineOrder, Shapes, Work
from counterpoise.loader import DataLoader

# The fields of values, and what each is called there, by the argument that has the value.
FIELDS = {
    "layout": {"pad_id": "pad_id", "shift_labels": "shift_labels"},
    "pipeline": {"ordering": "ordering"},
    "work": {"work": "kind", "time_ns": "time_ns"},
    "shapes": {name: name for name in ("align", "cp", "buckets")},
    "images": {name: name for name in ("dispatch", "all_or_none", "dummy_tile")},
}
MAKERS: dict[str, Any] = {"work": Work, "shapes": Shapes, "images": Images}
NAMES = {*Balance.__dataclass_fields__}.union(*FIELDS.values())


def flat_balance(*args: Any, **options: Any) -> Balance:
    """Return the Balance of options, of which some are fields of an argument's value."""
    for argument, names in FIELDS.items():
        values = {names[name]: options.pop(name) for name in names if name in options}
        if argument in MAKERS and values:
            options[argument] = MAKERS[argument](**values)
        elif argument == "layout" and values:
            layout = options.get("layout", "torch")
            own = {} if isinstance(layout, str) else {"fields": layout.fields, "base": layout.base}
            options["layout"] = Layout(getattr(layout, "name", layout), **own, **values)
        elif values == {"ordering": "given"}:
            options.pop("pipeline", None)
        elif argument == "pipeline" and values:
            options["pipeline"] = PipelineOrder(options["pipeline"], **values)
    return Balance(*args, **options)


def balanced_loader(dataset: Any, *, grouping: Any, **given: Any) -> DataLoader:
    """Return a balanced DataLoader; those of the arguments that are Balance's options go there."""
    options = {name: given.pop(name) for name in NAMES if name in given}
    return DataLoader(dataset, balance=flat_balance(grouping=grouping, **options), **given)
