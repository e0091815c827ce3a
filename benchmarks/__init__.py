"""The laboratory: benches that back figures of docs/, and the papers' baselines; it is not shipped.

`make bench NAME=runtime ARGS="--rounds 5 --json"` runs one, in a checkout. What users run on their
own machines is `counterpoise bench`. The product imports nothing of this.
"""
