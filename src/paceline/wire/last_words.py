"""Why a master ends without an outcome: from the master to the supervisor that started it.

Through a pipe: a disk that refuses everything is one of the reasons.
"""

import contextlib
import os
import sys
import traceback
from types import TracebackType

import msgspec

from paceline.base.disk import describe
from paceline.base.errors import ConfigError, PermanentError

OPTION = "--last-words"
"""Names the descriptor of the pipe to the master."""
MAX_BYTES = 65_536
"""A pipe takes as much at once from a writer whose reader looks only when the writer is gone."""
MAX_REASON = 4_096


class LastWords(msgspec.Struct, frozen=True):
    """Knowledge of a dying master about its death."""

    reason: str
    final: bool = False
    """Another master would die of it as well."""
    traceback: str = ""


def say(words: LastWords, descriptor: int) -> None:
    """Write them, cut to what the pipe takes."""
    reason, traceback = words.reason[:MAX_REASON], words.traceback[-MAX_REASON:]
    data = msgspec.json.encode(LastWords(reason, words.final, traceback))
    with contextlib.suppress(OSError):  # the supervisor is gone: nobody reads
        os.write(descriptor, data[:MAX_BYTES])


def read(descriptor: int) -> LastWords | None:
    """Return the last words of a master that is gone; None: none that can be read."""
    try:
        return msgspec.json.decode(os.read(descriptor, MAX_BYTES), type=LastWords)
    except (BlockingIOError, msgspec.MsgspecError):
        return None


def explain(error: BaseException) -> LastWords:
    """Say why a master dies of an error, and whether its successor would, too."""
    if isinstance(error, ConfigError | PermanentError):
        return LastWords(str(error), final=True)
    lines = "".join(traceback.format_exception(error))
    if isinstance(error, OSError) and error.filename is not None:
        return LastWords(describe(error, error.filename), traceback=lines)
    return LastWords(f"{type(error).__name__}: {error}", traceback=lines)


def say_at_death(descriptor: int) -> None:
    """Have an error that ends this process reach the supervisor, too."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        say(explain(error), descriptor)
        sys.__excepthook__(kind, error, trace)

    sys.excepthook = hook
