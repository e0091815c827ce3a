"""What a reader of vision-language.md has: a tokenizer."""

from types import SimpleNamespace


class _Tokenizer:
    eos_token_id = 2

    def __call__(self, text: str, **_: bool) -> SimpleNamespace:
        return SimpleNamespace(input_ids=list(text.encode()))


hf = _Tokenizer()
