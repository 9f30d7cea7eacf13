"""The samples that an emulated job's model says are in it, against those that must be."""

import numpy as np

from paceline.base.errors import InternalError
from paceline.base.jobdir import JobDir
from paceline.wire.schema import NUM_BUCKETS
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers.emulation import ROWS

TOLERANCE = 1e-3
"""Relative error that a count may have: it is a sum of some thousand fractions."""


def check_samples(job: JobDir, scenario: Scenario, short_steps: int, *, adjusted: bool) -> int:
    """Read the model's own counts from the last cut; returns its steps.

    A step applies the mean over what it has, so a short one counts each of its samples for more;
    under ADJUST_LR (``adjusted``) samples count for less, and only that none is missing is checked.

    Raises:
        InternalError: a sample is missing in it, or in it too often.
    """
    from paceline.runtime.checkpoint import cutfile
    from paceline.runtime.server.store import Store

    last = max(path.parent for path in job.cuts.glob("*/manifest.json"))
    manifest, files = cutfile.read_cut(last)
    whole = Store(manifest.schema, [0] * NUM_BUCKETS, 0)
    whole.load(files.values())
    rows, counts = whole.export(0)
    wanted = scenario.epochs * np.bincount(np.arange(scenario.num_samples) % ROWS, minlength=ROWS)
    more = counts[:, 0] - wanted[rows]
    missing = counts[:, 0] <= 0.0 if adjusted else more < -TOLERANCE
    wrong = np.flatnonzero(missing | ((more > TOLERANCE) & (short_steps == 0)))
    if len(rows) != ROWS or wrong.size:
        raise InternalError(
            f"job {job.job_id}: {len(rows)} of {ROWS} rows count samples, {wrong.size} wrongly; "
            f"see {job.path}"
        )
    return manifest.step
