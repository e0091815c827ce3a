"""The planned steps of a run, until the ranks have taken them."""
