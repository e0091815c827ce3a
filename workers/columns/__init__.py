"""Tables of samples, a column a field: parquet files, and data sets of Hugging Face in Arrow."""
