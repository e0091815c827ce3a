"""The order of a mixture's samples: what each source is due, and what comes next."""
