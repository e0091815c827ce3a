"""The array type of planning, apart so that it is imported without numba."""

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
