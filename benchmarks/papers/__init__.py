"""`make bench NAME=papers`: the tables and figures of four papers, and what we compute beside them."""
