"""Resumes loaders: the ledger, and the positions of balanced and plain loaders."""
