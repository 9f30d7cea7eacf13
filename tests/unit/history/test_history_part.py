"""The history's part in a master: the size at the start, what is read, and what cannot be used."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from paceline.features.history import master
from paceline.features.history.master import READ_AFTER_S, HistoryPart, SizeAtStart
from paceline.master.asking import PolicyAnswer, PolicyRaised
from paceline.master.feature_port import Core
from paceline.policy.observation import RestartOutcome
from paceline.wire.spec import JobSpec, NodeSpec

FOUND = (RestartOutcome(role="worker", before=2.0, after=1.0),)
BEGUN = SizeAtStart(workers=NodeSpec(count=1), servers=NodeSpec())


class Master:
    """As much of a master as the part sees; a question is answered at once."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.remembered: list[Any] = []
        self.told: list[str] = []
        core = SimpleNamespace(
            spec=JobSpec(script="t.py", workers=NodeSpec(count=3)),
            keep=self.records.append,
            remember=self.remembered.append,
            tell=lambda event: self.told.append(event.error),
            ask=self.ask,
        )
        self.part = HistoryPart(cast(Core, core))

    def ask(self, decide: Any, take: Any) -> None:
        try:
            answer: Any = PolicyAnswer(value=decide(), took_s=0.0)
        except ZeroDivisionError:
            answer = PolicyRaised(kind="ZeroDivisionError", traceback="at\nZeroDivisionError: x\n")
        take(answer, 0.0)


def test_the_size_at_the_start_is_kept_once_and_goes_to_the_next_master() -> None:
    first, later = Master(), Master()
    first.part.begin()
    assert first.records == first.part.kept() != [BEGUN]
    later.part.apply(msgspec.Raw(msgspec.msgpack.encode(BEGUN)))
    later.part.begin()
    assert (later.records, later.part.kept()) == ([], [BEGUN])


@pytest.mark.parametrize(
    ("read", "remembered", "told"),
    [(FOUND, [FOUND], []), ("no database", [], ["no database"])],
)
def test_the_past_is_read_once_some_time_after_the_start(
    read: object, remembered: list[Any], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Master()
    monkeypatch.setattr(master, "read_past", lambda _spec: read)
    job.part.tick(7.0)
    assert (job.remembered, job.told) == ([], [])
    for late_s in (0.0, 1.0):
        job.part.tick(7.0 + READ_AFTER_S + late_s)
        assert (job.remembered, job.told) == (remembered, told)


def test_a_history_that_cannot_be_used_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Master()

    def broken(_spec: JobSpec) -> str:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(master, "read_past", broken)
    job.part.tick(0.0)
    job.part.tick(READ_AFTER_S)
    job.part.not_done("nor at the end")
    assert job.told == ["ZeroDivisionError: x"]
