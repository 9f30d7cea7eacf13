"""Commands' side of a cluster: they start the scheduler of this user, and ask it."""

import subprocess
import time
from typing import TypeVar

from paceline.base.errors import ConfigError, PacelineError, PermanentError, TransientError
from paceline.base.processes import is_locked, start_detached
from paceline.features.cluster.folder import ClusterConfig, ClusterDir
from paceline.features.cluster.wire import ClusterCall, ClusterReply, GetDevices, StopScheduler
from paceline.wire.client import Done
from paceline.wire.codec import decoder
from paceline.wire.control import ControlClient

START_S = 30.0
"""Seconds that a scheduler has after its start to answer."""
ANSWER_S = 10.0
STOP_S = 60.0
"""Seconds that a scheduler which is starting jobs has to end."""
LOG_TAIL = 500
A = TypeVar("A")

_decode_reply = decoder(ClusterReply)
_schedulers: list[subprocess.Popen[bytes]] = []
"""Schedulers that this process started; a Popen that is forgotten warns that its process lives."""


def start_scheduler(folder: ClusterDir, config: ClusterConfig) -> None:
    """Start the scheduler, and return when it answers.

    Raises:
        ConfigError: it runs already, or the cluster cannot be like that.
        PermanentError: it did not start.
    """
    config.check()
    folder.make()
    if is_locked(folder.lock):
        raise ConfigError("the scheduler runs already; `paceline cluster stop` ends it")
    folder.want(config)
    said = folder.log.stat().st_size if folder.log.exists() else 0
    scheduler = start_detached(
        "paceline.features.cluster", [str(folder.path)], folder.path, folder.log
    )
    _schedulers[:] = [scheduler, *(one for one in _schedulers if one.poll() is None)]
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        died = scheduler.poll() is not None
        if _answers(folder):
            return
        if died:
            break
        time.sleep(0.05)  # noqa: TID251
    folder.wanted.unlink(missing_ok=True)
    told = folder.log.read_text(errors="replace")[said:][-LOG_TAIL:].strip()
    raise PermanentError(f"the scheduler did not start; {folder.log} says: {told}")


def stop_scheduler(folder: ClusterDir) -> None:
    """End the scheduler, and return when it has ended.

    Raises:
        TransientError: it still starts jobs; it leaves after that.
    """
    ask_scheduler(folder, StopScheduler())
    deadline_s = time.monotonic() + STOP_S
    while is_locked(folder.lock):
        if time.monotonic() > deadline_s:
            raise TransientError(
                f"the scheduler still starts jobs, and leaves after that; see {folder.log}"
            )
        time.sleep(0.05)  # noqa: TID251


def _answers(folder: ClusterDir) -> bool:
    try:
        ask_scheduler(folder, GetDevices(), timeout_s=1.0)
    except PacelineError:
        return False
    return True


def ask_scheduler(
    folder: ClusterDir, call: ClusterCall, timeout_s: float = ANSWER_S
) -> ClusterReply:
    """Ask the scheduler.

    Raises:
        ConfigError: it does not run, or it refuses.
        TransientError: it does not answer in time.
    """
    if not is_locked(folder.lock):
        raise ConfigError("the scheduler does not run; start it with `paceline cluster start`")
    try:
        data = ControlClient(folder.address, folder.secret()).ask_sync(call, timeout_s)
    except FileNotFoundError as error:
        raise TransientError("the scheduler is being started; try again") from error
    except TransientError as error:
        raise TransientError(f"the scheduler does not answer: {error}; see {folder.log}") from error
    reply: ClusterReply = _decode_reply(data)
    if isinstance(reply, Done) and reply.error:
        raise ConfigError(reply.error)
    return reply


def expect(kind: type[A], folder: ClusterDir, call: ClusterCall) -> A:
    """The answer of the scheduler to a call that it answers with this kind; raises the same."""
    reply = ask_scheduler(folder, call)
    if not isinstance(reply, kind):
        raise PermanentError(f"the scheduler answers with a {type(reply).__name__}; restart it")
    return reply
