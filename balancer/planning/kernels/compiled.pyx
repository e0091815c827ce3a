# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, infer_types=True
# cython: initializedcheck=False, freethreading_compatible=True
"""All kernels in one extension, with numbers of C: what each source holds, without its imports."""

cimport cython

from .arrays import Int64, Slots

ctypedef long long Int
ctypedef unsigned long long Word
ctypedef bint Flag
ctypedef long long[::1] Vector
ctypedef long long[:, ::1] Matrix
ctypedef long long[:, :, ::1] Cube
ctypedef long long[:, :, :, ::1] Grid

cdef extern from *:
    const char* COUNTERPOISE_SOURCES

# The digest of the sources; setup.py makes it.
sources = COUNTERPOISE_SOURCES.decode()

include "assign.py"
include "swap.py"
include "isf.py"
include "level.py"
include "pack.py"
include "padded.py"
include "padded_exchange.py"
include "pipeline.py"
include "shuffle.py"
