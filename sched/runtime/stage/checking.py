"""Compare the stages of a split model with the model's own forward, on one tiny microbatch.

Stages hold a model's modules, and what its forward does between them is lost: a scale, a mask,
positions. So both are run, and every module's input and output compared in the order of calls: the
first difference says where something is missing. Gradients are computed as a pipeline does, stage
by stage, and added up where stages have a parameter in common.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

# The tokens of the microbatch that is made: two samples, so that a mask between them counts.
_POSITIONS = (0, 1, 2, 3, 4, 0, 1, 2)
# Gradients that are nothing but rounding (keys' biases) are not compared with themselves.
_SMALL = 1e-3


def check_stages(
    model: nn.Module,
    stages: Sequence[nn.Module],
    names: Sequence[str],
    batch: Mapping[str, Any] | None,
    finish: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Raise ValueError where the stages do not compute what the model's forward does.

    `names`: of the modules that stages hold, in their order. `batch`: a microbatch, whose first
    field is the input and the others the stages' extras; None for one that is made here. `finish`:
    what is done to the logits of a head that no stage has. Without a
    forward to compare with, or with stages that are not whole here, nothing is done. The model is
    run twice, in eval mode, and needs memory for its gradients twice.
    """
    held = (p for stage in stages for p in stage.parameters())
    absent = (p.is_meta or isinstance(p, DTensor) for p in held)
    if type(model).forward is nn.Module.forward or any(absent):
        return
    _refuse_cut_tie(model)
    fields = tiny_batch(model, names[0]) if batch is None else dict(batch)
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.enable_grad():
            _compare(model, stages, names, fields, finish)
    finally:
        for module, mode in training.items():
            module.training = mode


def _refuse_cut_tie(model: nn.Module) -> None:
    """Raise ValueError for a model of transformers whose words should be tied, and are not."""
    if not getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        return
    embeddings: list[Any] = [
        getattr(model, f"get_{which}_embeddings", lambda: None)() for which in ("input", "output")
    ]
    if None not in embeddings and embeddings[0].weight is not embeddings[1].weight:
        raise ValueError(
            "config.tie_word_embeddings is true, and the input and output embeddings have weights "
            "of their own, which would train apart; call model.tie_weights() before split()"
        )


def tiny_batch(model: nn.Module, start: str) -> dict[str, Any]:
    """Return a microbatch of two packed samples. `start`: the module that stages begin with."""
    takes = inspect.signature(model.forward).parameters
    words: Any = model.get_submodule(start)
    if "input_ids" in takes:
        words = getattr(model, "get_input_embeddings", lambda: words)()
    device = next((p.device for p in words.parameters()), None)
    count = len(_POSITIONS)
    if isinstance(words, nn.Embedding):
        ids = torch.arange(1, count + 1, device=device) * words.num_embeddings // (count + 2)
        fields: dict[str, Any] = {next(iter(takes)): ids[None]}
    elif isinstance(words, nn.Linear):
        row = torch.linspace(-1, 1, count * words.in_features, device=device)
        fields = {next(iter(takes)): row.view(count, -1).to(words.weight.dtype)}
    else:
        raise ValueError(_no_batch(f"its stages begin with a {type(words).__name__}"))
    if "position_ids" in takes:
        fields["position_ids"] = torch.tensor([_POSITIONS], device=device)
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    needed = [n for n, p in takes.items() if p.default is p.empty and p.kind in plain]
    if missing := [name for name in needed if name not in fields]:
        raise ValueError(_no_batch(f"forward takes {', '.join(missing)}"))
    return fields


def _no_batch(why: str) -> str:
    return (
        "split() compares the stages with the model's forward, and cannot make a microbatch: "
        f"{why}; give check= a tiny one of the fields that forward takes, the input first, or "
        "check=False for none"
    )


class _Call(NamedTuple):
    """A module's call: its first tensor, the first of what it returned, and keywords' names."""

    name: str
    first_input: Tensor | None
    output: Tensor
    keywords: frozenset[str]


@contextmanager
def _watched(model: nn.Module, names: Sequence[str]) -> Iterator[list[_Call]]:
    """Collect the calls of some modules."""
    calls: list[_Call] = []

    def keep(name: str, _: nn.Module, args: Any, words: dict[str, Any], returned: Any) -> None:
        first_input = next((a for a in (*args, *words.values()) if isinstance(a, Tensor)), None)
        keywords = frozenset(
            n for n, value in words.items() if value is not None and value is not first_input
        )
        output = returned if isinstance(returned, Tensor) else returned[0]
        calls.append(_Call(name, first_input, output, keywords))

    hooks = [
        model.get_submodule(n).register_forward_hook(partial(keep, n), with_kwargs=True)
        for n in names
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _compare(
    model: nn.Module,
    stages: Sequence[nn.Module],
    names: Sequence[str],
    fields: dict[str, Any],
    finish: Callable[[Tensor], Tensor] | None,
) -> None:
    # What has parameters and is in no stage, such as layers that vocabulary passes divide.
    outside = [
        name
        for name, module in model.named_modules()
        if [*module.parameters(recurse=False)]
        and not any(f"{name}.".startswith(f"{held}.") for held in names)
    ]
    (first, x), *remaining = fields.items()
    extras = dict(remaining)
    takes = inspect.signature(model.forward).parameters
    # With a cache, transformers' models see no borders of packed samples.
    takes_any = hasattr(model, "config") and any(p.kind is p.VAR_KEYWORD for p in takes.values())
    known = "use_cache" in takes or takes_any
    cache = {"use_cache": False} if known and "use_cache" not in fields else {}
    with _watched(model, [*names, *outside]) as model_calls:
        logits = _first_tensor(model(x, **extras, **cache))
    held_calls = [at for at, call in enumerate(model_calls) if call.name not in outside]
    if not held_calls:
        raise ValueError(f"the model's forward, given {first}, calls no module of the stages")
    before, after = model_calls[: held_calls[0]], model_calls[held_calls[-1] + 1 :]
    if before:
        x = before[0].output.detach()
        for call in before:
            if isinstance(words := model.get_submodule(call.name), nn.Embedding):
                # as vocabulary passes look it up, whatever else its own forward does
                x = F.embedding(fields[first], words.weight).detach()
                break
    inputs, outputs, calls = _run(model, stages, names, x, extras, model_calls)
    _compare_calls([*model_calls[held_calls[0] : held_calls[-1] + 1]], calls, set(outside))
    theirs, ours = _ends(model, logits, outputs[-1], after, names[-1], finish)
    _compare_gradients(stages, theirs, [*zip(inputs, outputs, strict=True)], ours)


def _run(
    model: nn.Module,
    stages: Sequence[nn.Module],
    names: Sequence[str],
    x: Tensor,
    extras: dict[str, Any],
    model_calls: Sequence[_Call],
) -> tuple[list[Tensor], list[Tensor], list[_Call]]:
    """Run the stages, each with a graph of its own; return their inputs, outputs and calls."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    with _watched(model, names) as calls:
        for stage in stages:
            x = x.detach().requires_grad_(x.is_floating_point())
            inputs.append(x)
            try:
                x = stage(x, **extras)
            except Exception as error:
                at = names[min(len(calls), len(names) - 1)]
                keywords = next((c.keywords for c in model_calls if c.name == at), frozenset())
                raise ValueError(
                    f"{at} fails in its stage: {type(error).__name__}: {error}; it gets "
                    f"{_named(extras)}, and the model's forward gives it {_named(keywords)}: make "
                    "them with call= or calls= of split(), and give check= what that takes"
                ) from error
            outputs.append(x)
    return inputs, outputs, calls


def _compare_calls(expected: list[_Call], stage_calls: list[_Call], outside: set[str]) -> None:
    """Raise ValueError that names the first module whose input or output differs."""
    between = {}  # of each held call, the modules outside of stages that were called before it
    held: list[_Call] = []
    skipped: list[str] = []
    for call in expected:
        if call.name in outside:
            skipped.append(call.name)
        else:
            between[len(held)], skipped = skipped, []
            held.append(call)
    for at, (theirs, ours) in enumerate(zip_longest(held, stage_calls)):
        if theirs is None or ours is None or theirs.name != ours.name:
            names = ["nothing more" if side is None else side.name for side in (theirs, ours)]
            raise ValueError(
                f"call {at} of the model's forward is of {names[0]}, and of the stages of "
                f"{names[1]}; name the modules as forward calls them, each once"
            )
        name = theirs.name
        if error := _difference(theirs.first_input, ours.first_input):
            last = held[at - 1].name if at else "its input"
            missing = between[at] and f", with {', '.join(between[at])}, which no stage has"
            raise ValueError(
                f"{name} is called with other values than in the model's forward ({error}), which "
                f"does something between {last} and it{missing or ''}; do it in "
                f"split(calls={{{(held[at - 1].name if at else name)!r}: ...}})"
            )
        if error := _difference(theirs.output, ours.output):
            raise ValueError(
                f"{name} makes something else of the same input than in the model's forward "
                f"({error}), which calls it with {_named(theirs.keywords)}, the stage with "
                f"{_named(ours.keywords)}; call it so with call= or calls= of split()"
            )


def _ends(
    model: nn.Module,
    logits: Tensor,
    output: Tensor,
    after: Sequence[_Call],
    last: str,
    finish: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Return what the model and the last stage end with, to be compared by their gradients.

    `after`: calls of modules that no stage has, such as the head that vocabulary passes divide.
    """
    if after:
        ended = _first_tensor(model.get_submodule(after[0].name)(output))
        ended = ended if finish is None else finish(ended)
        if not (error := _difference(logits, ended)):
            return logits, ended
        head_input = after[0].first_input
        if finish is None and head_input is not None and not _difference(head_input, output):
            warnings.warn(
                f"no stage has {after[0].name}, and the model's forward changes what it makes "
                f"({error}), by a scale or a softcap; see that the loss does so, as with "
                "LossOptions(softcap=...)",
                stacklevel=4,
            )
            return head_input, output
    elif not (error := _difference(logits, output)):
        return logits, output
    raise ValueError(
        f"the model's forward changes what {last} makes ({error}), by a scale or a softcap; do it "
        f"in split(calls={{{last!r}: ...}})"
    )


def _compare_gradients(
    stages: Sequence[nn.Module], theirs: Tensor, ends: Sequence[tuple[Tensor, Tensor]], ours: Tensor
) -> None:
    """Raise ValueError that names the first parameter, in backward's order, that differs."""
    # a parameter that stages share has one name, and the sum of its gradients
    named: dict[nn.Parameter, str] = {}
    for name, parameter in (pair for stage in stages for pair in stage.named_parameters()):
        if parameter.requires_grad:
            named.setdefault(parameter, name)
    if not named or not theirs.requires_grad:
        return
    start = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(0)).to(theirs)
    expected = _gradients(theirs, [*named], start)
    sums: dict[nn.Parameter, Tensor] = {}
    outputs = [output for _, output in ends[:-1]] + [ours]
    gradient: Tensor | None = start
    # each stage alone, from the last: its input's gradient is where the stage before begins
    for stage, (x, _), output in zip(stages[::-1], ends[::-1], outputs[::-1], strict=True):
        # nothing before it is trained
        if gradient is None or not output.requires_grad:
            break
        parameters = [p for p in stage.parameters() if p.requires_grad]
        inputs = [x] if x.requires_grad else []
        computed = _gradients(output, [*inputs, *parameters], gradient)
        for parameter, part in zip(parameters, computed[len(inputs) :], strict=True):
            if part is not None:
                sums[parameter] = sums[parameter] + part if parameter in sums else part
        gradient = computed[0] if inputs else None
    largest = max((float(part.abs().max()) for part in expected if part is not None), default=0.0)
    for (parameter, name), reference in reversed([*zip(named.items(), expected, strict=True)]):
        zero = torch.zeros_like(parameter)
        reference = zero if reference is None else reference
        if error := _difference(reference, sums.get(parameter, zero), _SMALL * largest):
            raise ValueError(
                f"the gradient of {name} differs from the model's own ({error}); see that call= "
                "and calls= of split() keep the graph, and use the modules' own parameters"
            )


def _gradients(output: Tensor, of: Sequence[Tensor], start: Tensor) -> list[Tensor | None]:
    return [*torch.autograd.grad(output, of, start, allow_unused=True)]


def _first_tensor(output: Any) -> Tensor:
    """Return the logits, or what a forward returns first."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    return _first_tensor(output[0]) if logits is None else logits


def _difference(theirs: Tensor | None, ours: Tensor | None, scale: float = 0.0) -> str:
    """Return how much two tensors differ, in words; "" where it is rounding."""
    if theirs is None or ours is None:
        return "" if theirs is ours else "no tensor"
    if theirs.shape != ours.shape:
        return f"shape {tuple(theirs.shape)} there, {tuple(ours.shape)} here"
    if theirs.numel() == 0:
        return ""
    first, second = theirs.detach().double(), ours.detach().double()
    error = float((first - second).abs().max() / max(float(first.abs().max()), scale, 1e-30))
    kind = theirs.dtype
    # 6e-6 in single precision, 3% in bf16: the same kernels make the same, other ones nearly. In a
    # model that was never trained, wrong positions change 2e-5.
    limit = torch.finfo(kind).eps ** 0.75 if kind.is_floating_point else 0.0
    return "" if error <= limit else f"by {error:.2g} of the largest"


def _named(names: Mapping[str, Any] | frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "nothing else"
