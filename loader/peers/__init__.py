"""Moves small byte strings between the data-parallel ranks of a loader, by their group's store.

It knows nothing of data sets or plans, and starts no thread and no collective. `meet` finds the
ranks; each then posts a value for a key and gathers those of all. Processes that share a rank find
the balancer of their host here, too (`sharing.py`).
"""
