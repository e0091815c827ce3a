"""What a reader of docs/which.md has: a tokenizer."""


def my_tokenizer(text: str) -> list[int]:
    """Return a text's bytes as ids."""
    return list(text.encode())
