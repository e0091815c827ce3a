"""What a reader of the skill's page of Trainer has."""

from tests.docs.readers.edit_own_loop import dataset as texts
from tests.docs.readers.edit_own_loop import pad as collator
from tests.docs.readers.trl import model

__all__ = ["collator", "model", "texts"]
