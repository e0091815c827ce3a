"""What the analysis computes: budgets, forecasts, a machine model, the report."""
