"""Curves in MLflow: each job is a run of its id, in a database of a folder or at a tracking URI."""

import os
from pathlib import Path
from typing import Any

from paceline.features.curves.sinks.sink import Sink, SinkWriter, check_folder, check_package
from paceline.jobs.curves import CurveLine

EXPERIMENT = "paceline"
"""Experiment of runs for which ``MLFLOW_EXPERIMENT_NAME`` names none."""
DATABASE = "mlflow.db"
"""File in a folder; MLflow's own store of plain files is no longer kept up."""
JOB_TAG = "paceline.job"
"""Tag by which a later master finds the run of its job."""
SAMPLES = "samples"
"""Metric that each point has: samples in the model."""
MAX_METRICS = 1_000
"""Metrics that one request to MLflow may have."""


class MLflow(Sink, frozen=True, kw_only=True):
    """A folder, or the tracking URI of a server or a database (``http://``, ``postgresql://``)."""

    def check(self) -> None:
        check_package("mlflow", self.to)
        if "://" not in self.to:
            check_folder(self.to)

    @property
    def tracking_uri(self) -> str:
        """The address as MLflow takes it."""
        return self.to if "://" in self.to else f"sqlite:///{Path(self.to) / DATABASE}"

    def open(self, job_id: str) -> SinkWriter:
        return MLflowRun(self.tracking_uri, job_id)


class MLflowRun:
    """One job's run. It takes each step once: what comes again is already there."""

    def __init__(self, tracking_uri: str, job_id: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # A master that logs nowhere else does without.
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._metric = Metric
        self._client: Any = MlflowClient(tracking_uri=tracking_uri)
        self._run_id, self._next_step = self._found(job_id)
        self._waiting: list[Any] = []

    def _found(self, job_id: str) -> tuple[str, int]:
        """Find or make the run of a job: its id, and the first step that it lacks."""
        client, name = self._client, os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else client.create_experiment(name)
        runs = client.search_runs([experiment], f"tags.`{JOB_TAG}` = '{job_id}'", max_results=1)
        if not runs:
            run = client.create_run(experiment, run_name=job_id, tags={JOB_TAG: job_id})
            return str(run.info.run_id), 0
        run_id = str(runs[0].info.run_id)
        client.update_run(run_id, status="RUNNING")
        steps = [one.step for one in client.get_metric_history(run_id, SAMPLES)]
        return run_id, max(steps, default=-1) + 1

    def add(self, line: CurveLine) -> None:
        if line.step < self._next_step:
            return
        self._next_step = line.step + 1
        time_ms = round(line.t * 1000)
        values = {name: float(value) for name, value in line.values.items()}
        for name, value in {**values, SAMPLES: float(line.samples)}.items():
            self._waiting.append(self._metric(name, value, time_ms, line.step))

    def go_back(self, step: int) -> None:
        """Go on: MLflow takes nothing back."""

    def flush(self) -> None:
        while self._waiting:
            self._client.log_batch(self._run_id, metrics=self._waiting[:MAX_METRICS])
            del self._waiting[:MAX_METRICS]

    def close(self) -> None:
        self.flush()
        self._client.set_terminated(self._run_id)
