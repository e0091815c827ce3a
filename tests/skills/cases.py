"""The scripts that the skill was followed on, and the lines that it inserts to compare steps.

scripts/ has each as a user would have it, and the patch that following the skill makes.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.imports import ROOT

SKILL = ROOT / "skills" / "adopt-counterpoise"
FOLDER = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Case:
    """A script: what is watched, and how it is measured where there is no attention_mask.

    is_same_order: the steps of both runs have the same samples.
    """

    name: str
    watched: str = "model"
    measure: str = ""
    words: tuple[str, ...] = ()
    is_same_order: bool = True


CASES = (
    Case("own_loop"),
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
    folder.mkdir()
    path = Path(shutil.copy(FOLDER / f"{case.name}.py", folder))
    if which == "after":
        patch = FOLDER / f"{case.name}.patch"
        subprocess.run(["git", "apply", patch], cwd=folder, check=True)
    text = path.read_text()
    for old, new in changes:
        text = text.replace(old, new)
    more = f", {case.measure}" if case.measure else ""
    lines = rf"\n\1import steps\n\1steps.watch({case.watched}{more})"
    text, count = re.subn(r"^( +)model = .*$", rf"\g<0>{lines}", text, count=1, flags=re.M)
    assert count == 1, f"{case.name} makes no model"
    shutil.copy(SKILL / "scripts" / "steps.py", folder)
    path.write_text(text)
    return path
