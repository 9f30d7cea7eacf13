"""Words that people try as commands of ``paceline``, and the command that does what they mean."""

import re
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from paceline.base.features import installed

_LISTS = "`paceline ps`"
_RUNS = "`paceline run SCRIPT`"
_RESUMES = "`paceline run --resume JOB`"
_WATCHES = "`paceline attach JOB`"
_REMOVES = "`paceline rm JOB`"
_STOPS = "`paceline stop JOB`"
_SHOWS = "`paceline status JOB`"
_PRINTS = "`paceline logs JOB --follow`"
_OF_CORE: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("list", "ls", "jobs", "job"), _LISTS)
    | dict.fromkeys(("start", "launch", "train", "exec", "fit", "execute"), _RUNS)
    | dict.fromkeys(("python", "python3", "torchrun", "accelerate", "deepspeed"), _RUNS)
    | dict.fromkeys(("resume", "continue", "restore", "unpause"), _RESUMES)
    | dict.fromkeys(("watch", "follow", "monitor", "wait", "top", "htop"), _WATCHES)
    | dict.fromkeys(("delete", "del", "remove", "clean", "purge"), _REMOVES)
    | dict.fromkeys(("cancel", "end", "abort", "terminate", "quit"), _STOPS)
    | dict.fromkeys(("show", "inspect", "describe", "info", "get"), _SHOWS)
    | dict.fromkeys(("tail", "log", "output"), _PRINTS)
    | dict.fromkeys(("gc", "cleanup"), "`paceline prune --older-than 7d --dry-run`")
    | dict.fromkeys(("cuts", "checkpoints", "ckpt"), "`paceline checkpoint ls JOB`")
    | dict.fromkeys(("resize", "workers"), "`paceline scale JOB --workers 4`")
    | dict.fromkeys(("join", "add"), "`paceline agent --join HOST:PORT`")
    | dict.fromkeys(("validate", "lint", "config"), "`paceline run SCRIPT --dry-run`")
    | {
        "pause": "`paceline stop JOB`, and later `paceline run --resume JOB`",
        "suspend": "`paceline stop JOB`, and later `paceline run --resume JOB`",
        "restart": "`paceline run --resume JOB` for a job that has ended, "
        "`paceline replace JOB --worker 0` for a node of a job that runs",
        "rerun": "`paceline run --resume JOB` to go on, `paceline run SCRIPT` to begin again",
        "help": "`paceline COMMAND --help`",
        "version": "`paceline --version`",
    }
)
"""Word -> commands to write instead; words in capitals stand for what follows the word."""
_SUFFIXES = (".py", ".yaml", ".yml")
_COMMAND = re.compile(r"`[^`]+`")
_STANDS_FOR = re.compile(r"\b(?:JOB|SCRIPT|COMMAND|OUT)\b")


def hints() -> dict[str, str]:
    """Return all hints, of the core and of the installed features, by the word that is tried."""
    theirs = [one.feature.hints for one in installed() if one.feature is not None]
    return {word: hint for of_one in (_OF_CORE.items(), *theirs) for word, hint in of_one}


def hint_about(words: Sequence[str]) -> str:
    """Say what to write instead of a command that there is not; empty: no hint is known.

    Args:
        words: the word that was tried as a command, and what follows it.
    """
    tried, *rest = words
    if tried.endswith(_SUFFIXES):
        return f"{tried}: no such command; write `paceline run {shlex.join(words)}`"
    hint = hints().get(tried, "")
    if not hint:
        return ""
    if tried == "help" and not rest:
        hint = "`paceline --help`"
    if tried == "accelerate" and rest[:1] == ["launch"]:
        rest = rest[1:]
    # A command takes its own flags, and `run` those of every launcher.
    if hint == _RUNS or not any(word.startswith("-") for word in rest):
        hint = _COMMAND.sub(lambda found: _filled(found[0], rest), hint)
    return f"{tried}: no such command; write {hint}"


def _filled(command: str, given: Sequence[str]) -> str:
    """Put words in the places that stand for them; the last place takes all that are left."""
    left, places = list(given), len(_STANDS_FOR.findall(command))

    def fill(found: re.Match[str]) -> str:
        nonlocal places
        places -= 1
        if not left:
            return found[0]
        taken = left[:1] if places else left[:]
        del left[: len(taken)]
        return shlex.join(taken)

    return _STANDS_FOR.sub(fill, command)
