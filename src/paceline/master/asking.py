"""The seat of a policy in a master: a question is answered in a thread, and comes back as a fact.

A policy may be anybody's code, and a search takes a while. The master goes on meanwhile; what is
still open, and what is too late, `paceline.policy.decisions.question` says.
"""

import threading
import time
import traceback
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class PolicyAnswer(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Answer of a policy."""

    value: T
    took_s: float


class PolicyRaised(msgspec.Struct, frozen=True, kw_only=True):
    """Exception that a policy has raised instead of an answer."""

    kind: str
    """Class of the exception."""
    traceback: str


class Answered(msgspec.Struct, frozen=True):
    """Fact: what was asked beside the master's task is answered; a policy may have raised."""

    take: Callable[[float], None]
    """Hands it to the loop that has asked, at a time of the master's clock."""


def ask_in_thread(
    name: str,
    decide: Callable[[], T],
    take: Callable[[PolicyAnswer[T] | PolicyRaised, float], None],
    post: Callable[[Answered], None],
) -> None:
    """Ask a policy; nothing that it raises goes further than its answer.

    Args:
        name: of the thread.
        decide: asks it.
        take: takes the answer, in the event loop.
        post: hands a fact to the event loop, from a thread.
    """

    def work() -> None:
        start_s = time.perf_counter()
        answer: PolicyAnswer[T] | PolicyRaised
        try:
            answer = PolicyAnswer(value=decide(), took_s=time.perf_counter() - start_s)
        except BaseException as error:  # noqa: BLE001 - the policy's code runs here
            answer = PolicyRaised(kind=type(error).__name__, traceback=traceback.format_exc())
        post(Answered(lambda now_s: take(answer, now_s)))

    threading.Thread(target=work, name=name, daemon=True).start()
