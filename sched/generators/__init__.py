"""Built-in schedules as pure generators: GPipe, 1F1B, interleaved, zero bubble, V shapes.

Importing a module below registers its schedules. A new one needs a line here and nothing else.
"""

from . import (
    dualpipev as dualpipev,
    gpipe as gpipe,
    interlaced as interlaced,
    interleaved as interleaved,
    one_f_one_b as one_f_one_b,
    v_half as v_half,
    vocabulary as vocabulary,
    zb as zb,
    zbv as zbv,
)
