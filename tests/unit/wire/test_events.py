"""The events of a job: written and read as the same values, with the words that people see."""

import json

import pytest

from paceline.wire.events import job, nodes, state
from paceline.wire.events.base import Event, PlainEvent
from paceline.wire.events.lines import KINDS, decode_event, decode_events

W = {"node": "worker-1", "inc": 3}
S = {"node": "server-0", "inc": 1}
FENCED = nodes.FencedEvent(inc=3, before_restart=True)
TOLD: list[tuple[Event, str, str]] = [
    (job.LaunchedEvent(), "", "the job was launched"),
    (job.ResumedEvent(), "", "the job is resumed"),
    (job.SupervisorStartedEvent(pid=7), "", "supervisor started"),
    (job.StopAskedEvent(signal=15), "SIGTERM", "stop asked: SIGTERM"),
    (job.MasterStartedEvent(restarted=False), "", "the master started"),
    (
        job.MasterStartedEvent(restarted=True),
        "from the journal",
        "a new master goes on from the journal",
    ),
    (
        job.JournalShortEvent(path="/job/journal.sqlite", knew=3, cut_no=7),
        *2
        * (
            "the journal /job/journal.sqlite ends after cut 3, as after a power cut; the job goes "
            "on from cut 7, the newest one on disk",
        ),
    ),
    (
        job.JournalShortEvent(path="j", knew=-1, cut_no=7),
        *2
        * (
            "the journal j tells of no cut, as after a power cut; the job goes on from cut 7, the "
            "newest one on disk",
        ),
    ),
    (
        job.MasterDiedEvent(reason="exit code -9", deaths=1),
        "exit code -9",
        "master died: exit code -9",
    ),
    (
        job.JournalKeptEvent(hosts=("host-a", "host-b", "host-c")),
        *2 * ("host-a, host-b, host-c keep the job's journal: it goes on if one of them is lost",),
    ),
    (
        job.JournalKeptEvent(hosts=(), why="no other machine is there"),
        *2 * ("if the master's machine is lost, the job stops: no other machine is there",),
    ),
    (
        job.KeepersAwaitedEvent(hosts=("host-b", "host-c")),
        *2
        * (
            "the master waits for host-b or host-c, which keep the job's journal: without them it "
            "cannot know whether the job goes on elsewhere",
        ),
    ),
    (
        job.MasterMovedEvent(before="host-a", host="host-b", after_s=4.12),
        *2
        * (
            "the master's machine host-a is gone; the master runs on host-b now, after 4.1 s. Logs "
            "and cuts of before are on host-a",
        ),
    ),
    (job.StoppedEvent(signal=0), "paceline stop", "the job must stop: paceline stop"),
    (job.StoppedEvent(signal=2), "Ctrl-C", "the job must stop: Ctrl-C"),
    (job.FinishedEvent(), "", "finished"),
    (
        job.NotKeptEvent(samples=1200, cut_no=3),
        "1,200 samples trained since cut 3 are in no cut on disk",
        "1,200 samples trained since cut 3 are in no cut on disk",
    ),
    (
        job.NotKeptEvent(samples=12),
        "12 samples trained so far are in no cut on disk",
        "12 samples trained so far are in no cut on disk",
    ),
    (
        job.FeatureFailedEvent(feature="x", error="KeyError: 'y'"),
        "feature x failed (KeyError: 'y'); the job goes on without it",
        "feature x failed (KeyError: 'y'); the job goes on without it",
    ),
    (
        job.FeatureSlowEvent(feature="x", seconds=2.04),
        "feature x holds the master up, for 2.0 s just now: its part must not wait",
        "feature x holds the master up, for 2.0 s just now: its part must not wait",
    ),
    (job.DiskRefusesEvent(error="no space", waits="master"), "no space", "no space"),
    (
        job.DiskRefusesEvent(error="no space", waits="journal"),
        f"no space: {job.JOURNAL_WAITS}",
        f"no space: {job.JOURNAL_WAITS}",
    ),
    (
        job.DiskRefusesEvent(error="no space", waits="cuts", for_s=600.0),
        f"no space; training goes on without cuts for 600 s at most: {job.CUTS_WAIT}",
        f"no space; training goes on without cuts for 600 s at most: {job.CUTS_WAIT}",
    ),
    (job.DiskHealsEvent(waited="cuts", cut_no=4), "cut 4 is stored", "cut 4 is stored"),
    (
        job.DiskHealsEvent(waited="journal", error="no space"),
        "no longer: no space; the job goes on",
        "no longer: no space; the job goes on",
    ),
    (job.ScaledEvent(role="worker", count=3, before=2), "2 -> 3 workers", "scaled: 2 -> 3 workers"),
    (job.ScaledEvent(role="server", count=2), "2 servers", "scaled: 2 servers"),
    (
        job.ScaledEvent(node="worker-2", role="worker", count=3, host="box"),
        "box joins",
        "scaled worker-2: box joins",
    ),
    (nodes.AgentJoinedEvent(**W, pid=5), "pid 5", "the agent of worker-1 joined: pid 5"),
    (
        nodes.AgentLostEvent(**W, reason="silent for 5.0 s", silent_s=5.0),
        "silent for 5.0 s",
        "the agent of worker-1 lost: silent for 5.0 s",
    ),
    (nodes.AgentLostEvent(**W), "", "the agent of worker-1 lost"),
    (
        nodes.MachinesAwaitedEvent(count=1, wanted=2),
        "1 of 2 machines are there",
        "1 of 2 machines are there; the job waits: run `paceline agent --join ticket` on another "
        "one, with a copy of the file `ticket` of the job's directory",
    ),
    (
        nodes.MachineJoinedEvent(nodes=("worker-2", "worker-3"), host="host-b"),
        "host-b",
        "host-b joined: it runs worker-2, worker-3",
    ),
    (
        nodes.PlacePendingEvent(**W, reason="no room"),
        "no room",
        "worker-1 waits for its place: no room",
    ),
    (
        nodes.PlaceRefusedEvent(**W, reason="403 quota"),
        "403 quota",
        "the platform refuses worker-1: 403 quota",
    ),
    (
        nodes.NotSharedEvent(**W, folder="/jobs/a", host="h"),
        "/jobs/a is not on h",
        "the job's directory is on the master's machine alone (/jobs/a is not on h): if that is "
        "lost, the job cannot go on; keep jobs on storage that all machines share, or copy cuts to "
        "a URL",
    ),
    (
        nodes.PlaceDrainingEvent(**W, reason="spot"),
        "spot",
        "the place of worker-1 is going away: spot",
    ),
    (
        nodes.ResizeDeferredEvent(**W, reason="no room"),
        "no room",
        "worker-1 gets its new size later: no room",
    ),
    (
        nodes.StandInEvent(**W, successor="worker-2"),
        "worker-2 stands in",
        "worker-2 stands in while worker-1 leaves its place",
    ),
    (
        nodes.NotMovedAwayEvent(**W, reason="a disk refuses a cut"),
        "a disk refuses a cut",
        "worker-1 cannot leave its place in order: a disk refuses a cut",
    ),
    (
        nodes.UnbackedEvent(**W, reason="raylet"),
        "raylet",
        "worker-1 works on, though the platform calls it lost: raylet",
    ),
    (
        nodes.NoLimitsEvent(**W, reason="worker-1 runs without limits"),
        "worker-1 runs without limits",
        "worker-1 runs without limits",
    ),
    (
        nodes.NodeResizedEvent(**W, cores=0.5, memory_bytes=1 << 30),
        "0.5 cores and 1 GiB",
        "worker-1 may use 0.5 cores and 1 GiB from now on",
    ),
    (
        nodes.NotResizedEvent(reason="worker-2 has no place after 120 s"),
        "worker-2 has no place after 120 s",
        "nodes keep the sizes that they have: worker-2 has no place after 120 s",
    ),
    (
        nodes.NodeResizedEvent(**W, cores=None, memory_bytes=None),
        "all cores and all memory",
        "worker-1 may use all cores and all memory from now on",
    ),
    (nodes.NodeStartedEvent(**W), "", "worker-1 starts (life 3)"),
    (nodes.ProcessUpEvent(**W, pid=6), "pid 6", "worker-1 is up (pid 6)"),
    (
        nodes.ProcessUpEvent(**S, pid=6, address="shm:///x"),
        "pid 6 at shm:///x",
        "server-0 is up (pid 6 at shm:///x)",
    ),
    (
        nodes.WorksEvent(
            **W, pending_s=0.001, start_s=1.0, rebuild_s=0.5, restore_s=0.25, redo_s=0.0
        ),
        "1.75 s (start 1.00 s, rebuild 0.50 s, restore 0.25 s)",
        "worker-1 works: its start took 1.75 s (start 1.00 s, rebuild 0.50 s, restore 0.25 s)",
    ),
    (
        nodes.LeftLoopEvent(**W, step=7),
        "at step 7",
        "worker-1 left its loop over job.batches before the end, at step 7",
    ),
    (
        nodes.LeftLoopEvent(**W, step=7, miscount=8),
        "at step 7",
        "worker-1 left its loop over job.batches before the end, at step 7; if the script counts "
        "its batches, of which this life had 8, it may have left after another step than an "
        "undisturbed run does: decide by job.step",
    ),
    (
        nodes.ChiefMissedEvent(node="worker-0", waited_s=60.2),
        "after 60 s",
        "worker-0 did not come back, and the others begin their next loop without it, after 60 s: "
        "what the script does where job.is_chief behind the last loop was not done",
    ),
    (
        nodes.HungEvent(**W, since_s=12.0),
        "no step for 12.0 s, while all others wait for it; what it did: logs/worker-1.stacks",
        "worker-1 hangs: no step for 12.0 s, while all others wait for it; what it did: "
        "logs/worker-1.stacks",
    ),
    (
        nodes.HungEvent(**W, since_s=12.0, silent=True),
        "it has said and done nothing for 12.0 s; what it did: logs/worker-1.stacks",
        "worker-1 hangs: it has said and done nothing for 12.0 s; what it did: "
        "logs/worker-1.stacks",
    ),
    (nodes.KilledEvent(**W), "by order", "worker-1 is killed by order"),
    (
        nodes.KillRestartEvent(**W, reason="too slow"),
        "too slow",
        "worker-1 is restarted by decision: too slow",
    ),
    (
        nodes.KillRestartEvent(**W, reason=nodes.BY_ORDER),
        "by order",
        "worker-1 is restarted by order",
    ),
    (
        nodes.ProcessExitedEvent(
            **W,
            reason="signal SIGKILL",
            verdict=nodes.Verdict.RETRYABLE,
            exit_code=None,
            signal=9,
            oom_kills=1,
            traceback="Traceback",
        ),
        "signal SIGKILL",
        "worker-1 ended: signal SIGKILL",
    ),
    (nodes.FencedEvent(**W), "", "fenced worker-1"),
    (
        FENCED,
        "incarnation 3, of before the restart",
        "fenced: incarnation 3, of before the restart",
    ),
    (
        nodes.NodeLostEvent(**W, reason="unreachable, silent for 9.0 s", silent_s=9.0),
        "unreachable, silent for 9.0 s",
        "worker-1 lost: unreachable, silent for 9.0 s",
    ),
    (
        nodes.LeftOutEvent(**W, reason="it has another model"),
        "it has another model",
        "worker-1 is left out, the others go on: it has another model",
    ),
    (
        nodes.RelaunchEvent(**W, cause="signal SIGKILL; or so", wait_s=0.04),
        "signal SIGKILL; or so; again in 0.0 s",
        "worker-1 ended (signal SIGKILL; or so), started again",
    ),
    (
        nodes.RelaunchEvent(**S, cause="exit code 1", wait_s=2.0),
        "exit code 1; again in 2.0 s",
        "server-0 ended (exit code 1), started again in 2.0 s",
    ),
    (
        nodes.RestartAllEvent(**W, cause="exit code 1", wait_s=2.0),
        "exit code 1; again in 2.0 s",
        "worker-1 ended (exit code 1), all workers start again in 2.0 s",
    ),
    (
        nodes.ReplacingEvent(**S, cause="by order", successor="server-2"),
        "by order: server-2 takes over",
        "replacing server-0: by order: server-2 takes over",
    ),
    (
        nodes.ReplacedEvent(**S, successor="server-2"),
        "by server-2",
        "replaced server-0: by server-2",
    ),
    (nodes.NotReplacedEvent(**S), "", "not replaced server-0"),
    (
        nodes.ServersChangedEvent(count=3, joined=("server-1", "server-2"), left=()),
        "3 now, with server-1, server-2",
        "servers changed: 3 now, with server-1, server-2",
    ),
    (
        nodes.ServersChangedEvent(count=1, left=("server-1",)),
        "1 now, without server-1",
        "servers changed: 1 now, without server-1",
    ),
    (
        nodes.ServersNotChangedEvent(count=2),
        "still 2: buckets could not move; to try again, repeat `paceline scale --servers`",
        "servers not changed: still 2: buckets could not move; to try again, repeat "
        "`paceline scale --servers`",
    ),
    (
        nodes.ServersNotChangedEvent(count=2, futile=False),
        "still 2: training went back to a cut meanwhile; to try again, repeat "
        "`paceline scale --servers`",
        "servers not changed: still 2: training went back to a cut meanwhile; to try again, repeat "
        "`paceline scale --servers`",
    ),
    (
        nodes.MoveGivenUpEvent(successor="server-2", lacks="share", waited_s=30.0),
        "server-2: nothing of its share has come for 30 s",
        "move given up: server-2: nothing of its share has come for 30 s",
    ),
    (
        nodes.MoveGivenUpEvent(successor="server-2", lacks="answer", waited_s=4.0),
        "server-2: no answer for 4 s",
        "move given up: server-2: no answer for 4 s",
    ),
    (
        state.PlanEvent(plan_no=2, step=30),
        "plan 2 from step 30 on",
        "plan: plan 2 from step 30 on",
    ),
    (
        state.FeedOpenedEvent(feed=0, purpose="train"),
        "feed 0 (train)",
        "feed opened: feed 0 (train)",
    ),
    (state.FeedCompleteEvent(feed=0), "feed 0", "feed complete: feed 0"),
    (
        state.EpochEvent(epoch_no=2, cut_no=3, undone=260),
        "epoch 2 from cut 3",
        "the model is loaded from cut 3; 260 samples are trained again",
    ),
    (
        state.EpochEvent(epoch_no=2, cut_no=3, undone=0, in_memory=True),
        "epoch 2 from cut 3 in memory",
        "the model is loaded from cut 3 in memory",
    ),
    (
        state.EpochEvent(epoch_no=3, cut_no=4, undone=0, resumed=True),
        "epoch 3 from cut 4",
        "the model is loaded from cut 4",
    ),
    (
        state.EpochEvent(epoch_no=2, cut_no=0, undone=90),
        "epoch 2 from cut 0",
        "the model is what the script has built, again; 90 samples are trained again",
    ),
    (state.RestoredEvent(epoch_no=2), "epoch 2", "training goes on: epoch 2"),
    (state.CutValidEvent(cut_no=3, step=7), "cut 3 at step 7", "cut valid: cut 3 at step 7"),
    (state.CutStoredEvent(cut_no=3), "cut 3", "cut stored: cut 3"),
    (state.CutUploadedEvent(cut_no=3), "cut 3", "cut uploaded: cut 3"),
    (
        state.NotUploadedEvent(cut_no=3),
        "cut 3",
        "cut 3 is not at checkpoint.dir: the storage is away",
    ),
    (
        state.UploadFailedEvent(reason="timed out"),
        "timed out",
        "cuts are not copied, the job goes on and tries again: timed out",
    ),
    (
        state.UploadTroubleEvent(cut_no=3, error="no such file"),
        "no such file",
        "copying cuts: no such file",
    ),
    (
        state.UploadTroubleEvent(cut_no=3, error="timed out", copied=True),
        "older cuts stay: timed out",
        "copying cuts: older cuts stay: timed out",
    ),
    (
        state.CutDamagedEvent(cut_no=3, reason="cut 3: checksum"),
        "cut 3: checksum",
        "cut damaged: cut 3: checksum",
    ),
    (
        state.CutsRarerEvent(least_s=12.0, every_s=5.0, every_steps=100, cost_s=0.24, share=0.02),
        "cuts every 12 s instead of 5 s or 100 steps: one costs 0.24 s, and checkpoint.share is "
        "0.02",
        "cuts every 12 s instead of 5 s or 100 steps: one costs 0.24 s, and checkpoint.share is "
        "0.02",
    ),
    (
        state.GroupFormsEvent(group=2, members=("worker-0", "worker-1")),
        "group 2 of worker-0, worker-1",
        "group forms: group 2 of worker-0, worker-1",
    ),
    (
        state.GroupRunsEvent(members=("worker-0", "worker-1"), step=0),
        "worker-0, worker-1 train from the start",
        "worker-0, worker-1 train from the start",
    ),
    (
        state.GroupRunsEvent(members=("worker-0",), step=7),
        "worker-0 trains from step 8 on",
        "worker-0 trains from step 8 on",
    ),
    (
        state.GroupBrokenEvent(**W, reason="worker-0 left the group"),
        "worker-0 left the group",
        "worker-1 can no longer work with the others: worker-0 left the group",
    ),
    (
        state.GroupStuckEvent(since_s=9.0),
        "no step for 9.0 s: all members wait for each other",
        "no step for 9.0 s: all members wait for each other; they meet again",
    ),
    (
        state.MemberSlowEvent(node="worker-1", since_s=12.0, limit_s=600.0),
        "all wait for worker-1, in its part of a step for 12 s",
        "all wait for worker-1, in its part of a step for 12 s; its script reads, computes or "
        "sleeps, and has up to 600 s (timeouts.hang_s sets another bound)",
    ),
    (
        state.DivergedEvent(reason="lr: 0.1 in worker-0, 0.2 in worker-1"),
        "lr: 0.1 in worker-0, 0.2 in worker-1",
        "lr: 0.1 in worker-0, 0.2 in worker-1",
    ),
]
"""Every event: its clause, and its sentence."""
EVENTS = [event for event, _, _ in TOLD]


def test_every_event_is_here() -> None:
    assert {type(event) for event in EVENTS} == set(KINDS)
    assert len({kind.__struct_config__.tag for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_an_event_that_is_written_and_read_is_the_same(event: Event) -> None:
    stamped = event.at(1.5)
    assert decode_event(stamped.text().encode()) == stamped


@pytest.mark.parametrize(("event", "clause", "sentence"), TOLD)
def test_an_event_has_words_for_people(event: Event, clause: str, sentence: str) -> None:
    assert (event.clause, event.sentence()) == (clause, sentence)
    assert json.loads(event.text()).get("reason", "") == clause


def test_a_line_has_what_is_common_first_and_no_fields_that_say_nothing() -> None:
    up = nodes.ProcessUpEvent(node="worker-1", inc=0, pid=6).at(2.0)
    assert up.text() == (
        '{"t":2.0,"event":"process_up","node":"worker-1","inc":0,"reason":"pid 6","pid":6}\n'
    )
    assert job.FinishedEvent(t=3.0).text() == '{"t":3.0,"event":"finished"}\n'


def test_an_event_of_another_version_keeps_its_name_and_words() -> None:
    line = {"t": 1.0, "event": "eclipsed", "node": "worker-1", "inc": 2, "reason": "by x", "z": 1}
    source = json.dumps(line).encode()
    (event,) = decode_events([source])
    about = {"t": 1.0, "node": "worker-1", "inc": 2}
    assert event == PlainEvent(kind="eclipsed", reason="by x", source=source, **about)
    assert event.sentence() == "eclipsed worker-1: by x"
    assert event.line() == line


def test_a_known_event_without_its_fields_is_read_as_its_words() -> None:
    source = b'{"t":1,"event":"cut_valid","reason":"something else"}'
    (event,) = decode_events([source])
    assert event == PlainEvent(t=1.0, kind="cut_valid", reason="something else", source=source)


def test_torn_lines_are_passed_over() -> None:
    lines = [b"", b'{"t":2,"ev{"t":3}', b'{"t":4}', b'{"t":1,"event":"finished"}']
    assert decode_events(lines) == [job.FinishedEvent(t=1.0)]


@pytest.mark.parametrize(
    "event", [one for one in EVENTS if one != FENCED], ids=lambda event: event.name
)
def test_a_line_of_before_says_as_much_where_a_report_needs_it(event: Event) -> None:
    """Those had ``reason`` alone but for these fields."""
    kept = ("verdict", "signal", "pid", "traceback", "cut_no", "undone", "deaths")
    had = {"process_exited", "supervisor_started", "master_died", "epoch"}
    common = ("t", "event", "node", "inc", "reason", *(kept if event.name in had else ()))
    line = {name: value for name, value in event.at(1.0).line().items() if name in common}
    (read,) = decode_events([json.dumps(line).encode()])
    assert isinstance(read, PlainEvent) == (event.name in LOST)
    assert read.clause == event.clause
    assert (read.name, read.node, read.inc) == (event.name, event.node, event.inc)


LOST = {
    "chief_missed",
    "not_shared",
    "stand_in",
    "cuts_rarer",
    "diagnosed",
    "disk_heals",
    "disk_refuses",
    "feature_failed",
    "feature_slow",
    "group_stuck",
    "journal_kept",
    "keepers_awaited",
    "master_moved",
    "member_slow",
    "hung",
    "journal_short",
    "machine_joined",
    "machines_awaited",
    "move_given_up",
    "no_metrics_endpoint",
    "node_resized",
    "not_logged",
    "sink_failed",
    "not_kept",
    "relieved",
    "replacing",
    "restart_advised",
    "scaled",
    "servers_changed",
    "servers_not_changed",
    "slow_link",
    "slow_node",
    "slowed",
    "stop_asked",
    "upload_trouble",
}
"""Of a line of before no more than the words."""
