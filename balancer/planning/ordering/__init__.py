"""Ordering: a rank's microbatches for its pipeline, by a cost model and a fast evaluator."""
