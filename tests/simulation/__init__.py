"""A test instrument: the whole system in one process, on a simulated network and clock.

Nothing that trains imports it. It is shipped because `counterpoise bench faults --simulate` uses it
to show that faults change nothing; the tests use it for the same.
"""
