"""A worker of other trainers: it finds jobs, and makes parts of their microbatches in turns."""
