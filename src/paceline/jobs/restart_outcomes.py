"""What the restarts of one job have achieved: a file in its folder, for its next master.

At the job's end the history takes it over, where later jobs find it.
"""

import contextlib
from pathlib import Path

import msgspec

from paceline.jobs.jsonl import LineFile
from paceline.policy.observation import MAX_OUTCOMES, RestartOutcome

HELPED = "restarts.jsonl"
"""Name of the file of restarts' outcomes in a job's folder."""
_outcome = msgspec.json.Decoder(RestartOutcome)


def helped_file(job: Path) -> LineFile:
    """Open the file for outcomes of a job's restarts, in the job's folder."""
    return LineFile(job / HELPED)


def own_outcomes(job: Path) -> list[RestartOutcome]:
    """Read what the newest restarts of a job have achieved, the oldest first.

    Lines that cannot be read are passed over.

    Args:
        job: its folder.
    """
    outcomes: list[RestartOutcome] = []
    with contextlib.suppress(FileNotFoundError):
        for line in (job / HELPED).read_bytes().splitlines():
            with contextlib.suppress(msgspec.MsgspecError):  # torn, or of another version
                outcomes.append(_outcome.decode(line))
    return outcomes[-MAX_OUTCOMES:]
