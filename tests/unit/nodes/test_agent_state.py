import signal

import pytest

from paceline.protocol.nodes.agent import (
    Act,
    Deliver,
    EndHung,
    ForkLife,
    NodeState,
    Quit,
    Refuse,
    Report,
    Signal,
)
from paceline.wire.messages.agent import (
    ExitEvidence,
    FromProcess,
    Leave,
    ProcessExited,
    StartProcess,
    StopProcess,
    ToProcess,
)
from paceline.wire.messages.node import (
    Finished,
    LeaseRequest,
    Leaving,
    ProcessUp,
    ScriptError,
    Stop,
)

NODE = "worker-0"


def start(inc: int) -> StartProcess:
    return StartProcess(inc=inc, role="worker", rank=0, num_workers=2)


def up(inc: int, pid: int) -> ProcessUp:
    return ProcessUp(node=NODE, inc=inc, pid=pid, role="worker")


def told(message: ProcessUp | Finished | LeaseRequest | ScriptError) -> Report:
    return Report(FromProcess(node=NODE, body=message))


def exited(inc: int, *, by_us: bool = False, code: int | None = 0) -> Report:
    evidence = ExitEvidence(exit_code=code, stopped_by_us=by_us)
    return Report(ProcessExited(node=NODE, inc=inc, evidence=evidence))


def end(state: NodeState, inc: int) -> list[Act]:
    return state.exited(inc, ExitEvidence(exit_code=0))


@pytest.fixture
def running() -> NodeState:
    """Incarnation 5 runs as process 50."""
    state = NodeState(NODE)
    assert state.on_master(start(5), 0.0) == [ForkLife(start(5))]
    assert state.forked(5, 50) == []
    assert state.on_process(5, up(5, 50), 0.0) == [told(up(5, 50))]
    return state


def test_a_repeated_start_forks_nothing_and_is_answered(running: NodeState) -> None:
    assert running.on_master(start(5), 1.0) == [told(up(5, 50))]


def test_a_repeated_start_of_an_ended_incarnation_is_answered_with_its_end(
    running: NodeState,
) -> None:
    end(running, 5)
    assert running.on_master(start(5), 1.0) == [exited(5)]


def test_an_older_start_changes_nothing(running: NodeState) -> None:
    assert running.on_master(start(4), 1.0) == []
    assert running.running == up(5, 50)


def test_a_newer_start_kills_the_running_process_and_waits_for_its_end(running: NodeState) -> None:
    assert running.on_master(start(6), 1.0) == [Signal(signal.SIGKILL)]
    assert running.on_master(start(6), 1.1) != [ForkLife(start(6))]
    assert end(running, 5) == [exited(5, by_us=True), ForkLife(start(6))]


def test_a_start_that_waits_can_be_taken_back(running: NodeState) -> None:
    running.on_master(start(6), 1.0)
    assert running.on_master(StopProcess(inc=6, grace_s=1.0), 1.1) == [
        exited(6, by_us=True, code=None)
    ]
    assert end(running, 5) == [exited(5, by_us=True)]


def test_a_stop_is_orderly_first_and_forceful_after_its_grace(running: NodeState) -> None:
    assert running.on_master(StopProcess(inc=5, grace_s=2.0), 10.0) == [Signal(signal.SIGTERM)]
    assert running.tick(11.9) == []
    assert running.tick(12.0) == [Signal(signal.SIGKILL)]
    assert running.tick(12.1) == []
    assert end(running, 5) == [exited(5, by_us=True)]
    assert running.tick(99.0) == []


def test_a_repeated_stop_does_not_become_a_second_sigterm(running: NodeState) -> None:
    running.on_master(StopProcess(inc=5, grace_s=2.0), 10.0)
    assert running.on_master(StopProcess(inc=5, grace_s=2.0), 11.0) == []
    assert running.tick(12.0) == [Signal(signal.SIGKILL)]


def test_who_keeps_a_cut_before_it_leaves_has_so_much_longer(running: NodeState) -> None:
    assert running.on_process(5, Leaving(inc=5, within_s=20.0), 0.0) == []
    assert running.on_master(StopProcess(inc=5, grace_s=2.0), 1.0) == [Signal(signal.SIGTERM)]
    running.on_process(5, Leaving(inc=5, within_s=30.0), 0.0)
    assert running.on_master(StopProcess(inc=5, grace_s=2.0), 5.0) == []
    assert running.tick(32.9) == []
    assert running.tick(33.0) == [Signal(signal.SIGKILL)]
    assert running.on_master(StopProcess(inc=5, grace_s=0.0), 5.0) == [Signal(signal.SIGKILL)]


def test_a_process_whose_script_has_raised_ends_in_time() -> None:
    state = NodeState(NODE, up(5, 50), stop_s=2.0)
    error = ScriptError(inc=5, kind="ValueError", traceback="", in_user_code=True, step=1)
    assert state.on_process(5, error, 10.0) == [told(error)]
    assert state.on_process(5, error, 11.0) == [told(error)]
    assert state.tick(11.9) == []
    assert state.tick(12.0) == [Signal(signal.SIGKILL)]
    ended = state.exited(5, ExitEvidence(signal=signal.SIGKILL))
    killed = ExitEvidence(signal=signal.SIGKILL)
    assert ended == [Report(ProcessExited(node=NODE, inc=5, evidence=killed))]


def test_a_process_whose_script_has_raised_can_be_stopped_earlier() -> None:
    state = NodeState(NODE, up(5, 50), stop_s=2.0)
    error = ScriptError(inc=5, kind="ValueError", traceback="", in_user_code=True, step=1)
    state.on_process(5, error, 10.0)
    assert state.on_master(StopProcess(inc=5, grace_s=1.0), 10.5) == [Signal(signal.SIGTERM)]
    assert state.tick(11.5) == [Signal(signal.SIGKILL)]
    assert end(state, 5) == [exited(5, by_us=True)]


def test_a_stop_without_grace_kills_at_once(running: NodeState) -> None:
    running.on_master(StopProcess(inc=5, grace_s=2.0), 10.0)
    assert running.on_master(StopProcess(inc=5, grace_s=0.0), 10.1) == [Signal(signal.SIGKILL)]


def test_a_stop_between_start_and_fork_is_carried_out_at_the_fork() -> None:
    state = NodeState(NODE)
    state.on_master(start(5), 0.0)
    state.on_master(StopProcess(inc=5, grace_s=9.0), 0.1)
    assert state.forked(5, 50) == [Signal(signal.SIGKILL)]


def test_a_stop_of_an_unknown_incarnation_is_answered_that_it_does_not_run(
    running: NodeState,
) -> None:
    assert running.on_master(StopProcess(inc=9, grace_s=1.0), 1.0) == [
        exited(9, by_us=True, code=None)
    ]
    assert running.running == up(5, 50)


def test_messages_for_the_running_incarnation_only_are_delivered(running: NodeState) -> None:
    assert running.on_master(ToProcess(inc=5, body=Stop(inc=5)), 1.0) == [Deliver(Stop(inc=5))]
    assert running.on_master(ToProcess(inc=4, body=Stop(inc=4)), 1.0) == []
    end(running, 5)
    assert running.on_master(ToProcess(inc=5, body=Stop(inc=5)), 1.0) == []


def test_messages_of_another_incarnation_are_not_forwarded(running: NodeState) -> None:
    request = LeaseRequest(epoch_no=1, inc=4, n=1, feed=0)
    assert running.on_process(4, request, 0.0) == []
    assert running.on_process(5, request, 0.0) == [told(request)]


@pytest.mark.parametrize("stale", [up(4, 40), up(6, 60), up(5, 51)])
def test_a_process_that_must_not_run_here_is_refused(running: NodeState, stale: ProcessUp) -> None:
    """An older incarnation, one nobody asked for, and a twin of the running one."""
    assert running.on_process(stale.inc, stale, 0.0) == [Refuse(stale)]
    assert running.running == up(5, 50)


def test_a_server_may_say_its_address_later(running: NodeState) -> None:
    later = ProcessUp(node=NODE, inc=5, pid=50, role="worker", address="tcp://127.0.0.1:1")
    assert running.on_process(5, later, 0.0) == [told(later)]
    assert running.running == later


def test_an_end_and_the_last_words_are_repeated_at_each_reconnect(running: NodeState) -> None:
    finished = Finished(inc=5)
    running.on_process(5, finished, 0.0)
    running.on_process(5, finished, 0.0)
    end(running, 5)
    assert running.running is None
    assert running.connected() == [told(finished), exited(5)]
    assert running.connected() == [told(finished), exited(5)]
    running.on_master(start(6), 1.0)
    assert running.connected() == []


def test_leaving_ends_the_process_and_then_the_agent(running: NodeState) -> None:
    assert running.on_master(Leave(), 1.0) == [Signal(signal.SIGTERM)]
    assert running.on_master(start(6), 1.1) == []
    assert end(running, 5) == [exited(5, by_us=True), Quit()]


def test_leaving_without_a_process_ends_the_agent_at_once() -> None:
    assert NodeState(NODE).on_master(Leave(), 1.0) == [Quit()]


def test_it_knows_why_the_job_goes_on_without_it() -> None:
    state = NodeState(NODE)
    assert state.left_out == ""
    assert state.on_master(Leave(why="its data differ"), 1.0) == [Quit()]
    assert state.left_out == "its data differ"


def test_an_adopted_process_is_as_good_as_a_started_one() -> None:
    state = NodeState(NODE, adopted=up(5, 50))
    assert state.running == up(5, 50)
    assert state.on_master(start(5), 0.0) == [told(up(5, 50))]
    assert state.on_process(5, up(5, 50), 0.0) == [told(up(5, 50))]
    assert end(state, 5) == [exited(5)]


def test_an_end_is_told_once(running: NodeState) -> None:
    assert end(running, 5) == [exited(5)]
    assert end(running, 5) == []
    assert end(running, 4) == []


def test_a_process_that_hangs_is_looked_at_once_before_it_is_ended(running: NodeState) -> None:
    order = StopProcess(inc=5, grace_s=0.0, hung=True)
    assert running.on_master(order, 1.0) == [EndHung()]
    assert running.on_master(order, 2.0) == []
    (ended,) = running.exited(5, ExitEvidence(signal=signal.SIGKILL, stacks="main.py, line 3"))
    assert isinstance(ended, Report)
    assert isinstance(ended.message, ProcessExited)
    evidence = ended.message.evidence
    assert (evidence.hung, evidence.stopped_by_us) == (True, False)
    assert evidence.stacks == "main.py, line 3"


def test_one_that_is_over_cannot_hang(running: NodeState) -> None:
    end(running, 5)
    assert running.on_master(StopProcess(inc=5, grace_s=0.0, hung=True), 1.0) == [exited(5)]


def test_a_process_without_room_ends_gracefully_and_the_next_one_waits(running: NodeState) -> None:
    assert running.room(True, 1.0) == []
    assert running.room(False, 10.0) == [Signal(signal.SIGTERM)]
    assert running.room(False, 10.1) == []
    assert running.tick(14.9) == []
    assert running.tick(15.0) == [Signal(signal.SIGKILL)]
    ended = running.exited(5, ExitEvidence(signal=signal.SIGKILL))
    evidence = ExitEvidence(signal=signal.SIGKILL, stopped_by_us=True, made_room=True)
    assert ended == [Report(ProcessExited(node=NODE, inc=5, evidence=evidence))]
    assert ForkLife(start(6)) not in running.on_master(start(6), 20.0)
    assert ForkLife(start(6)) not in running.on_master(start(6), 21.0)
    assert running.room(True, 60.0) == [ForkLife(start(6))]
    assert running.room(True, 60.1) == []


def test_a_start_that_waits_for_room_can_be_taken_back() -> None:
    state = NodeState(NODE)
    assert state.room(False, 0.0) == []
    state.on_master(start(6), 1.0)
    assert state.on_master(StopProcess(inc=6, grace_s=1.0), 2.0) == [
        exited(6, by_us=True, code=None)
    ]
    assert state.room(True, 3.0) == []


def test_an_agent_whose_process_waits_for_room_can_leave() -> None:
    state = NodeState(NODE)
    state.room(False, 0.0)
    state.on_master(start(6), 1.0)
    assert state.on_master(Leave(), 2.0) == [Quit()]
    assert state.room(True, 3.0) == []
