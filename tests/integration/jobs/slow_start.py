"""The job of counted.py, where the second worker takes its time between init and prepare."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import paceline as pl
from tests.integration.jobs import counted

SETUP_S = 2.0
"""From when another worker has got a batch: starting up takes them differently long."""
PATIENCE_S = 20.0
"""For that: if nobody gets one before all are prepared, the test is to fail, not to hang."""

init = pl.init


def init_slowly() -> pl.Job:
    """As a script that reads a vocabulary, or compiles a model, before it can prepare it."""
    job = init()
    if os.environ["PACELINE_RANK"] == "1":
        out, deadline_s = Path(sys.argv[sys.argv.index("--out") + 1]), time.monotonic() + PATIENCE_S
        while not any(path.stat().st_size for path in out.glob("*.times")):
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.02)
        time.sleep(SETUP_S)
    return job


if __name__ == "__main__":
    pl.init = init_slowly
    counted.main()
