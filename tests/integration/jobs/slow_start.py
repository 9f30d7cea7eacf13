"""The job of counted.py, where the second worker takes its time between init and prepare."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import paceline as pl
from tests.integration.jobs import counted

SETUP_S = 2.0

init = pl.init


def init_slowly() -> pl.Job:
    """As a script that reads a vocabulary, or compiles a model, before it can prepare it."""
    job = init()
    if os.environ["PACELINE_RANK"] == "1":
        time.sleep(SETUP_S)
    return job


if __name__ == "__main__":
    pl.init = init_slowly
    counted.main()
