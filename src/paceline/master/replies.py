"""Replies to what people ask a running job, and order of it: each call and its answer."""

from collections.abc import Callable
from typing import assert_never

import msgspec

from paceline.base.errors import ConfigError
from paceline.jobs.joining import script_digest
from paceline.master.facts import Asked
from paceline.master.feature_parts import FeatureParts
from paceline.master.members import MembersEdge
from paceline.master.node_sizes import NodeSizes
from paceline.master.orders import (
    check_elastic,
    check_part,
    check_replace,
    check_scale,
    check_scale_servers,
    check_size,
)
from paceline.master.parts import MasterParts
from paceline.master.reporting import Reporting
from paceline.master.shutdown import Shutdown
from paceline.master.training import Training
from paceline.policy.observation import Observation
from paceline.wire.client import (
    Done,
    FeatureCall,
    GetObservation,
    GetSpec,
    GetStatus,
    JobInfo,
    JobStatus,
    Join,
    Kill,
    NodesAdded,
    Observed,
    Replace,
    Reply,
    ResizeNodes,
    RoomCall,
    Scale,
    StopJob,
)
from paceline.wire.events.nodes import BY_ORDER
from paceline.wire.places import LACKS


class Replies:
    """Answers calls."""

    def __init__(
        self,
        parts: MasterParts,
        training: Training,
        shutdown: Shutdown,
        members: MembersEdge,
        observe: Callable[[], Observation | None],
        reporting: Reporting,
        sizes: NodeSizes,
        features: FeatureParts,
    ) -> None:
        self._job, self._spec, self._outbox = parts.job, parts.spec, parts.outbox
        self._wanted_workers, self._backend = parts.members.roster.wanted_workers, parts.backend
        self._training, self._shutdown, self._members = training, shutdown, members
        self._observe, self._reporting = observe, reporting
        kept = parts.job.script_digest
        self._script_digest = kept.read_text() if kept.exists() else script_digest(parts.spec)
        self._sizes, self._features = sizes, features

    def answer(self, asked: Asked) -> None:
        """Answer a call once what it has led to is journalled.

        While too few keepers of the journal answer, people are, and nothing else is.
        """
        if self._reporting.keeping.stands:
            if isinstance(asked.call, GetStatus | GetObservation | GetSpec):
                asked.reply(self.to(asked.call))
                return
            if isinstance(asked.call, StopJob) and asked.call.now:
                self._outbox.give_up()
        try:
            reply = self.to(asked.call)
        except ConfigError as error:
            reply = Done(error=str(error))
        self._outbox.later(lambda: asked.reply(reply))

    def to(self, call: RoomCall) -> Reply:
        """Answer a call, and do what it orders.

        Raises:
            ConfigError: it cannot be done.
        """
        match call:
            case GetStatus():
                return self._status()
            case GetObservation():
                seen = self._observe()
                return Observed(json=msgspec.json.encode(seen).decode() if seen else "")
            case Scale():
                self._check_running()
                self._scale(call.workers, call.servers)
            case ResizeNodes() | Kill() | Replace():
                self._check_running()
                self._change_nodes(call)
            case StopJob():
                self._shutdown.stop(call.signal, at_once=call.now)
            case GetSpec():
                return JobInfo(
                    job_id=self._job.job_id, spec=self._spec, script_digest=self._script_digest
                )
            case Join(host=host, workers=workers):
                return self._join(host, workers)
            case FeatureCall():
                return self._features.answer(call)
            case _:
                assert_never(call)
        return Done()

    def _scale(self, workers: int | None, servers: int | None) -> None:
        """Set both numbers, or neither."""
        self._sizes.check_may_scale()
        if workers is not None:
            check_scale(self._spec, self._training.state.plans.in_training(), workers)
        if servers is not None:
            check_scale_servers(self._spec, servers)
            self._members.scale_servers(servers)
        if workers is not None:
            self._sizes.scaled()
            self._members.scale(workers)

    def _change_nodes(self, call: ResizeNodes | Kill | Replace) -> None:
        match call:
            case ResizeNodes():
                self._sizes.order(call)
            case Kill(node=name):
                self._members.kill(name)
            case Replace(node=name):
                check_replace(self._spec)
                self._members.restart(name, BY_ORDER)
            case _:
                assert_never(call)

    def _join(self, host: str, workers: int) -> NodesAdded:
        self._check_running()
        if self._spec.machines > 1:
            check_part(self._spec, workers)
            return NodesAdded(nodes=self._members.join_machine(host))
        check_elastic(self._spec, "join")
        count = workers or 1
        check_size(self._spec, "have", count + sum(1 for _ in self._wanted_workers()))
        if not self._training.state.holder.has_model:
            return NodesAdded()
        return NodesAdded(nodes=tuple(self._members.join(host) for _ in range(count)))

    def _status(self) -> JobStatus:
        num_events, ending = self._outbox.events.num_lines(), self._shutdown.end.ending
        roles = ("worker", "server") if self._spec.num_servers else ("worker",)
        found = {one: self._backend.room(self._sizes.place_of(f"{one}-0")) for one in roles}
        room = {role: one.count for role, one in found.items() if one.count is not None}
        lacks = {role: LACKS[one.why] for role, one in found.items() if one.why is not None}
        status = self._reporting.status(num_events=num_events, ending=ending)
        return msgspec.structs.replace(status, room=room, lacks=lacks)

    def _check_running(self) -> None:
        if self._shutdown.end.ending is not None:
            raise ConfigError("the job is about to end")
