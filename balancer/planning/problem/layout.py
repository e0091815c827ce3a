"""`Layout`: how a microbatch is made of its samples, said field by field in short texts.

A rule is a text, so that what is written, printed, saved and compared is one notation:

    "tokens FILL"               one value for each token, on the last axis: laid as the tokens are
    "concatenate"               one behind the other along the first axis; NAME_lengths beside
    "concatenate, pad FILL"     the same, and the other axes filled up to the largest
    "pad FILL"                  stacked, all axes filled up to the largest; NAME_lengths beside
    "stack"                     stacked: numbers, or arrays of one shape
    "list"                      a list of the values as they are
    "lengths of NAME"           int32 (B,): how long NAME is in each sample
    "cumulative lengths of NAME"  int32 (B + 1,): where each begins, and the end
    "longest of NAME"           a number
    "positions of NAME"         0, 1, ... in each sample, laid as NAME is
    "mask of NAME"              1 where NAME is a sample's, 0 in the filling

FILL is a number (0 where there is none), "pad_id", or in "tokens next" one that counts on from the
sample's largest. Behind a comma may stand "axes N": arrays have N axes, and one with N - 1 is a
single item of it; and "optional": samples may lack the field, and then have none of it.

This module is data only: `workers/collate` makes batches by it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal

from ...near_names import explain_arguments
from .frozen_mapping import FrozenMapping, expression

LayoutName = Literal["torch", "padded", "packed"]
Base = Literal["packed", "padded"]
BASES: tuple[Base, ...] = ("padded", "packed")
Fill = int | float | Literal["pad_id", "next"]
# How a field is made of another one; the other rules lay what samples have.
MADE_OF = ("lengths", "cumulative lengths", "longest", "positions", "mask")
_MADE = re.compile(f"(?P<how>{'|'.join(MADE_OF)}) of (?P<of>.+)")
_HAD = re.compile(
    "(?:(?P<bare>concatenate|stack|list)|(?P<filling>tokens|pad|concatenate, pad)"
    r"(?: (?P<fill>-?\d+(?:\.\d+)?|pad_id|next))?)"
    "(?:, axes (?P<axes>[1-9]))?(?P<optional>, optional)?"
)

# The rules of both bases for what tokenizers and processors return; a field that has none is laid
# by its kind: numbers stacked, text listed, arrays concatenated. pixel_values follow what comes
# beside them (workers/collate/images.py).
_COMMON = {
    **dict.fromkeys(("token_type_ids", "mm_token_type_ids", "assistant_masks"), "tokens 0"),
    "mrope_position_ids": "tokens next",
    **dict.fromkeys(
        ("image_sizes", "aspect_ratio_ids", "second_per_grid_ts", "video_second_per_grid",
         "audio_embed_sizes"),
        "concatenate, optional",
    ),
    "num_crops": "concatenate, axes 1, optional",
    **dict.fromkeys(
        ("pixel_attention_mask", "pixel_mask", "aspect_ratio_mask", "image_pixel_values",
         "image_attention_mask"),
        "concatenate, pad 0, optional",
    ),
    **dict.fromkeys(
        ("input_features", "audio_input_features"), "concatenate, pad 0, axes 3, optional"
    ),
    **dict.fromkeys(
        ("feature_attention_mask", "input_features_mask", "audio_attention_mask"),
        "concatenate, pad 0, axes 2, optional",
    ),
}  # fmt: skip
_TOKENS = {"input_ids": "tokens pad_id", "labels": "tokens -100"}
RULES: Mapping[Base, Mapping[str, str]] = {
    "padded": {**_TOKENS, "attention_mask": "mask of input_ids", **_COMMON},
    "packed": {
        **_TOKENS, "position_ids": "positions of input_ids",
        "cu_seq_lens": "cumulative lengths of input_ids", "max_length": "longest of input_ids",
        **_COMMON,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it was read: `fill` is None for none, `of` the field that it is made of, or ""."""

    how: str
    fill: Fill | None = None
    of: str = ""
    axes: int | None = None
    optional: bool = False


def read_rule(text: object) -> Rule:
    """Return the rule in a text; ValueError for any other.

    >>> read_rule("concatenate, pad 0.5, optional")
    Rule(how='concatenate', fill=0.5, of='', axes=None, optional=True)
    >>> read_rule("positions of input_ids")
    Rule(how='positions', fill=None, of='input_ids', axes=None, optional=False)
    """
    if isinstance(text, str):
        if match := _MADE.fullmatch(text):
            return Rule(match["how"], of=match["of"])
        match = _HAD.fullmatch(text)
        if match and (match["fill"] != "next" or match["filling"] == "tokens"):
            how = match["bare"] or match["filling"].partition(",")[0]
            fill = None if match["bare"] else _read_fill(match["fill"] or "0")
            axes = int(match["axes"]) if match["axes"] else None
            if (axes is None or how == "concatenate") and not (
                match["optional"] and how == "stack"
            ):
                return Rule(how, fill, axes=axes, optional=bool(match["optional"]))
    raise ValueError(
        f"{text!r} is no rule of a layout: give 'tokens FILL', 'concatenate', 'concatenate, pad "
        "FILL', 'pad FILL', 'stack' or 'list' (', axes N' and ', optional' may follow), or "
        f"{', '.join(repr(f'{how} of NAME') for how in MADE_OF)}"
    )


def _read_fill(text: str) -> Fill:
    if text == "pad_id" or text == "next":
        return text  # type: ignore[return-value]
    return float(text) if "." in text else int(text)


@explain_arguments()
@dataclass(frozen=True, slots=True, repr=False)
class Layout:
    """How a batch is made, `Balance(layout=)`; wrong rules raise ValueError.

    Short form: the name of a built-in one.

    Args:
        name: "packed", "padded", "torch" (collate_fn makes the batch), or of a layout of your own,
            for errors and logs.
        fields: A rule for each field of your own layout, by its name; default: none.
        base: "padded" or "packed", whose rules hold for all other fields, the tokens among them;
            default: samples may have no other fields, and need no tokens.
        pad_id: The padding token of both bases; default 0.
        shift_labels: The loss compares position i with label i + 1; False: with label i, for labels
            that are shifted already; default True.

    >>> Layout("packed", pad_id=7)
    Layout(name='packed', base='packed', pad_id=7)
    >>> speech = Layout("speech", {"mel": "pad 0", "speaker": "stack"}, base="packed")
    >>> Layout.from_dict(speech.to_dict()) == speech
    True
    """

    name: str
    fields: Mapping[str, str] = FrozenMapping[str]({})
    base: Base | None = None
    pad_id: int = 0
    shift_labels: bool = True

    def __post_init__(self) -> None:
        if self.name in BASES and self.base is None:
            object.__setattr__(self, "base", self.name)
        is_built_in = not self.fields and self.name == (self.base or "torch")
        if not (isinstance(self.name, str) and self.name) or (
            self.name in ("torch", *BASES) and not is_built_in
        ):
            raise ValueError(
                f"a layout's name is {self.name!r}: give text, and none of 'torch', 'padded', "
                "'packed', which have a meaning"
            )
        if type(self.pad_id) is not int:
            raise ValueError(f"pad_id is {self.pad_id!r}, allowed is an integer")
        if type(self.shift_labels) is not bool:
            raise ValueError(f"shift_labels is {self.shift_labels!r}, allowed are True and False")
        if self.name == "torch" and self.pad_id:
            raise ValueError(
                f"pad_id is {self.pad_id}, but in layout 'torch' collate_fn makes the batch: leave "
                "pad_id, or use layout 'padded' or 'packed'"
            )
        if self.base not in (None, *BASES):
            raise ValueError(f"base is {self.base!r}, allowed are 'padded', 'packed' or None")
        if not isinstance(self.fields, Mapping) or not all(
            isinstance(name, str) for name in self.fields
        ):
            raise ValueError(f"fields is {self.fields!r}: give a rule for each field's name")
        object.__setattr__(self, "fields", FrozenMapping(dict(self.fields)))
        if self.base and (fixed := {"input_ids", "labels"} & self.fields.keys()):
            raise ValueError(
                f"{min(fixed)!r} of a layout with base {self.base!r} follows from that: leave its "
                "rule, or leave base and give every field a rule"
            )
        rules = read_rules(self)
        for name, rule in rules.items():
            if rule.of and (rule.of not in rules or rules[rule.of].of):
                raise ValueError(
                    f"{name!r} of layout {self.name!r} is made of {rule.of!r}, which has no rule "
                    "of its own: give it one in fields"
                )
            if rule.how == "mask" and rules[rule.of].how not in ("tokens", "pad"):
                raise ValueError(f"{name!r} is a mask of {rule.of!r}, which is not filled up")
            if rule.how == "tokens" and self.base is None:
                raise ValueError(
                    f"{name!r} is laid as the tokens are, and a layout without base has none: give "
                    "base='padded' or 'packed', or the rule 'pad FILL' or 'concatenate'"
                )

    __repr__ = expression

    @property
    def pads(self) -> bool:
        """Whether microbatches cost count x longest: with base "padded", or a field that pads."""
        has_padding = any(read_rule(text).how == "pad" for text in self.fields.values())
        return self.base == "padded" or (self.base is None and has_padding)

    def to_dict(self) -> dict[str, Any]:
        """Return the rules as JSON values, for `from_dict`: without pad_id and shift_labels."""
        return {"name": self.name, "fields": dict(self.fields), "base": self.base}

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> "Layout":
        """Return the layout in JSON values; ValueError for others."""
        if unknown := options.keys() - {field.name for field in fields(cls)}:
            raise ValueError(f"a layout has name, fields and base, no {', '.join(sorted(unknown))}")
        return cls(**{"name": "", **options})


@lru_cache(maxsize=64)
def read_rules(layout: Layout) -> Mapping[str, Rule]:
    """Return the rule of every field that a layout has one for: its own, and its base's."""
    texts = {**(RULES[layout.base] if layout.base else {}), **layout.fields}
    return {name: read_rule(text) for name, text in texts.items()}


BUILT_IN: Mapping[str, Layout] = {base: Layout(base) for base in BASES}


def as_layout(layout: LayoutName | Layout) -> Layout | None:
    """Return the layout that `Balance(layout=)` names or is; None for "torch", collate_fn's.

    >>> as_layout("packed")
    Layout(name='packed', base='packed')
    """
    if isinstance(layout, Layout):
        return None if layout.name == "torch" else layout
    return BUILT_IN.get(layout)


def find_base(layout: LayoutName | Layout) -> Base | None:
    """Return the base of a layout, whose tokens and labels it has; None where it has none."""
    resolved = as_layout(layout)
    return None if resolved is None else resolved.base


def format_rules(layout: LayoutName | Layout) -> str:
    """Return the rules of a user's layout as text, the same for equal ones; "" for a built-in."""
    resolved = as_layout(layout)
    if resolved is None or resolved.name in BASES:
        return ""
    return json.dumps(resolved.to_dict(), sort_keys=True)
