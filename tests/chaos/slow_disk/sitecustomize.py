"""Makes the disk slow for the servers' files of cuts, or their copying, in every process of a job.

Python imports this at start when this folder is on PYTHONPATH. Each sync of such a file takes
PACELINE_TEST_SYNC_S more, so that cuts are in memory only for that long. The copy of each large
array of a cut stands still for PACELINE_TEST_COPY_S when half of it is made.
"""

import os
import threading
import time
from typing import Any

_fsync = os.fsync


def _slow(descriptor: int) -> None:
    if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".safetensors.partial"):
        time.sleep(float(os.environ["PACELINE_TEST_SYNC_S"]))
    _fsync(descriptor)


if os.environ.get("PACELINE_TEST_SYNC_S"):
    os.fsync = _slow  # type: ignore[assignment]

if os.environ.get("PACELINE_TEST_COPY_S"):
    import numpy as np

    LARGE_BYTES = 4096
    _copyto = np.copyto

    def _in_halves(target: Any, source: Any) -> None:
        cut = threading.current_thread().name.startswith("paceline-cut")
        half = source.size // 2 if cut and source.nbytes > LARGE_BYTES else 0
        if half:
            _copyto(target[:half], source[:half])
            time.sleep(float(os.environ["PACELINE_TEST_COPY_S"]))
        _copyto(target[half:], source[half:])

    np.copyto = _in_halves  # type: ignore[assignment]
