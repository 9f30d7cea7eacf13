"""Features' parts in one master: fed with facts, and left out when they fail."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from paceline.base import features
from paceline.base.errors import ConfigError, PacelineError
from paceline.base.numbering import Inc
from paceline.jobs.outcome import Outcome
from paceline.master.asking import Answered, PolicyAnswer, PolicyRaised, ask_in_thread
from paceline.master.exposed import Exposed
from paceline.master.feature_port import Core, MasterPart
from paceline.master.feature_record import FeatureKept
from paceline.master.feature_time import FeatureTime
from paceline.master.holding.edge import ModelPlace
from paceline.master.node_acts import NodeActs
from paceline.master.parts import MasterParts, Times
from paceline.master.restarts import StartMeasured
from paceline.master.scene import Scene
from paceline.policy.observation import RestartOutcome
from paceline.wire.client import FeatureCall, FeatureReply, Order, Shown, sound, together
from paceline.wire.codec import encode
from paceline.wire.events.base import Event
from paceline.wire.events.job import FeatureFailedEvent, FeatureSlowEvent
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.messages.features import (
    AgentFeatureSaid,
    AgentFeatureTold,
    FeatureSaid,
    FeatureTold,
)

END_S = 8.0
"""Seconds for what parts do after the end: the job's supervisor waits 10 s for the master."""
START_BYTES = 32 << 10
"""Most bytes with which a part may start a life: they travel with the order, in one datagram."""
T = TypeVar("T")

_log = logging.getLogger(__name__)


class FeatureParts:
    """The parts of all installed features that have one, by name.

    Args:
        parts: of the master.
        times: of the master.
        place: tells where the model is.
        order: carries out an order; raises ConfigError where it cannot.
        scene: of the training.
        post: hands a policy's answer to the master's task, from another thread.
        fail: ends the job for a reason.
        nodes: carries out acts upon nodes.
    """

    def __init__(
        self,
        parts: MasterParts,
        times: Times,
        place: Callable[[], ModelPlace],
        order: Callable[[Order], None],
        scene: Scene,
        post: Callable[[Answered], None],
        fail: Callable[[str], None],
        nodes: NodeActs,
    ) -> None:
        self._outbox, self._post = parts.outbox, post
        self._parts: dict[str, MasterPart] = {}
        #: Those that want the reports of nodes, which come a thousand times a second.
        self._reported: list[tuple[str, MasterPart]] = []
        self._time = FeatureTime(parts.job.features_left_out)
        #: Records of each part, as they are in the journal.
        self._written: dict[str, list[FeatureKept]] = {}
        #: Records of features that are not here: the next master may have them.
        self._strange: list[FeatureKept] = []
        left_out = self._time.take_left_out()
        for name, make in features.parts_of("master", self._failed, parts.spec):
            if name in left_out:
                self._failed(name, TimeoutError("a master before this one waited for it for ever"))
                continue
            core = Core(
                job=parts.job,
                spec=parts.spec,
                roster=parts.members.roster,
                monitor=parts.monitor,
                wall=times.wall,
                steady=times.steady,
                place=place,
                tell=self._outbox.tell,
                keep=partial(self._keep, name),
                send=partial(self._send, name),
                send_agent=partial(self._send_agent, name),
                order=order,
                scene=scene,
                nodes=nodes,
                ask=partial(self._ask, name),
                remember=self.remember,
                fail=fail,
            )
            self._begin_part(name, make, core)

    def _begin_part(self, name: str, make: Callable[[Core], object], core: Core) -> None:
        try:
            part = self._timed(name, lambda: make(core))
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            self._failed(name, error)
            return
        if isinstance(part, MasterPart):
            self._parts[name] = part
            if type(part).reported is not MasterPart.reported:
                self._reported.append((name, part))
        elif part is not None:
            self._failed(name, TypeError(f"its part is {part!r:.100}, and no MasterPart"))

    def _failed(self, name: str, error: Exception) -> None:
        """Leave a feature out from now on."""
        _log.error("feature_failed feature=%s", name, exc_info=error)
        self._reported = [one for one in self._reported if one[0] != name]
        if self._parts.pop(name, None) is not None:
            self._strange += self._written.pop(name, [])
        self._outbox.tell(FeatureFailedEvent(feature=name, error=features.in_a_line(error)))

    def _each(self, act: Callable[[MasterPart], Any]) -> Iterator[tuple[str, Any]]:
        """Do something with each part; yield what comes of it, but for parts that fail."""
        for name, part in [*self._parts.items()]:
            try:
                found = self._timed(name, partial(act, part))
            except Exception as error:  # noqa: BLE001 - a feature may be of any package
                self._failed(name, error)
            else:
                yield name, found

    def _timed(self, name: str, call: Callable[[], T]) -> T:
        """Call a part; tell once of one that holds the master up."""
        found, took_s = self._time.timed(name, call)
        if took_s is not None:
            self._outbox.tell(FeatureSlowEvent(feature=name, seconds=took_s))
        return found

    def _do(self, act: Callable[[MasterPart], Any]) -> None:
        for _ in self._each(act):
            pass

    def _keep(self, name: str, record: Any) -> None:
        kept = FeatureKept(feature=name, body=_raw(record))
        self._written.setdefault(name, []).append(kept)
        self._outbox.record(kept)

    def _send(self, name: str, inc: Inc, body: Any) -> None:
        self._outbox.to_process(inc, FeatureTold(inc=inc, feature=name, body=_raw(body)))

    def _send_agent(self, name: str, node: str, body: Any) -> None:
        self._outbox.to_agent(node, AgentFeatureTold(feature=name, body=_raw(body)))

    def _ask(
        self,
        name: str,
        decide: Callable[[], T],
        take: Callable[[PolicyAnswer[T] | PolicyRaised, float], None],
    ) -> None:
        def taken(answer: PolicyAnswer[T] | PolicyRaised, now_s: float) -> None:
            if name not in self._parts:
                return  # the part was left out meanwhile
            try:
                self._timed(name, lambda: take(answer, now_s))
            except Exception as error:  # noqa: BLE001 - a feature may be of any package
                self._failed(name, error)

        ask_in_thread(name, decide, taken, self._post)

    # ------------------------------------------------------------------ facts

    def begin(self) -> None:
        """The journal has been read."""
        self._do(lambda part: part.begin())

    def apply(self, record: FeatureKept) -> None:
        """Take in a record of the journal; one of a feature that is not here stays in it."""
        part = self._parts.get(record.feature)
        if part is None:
            self._strange.append(record)
            return
        self._written.setdefault(record.feature, []).append(record)
        try:
            self._timed(record.feature, lambda: part.apply(record.body))
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            self._failed(record.feature, error)

    def heard(self, node: str, said: FeatureSaid) -> None:
        """Take a message to the part that it is for; without that part it is dropped."""
        self._hear(said.feature, node, lambda part: part.heard(node, said.inc, said.body))

    def heard_agent(self, said: AgentFeatureSaid) -> None:
        """Take a message of an agent to the part that it is for, likewise."""
        self._hear(said.feature, said.node, lambda part: part.heard_agent(said.node, said.body))

    def _hear(self, name: str, node: str, act: Callable[[MasterPart], None]) -> None:
        part = self._parts.get(name)
        if part is None:
            return
        try:
            self._timed(name, lambda: act(part))
        except features.NONSENSE:
            _log.exception("message_dropped feature=%s node=%s", name, node)
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            self._failed(name, error)

    def starts(self, node: str) -> dict[str, msgspec.Raw]:
        """Collect what parts tell a life of a node that is about to start, by feature."""
        told = self._each(lambda part: _for_a_start(part.starts(node)))
        return {name: body for name, body in told if body is not None}

    @property
    def want_links(self) -> bool:
        """Whether workers that begin together measure their links."""
        return any(part.wants_links for part in self._parts.values())

    def agent_came(self, node: str) -> None:
        """A node's agent has said its first word to this master, or an agent that follows it."""
        self._do(lambda part: part.agent_came(node))

    def happened(self) -> None:
        """Tell the parts of events that they have not heard of."""
        told, self._outbox.told = self._outbox.told, []
        for event in told:
            self._do(lambda part, event=event: part.happened(event))  # type: ignore[misc]

    def at_once(self, event: Event) -> None:
        """Tell the parts of an event of a node, in the middle of what follows from it."""
        self._do(lambda part: part.at_once(event))

    def reported(self, node: str, facts: NodeFacts, now_s: float) -> None:
        """Give the parts what an agent says of its node's process, those that want it."""
        for name, part in self._reported:
            try:
                self._timed(name, partial(part.reported, node, facts, now_s))
            except Exception as error:  # noqa: BLE001 - a feature may be of any package
                self._failed(name, error)

    def tick(self, now_s: float) -> None:
        """Let the parts do what is due; leave out one that takes most of the master's time."""
        for name, why in self._time.took_most().items():
            if name in self._parts:
                self._failed(name, TimeoutError(why))
        self._do(lambda part: part.tick(now_s))

    def works(self, measured: StartMeasured) -> None:
        """A node works after a start."""
        self._do(lambda part: part.works(measured))

    def remember(self, outcomes: Sequence[RestartOutcome]) -> None:
        """Tell the parts what restarts of earlier jobs have achieved."""
        self._do(lambda part: part.remember(outcomes))

    def measured(self, figures: Callable[[], Exposed]) -> None:
        """Give the figures of this moment to the parts that want them; else nobody makes them."""
        if any(type(part).measured is not MasterPart.measured for part in self._parts.values()):
            found = figures()
            self._do(lambda part: part.measured(found))

    def answer(self, call: FeatureCall) -> FeatureReply:
        """Answer a call of a feature's verb.

        Raises:
            ConfigError: there is no such part here, or it refuses.
        """
        part = self._parts.get(call.feature)
        if part is None:
            raise ConfigError(
                f"feature {call.feature} has no part in this job's master; `paceline features` "
                "lists those that are installed"
            )
        try:
            return FeatureReply(
                body=_raw(self._timed(call.feature, lambda: part.answer(call.body)))
            )
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"feature {call.feature}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """The job has ended."""
        self.happened()
        self._do(lambda part: part.close())
        self._time.close()

    async def ended(self, outcome: Outcome) -> None:
        """Have the parts do what they still do when the outcome is written, but not for long."""
        asked = [*self._each(lambda part: part.ended(outcome))]
        works = {name: work for name, work in asked if work is not None}
        loop, open_, done = asyncio.get_running_loop(), set(works), asyncio.Event()

        def finish(name: str, error: str) -> None:
            if name in open_:
                open_.remove(name)
                if error:
                    self._not_done(name, error)
                if not open_:
                    done.set()

        for name, work in works.items():
            found = partial(finish, name)
            post = partial(loop.call_soon_threadsafe, found)
            # The thread keeps no process from its end.
            threading.Thread(target=_finish, args=(work, post), name=name, daemon=True).start()
        if works:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), END_S)
        for name in sorted(open_):
            finish(name, f"nothing was heard of it for {END_S:.0f} s")

    def _not_done(self, name: str, error: str) -> None:
        part = self._parts.get(name)
        if part is None:
            return
        try:
            self._timed(name, lambda: part.not_done(error))
        except Exception as failed:  # noqa: BLE001 - a feature may be of any package
            self._failed(name, failed)

    # ------------------------------------------------------------------ what is known

    def records(self) -> list[FeatureKept]:
        """All that features keep: what a journal that begins again needs of them."""
        for name, bodies in self._each(lambda part: [_raw(record) for record in part.kept()]):
            self._written[name] = [FeatureKept(feature=name, body=body) for body in bodies]
        own = [record for name in self._parts for record in self._written.get(name, [])]
        return [*self._strange, *own]

    def shown(self) -> Shown:
        """What status, metrics and the live view show of all features."""
        return together(one for _, one in self._each(lambda part: sound(part.shown())))


def _finish(work: Callable[[], None], post: Callable[[str], object]) -> None:
    """Do a part's last work in this thread, and post why it is not done; empty: it is."""
    error = ""
    try:
        work()
    except (PacelineError, OSError) as known:
        error = str(known)
    except Exception as failed:  # noqa: BLE001 - a feature may be of any package
        _log.exception("not_done")
        error = f"{type(failed).__name__}: {failed}"
    with contextlib.suppress(RuntimeError):  # the loop is closed: the job has ended
        post(error)


def _for_a_start(body: Any) -> msgspec.Raw | None:
    """Encode what a part tells a life that is about to start."""
    if body is None:
        return None
    raw = _raw(body)
    if len(raw) > START_BYTES:
        raise ValueError(f"it starts a life with {len(raw):,} bytes; at most {START_BYTES:,}")
    return raw


def _raw(body: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(body))
