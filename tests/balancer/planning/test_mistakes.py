"""Mistakes over Balance and its values: each is answered with what, where, and what to do."""

from collections.abc import Callable
from typing import Any

import pytest

from counterpoise.balancer import Images, Layout, PipelineOrder, Shapes, Work
from counterpoise.balancer.planning.problem import balance

# Their types refuse what is tried here.
Balance: Any = balance.Balance
Value: Any = {cls.__name__: cls for cls in (Images, Layout, PipelineOrder, Shapes, Work)}
LIMITED: dict[str, Any] = {"budgets": {"tokens": 4096}, "oversize": "refuse"}

MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "misspelt": (
        lambda: Balance(budget={"tokens": 9}), TypeError,
        "Balance has no argument budget; did you mean budgets=?",
    ),
    "like a value's field": (
        lambda: Balance(alignn=16), TypeError,
        "Balance has no argument alignn; did you mean align= of shapes=Shapes(...)?",
    ),
    "like nothing": (
        lambda: Balance(xyzzy=1), TypeError,
        "Balance has no argument xyzzy; it has grouping, budgets, samples_per_step, accumulate, "
        "mode, partition, waits, counts, oversize, seed, label_tokens, layout, pipeline, work, "
        "shapes, images",
    ),
    "moved into Shapes": (
        lambda: Balance(align={"tokens": 16}, buckets=4), TypeError,
        "Balance has no argument align, buckets: write shapes=Shapes(align={'tokens': 16}, "
        "buckets=4)",
    ),
    "moved beside a short form": (
        lambda: Balance(work="padded", time_ns={"tokens": 40}), TypeError,
        "Balance has no argument time_ns: write work=Work('padded', time_ns={'tokens': 40})",
    ),
    "moved into Images": (
        lambda: Balance(dispatch="images"), TypeError,
        "Balance has no argument dispatch: write images=Images(dispatch='images')",
    ),
    "moved beside a layout's name": (
        lambda: Balance(layout="packed", pad_id=7), TypeError,
        "Balance has no argument pad_id: write layout=Layout('packed', pad_id=7)",
    ),
    "moved into a value with a required field": (
        lambda: Balance(shift_labels=False), TypeError,
        "Balance has no argument shift_labels: write layout=Layout(..., shift_labels=False)",
    ),
    "a mapping of settings": (
        lambda: Balance(pipeline={"schedule": "1f1b", "stages": 4}), ValueError,
        "pipeline is {'schedule': '1f1b', 'stages': 4}, allowed are the path of a cost profile, a "
        "cp.PipelineOrder, or None",
    ),
    "a value's misspelt field": (
        lambda: Value["Shapes"](aling=16), TypeError,
        "Shapes has no argument aling; did you mean align=?",
    ),
    "a value of wrong type": (
        lambda: Balance(images="images"), ValueError,
        "images is 'images', allowed is a cp.Images, such as cp.Images(dispatch='images')",
    ),
    "a short form of wrong type": (
        lambda: Balance(work=40), ValueError,
        "work is 40, allowed are 'packed', 'padded', nanoseconds of each resource such as "
        "{'tokens': 40}, or a cp.Work",
    ),
    "a short form that there is not": (
        lambda: Balance(shapes="one"), ValueError,
        "shapes is 'one', allowed are a multiple of tokens such as 16, 'fixed', a multiple of each "
        "resource such as {'tokens': 16}, or a cp.Shapes",
    ),
    "sizes in place of a multiple": (
        lambda: Balance(shapes={"tokens": [4096, 8192]}), ValueError,
        "align is {'tokens': [4096, 8192]}, allowed is a positive integer for each resource, such "
        "as {'tokens': 16}; all_or_none='tiles' is about ranks with and without images",
    ),
    "no number of buckets": (
        lambda: Shapes(buckets=0), ValueError,
        "buckets is 0, allowed are sizes of a microbatch for each resource, such as {'tokens': "
        "[4096, 8192]}, or their number",
    ),
    "one shape without a budget": (
        lambda: Balance(shapes="fixed", oversize="refuse"), ValueError,
        "buckets is 1, lengths of up to the budget of tokens, and there is none: give "
        "budgets={'tokens': 4096}, or the buckets themselves",
    ),
    "shapes that contradict the work": (
        lambda: Balance(**LIMITED, shapes="fixed", work="padded"), ValueError,
        "buckets are of microbatches whose samples are concatenated, and work or layout "
        "is 'padded', where both rows and their length vary: use layout 'packed', or "
        "shapes=128, which leaves few lengths",
    ),
    "images that contradict the work": (
        lambda: Balance(work="padded", images=Images(all_or_none="tiles")), ValueError,
        "images: all_or_none is 'tiles', and work is 'padded', where microbatches of like sizes "
        "run side by side: use work 'packed', or leave all_or_none out",
    ),
    "images that contradict each other": (
        lambda: Balance(images=Images("images", all_or_none="tiles")), ValueError,
        "images: all_or_none is 'tiles', and with dispatch 'images' it travels to other ranks: "
        "leave one of them out",
    ),
    "a padding token of no batch": (
        lambda: Layout("torch", pad_id=7), ValueError,
        "pad_id is 7, but in layout 'torch' collate_fn makes the batch: leave pad_id, or use "
        "layout 'padded' or 'packed'",
    ),
    "an order that looks at no pipeline": (
        lambda: PipelineOrder("costs.json", "given"), ValueError,
        "a pipeline is given, and ordering 'given' looks at none: use ordering 'two_opt', or leave "
        "pipeline out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_what_to_do(name: str) -> None:
    make, kind, answer = MISTAKES[name]
    with pytest.raises(kind) as error:
        make()
    assert str(error.value) == answer
