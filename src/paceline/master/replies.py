"""Replies to what people ask a running job, and order of it: each call and its answer."""

from collections.abc import Callable
from typing import assert_never

import msgspec

from paceline.base.errors import ConfigError
from paceline.master.facts import Asked
from paceline.master.feature_parts import FeatureParts
from paceline.master.members import MembersEdge
from paceline.master.node_sizes import NodeSizes
from paceline.master.orders import (
    check_elastic,
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
    Call,
    Done,
    FeatureCall,
    GetObservation,
    GetSpec,
    GetStatus,
    JobInfo,
    JobStatus,
    Join,
    Kill,
    NodeAdded,
    Observed,
    Replace,
    Reply,
    ResizeNodes,
    Scale,
    StopJob,
)
from paceline.wire.events.nodes import BY_ORDER


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
        self._wanted_workers, self._room = parts.members.roster.wanted_workers, parts.backend.room
        self._training, self._shutdown, self._members = training, shutdown, members
        self._observe, self._reporting = observe, reporting
        self._sizes, self._features = sizes, features

    def answer(self, asked: Asked) -> None:
        """Answer a call once what it has led to is journalled."""
        try:
            reply = self.to(asked.call)
        except ConfigError as error:
            reply = Done(error=str(error))
        self._outbox.later(lambda: asked.reply(reply))

    def to(self, call: Call) -> Reply:
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
                return JobInfo(job_id=self._job.job_id, spec=self._spec)
            case Join(host=host):
                return self._join(host)
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

    def _join(self, host: str) -> NodeAdded:
        self._check_running()
        check_elastic(self._spec, "join")
        check_size(self._spec, "have", 1 + sum(1 for _ in self._wanted_workers()))
        if not self._training.state.holder.has_model:
            raise ConfigError("the job has no model yet; join again when it trains")
        return NodeAdded(node=self._members.join(host))

    def _status(self) -> JobStatus:
        num_events, ending = self._outbox.events.num_lines(), self._shutdown.end.ending
        found = {role: self._room(role) for role in ("worker", "server")}
        room = {role: count for role, count in found.items() if count is not None}
        status = self._reporting.status(num_events=num_events, ending=ending)
        return msgspec.structs.replace(status, room=room)

    def _check_running(self) -> None:
        if self._shutdown.end.ending is not None:
            raise ConfigError("the job is about to end")
