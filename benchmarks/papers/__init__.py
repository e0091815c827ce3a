"""`make bench NAME=papers`: tables and figures of four papers, and ours beside them."""
