"""The master's part for groups of workers alone, around `GroupHolder`.

Groups that nobody forms, members that hang, and what members keep when they leave.
"""

from collections.abc import Iterable, Mapping

import msgspec

from paceline.base.node_files import CHIEF
from paceline.base.numbering import NO_CUT, CutNo, Inc
from paceline.master.cut_folders import CutChosen
from paceline.master.holding.edge import GATHER_S, HolderEdge
from paceline.policy.actions import Profile
from paceline.protocol.holding.group.formation import Formation, WhyNone
from paceline.protocol.holding.group.master import GroupHolder
from paceline.protocol.nodes.hangs import Hang, SlowMembers, find_hang, find_left_alone, find_silent
from paceline.protocol.nodes.lives import Fate
from paceline.protocol.reasons import left_alone
from paceline.protocol.records import (
    GroupBegun,
    GroupFormed,
    GroupRestored,
    Records,
)
from paceline.wire.events.state import (
    DivergedEvent,
    GroupBrokenEvent,
    GroupFormsEvent,
    GroupRunsEvent,
    GroupStuckEvent,
    MemberSlowEvent,
)
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.messages.group import Broken, GroupUp, JoinGroup, Member
from paceline.wire.messages.node import (
    NodeUp,
)
from paceline.wire.spec import JobSpec

MAX_FUTILE = 20
"""Number of times that members which all live may fail to do a step together."""
BROKEN_S = 0.5
"""A member that cannot work in its group has a peer that is dead: its agent says so within this."""


GroupEdgeTakes = GroupUp


class GroupEdge(HolderEdge):
    """The edge of jobs whose state the members of a group hold."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._holder = GroupHolder(
            min_members=spec.min_workers,
            sharded=spec.traits.holder == "shards",
            copies_at_rest=spec.deterministic,
        )
        #: The step at which members could not work together, and how often.
        self._futile = (0, 0)
        #: The epoch and group whose members were found to differ last.
        self._diverged = (0, 0, "")
        #: The group that forms, and since when.
        self._forming = (0, 0.0)
        self._patience = SlowMembers()
        #: Since when a group is due that waits for somebody.
        self._due_s: float | None = None

    @property
    def holder(self) -> GroupHolder:
        return self._holder

    def ended(self) -> None:
        self.holder.job_ended()

    @property
    def group_no(self) -> int:
        return self.holder.group.number

    def measure_links(self) -> None:
        self.holder.group.check = self._spec.traits.measured == "links"

    def known(self) -> set[Inc]:
        return set(self.holder.group.ready)

    # ------------------------------------------------------------------ messages

    def handle(self, node: str, message: NodeUp, now_s: float) -> bool:
        if not isinstance(message, GroupEdgeTakes):
            return False
        joins = isinstance(message, JoinGroup)  # a count for each `Progress` would cost a core
        expected = self.training.members.roster.num_wanted() if joins else 0
        one = self.training.members.roster.nodes[node]
        distant = one.by_itself or one.agent.is_remote
        files = one.agent.files if self.holder.group.sharded else ""
        self.training.do(self.holder.see_chief(is_gone=self._lacks_chief()))
        said = self.holder.member_said(
            message, node=node, expected=expected, distant=distant, files=files
        )
        if isinstance(message, Broken) and message.diverged:
            self._tell_diverged(message)
        self.training.do(said)
        return True

    def _lacks_chief(self) -> bool:
        """Whether worker-0 is gone for good, and the job goes on."""
        chief = self.training.members.roster.nodes.get(CHIEF)
        is_out = chief is None or chief.fate is Fate.FAILED
        return is_out and not self.training.members.closing

    def _tell_diverged(self, message: Broken) -> None:
        """Say which members differ in what; all of them have found it."""
        found = message.epoch_no, message.group, message.reason
        if found != self._diverged:
            self._diverged = found
            self.training.outbox.tell(DivergedEvent(reason=message.reason))

    def profile(self, action: Profile) -> None:
        self.training.do(
            self.training.profiling.ask(action, self.training.state.training_workers())
        )

    @property
    def group_broke(self) -> bool:
        return bool(self.holder.group.broken)

    @property
    def whole_at(self) -> frozenset[str]:
        group = self.holder.group
        if group.sharded or not group.running:
            return frozenset()
        return frozenset(member.node for member in group.members)

    @property
    def last_cut_waits(self) -> bool:
        return self.training.state.cuts.under_way

    def before_stop(self) -> None:
        self.training.do(self.training.state.take_cut())

    def before_record(self, record: Records) -> None:
        if isinstance(record, GroupFormed):
            forms = GroupFormsEvent(group=record.group, members=_names(record.members))
            self.training.outbox.tell(forms)
        elif isinstance(record, GroupRestored):
            self.training.epochs.tell(record.epoch_no, record.cut)
        elif isinstance(record, GroupBegun):
            members = _names(self.holder.group.members)
            self.training.outbox.tell(GroupRunsEvent(members=members, step=record.step))

    # ------------------------------------------------------------------ members without progress

    def watch(self, now_s: float) -> None:
        """Form a group without those that do not come, or that nobody has found dead."""
        group = self.holder.group
        if not (group.broken or (group.ready and group.gathers and not group.running)):
            self._due_s = None
            return
        self._due_s = now_s if self._due_s is None else self._due_s
        if now_s - self._due_s >= (BROKEN_S if group.broken else GATHER_S):
            if group.broken:
                self._due_s = None
                if group.waits.why is WhyNone.TOO_FEW:
                    return  # those that are there can only wait
                self._note_broken(group)
            # A run's first group: from now on as soon as there are `min_workers`.
            self.training.do(self.holder.form_group())

    def _note_broken(self, group: Formation) -> None:
        """Say why members could not work together; give up if it is so again and again."""
        for inc, reason in group.broken.items():
            if reason == self._diverged[2]:
                continue  # is said already, of all of them
            node = self.training.members.roster.node_of(inc)
            name = node.name if node else ""
            self.training.outbox.tell(GroupBrokenEvent(node=name, inc=inc, reason=reason))
        step, times = self._futile
        self._futile = (group.step, times + 1 if step == group.step else 1)
        if group.broken and self._futile[1] >= MAX_FUTILE:
            reason = next(iter(group.broken.values()))
            self.training.fail(
                f"the workers met {MAX_FUTILE} times and completed no step: {reason}; all of them "
                "live, so look at that error first"
            )

    def find_hang(self, bound_s: float, now_s: float) -> Hang | None:
        """Find the member that makes no progress; see `find_hang`.

        While one forms: who does not even say that it has stopped.
        """
        group = self.holder.group
        members = self.facts_of(member.inc for member in group.members)
        silent = find_silent(members, bound_s)
        if silent is not None:
            return silent
        if not group.running:
            if self._forming[0] != group.number:
                self._forming = group.number, now_s
            since_s = now_s - self._forming[1]
            return self._find_unheard(group, since_s) if since_s > bound_s else None
        first_s = self._spec.timeouts.derived(None).hang_s or 0.0
        for name, facts in members.items():
            if not facts.samples and facts.computing_s < first_s:  # in the first step of its life
                members[name] = msgspec.structs.replace(facts, computing_s=0.0)
        if len(members) < len(group.members):
            return None
        leavers = [one.node for one in group.members if one.inc in self.holder.leaving]
        if group.sharded and (others := find_left_alone(members, leavers, bound_s)):
            self.training.fail(left_alone(leavers, others))
            return None
        hang = find_hang(members, bound_s)
        if self._spec.timeouts.hang_s is None:
            hang = self._give_time(hang, members)
        if hang is not None and not hang.nodes and group.sharded:  # they cannot form another group
            return msgspec.structs.replace(hang, nodes=tuple(sorted(members)))
        return hang

    def _give_time(self, hang: Hang | None, members: Mapping[str, NodeFacts]) -> Hang | None:
        """Name members that are slow, but speak; see `SlowMembers`."""
        hang, slow = self._patience.judge(hang, members)
        for one in slow:
            told = MemberSlowEvent(node=one.node, since_s=one.since_s, limit_s=one.limit_s)
            self.training.outbox.tell(told)
        return hang

    def _find_unheard(self, group: Formation, since_s: float) -> Hang | None:
        """Find members that do not say that they have stopped, after an order to do so at once."""
        silent = group.unheard()
        if silent and not group.at_once:
            self._forming = group.number, self._forming[1] + since_s
            self.training.do(group.stop_at_once())
            return None
        # Not even who waited for others in its step: all waits end when a group is dropped.
        hang = [name for name in silent if name in self.training.monitor.nodes]
        return Hang(tuple(hang), since_s) if hang else None

    def reconnect(self, since_s: float) -> None:
        """Break up a group without progress where no member hangs: its connections are broken."""
        group = self.holder.group
        if group.running:
            stuck = GroupStuckEvent(since_s=since_s)
            self.training.outbox.tell(stuck)
            self.training.do(self.holder.break_up(stuck.clause))

    # ------------------------------------------------------------------ cuts and epochs

    def being_loaded(self) -> set[CutNo]:
        group = self.holder.group
        cut = group.start.cut if group.start is not None and not group.running else None
        return {cut.cut_no} if cut is not None else set()

    def take_last_cut(self) -> CutNo | None:
        return NO_CUT  # members kept theirs before they left

    def epoch_is_due(self) -> bool:
        """Tell whether nobody holds state."""
        return self.holder.group.needs_restore and not self.training.epochs.choosing

    def begin_epoch(self, chosen: CutChosen, now_s: float) -> None:
        self.training.do(self.holder.restore_group())


def _names(members: Iterable[Member]) -> tuple[str, ...]:
    return tuple(sorted(member.node for member in members))
