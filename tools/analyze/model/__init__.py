"""Computes the analysis: figures of the data, budgets, forecasts, pipelines, the report."""
