"""The same script and spec in one process and on a Ray cluster: the same loss, in mode bsp.

`tests.ray.cluster` runs this file. The rule is that of ``experiments/benchmarks/equality.py``; by it
`tests.integration.test_equality` compares a job of this machine.
"""

from pathlib import Path

import equality
import pytest

from tests.integration.test_equality import NUM_STEPS, check_close
from tests.ray.platform import on_ray

pytestmark = pytest.mark.timeout(240)


def test_servers_compute_on_ray_what_one_process_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    alone = equality.run_alone(tmp_path / "alone", NUM_STEPS)
    run = equality.run_job(tmp_path / "ray", NUM_STEPS, equality.Job(2), **on_ray())
    assert len(list(run.glob("worker-*.losses"))) == 2
    check_close(alone, run)
