"""The command `counterpoise trace`: what each party of a job did when, for a few seconds."""
