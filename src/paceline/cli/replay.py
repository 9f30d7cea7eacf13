"""Which logs ``paceline replay`` takes: of decisions about stragglers, and of sizes."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from paceline.base.jobdir import JobDir
from paceline.cli.explain import run_replay
from paceline.cli.size_replay import is_sizing_log, replay_sizes
from paceline.policy.resources.registry import RESOURCES
from paceline.policy.straggler import registry


def replay_logs(
    source: str | None, name: str | None, args: Mapping[str, str], console: Console
) -> bool:
    """Replay the log that is named, or those of a job.

    Args:
        source: a log, or what `JobDir.find` takes.
        name: who is to decide; None: the log's own. Of a job, its kind says about which log.
        args: parameters. Of a job and without a name, those of the solution.
        console: to show it on.

    Returns:
        Whether the logs' own solution and policy decide as they did.

    Raises:
        ConfigError: no such log, solution or policy.
    """
    file = Path(source) if source else None
    if file is not None and file.is_file() and is_sizing_log(file):
        return replay_sizes(file, name, args, console)
    if file is not None and (file.is_file() or file.suffix == ".jsonl"):
        return run_replay(source, name, args, console)
    job = JobDir.find(source)
    if not job.sizing.exists():
        return run_replay(source, name, args, console)
    for_sizes = name in RESOURCES.names() and name not in registry.names()
    same = replay_sizes(job.sizing, name if for_sizes else None, args if for_sizes else {}, console)
    if job.decisions.exists():
        rest = (None, {}) if for_sizes else (name, args)
        return run_replay(source, *rest, console) and same
    return same
