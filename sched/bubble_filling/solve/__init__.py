"""The search for the least exposed encoder time, its bound and its validator."""
