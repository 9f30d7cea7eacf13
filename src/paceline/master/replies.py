"""What people ask a running job, and order of it: each call and its answer."""

from collections.abc import Callable, Iterable
from typing import assert_never

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.master.orders import check_elastic, check_scale, check_size
from paceline.master.shutdown import Shutdown
from paceline.master.training import Training
from paceline.policy.straggler.observation import Observation
from paceline.protocol.nodes.node import Act, Node
from paceline.protocol.nodes.orders import NodeOrders
from paceline.wire.client import (
    Call,
    Done,
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
    Scale,
    StopJob,
)
from paceline.wire.spec import JobSpec


class Replies:
    """Answers calls.

    Args:
        job: the job directory.
        spec: of the job.
        orders: what can be ordered of the nodes.
        training: what the job trains on.
        shutdown: the end of the job.
        act: carries out what the membership says.
        own_time: the time in which the master itself ran.
        restart: has a node's process replaced, for a reason.
        observe: the job as a solution would see it.
        status: the job as it is now.
    """

    def __init__(  # noqa: PLR0913
        self,
        job: JobDir,
        spec: JobSpec,
        orders: NodeOrders,
        training: Training,
        shutdown: Shutdown,
        *,
        act: Callable[[Iterable[Act]], None],
        own_time: Callable[[], float],
        restart: Callable[[str, str], None],
        observe: Callable[[], Observation | None],
        status: Callable[[], JobStatus],
    ) -> None:
        self._job, self._spec = job, spec
        self._members, self._orders = orders.members, orders
        self._training, self._shutdown = training, shutdown
        self._act, self._own_time, self._restart = act, own_time, restart
        self._observe, self._status = observe, status

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
            case Scale(workers=workers):
                self._check_running()
                check_scale(self._spec, self._training.state.plans.in_training(), workers)
                self._act(self._orders.scale(workers, self._own_time(), self._shutdown.stop_s()))
            case Kill(node=name):
                self._check_running()
                self._act(self._orders.kill(self.alive(name).name))
            case Replace(node=name):
                self._check_running()
                check_elastic(self._spec, "replace")
                self._restart(name, "by order")
            case StopJob():
                self._shutdown.stop(call.signal, at_once=call.now)
            case GetSpec():
                return JobInfo(job_id=self._job.job_id, spec=self._spec)
            case Join(host=host):
                self._check_running()
                check_elastic(self._spec, "join")
                check_size(self._spec, "have", 1 + sum(1 for _ in self._members.wanted_workers()))
                if not self._training.state.holder.has_model:
                    raise ConfigError("the job has no model yet; join again when it trains")
                node_name, acts = self._orders.join(host, self._own_time())
                self._act(acts)
                return NodeAdded(node=node_name)
            case _:
                assert_never(call)
        return Done()

    def alive(self, name: str) -> Node:
        """Find a living node.

        Raises:
            ConfigError: there is none of this name; names those that there are.
        """
        node = self._members.nodes.get(name)
        if node is None or not node.alive:
            names = ", ".join(n.name for n in self._members.nodes.values() if n.alive)
            raise ConfigError(f"no live node {name!r}; there are: {names or 'none'}")
        return node

    def _check_running(self) -> None:
        if self._shutdown.ending is not None:
            raise ConfigError("the job is about to end")
