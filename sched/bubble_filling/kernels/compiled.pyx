# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, infer_types=True
# cython: initializedcheck=False, freethreading_compatible=True
"""The walks as an extension, with numbers of C; see balancer/planning/kernels/compiled.pyx."""

cimport cython

ctypedef long long Int
ctypedef long long[::1] Vector
ctypedef long long[:, ::1] Matrix
ctypedef long long[:, :, ::1] Cube

cdef extern from *:
    const char* COUNTERPOISE_SOURCES

# The digest of the sources; setup.py makes it.
sources = COUNTERPOISE_SOURCES.decode()

include "walks.py"
