"""What a reader of the skill has: its script steps.py beside his own, and a model."""

import sys

from tests.docs.readers.edit_own_loop import model
from tests.imports import ROOT

sys.path.insert(0, str(ROOT / "skills" / "adopt-counterpoise" / "scripts"))
__all__ = ["model"]
