"""The loops of planning: plain Python that Cython compiles when the package is built (ADR 44).

Callers take them from `loops`. Each other module is a source: integers and arrays of them, and the
few names of `cython`. `compiled.pyx` includes all sources, so that they are one extension.
"""
