"""The same script and spec on this machine and on a Ray cluster: the same loss, in mode bsp.

`tests.ray.cluster` runs this file. The rule is that of ``benchmarks/equality.py``.
"""

from pathlib import Path

import equality
import pytest

from tests.integration.test_equality import NUM_STEPS, check_close
from tests.ray.platform import on_ray

pytestmark = pytest.mark.timeout(240)


def test_servers_compute_on_ray_what_they_compute_on_a_laptop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    alone = equality.run_alone(tmp_path / "alone", NUM_STEPS)
    for backend, where in {"local": {}, "ray": on_ray()}.items():
        run = equality.run_job(tmp_path / backend, NUM_STEPS, equality.Job(2), **where)
        assert len(list(run.glob("worker-*.losses"))) == 2
        check_close(alone, run)
