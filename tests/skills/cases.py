"""The scripts that the skill was followed on, and the lines that it inserts to compare steps.

Each is in before/ as a user would have it, and in after/ as it is when the skill has been followed.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.imports import ROOT

SKILL = ROOT / "skills" / "adopt-counterpoise"
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """A script: what is watched, and how it is measured where there is no attention_mask.

    in_order: what turns off shuffling, text by text. is_same_order: the steps of both runs have the
    same samples.
    """

    name: str
    watched: str = "model"
    measure: str = ""
    words: tuple[str, ...] = ()
    in_order: tuple[tuple[str, str], ...] = ()
    is_same_order: bool = True


CASES = (
    Case("own_loop"),
    Case("packed_qwen"),
    Case("hf_trainer"),
    Case("trl_texts"),
    Case("classify_accelerate", in_order=(("shuffle=True", "shuffle=False"),)),
    Case(
        "lightning_sounds", "model.net",
        "lambda sounds, lengths: (len(lengths), lengths.sum(), lengths.max() * len(lengths))",
    ),
    Case(
        "webdataset_pictures", "model",
        "lambda pictures, mask: (len(mask), mask.sum(), mask.numel())",
        ("shards/pictures-{0..3}.tar",), is_same_order=False,
    ),
)  # fmt: skip
WEBDATASET_IN_ORDER = (
    ("shardshuffle=4", "shardshuffle=False"),
    ("        .shuffle(64)\n", ""),
    ("shuffle=True", "shuffle=False"),
)


def write_watched(
    case: Case, which: str, folder: Path, changes: tuple[tuple[str, str], ...]
) -> Path:
    """Write a script with changes, and the lines of the skill after the model is made."""
    text = (FOLDER / which / f"{case.name}.py").read_text()
    for old, new in changes:
        text = text.replace(old, new)
    more = f", {case.measure}" if case.measure else ""
    lines = rf"\n\1import steps\n\1steps.watch({case.watched}{more})"
    text, count = re.subn(r"^( +)model = .*$", rf"\g<0>{lines}", text, count=1, flags=re.M)
    assert count == 1, f"{case.name} makes no model"
    folder.mkdir()
    shutil.copy(SKILL / "scripts" / "steps.py", folder)
    path = folder / f"{case.name}.py"
    path.write_text(text)
    return path
