"""What Cython says of the source that it compiles, for where Python runs it."""

# In `compiled.pyx` the name `cython` is Cython's own, and this is true.
compiled = False
