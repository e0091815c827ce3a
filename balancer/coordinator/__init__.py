"""The coordinator: a sans-IO state machine that decides who probes, decodes and gets what.

Its entry is `machine.Coordinator`; `state.Send` is what it returns.
"""
