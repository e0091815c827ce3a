"""The command `counterpoise top`: a running job, live."""
