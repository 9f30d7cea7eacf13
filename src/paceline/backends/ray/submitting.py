"""A command given to a Ray cluster through its jobs API."""

from pathlib import Path
from typing import Any

from paceline.base.errors import ConfigError
from paceline.jobs.sent import FOLDER_WAS_SENT

STOP_S = 60
"""Ray kills what has not ended so long after `ray job stop`; without a word it is 3 s, in which no
last cut of a large model is written."""
JOB_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",  # prints of a pipe would come late
    "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S),
}


def send(address: str, entrypoint: str, folder: Path | None, home: str | None) -> str:
    """Hand a command to Ray's jobs API; the id that it has there.

    Args:
        address: of the dashboard, as ``http://HEAD:8265``.
        entrypoint: the command.
        folder: travels with it, and is where it runs; None: nothing does.
        home: ``PACELINE_HOME`` there; None: the default.

    Raises:
        ConfigError: Ray is not installed, or nothing answers, or it refuses.
    """
    try:
        from ray.job_submission import JobSubmissionClient  # an extra, and slow
    except ImportError as error:
        raise ConfigError(
            "submit: Ray is not installed here; run `pip install 'paceline[ray]'`"
        ) from error
    environment = {**JOB_ENVIRONMENT, **({"PACELINE_HOME": home} if home else {})}
    runtime: dict[str, Any] = {"env_vars": environment}
    if folder is not None:
        runtime["working_dir"] = str(folder)
        environment[FOLDER_WAS_SENT] = "1"
    try:
        client = JobSubmissionClient(address)
    except (AssertionError, OSError, RuntimeError, ValueError) as error:
        expected = f"expected the dashboard of a Ray cluster: {_words_of(error)}"
        raise ConfigError(f"--address: got {address}, {expected}") from error
    try:
        found: str = client.submit_job(
            entrypoint=entrypoint, runtime_env=runtime, metadata={"paceline": "run"}
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"submit: the Ray cluster at {address} does not take the job: {_words_of(error)}"
        ) from error
    return found


def _words_of(error: Exception) -> str:
    """Return one line of Ray's; of a stack that its server sends, the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if "Traceback" in str(error) else lines[0]
