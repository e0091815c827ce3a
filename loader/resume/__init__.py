"""Resume: the ledger of a balanced loader and the position of a plain one."""
