"""Batches that are timed and not applied: whom they are asked of, what they say, what is seen of it."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from paceline.base.errors import ConfigError
from paceline.base.hardware import hardware_kind
from paceline.base.samples import Span
from paceline.master.jobnow import JobNow
from paceline.master.monitor import Monitor
from paceline.policy.actions import Profile, Share
from paceline.policy.observation import WorkerSeen
from paceline.protocol.acts import Send
from paceline.protocol.holding.group.profiling import Profiling
from paceline.runtime.group.profiling import MemberProfiling, samples_of
from paceline.wire.events.nodes import ProcessExitedEvent, Verdict
from paceline.wire.messages.agent import Hardware
from paceline.wire.messages.group import ProfileBatches, Profiled

WORKERS = {7: "worker-0", 8: "worker-1", 9: "worker-2"}
PROFILE = Profile(sizes={"worker-0": 4, "worker-1": 8}, steps=3)


def asked(sends: Iterable[Send]) -> dict[int, object]:
    return {one.inc: one.message for one in sends}


def said(inc: int, size: int, batches: int = 3) -> Profiled:
    return Profiled(inc=inc, size=size, batches=batches, batch_s=0.5)


# --------------------------------------------------------------------------- the master


def test_a_profile_is_over_when_all_who_live_have_said_what_it_took() -> None:
    profiling = Profiling()
    assert profiling.is_over
    assert asked(profiling.ask(PROFILE, WORKERS)) == {
        7: ProfileBatches(inc=7, size=4, batches=3),
        8: ProfileBatches(inc=8, size=8, batches=3),
    }
    profiling.heard(said(7, 4))
    assert asked(profiling.resend()) == {8: ProfileBatches(inc=8, size=8, batches=3)}
    profiling.lost(9)
    assert not profiling.is_over
    profiling.lost(8)
    assert profiling.is_over


def test_an_answer_to_another_question_ends_nothing() -> None:
    profiling = Profiling()
    profiling.ask(Profile(sizes={"worker-0": 4}, steps=3), WORKERS)
    for answer in said(7, 8), said(7, 4, batches=2), said(8, 4):
        profiling.heard(answer)
        assert not profiling.is_over


def test_a_later_profile_replaces_one_that_is_open() -> None:
    profiling = Profiling()
    profiling.ask(PROFILE, WORKERS)
    profiling.ask(Profile(sizes={"worker-2": 2}, steps=1), WORKERS)
    assert set(asked(profiling.resend())) == {9}


@pytest.mark.parametrize(
    ("sizes", "steps", "why"),
    [
        ({"worker-0": 4}, 0, "at least 1 batch of 1 sample"),
        ({"worker-0": 4, "worker-1": 0}, 1, "at least 1 batch of 1 sample"),
        ({}, 1, "at least 1 batch of 1 sample"),
        ({"worker-5": 4}, 1, "none of \\['worker-5'\\] trains any more"),
    ],
)
def test_what_cannot_be_measured_is_refused(sizes: dict[str, int], steps: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Profiling().ask(Profile(sizes=sizes, steps=steps), WORKERS)


# --------------------------------------------------------------------------- a member


def order(size: int, batches: int) -> ProfileBatches:
    return ProfileBatches(inc=7, size=size, batches=batches)


def test_a_member_answers_with_the_mean_of_all_but_its_first_batch() -> None:
    member = MemberProfiling(7)
    assert member.due == (0, 0)
    assert member.asked(order(4, 3)) is None
    assert member.due == (4, 3)
    assert member.took(4, 9.0, 100) is None
    assert member.took(4, 1.0, 120) is None
    assert member.due == (4, 1)
    answer = Profiled(inc=7, size=4, batches=3, batch_s=1.5, peak_bytes=120)
    assert member.took(4, 2.0, 120) == answer
    assert member.due == (0, 0)


def test_short_batches_are_measured_until_they_have_taken_half_a_second() -> None:
    member = MemberProfiling(7)
    member.asked(order(4, 3))
    times_s = [9.0, 0.03125, 0.09375, 0.125, 0.125]
    for time_s in times_s[:3]:
        assert member.took(4, time_s, 0) is None
    assert member.due == (4, 3), "6 more at this pace, but as many at a time as were asked for"
    for time_s in times_s[3:]:
        assert member.took(4, time_s, 0) is None
    assert member.due == (4, 2)
    assert member.took(4, 0.125, 0) == Profiled(inc=7, size=4, batches=6, batch_s=0.1)
    assert member.due == (0, 0)


def test_what_is_measured_is_said_again_and_not_measured_again() -> None:
    member = MemberProfiling(7)
    member.asked(order(4, 1))
    answer = member.took(4, 2.0, 0)
    assert answer is not None
    assert answer.batch_s == 2.0
    assert member.asked(order(4, 1)) == answer
    assert member.asked(order(4, 2)) is None
    assert member.due == (4, 2)


def test_an_order_that_is_repeated_goes_on_and_another_one_begins_anew() -> None:
    member = MemberProfiling(7)
    member.asked(order(4, 3))
    member.took(4, 1.0, 0)
    assert member.asked(order(4, 3)) is None
    assert member.due == (4, 2)
    member.asked(order(8, 3))
    assert member.took(4, 1.0, 0) is None
    assert member.due == (8, 3)


def test_samples_are_of_the_own_share_first_and_of_the_step_again_and_again() -> None:
    whole = (Span(1, 0, 6), Span(1, 10, 12))
    mine = [Span(1, 4, 6)]
    assert samples_of(1, mine, whole) == (Span(1, 4, 5),)
    assert samples_of(5, mine, whole) == (Span(1, 4, 6), Span(1, 0, 3))
    many = samples_of(21, mine, whole)
    assert sum(len(span) for span in many) == 21
    assert many[:3] == (Span(1, 4, 6), *whole)


# --------------------------------------------------------------------------- what is seen of it


def seen(monitor: Monitor) -> WorkerSeen:
    now = JobNow(
        step=1,
        mode="allreduce",
        global_batch=8,
        steps_left=None,
        shares={"worker-0": Share(8)},
        servers=(),
        restarts={},
    )
    (worker,) = monitor.observe(1.0, now).workers
    return worker


def test_a_solution_sees_the_profile_of_a_life_and_what_fits_into_its_memory() -> None:
    monitor = Monitor()
    monitor.hardware("worker-0", Hardware(kind="fast", memory_bytes=1000))
    assert (seen(monitor).kind, seen(monitor).batch_limit) == ("fast", None)
    monitor.profiled("worker-0", Profiled(inc=7, size=8, batches=3, batch_s=0.2, peak_bytes=500))
    monitor.profiled("worker-0", Profiled(inc=7, size=4, batches=3, batch_s=0.1, peak_bytes=450))
    worker = seen(monitor)
    assert [(one.batch_size, one.batches, one.batch_s) for one in worker.profile] == [
        (4, 3, 0.1),
        (8, 3, 0.2),
    ]
    # 95 % of 1000 bytes, where 8 samples take 500 at most.
    assert worker.batch_limit == 15
    monitor.note(ProcessExitedEvent(node="worker-0", inc=7, verdict=Verdict.RETRYABLE), 2.0)
    assert (seen(monitor).profile, seen(monitor).kind) == ((), "fast")
    monitor.keep({"worker-1"})
    assert seen(monitor).kind == ""


def test_without_a_memory_limit_every_batch_fits() -> None:
    monitor = Monitor()
    monitor.profiled("worker-0", Profiled(inc=7, size=8, batches=3, batch_s=0.2, peak_bytes=500))
    assert seen(monitor).batch_limit is None


def test_nodes_are_of_one_kind_by_device_processor_and_quota(tmp_path: Path) -> None:
    cpus, devices = tmp_path / "cpuinfo", tmp_path / "gpus"
    assert hardware_kind(None, cpus, devices) == ""
    cpus.write_text(
        "processor\t: 0\nmodel name\t: A chip\n\nprocessor\t: 1\nmodel name\t: A chip\n"
    )
    assert hardware_kind(None, cpus, devices) == "A chip"
    assert hardware_kind(0.25, cpus, devices) == "A chip, 0.25 cores"
    for name, model in ("0", "V 100"), ("1", "V 100"), ("2", "P 100"):
        (devices / name).mkdir(parents=True)
        (devices / name / "information").write_text(f"Model: \t\t {model}\nIRQ: 1\n")
    assert hardware_kind(2.0, cpus, devices) == "P 100, V 100, A chip, 2 cores"
