"""`make docs`: the pages of docs/ that are generated from code."""
