"""Types of arrays that states and servers hold; imports no compiler, unlike the kernels."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
