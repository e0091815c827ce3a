"""The coordinator: a sans-IO state machine that decides who probes, decodes and gets what."""
