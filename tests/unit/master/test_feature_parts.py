"""Features' parts in a master: they are fed, kept apart, and left out when they fail."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from paceline.base import features
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.numbering import Inc
from paceline.jobs.outcome import End, Outcome
from paceline.master import feature_parts, feature_time
from paceline.master.asking import Answered, PolicyAnswer, PolicyRaised
from paceline.master.feature_parts import FeatureParts
from paceline.master.feature_port import Core, MasterPart
from paceline.master.feature_record import FeatureKept
from paceline.master.holding.edge import ModelPlace
from paceline.master.parts import make_parts
from paceline.master.restarts import StartMeasured
from paceline.policy.observation import RestartCost, RestartOutcome
from paceline.wire.client import (
    FeatureCall,
    Kill,
    LastLogged,
    Order,
    Shown,
    ShownFigure,
    ShownTable,
)
from paceline.wire.codec import encode
from paceline.wire.events.base import Event
from paceline.wire.events.job import FeatureFailedEvent, FeatureSlowEvent, MasterStartedEvent
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.messages.base import Attempt
from paceline.wire.messages.features import AgentFeatureSaid, FeatureSaid
from paceline.wire.spec import JobSpec
from tests.unit.master.test_training import NoBackend


class Note(msgspec.Struct):
    text: str


class Noting(MasterPart):
    """Keeps what it hears, but for what it cannot take."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.notes: list[Note] = []
        self.events: list[Event] = []
        self.reports: list[str] = []
        self.not_done_for: list[str] = []

    def heard(self, node: str, inc: Inc, body: msgspec.Raw) -> None:
        note = msgspec.msgpack.decode(body, type=Note)
        if note.text == "breaks":
            raise RuntimeError("broken")
        if note.text.endswith("?"):
            self.core.ask(lambda: answer_to(note.text), self.took)
        self.notes.append(note)
        self.core.keep(note)

    def took(self, answer: PolicyAnswer[str] | PolicyRaised, now_s: float) -> None:
        if not isinstance(answer, PolicyAnswer):
            raise KeyError(answer.kind)
        self.notes.append(Note(answer.value))

    def heard_agent(self, node: str, body: msgspec.Raw) -> None:
        self.notes.append(Note(f"{node}: {msgspec.msgpack.decode(body, type=Note).text}"))

    def agent_came(self, node: str) -> None:
        self.core.send_agent(node, Note("welcome"))

    def starts(self, node: str) -> Note | None:
        return Note(f"begin, {node}") if self.notes else None

    def happened(self, event: Event) -> None:
        self.events.append(event)

    def apply(self, record: msgspec.Raw) -> None:
        self.notes.append(msgspec.msgpack.decode(record, type=Note))

    def kept(self) -> list[Any]:
        return self.notes

    def answer(self, call: msgspec.Raw) -> Any:
        wanted = msgspec.msgpack.decode(call, type=Note)
        if wanted not in self.notes:
            raise ConfigError(f"nobody has said {wanted.text}")
        self.core.order(Kill(node="worker-0"))
        return len(self.notes)

    def works(self, measured: StartMeasured) -> None:
        self.notes.append(Note(f"{measured.node} works"))

    def remember(self, outcomes: Sequence[RestartOutcome]) -> None:
        self.notes.append(Note(f"{len(outcomes)} restarts before"))

    def at_once(self, event: Event) -> None:
        self.reports.append(event.name)

    def reported(self, node: str, facts: NodeFacts, now_s: float) -> None:
        self.reports.append(f"{node} {facts.memory_bytes} {now_s:g}")

    def ended(self, outcome: Outcome) -> Callable[[], None] | None:
        return {
            "broken": broken,
            "hangs": threading.Event().wait,
        }.get(outcome.error)  # type: ignore[return-value]

    def not_done(self, error: str) -> None:
        self.not_done_for.append(error)

    def shown(self) -> Shown:
        return Shown(
            figures=(ShownFigure(name="notes", about="Notes.", value=len(self.notes)),),
            logged=(LastLogged("notes", len(self.notes), 0),),
            notes=("quiet",),
            tables=(ShownTable(("node",), (("worker-0",),)),),
            nodes={"worker-0": {f"notes{id(self)}": len(self.notes)}},
        )


def broken() -> None:
    raise OSError("no database")


def answer_to(question: str) -> str:
    return {"who?": "the policy"}[question]


def raw(body: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(body))


class Master:
    """As much of a master as features see."""

    def __init__(self, path: Path) -> None:
        backend: Any = NoBackend()
        parts, times = make_parts(
            JobDir(path), JobSpec(script="train.py"), backend, lambda: 0.0, None
        )
        self.outbox, self.ordered = parts.outbox, list[Order]()
        self.answered: queue.SimpleQueue[Answered] = queue.SimpleQueue()
        place, nothing = ModelPlace(Attempt(), 0, 0), cast(Any, None)
        self.features = FeatureParts(
            parts,
            times,
            lambda: place,
            self.ordered.append,
            scene=nothing,
            post=self.answered.put,
            fail=nothing,
            nodes=nothing,
        )

    def policy_answers(self) -> None:
        self.answered.get(timeout=10.0).take(0.0)

    def said(self, text: str, feature: str = "noting") -> None:
        said = FeatureSaid(inc=Inc(1), feature=feature, body=raw(Note(text)))
        self.features.heard("worker-0", said)

    def failed(self) -> list[Event]:
        return [event for event in self.outbox.told if isinstance(event, FeatureFailedEvent)]


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Master:
    def parts_of(
        kind: str, _failed: object, _spec: object
    ) -> list[tuple[str, Callable[[Core], Any]]]:
        return [("noting", Noting), ("other", Noting), ("off", lambda core: None)]

    monkeypatch.setattr(features, "parts_of", parts_of)
    return Master(tmp_path)


def test_a_part_gets_what_is_said_to_it_and_its_records_again(master: Master) -> None:
    master.said("one")
    master.outbox.flush()
    assert [*master.outbox.journal.replay()] == [
        FeatureKept(feature="noting", body=raw(Note("one")))
    ]
    assert master.features.records() == [*master.outbox.journal.replay()]
    master.features.apply(FeatureKept(feature="other", body=raw(Note("before"))))
    assert [one.feature for one in master.features.records()] == ["noting", "other"]
    logged = master.features.shown().logged
    assert [one.value for one in logged] == [1, 1]
    assert len(master.features.shown().tables) == 2
    assert sorted(master.features.shown().nodes["worker-0"].values()) == [1, 1]


def test_a_part_that_fails_is_left_out_with_its_records_and_no_other_is(master: Master) -> None:
    master.said("one")
    master.said("breaks")
    master.said("late")
    (failed,) = master.failed()
    assert (
        failed.clause == "feature noting failed (RuntimeError: broken); the job goes on without it"
    )
    master.said("one", "other")
    kept = [(one.feature, msgspec.msgpack.decode(one.body)) for one in master.features.records()]
    assert kept == [("noting", {"text": "one"}), ("other", {"text": "one"})]
    assert master.features.shown().notes == ("quiet",)


def test_a_message_that_makes_no_sense_is_dropped(master: Master) -> None:
    said = FeatureSaid(inc=Inc(1), feature="noting", body=raw({"no": "note"}))
    master.features.heard("worker-0", said)
    assert not master.failed()
    master.said("one", "absent")
    assert not master.failed()


def test_a_record_of_a_feature_that_is_not_here_stays_in_the_journal(master: Master) -> None:
    record = FeatureKept(feature="absent", body=raw(Note("theirs")))
    master.features.apply(record)
    assert master.features.records() == [record]


def test_parts_tell_a_life_something_before_it_starts(master: Master) -> None:
    assert master.features.starts("worker-0") == {} and not master.features.want_links
    master.said("one")
    master.said("one", "other")
    told = {name: raw(Note("begin, worker-1")) for name in ("noting", "other")}
    assert master.features.starts("worker-1") == told
    master.features._parts["other"].wants_links = True
    assert master.features.want_links


def test_every_part_hears_each_event_once(master: Master) -> None:
    event = MasterStartedEvent(restarted=False)
    master.outbox.tell(event)
    master.features.happened()
    master.features.happened()
    for part in master.features._parts.values():
        assert isinstance(part, Noting)
        assert [one.name for one in part.events] == ["master_started"]


def test_a_call_is_answered_and_may_order_what_people_may(master: Master) -> None:
    master.said("one")
    reply = master.features.answer(FeatureCall(feature="noting", body=raw(Note("one"))))
    assert msgspec.msgpack.decode(reply.body) == 1
    assert master.ordered == [Kill(node="worker-0")]
    with pytest.raises(ConfigError, match="nobody has said two"):
        master.features.answer(FeatureCall(feature="noting", body=raw(Note("two"))))
    with pytest.raises(ConfigError, match="ValidationError"):
        master.features.answer(FeatureCall(feature="noting", body=raw(3)))
    with pytest.raises(ConfigError, match="feature absent has no part in this job's master"):
        master.features.answer(FeatureCall(feature="absent", body=raw(3)))


class Stream:
    """Stream to an agent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_nowait(self, message: Any) -> None:
        self.sent.append(message)


def test_a_part_talks_with_its_part_in_an_agent(master: Master) -> None:
    stream: Any = Stream()
    master.outbox.streams["worker-0"] = stream
    master.features.agent_came("worker-0")
    master.outbox.flush()
    told = [(one.feature, msgspec.msgpack.decode(one.body)) for one in stream.sent]
    assert told == [("noting", {"text": "welcome"}), ("other", {"text": "welcome"})]
    for body in (raw(Note("held")), raw({"no": "note"})):
        said = AgentFeatureSaid(node="worker-0", feature="other", body=body)
        master.features.heard_agent(said)
    kept = [(one.feature, msgspec.msgpack.decode(one.body)) for one in master.features.records()]
    assert kept == [("other", {"text": "worker-0: held"})]
    assert not master.failed()


def test_a_part_hears_of_starts_and_of_earlier_jobs(master: Master) -> None:
    master.features.remember([RestartOutcome(role="worker", before=3.0, after=1.0)])
    master.features.works(StartMeasured(node="worker-0", inc=Inc(2), cost=RestartCost()))
    told = ["1 restarts before", "worker-0 works"]
    assert [note.text for note in notes_of(master)] == told
    assert [one.value for one in master.features.shown().figures] == [2, 2]


def test_a_policy_is_asked_in_a_thread_and_its_error_ends_the_part_alone(master: Master) -> None:
    master.said("who?")
    master.policy_answers()
    assert [note.text for note in notes_of(master)] == ["who?", "the policy"]
    master.said("why?")
    master.said("who?")
    master.policy_answers()
    master.policy_answers()  # for a part that is left out by now, or before it
    assert [one.error for one in master.failed()] == ["KeyError: 'KeyError'"]  # type: ignore[attr-defined]


def notes_of(master: Master) -> list[Note]:
    found = [one for one in master.features.records() if one.feature == "noting"]
    return [msgspec.msgpack.decode(one.body, type=Note) for one in found]


def test_a_part_that_waits_is_named_once(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_time, "HELD_UP_S", -1.0)
    for _ in range(5):
        master.said("one")
        master.said("two", "other")
    slow = [event for event in master.outbox.told if isinstance(event, FeatureSlowEvent)]
    assert [event.feature for event in slow] == ["noting", "other"]
    monkeypatch.setattr(feature_time, "WINDOW_S", 0.0)
    monkeypatch.setattr(feature_time, "MOST", 0.0)
    master.features.tick(1.0)
    assert sorted(
        event.feature for event in master.outbox.told if isinstance(event, FeatureFailedEvent)
    ) == ["noting", "other"]


def test_a_feature_that_hung_a_master_has_no_part_in_the_next_one(
    master: Master, tmp_path: Path
) -> None:
    (tmp_path / "features_left_out").write_text("noting\n")
    again = Master(tmp_path)
    again.said("one")
    assert [
        event.feature for event in again.outbox.told if isinstance(event, FeatureFailedEvent)
    ] == ["noting"]
    assert not again.features.records()


def parts_of(master: Master) -> list[Noting]:
    return [part for part in master.features._parts.values() if isinstance(part, Noting)]


def test_parts_hear_of_nodes_at_once_and_what_their_agents_report(master: Master) -> None:
    master.features.at_once(MasterStartedEvent(restarted=False))
    master.features.reported("worker-0", NodeFacts(inc=Inc(1), memory_bytes=7), 2.0)
    assert [part.reports for part in parts_of(master)] == [["master_started", "worker-0 7 2"]] * 2


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("", []),
        ("broken", ["no database"]),
        ("hangs", ["nothing was heard of it for 0 s"]),
    ],
)
def test_a_parts_last_work_is_awaited_but_not_for_long(
    how: str, told: list[str], master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_parts, "END_S", 10.0 if how == "broken" else 0.1)
    outcome = Outcome(
        state="finished",
        exit_code=0,
        end=End.FINISHED,
        error=how,
        jct_s=1.0,
        training_s=1.0,
        committed=1,
        total=1,
    )
    asyncio.run(master.features.ended(outcome))
    assert [part.not_done_for for part in parts_of(master)] == [told, told]
    assert not master.failed()


class Odd(Noting):
    """Returns what its port does not say, as far as a test wants it to."""

    odd: Any = None

    def starts(self, node: str) -> Any:
        return self.odd

    def kept(self) -> list[Any]:
        return self.notes if self.odd is None else self.odd  # type: ignore[no-any-return]

    def shown(self) -> Any:
        return Shown() if self.odd is None else self.odd


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Master]:
    def make(*makers: Callable[[Core], Any]) -> Master:
        found = [(f"part-{at}", one) for at, one in enumerate(makers)]
        monkeypatch.setattr(features, "parts_of", lambda *_: found)
        return Master(tmp_path)

    return make


@pytest.mark.parametrize(
    ("found", "ask", "error"),
    [
        (object(), lambda parts: parts.starts("worker-0"), "TypeError: Encoding objects"),
        ("x" * (32 << 10), lambda parts: parts.starts("worker-0"), "ValueError: it starts a life"),
        (3, lambda parts: parts.shown(), "TypeError: it shows 3, and no Shown"),
        (Shown(notes=(1, object())), lambda parts: parts.shown(), "TypeError: Encoding objects"),
        (Shown(notes=(1,)), lambda parts: parts.shown(), "ValidationError: Expected `str`"),
        ([object()], lambda parts: parts.records(), "TypeError: Encoding objects"),
        (7, lambda parts: parts.records(), "TypeError: 'int' object is not iterable"),
    ],
)
def test_what_a_port_does_not_say_costs_the_part_and_no_record(
    found: Any, ask: Callable[[FeatureParts], Any], error: str, odd: Callable[..., Master]
) -> None:
    master = odd(Odd, Noting)
    master.said("before", "part-0")
    part = master.features._parts["part-0"]
    part.odd = found  # type: ignore[attr-defined]
    ask(master.features)
    (told,) = master.failed()
    assert isinstance(told, FeatureFailedEvent)
    assert (told.feature, told.error[: len(error)]) == ("part-0", error)
    assert "\n" not in told.error
    kept = [(one.feature, one.body) for one in master.features.records()]
    assert kept == [("part-0", raw(Note("before")))]
    assert isinstance(master.features.shown(), Shown)


def test_what_is_no_part_is_left_out(odd: Callable[..., Master]) -> None:
    master = odd(lambda core: 5, Noting)
    (told,) = master.failed()
    assert isinstance(told, FeatureFailedEvent)
    assert told.error == "TypeError: its part is 5, and no MasterPart"
    assert not master.features.want_links
