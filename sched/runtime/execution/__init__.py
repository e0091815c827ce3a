"""Walk a rank's operations: wait for what each reads, run it, keep what it writes."""
