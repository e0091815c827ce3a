"""The table of families in docs/reference/packed-models.md, made by running each of them.

python -m tests.loader.models.table    writes it anew
"""

import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any
from unittest.mock import patch

import torch

from counterpoise.loader.models import proof as proving
from counterpoise.loader.models.kwargs import hf_kwargs
from counterpoise.loader.models.proof import Proof, prove_packing
from tests.docs.pages import page_named

from .families import build, families

PAGE = page_named("packed-models")
BEGIN = "<!-- of transformers {}, by tests/loader/models/table.py -->"
END = "<!-- end of families -->"
KERNELS = "can't keep packed sequences apart without"
RESULTS = {
    "exact": "exact",
    "needs model": "exact with `hf_kwargs(batch, model)` only",
    "sdpa": "exact with SDPA, refused with eager attention",
    "kernels": "needs its kernels: refused without them, and not run here with them",
    "refused": "refused: samples are mixed, or have other logits than alone",
    "not proved": "not proved: a tiny one does not run on tokens alone",
    "image exact": "with images: exact",
    "image kernels": "with images: needs its kernels",
    "image refused": "with images: refused",
    "not built": "not built from a tiny configuration",
}


def prove_without_model(model: Any) -> Proof:
    """Return what a model computes that is told of a pack by hf_kwargs(batch) alone."""
    with (
        patch.object(proving, "hf_kwargs", lambda batch, _: hf_kwargs(batch)),
        patch.object(proving, "_PROVED", {}),
    ):
        return prove_packing(model)


def results_of(kind: str) -> list[str]:
    """Return the rows of the table that a family is in."""
    try:
        model = build(kind)
    except Exception:  # whatever its own configuration wants
        return ["not built"]
    proof = prove_packing(model)
    result = _short(proof)
    if result == "exact" and prove_without_model(model).status != "exact":
        result = "needs model"
    elif result == "exact" and getattr(model.config, "_attn_implementation", "") == "sdpa":
        eager = prove_packing(build(kind, attention="eager"))
        result = "sdpa" if eager.status == "refused" else result
    pictured = _short(prove_packing(model, images=True))
    return [result, *([f"image {pictured}"] if pictured != "not proved" else [])]


def _short(proof: Proof) -> str:
    return "kernels" if KERNELS in proof.reason else proof.status


def table(kinds: Iterable[str]) -> str:
    """Return the table's lines for some families."""
    found: dict[str, list[str]] = {name: [] for name in RESULTS}
    for kind in kinds:
        for name in results_of(kind):
            found[name].append(f"`{kind}`")
    rows = [
        f"| {RESULTS[name]} | {len(each)} | {', '.join(each)} |"
        for name, each in found.items()
        if each
    ]
    return "\n".join(["| packed | | model types |", "| -- | -- | -- |", *rows])


def table_version() -> str:
    """Return the version of transformers that the page's table was made of."""
    (found,) = re.findall(re.escape(BEGIN).replace(r"\{\}", r"(\S+)"), PAGE.read_text())
    return str(found)


def in_docs() -> dict[str, list[str]]:
    """Return what the page says of each family, as results_of."""
    text = PAGE.read_text()
    rows = text[text.index(BEGIN.format(table_version())) : text.index(END)].splitlines()
    names = {words: name for name, words in RESULTS.items()}
    found: dict[str, list[str]] = {}
    for row in rows:
        words = row.strip("| ").split(" | ")
        if len(words) == 3 and words[0] in names:
            for kind in re.findall("`([^`]+)`", words[2]):
                found.setdefault(kind, []).append(names[words[0]])
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    before, _, rest = PAGE.read_text().partition(BEGIN.format(table_version()))
    begin = BEGIN.format(version("transformers"))
    made = f"{begin}\n\n{table(families())}\n\n{END}{rest.partition(END)[2]}"
    PAGE.write_text(before + made)
