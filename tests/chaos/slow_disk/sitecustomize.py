"""Makes the disk slow for the servers' files of cuts, in every process of a job.

Python imports this at start when this folder is on PYTHONPATH. Each sync of such a file takes
PACELINE_TEST_SYNC_S more, so that cuts are in memory only for that long.
"""

import os
import time

_fsync = os.fsync


def _slow(descriptor: int) -> None:
    if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".safetensors.partial"):
        time.sleep(float(os.environ["PACELINE_TEST_SYNC_S"]))
    _fsync(descriptor)


if os.environ.get("PACELINE_TEST_SYNC_S"):
    os.fsync = _slow  # type: ignore[assignment]
