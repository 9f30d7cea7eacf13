"""Members that cannot work together: they meet again, and give up where that is of no use."""

from pathlib import Path

import pytest

from paceline.master.holding.group import BROKEN_S, MAX_FUTILE
from paceline.protocol.records import GroupBegun, GroupFormed
from paceline.wire.messages.group import Broken, Member
from tests.unit.master.test_awaited_chief import NODES, Job


def broken(path: Path, min_workers: int, *, dies: bool) -> Job:
    """A job whose group runs, and of which one member cannot go on."""
    job = Job(path, min_workers)
    incs = [job.members.roster.nodes[name].life.inc for name in NODES]
    members = tuple(Member(inc, name, "") for inc, name in zip(incs, NODES, strict=True))
    group = job.edge.holder.group
    group.apply(GroupFormed(1, members, "a model"))
    group.apply(GroupBegun(1, 4, ()))
    group.ready = {one.inc: one for one in members}
    if dies:
        job.die("worker-2")
    else:
        job.say("worker-1", Broken(epoch_no=group.epoch_no, inc=incs[1], group=1, reason="a wire"))
    return job


@pytest.mark.parametrize("min_workers", [3, 2])
def test_the_next_life_of_a_worker_is_waited_for_however_long_it_takes(
    tmp_path: Path, min_workers: int
) -> None:
    job = broken(tmp_path, min_workers, dies=True)
    group = job.edge.holder.group
    inc = job.members.roster.nodes["worker-1"].life.inc
    job.say("worker-1", Broken(epoch_no=group.epoch_no, inc=inc, group=group.number, reason="a"))
    for look in range(2 * MAX_FUTILE):
        job.edge.watch(2 * BROKEN_S * look)
    assert not job.failed
    assert group.number == (1 if min_workers == 3 else 2)


def test_those_that_live_and_do_no_step_together_give_up(tmp_path: Path) -> None:
    job = broken(tmp_path, 1, dies=False)
    group = job.edge.holder.group
    for look in range(4 * MAX_FUTILE):
        job.edge.watch(2 * BROKEN_S * look)
        if not group.running:
            group.apply(GroupBegun(group.number, 4, ()))
        inc = job.members.roster.nodes["worker-1"].life.inc
        number = group.number
        job.say("worker-1", Broken(epoch_no=group.epoch_no, inc=inc, group=number, reason="a wire"))
    assert "met 20 times and completed no step: a wire" in job.failed[0]
