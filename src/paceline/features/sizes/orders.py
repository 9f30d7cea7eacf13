"""A change of the job's size, carried out stage by stage (`paceline.features.sizes.policy.stages`).

The stages are derived from what is ordered and what is in effect, so a master that goes on with the
change of another one only has to know where it leads.
"""

import contextlib

from msgspec.structs import replace

from paceline.base.errors import ConfigError
from paceline.base.jobdir import number_of
from paceline.features.sizes.policy.plan import NodeTarget
from paceline.features.sizes.policy.stages import next_stage, quota
from paceline.features.sizes.policy.steering_state import FailedWhy
from paceline.features.sizes.seen import ordered_size
from paceline.master.feature_port import Core
from paceline.master.orders import check_scale
from paceline.policy.job_size import JobSize
from paceline.wire.client import ResizeNodes


class SizeOrders:
    """At most one change of one job's size."""

    def __init__(self, core: Core) -> None:
        self._spec, self._roster = core.spec, core.roster
        self._scene, self._acts = core.scene, core.nodes
        self._patience_s = core.spec.resources.patience_s
        self._target: JobSize | None = None
        self._nodes: tuple[NodeTarget, ...] = ()
        self._to_migrate: list[str] = []
        """Nodes whose place another one is still to take."""
        self.begun_s = self._stage_s = 0.0
        self._failed: FailedWhy | None = None
        self.detail = ""
        """Why the change has failed."""

    @property
    def size(self) -> JobSize:
        """Size of the job as it was ordered last."""
        workers = [node.name for node in self._roster.wanted_workers()]
        servers = [node.name for node in self._roster.in_place()]
        return ordered_size(self._acts.limits, workers, servers)

    @property
    def is_under_way(self) -> bool:
        return self._target is not None

    @property
    def is_done(self) -> bool:
        """Whether all of it is in effect."""
        return (
            self._target is not None
            and not self._absent()
            and next_stage(self.size, self._target) is None
            and not self._own_sizes()
            and not self._to_migrate
        )

    def begin(self, target: JobSize, nodes: tuple[NodeTarget, ...], now_s: float) -> None:
        """Carry out a change from now on.

        Args:
            target: of all nodes.
            nodes: those that get a size of their own.
            now_s: now.
        """
        self._target, self._nodes = target, nodes
        self._to_migrate = [each.node for each in nodes if each.migrate]
        self.begun_s = self._stage_s = now_s
        self._failed, self.detail = None, ""

    def end(self) -> None:
        """Forget the change."""
        self._target = None

    def go_on(self, now_s: float) -> FailedWhy | None:
        """Order the next stage if the one before is in effect; why the change has failed.

        It has failed once its servers, if some are still to come, are not awaited any more: else
        they could join later, though nobody wants them.
        """
        if self._target is None:
            return None
        if self._failed is None:
            try:
                self._failed = self._next(self._target, now_s)
            except ConfigError as refused:
                self._failed, self.detail = "refused", str(refused)
        if self._failed is None or not self._has_withdrawn(self._target):
            return None
        return self._failed

    def _next(self, target: JobSize, now_s: float) -> FailedWhy | None:
        """Order what is next; why the change fails.

        Raises:
            ConfigError: an order is refused.
        """
        if self._to_migrate and self._spec.is_on_one_machine:
            raise ConfigError(
                f"{self._to_migrate[0]} should go to another machine, and backend local has one"
            )
        if absent := self._absent():
            if now_s - self._stage_s <= self._patience_s:
                return None
            self.detail = f"{absent} for {self._patience_s:.0f} s"
            return "pending"
        stage = next_stage(self.size, target)
        if stage is not None:
            self._stage_s = now_s
            self._order(stage)
        elif own := self._own_sizes():
            self._stage_s = now_s
            self._acts.resize(own)
        elif self._to_migrate:
            self._stage_s = now_s
            self._acts.restart(self._to_migrate.pop(0), "the plan of another size")
        return None

    def _has_withdrawn(self, target: JobSize) -> bool:
        """Withdraw the servers that are still to come or to leave; whether that is over.

        Not those of another order, as of a person or of a solution that replaces a slow server.
        """
        change = self._roster.change
        if change is None:
            return True
        present = self.size.servers
        is_own = (
            change.replaced in {each.node for each in self._nodes if each.migrate}
            if change.replaced
            else present + len(change.joining) - len(change.leaving) == target.servers
        )
        return not is_own or self._acts.withdraw_servers()

    def give_up(self, origin: JobSize, nodes: tuple[NodeTarget, ...]) -> None:
        """Take back what of a change has not come; what was made smaller for it is as before.

        A job that has more servers than before keeps its quotas: both together may be too much.

        Args:
            origin: the size before.
            nodes: what single nodes had.
        """
        self._target, self._nodes = None, nodes
        if self.size.workers > origin.workers:
            self._acts.scale(origin.workers)
        now = self.size
        if now.servers <= origin.servers:
            with contextlib.suppress(ConfigError):  # then it trains on with what it has
                self._order(replace(origin, workers=now.workers, servers=now.servers))

    # ------------------------------------------------------------------ stages

    def _absent(self) -> str:
        """What of the newest stage is not in effect; empty: all is."""
        if self._acts.is_resizing:
            return "the limits of nodes change"
        if self._roster.change is not None:
            return "the servers' parts of the model move"
        for node in self._roster.nodes.values():
            if node.word not in ("running", "finished"):
                return f"{node.name} is {node.word}"
        return ""

    def _order(self, stage: JobSize) -> None:
        now = self.size
        changed = set(stage.differing(now))
        for role in ("worker", "server"):
            if changed & {f"{role}_cpu", f"{role}_memory"}:
                cpu, memory = getattr(stage, f"{role}_cpu"), getattr(stage, f"{role}_memory")
                self._acts.resize(
                    ResizeNodes(
                        role=role,
                        cpu=self._quotas(role, cpu) if f"{role}_cpu" in changed else None,
                        memory_bytes=memory if f"{role}_memory" in changed else None,
                    )
                )
        if "servers" in changed:
            self._acts.scale_servers(stage.servers)
        if "workers" in changed:
            feed = self._scene.state.plans.in_training()
            check_scale(self._spec, feed, stage.workers)
            self._acts.scale(stage.workers)

    def _own_sizes(self) -> ResizeNodes | None:
        """The order that gives single nodes what they should have; None: they have it."""
        for role in ("worker", "server"):
            if not self._own(role):
                continue
            sizes = self._acts.limits(role)
            wanted = self._quotas(role, getattr(self.size, f"{role}_cpu"))
            if all(wanted) and replace(sizes, cpu=wanted) != sizes:
                return ResizeNodes(role=role, cpu=wanted)
        return None

    def _own(self, role: str) -> dict[int, float]:
        """Cores of the nodes that get a size of their own, by their number."""
        return {
            number_of(each.node): each.cpu for each in self._nodes if each.node.startswith(role)
        }

    def _quotas(self, role: str, cpu: float) -> tuple[float, ...]:
        """What the nodes of a role are to have, if its quota is to be ``cpu``.

        They are given node by node, in turn, so all of them are named.
        """
        own, sizes = self._own(role), self._acts.limits(role)
        usual = getattr(self.size, f"{role}_cpu")
        ranks = {node.rank for node in self._roster.of_role(role)}
        wanted = tuple(
            quota(sizes.cpu_of(number) or 0.0, usual, cpu, own.get(number), alone=bool(own))
            for number in range(1 + max(*own, *ranks, 0))
        )
        return wanted[:1] if len(set(wanted)) == 1 else wanted
