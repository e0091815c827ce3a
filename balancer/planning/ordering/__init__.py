"""Pipeline ordering: orders each rank's microbatches for its pipeline; not the epoch's shuffle."""
