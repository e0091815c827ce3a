"""What a reader of the skill's page of Trainer has."""

from tests.docs.readers.frameworks import new_language_model

from tests.docs.readers.edit_own_loop import dataset as texts
from tests.docs.readers.edit_own_loop import pad as collator

model = new_language_model()
__all__ = ["collator", "texts"]
