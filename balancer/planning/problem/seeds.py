"""Seeds for parts of a run, derived from the run's seed and the part's numbers."""

_WORD = 2**64 - 1


def derive_seed(*numbers: int) -> int:
    """Return 62 bits that depend on all the numbers and their order.

    splitmix64's mixing (Steele, Lea, Flood 2014), once per number.

    >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(1, 0)
    (True, False)
    """
    state = 0
    for number in numbers:
        state = (state ^ (number & _WORD)) + 0x9E3779B97F4A7C15 & _WORD
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return state >> 2
