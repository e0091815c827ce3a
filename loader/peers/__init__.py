"""Moves small byte strings between the data-parallel ranks of a loader, by their group's store.

It knows nothing of data sets or plans, and starts no thread and no collective. `meet` finds the
ranks; each then posts a value for a key and gathers those of all. Ranks of one host pass theirs
through memory to a leader, which puts one value a host and key into the store: with 8 ranks a host
an eighth of the connections, readers and requests.
"""
