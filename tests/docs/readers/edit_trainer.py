"""What a reader of the skill's page of Trainer has."""

from datasets import Dataset

from tests.docs.readers.edit_own_loop import dataset as texts, pad as collator
from tests.docs.readers.trl import model, tokenizer

rows = Dataset.from_list([{"text": "w2 w3 w4 " * (1 + n % 9)} for n in range(64)])
__all__ = ["collator", "model", "texts", "tokenizer"]
