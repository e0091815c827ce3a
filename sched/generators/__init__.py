"""Built-in schedules as pure generators: GPipe, 1F1B, interleaved, zero bubble, V shapes.

Importing a module below registers its schedules. A new one needs a line here and nothing else.
"""

from . import dualpipev as dualpipev
from . import gpipe as gpipe
from . import interlaced as interlaced
from . import interleaved as interleaved
from . import one_f_one_b as one_f_one_b
from . import v_half as v_half
from . import vocabulary as vocabulary
from . import zb as zb
from . import zbv as zbv
