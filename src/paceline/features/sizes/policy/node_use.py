"""Use of nodes' cores, learned from the cores that they used at several sizes.

A node uses some cores while it waits: to be woken for each message costs more than to go on with
the next one. That is dear where quotas are parts of a core: then more nodes do less. One size
cannot tell it from work, and then it counts as work.

Reference: none; DLRover-RM's nodes have whole cores.
"""

import statistics
from collections.abc import Sequence

import numpy as np

from paceline.base.optional import extra_for
from paceline.features.sizes.policy.history import MeasuredSize
from paceline.features.sizes.policy.step_model import StepForm

_ERROR = 0.1
"""Relative error of the cores that a node used."""
_OWN = 0.1
"""Cores that a node may be expected to use while it waits."""
_MESSAGES = 0.5
"""Part of its use that a node may be expected to need for steps or for messages, however little is
in them."""


def used_by(own: Sequence[MeasuredSize]) -> StepForm:
    """Fit a form's use of cores to the measured use.

    Args:
        own: measured sizes of the job.
    """
    skews = [each.skew for each in own if each.skew is not None and each.size.servers > 1]
    workers, servers = [], []
    for each in own:
        steps = 1.0 / each.step_s if each.step_s else 0.0
        if each.worker_cores and each.size.worker_cpu:
            steps_sent = steps * max(each.size.servers, 1)
            workers.append((each.worker_cores, (1.0, steps, steps_sent, steps * each.batch)))
        if each.server_cores and each.size.server_cpu and each.size.servers:
            requests = steps * each.size.workers
            of_rows = requests * each.batch / each.size.servers
            servers.append((each.server_cores, (1.0, requests, of_rows)))
    worker_own = _parted(workers)[0] if workers else 0.0
    server_own, message, rows = _parted(servers) if servers else (0.0, 0.0, 0.0)
    return StepForm(
        server_rows=rows,
        server_message=message,
        # One server alone has no busiest.
        skew=max(statistics.median(skews), 1.0) if skews else 1.0,
        worker_own=worker_own,
        server_own=server_own,
    )


def _parted(seen: Sequence[tuple[float, tuple[float, ...]]]) -> list[float]:
    """Part used cores into those of waiting, of steps and messages, and of samples.

    Args:
        seen: used cores, and what each part is multiplied by; one for each size. The first part is
            that of waiting, the last that of samples.

    Returns:
        Of each part: cores, or core-seconds for each.
    """
    with extra_for("a resource policy that fits a model"):
        from scipy.optimize import nnls  # 0.4 s, and needed only here

    used = np.array([cores for cores, _ in seen])
    rows = np.array([row for _, row in seen]) / used[:, np.newaxis]
    # Without other sizes all use is that of samples.
    prior = np.diag([1.0 / _OWN, *(rows[:, 1:-1].mean(axis=0) / _MESSAGES), 0.0])
    values = np.append(np.full(len(used), 1.0 / _ERROR), np.zeros(len(prior)))
    found, _ = nnls(np.concatenate([rows / _ERROR, prior]), values)
    return [float(each) for each in found]
