"""What a person sees of a running job: lines, or a picture that moves."""

import io
import signal
import time
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.table import Table

from paceline.base.jobdir import JobDir
from paceline.cli import run
from paceline.cli.live import LiveView, draw, node_table
from paceline.cli.order_verbs import without_room
from paceline.cli.plain import PlainView, progress_line
from paceline.cli.watch import CHAINED, ChiefLog, Interrupts, JobWatcher, Look, View
from paceline.jobs.outcome import Outcome
from paceline.jobs.wording import speed
from paceline.wire.client import JobStatus, LastLogged, NodeStatus, SlowPart
from paceline.wire.events.nodes import KilledEvent, NodeLostEvent, ProcessUpEvent, RelaunchEvent
from paceline.wire.events.state import CutValidEvent, FeedCompleteEvent


def status(committed: int, total: int | None = 1000, num_workers: int = 2) -> JobStatus:
    nodes = [NodeStatus(node="server-0", role="server", state="running", pid=9, rss_bytes=2**28)]
    for index in range(num_workers):
        node = NodeStatus(
            node=f"worker-{index}",
            role="worker",
            state="running",
            pid=10 + index,
            samples=committed // num_workers,
            bpt_s=0.02 * (index + 1),
            compute_s=0.01,
            server_s=0.004,
            message_s=0.002,
        )
        nodes.append(node)
    return JobStatus(
        job_id="job-1",
        state="training",
        master_pid=8,
        epoch_no=1,
        step=0,
        committed=committed,
        total=total,
        samples_per_s=100.0,
        eta_s=None if total is None else (total - committed) / 100,
        started_s=0.0,
        valid_cuts=(1,),
        nodes=tuple(nodes),
        num_events=0,
    )


@pytest.mark.parametrize(
    ("room", "workers", "short"),
    [
        ({}, 9, None),
        ({"worker": 3}, 5, None),
        ({"worker": 1, "server": 9}, 5, (1, 3)),
        ({"worker": 0}, 1, None),
    ],
)
def test_what_finds_no_place_now_is_said(
    room: dict[str, int], workers: int, short: tuple[int, int] | None
) -> None:
    now = msgspec.structs.replace(status(0), room=room)
    assert without_room(now, workers) == short


def watch_plainly(duration_s: float, total: int | None, num_workers: int = 2) -> list[str]:
    lines: list[str] = []
    view = PlainView(0.0, lines.append)
    num_looks = round(duration_s * 2)
    for i in range(num_looks):
        committed = round((total or 10**6) * i / num_looks)
        view.show(Look(now_s=i / 2, status=status(committed, total, num_workers)))
    view.show(Look(now_s=duration_s, status=None, outcome=Outcome(state="finished", exit_code=0)))
    return lines


def test_a_healthy_job_of_any_length_says_little() -> None:
    for duration_s in (5, 60, 3600, 36_000):
        for total in (1000, None):
            assert len(watch_plainly(duration_s, total)) <= 16, (duration_s, total)


def test_a_job_that_is_resumed_days_after_its_launch_tells_how_far_it_is() -> None:
    lines: list[str] = []
    view = PlainView(0.0, lines.append)
    for second in range(600):
        view.show(Look(now_s=3e5 + second, status=status(50_000 + second, 1_000_000)))
    told = [line.split()[0] for line in lines]
    assert told == ["83:20:00", "83:20:10", "83:20:40", "83:22:40"]


@pytest.mark.parametrize(
    ("up_s", "named"),
    [
        ({"server-0": 2, "worker-0": 3, "worker-1": 4}, "4"),
        ({"server-0": 2, "worker-0": 3}, "13"),
        ({"server-0": 2, "worker-0": 14, "worker-1": 16}, "16"),
    ],
    ids=["all come up", "one stays away", "the workers are late"],
)
def test_the_nodes_of_a_resumed_job_are_named_when_they_are_up(
    up_s: dict[str, int], named: str
) -> None:
    lines: list[str] = []
    view = PlainView(0.0, lines.append)
    for second in range(20):
        now = status(400, total=None)
        nodes = [
            msgspec.structs.replace(node, pid=0, state="pending")
            if second < up_s.get(node.node, 99)
            else node
            for node in now.nodes
        ]
        now = msgspec.structs.replace(now, nodes=tuple(nodes))
        view.show(Look(now_s=second, status=now))
    up = ("server-0 (pid 9)", "worker-0 (pid 10)", "worker-1 (pid 11)")
    there = [one for one in up if up_s.get(one.split()[0], 99) <= int(named)]
    assert lines[0].split(maxsplit=1) == [f"0:{int(named):02}", f"training: {', '.join(there)}"]


def test_what_the_script_logs_is_shown_as_far_as_there_is_room() -> None:
    values = [LastLogged(f"m{k}", 1.23456, 7) for k in range(30)]
    logged = (LastLogged("loss", 0.125, 7), LastLogged("val/auc", "nan", 7), *values)
    now = msgspec.structs.replace(status(500), logged=logged)
    console = Console(width=80, height=24, file=io.StringIO(), force_terminal=False)
    console.print(draw(now, [], 1.0, ConsoleDimensions(80, 24)))
    assert isinstance(console.file, io.StringIO)
    (line,) = [line for line in console.file.getvalue().splitlines() if "loss" in line]
    assert line.startswith("loss 0.125  val/auc nan  m0 1.235")
    assert len(line.rstrip()) <= 80
    assert "  (loss 0.125  val/auc nan" in progress_line(now)
    assert len(progress_line(now)) < 160


def test_a_job_with_a_thousand_workers_names_a_few_of_them() -> None:
    (first, *_) = watch_plainly(5, 1000, num_workers=1000)
    assert first.endswith("worker-6 (pid 16) and 993 more")


def test_nodes_that_are_not_up_are_not_counted_among_those_that_are() -> None:
    now = status(0, num_workers=12)
    late = [
        msgspec.structs.replace(node, pid=0) if node.node in ("server-0", "worker-9") else node
        for node in now.nodes
    ]
    lines: list[str] = []
    view = PlainView(0.0, lines.append)
    for at_s in (1.0, 20.0):
        view.show(Look(now_s=at_s, status=msgspec.structs.replace(now, nodes=tuple(late))))
    (first, *_) = lines
    assert "server-0" not in first
    assert first.endswith("worker-7 (pid 17) and 3 more")


def test_a_speed_that_is_not_known_is_no_zero() -> None:
    now = msgspec.structs.replace(status(500), samples_per_s=None, eta_s=None)
    assert progress_line(now) == " 50 %  500 of 1,000 samples"
    console = Console(file=io.StringIO(), width=120, height=40)
    console.print(draw(now, [], 1.0, console.size))
    assert "samples/s" not in console.file.getvalue()  # type: ignore[attr-defined]
    assert [speed(each) for each in (None, 0.0, 0.42, 3.0, 34_100.4)] == [
        "-",
        "0 samples/s",
        "0.42 samples/s",
        "3 samples/s",
        "34,100 samples/s",
    ]


def test_plain_lines_tell_where_it_is_and_what_happened() -> None:
    lines: list[str] = []
    view = PlainView(0.0, lines.append)
    view.show(Look(now_s=1.0, status=status(0)))
    lost = RelaunchEvent(t=12.0, node="worker-1", inc=3, cause="signal SIGKILL", wait_s=0.0)
    view.show(Look(now_s=12.4, status=status(500), events=(lost,), said=("loss 0.3",)))
    view.say("stopping")
    assert lines == [
        "   0:01  training: server-0 (pid 9), worker-0 (pid 10), worker-1 (pid 11)",
        "   0:12  worker-1 ended (signal SIGKILL), started again",
        "worker-0 | loss 0.3",
        "   0:12   50 %  500 of 1,000 samples, 100 samples/s, 5 s left",
        "   0:12  stopping",
    ]


def test_a_traceback_comes_before_what_it_led_to_and_not_among_the_lines() -> None:
    lines: list[str] = []
    errors: list[str] = []
    view = PlainView(0.0, lines.append, errors.append)
    lost = RelaunchEvent(
        t=12.0, node="worker-1", inc=3, cause="ValueError in the script", wait_s=0.0
    )
    view.show(Look(now_s=12.4, status=None, events=(lost,), tracebacks=("TB\nValueError\n",)))
    assert errors == ["TB\nValueError"]
    assert lines == ["   0:12  worker-1 ended (ValueError in the script), started again"]


def rendered(width: int, height: int, num_workers: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    events = [KilledEvent(t=float(t), node="worker-1", inc=t) for t in range(6)]
    size = ConsoleDimensions(width, height)
    console.print(draw(status(420, 1000, num_workers), events, 65.0, size))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_picture_shows_progress_nodes_and_events() -> None:
    text = "\n".join(rendered(120, 40, 2))
    for part in ("job-1  training  1:05", "42 %", "420 of 1,000", "100 samples/s", "6 s left"):
        assert part in text
    for part in ("worker-1", "40.0 ms", "256 MiB", "0:05  worker-1 is killed by order"):
        assert part in text


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 20), (40, 10), (36, 7)])
@pytest.mark.parametrize("num_workers", [1, 2, 30])
def test_the_picture_is_as_large_as_the_terminal_at_most(
    size: tuple[int, int], num_workers: int
) -> None:
    width, height = size
    console = Console(file=io.StringIO(), width=width, height=height)
    values = [LastLogged("train/accuracy", 0.123456, 7)] * 5
    now = msgspec.structs.replace(
        status(103_680, 480_000, num_workers), samples_per_s=19_355.0, logged=tuple(values)
    )
    killed = [KilledEvent(t=float(t), node="worker-1", inc=t) for t in range(4)]
    long = ProcessUpEvent(t=5.0, node="server-0", inc=4, pid=9, address="shm://" + 90 * "x")
    console.print(draw(now, [*killed, long], 65.0, ConsoleDimensions(width, height)))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert "22 %" in lines[1], "progress takes one line, so that the picture keeps its height"
    assert "103,680 of 480,000" in lines[1] or width < 40
    assert any("worker-0" in line for line in lines[4:])


def test_the_picture_shows_what_happened_and_not_each_cut() -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    view = LiveView("job-1", console)
    killed = KilledEvent(t=1.0, node="worker-1", inc=2)
    cuts = [CutValidEvent(t=float(t), cut_no=t, step=9 * t) for t in range(2, 20)]
    feeds = [FeedCompleteEvent(t=float(t), feed=t) for t in range(2, 20)]
    now = msgspec.structs.replace(status(1), valid_cuts=(18, 19))
    view.show(Look(now_s=21.0, status=now, events=(killed, *cuts, *feeds)))
    view.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "worker-1 is killed by order" in text
    assert "newest cut 19" in text
    assert "cut valid" not in text
    assert "feed" not in text


def test_each_restart_counts_whatever_had_ended_the_life_and_whoever_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again() -> None:
        event = RelaunchEvent(t=1.0, node="worker-1", inc=2, cause="as ordered", wait_s=0.0)
        with job.events.open("ab") as file:
            file.write(msgspec.json.encode(event.line()) + b"\n")

    def restarts(watcher: JobWatcher) -> dict[str, int]:
        now = watcher.look().status
        assert now is not None
        return {node.node: node.restarts for node in now.nodes if node.restarts}

    job = JobDir(tmp_path)
    monkeypatch.setattr("paceline.cli.watch.ask", lambda *_: status(1))
    first = JobWatcher(job, from_now=False, shown=set())
    assert restarts(first) == {}
    again()
    assert restarts(first) == {"worker-1": 1}
    later = JobWatcher(job, from_now=True, shown=set())
    assert later.look().events == ()
    again()
    assert restarts(first) == restarts(later) == {"worker-1": 2}


def test_the_picture_says_what_a_group_waits_for() -> None:
    console = Console(file=io.StringIO(), width=120, height=40, force_terminal=False)
    now = msgspec.structs.replace(status(0), state="forming", waits_for="1 of 2 workers are ready")
    console.print(draw(now, [], 65.0, ConsoleDimensions(120, 40)))
    assert isinstance(console.file, io.StringIO)
    assert "job-1  forming (1 of 2 workers are ready)  1:05" in console.file.getvalue()


SLOW = SlowPart(
    culprit="computation", nodes=("worker-2",), ratio=2.28, since_s=19.0, done="nothing"
)
SLOW_LINE = "slow since 0:19: worker-2 computes 2.28 times as long"


def script(*slow: SlowPart) -> JobStatus:
    return msgspec.structs.replace(status(0, total=None), state="running", slow=slow)


def test_the_picture_has_a_line_while_a_script_is_slow() -> None:
    def lines(now: JobStatus) -> list[str]:
        console = Console(file=io.StringIO(), width=100, height=40, force_terminal=False)
        console.print(draw(now, [], 65.0, ConsoleDimensions(100, 40)))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().splitlines()

    assert lines(script(SLOW))[1].rstrip() == SLOW_LINE
    assert not any("slow since" in line for line in lines(script()))


def test_plain_lines_say_rarely_that_a_script_is_slow_and_once_that_it_is_not() -> None:
    lines: list[str] = []
    view = PlainView(0.0, lines.append)
    for second in range(300):
        slow = (SLOW,) if 20 <= second < 280 else ()
        view.show(Look(now_s=float(second), status=script(*slow)))
    assert [line.split(maxsplit=1) for line in lines[1:]] == [
        ["1:20", SLOW_LINE],
        ["4:40", "nothing in the job is known to be slow any more"],
    ]
    lines.clear()
    joined = PlainView(0.0, lines.append)
    for second in range(1000, 1012):
        joined.show(Look(now_s=float(second), status=script(SLOW)))
    assert lines[1:] == [f"  16:50  {SLOW_LINE}"], "who joins later reads it soon"


def test_the_picture_fits_its_terminal() -> None:
    for width, height, num_workers in ((80, 24, 2), (80, 24, 300), (200, 50, 300)):
        lines = rendered(width, height, num_workers)
        assert len(lines) < height
        assert max(map(len, lines)) <= width


def test_bars_show_what_a_batch_is_spent_on_at_one_scale() -> None:
    rows = [line for line in rendered(120, 40, 2) if line.startswith("worker")]
    assert [row.count("█") + row.count("·") for row in rows] == [12, 24]


def table(nodes: tuple[NodeStatus, ...], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(node_table(nodes, 9, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_where_all_wait_for_the_slow_node_its_bar_is_the_long_one() -> None:
    _, fast, slow = status(1).nodes
    nodes = (
        msgspec.structs.replace(fast, bpt_s=0.09, compute_s=0.02),
        msgspec.structs.replace(slow, bpt_s=0.09, compute_s=0.088),
    )
    assert [row.count("█") for row in table(nodes, 120)[1:]] == [7, 24]


def test_many_nodes_are_drawn_faster_than_by_richs_own_table() -> None:
    """Some ten times faster."""
    _, node, *_ = status(1).nodes
    nodes = tuple(msgspec.structs.replace(node, node=f"worker-{n}") for n in range(200))
    plain = Table(box=None)
    for one in nodes:
        plain.add_row(one.node, one.state, *("some text" for _ in range(6)))

    def drawn_s(what: object) -> float:
        console = Console(file=io.StringIO(), width=160, force_terminal=True)
        begun_s = time.process_time()
        console.print(what)
        took_s = time.process_time() - begun_s
        assert isinstance(console.file, io.StringIO)
        assert console.file.getvalue().count("worker-") == 200
        return took_s

    assert drawn_s(node_table(nodes, 200, 160)) < drawn_s(plain) / 2


def test_a_cell_that_is_wider_than_its_column_is_cut() -> None:
    _, node, *_ = status(1).nodes
    odd = msgspec.structs.replace(node, state="läuft", note="日本" * 99 + "\n[red]x")
    rows = table((odd, node), 100)
    assert "läuft" in rows[1]
    assert "…" in rows[1]
    assert len(rows) == 3
    assert cell_len(rows[1].rstrip()) <= 100


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_a_long_note_hides_no_other_column(width: int) -> None:
    _, *nodes = status(1).nodes
    long = msgspec.structs.replace(nodes[0], state="pending", note="no place is free " * 20)
    with_note, without = table((long, nodes[1]), width), table((nodes[0], nodes[1]), width)
    assert max(map(len, with_note)) <= width
    assert "worker-0  pending" in with_note[1]
    assert "40.0 ms" in with_note[2]
    assert ("no place is free" in with_note[1]) == (width >= 100)
    assert "batch time" in with_note[0] or "batch time" not in without[0]
    assert "…" not in with_note[2]


def test_a_relief_is_in_the_picture_until_the_job_ends() -> None:
    well = msgspec.structs.replace(SLOW, until_s=60.0)
    now = msgspec.structs.replace(status(1), relieved=(well,))
    console = Console(file=io.StringIO(), width=100, height=40, force_terminal=False)
    console.print(draw(now, [], 65.0, ConsoleDimensions(100, 40)))
    assert isinstance(console.file, io.StringIO)
    line = "was slow, is well again: worker-2 computes 2.28 times as long, from 0:19 to 1:00"
    assert console.file.getvalue().splitlines()[2].rstrip() == line


def test_the_live_view_prints_the_scripts_lines_and_goes_away_at_the_end() -> None:
    console = Console(file=io.StringIO(), width=80, height=30, force_terminal=True)
    view = LiveView("job-1", console)
    view.show(Look(now_s=1.0, status=status(1), said=("[red]loss 0.3",)))
    view.show(Look(now_s=2.0, status=None, tracebacks=("TB [1]\nValueError\n",)))
    view.say("stopping")
    view.close()
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "worker-0 | [red]loss 0.3" in text
    assert "the master does not answer" in text
    assert "TB [1]" in text
    assert "stopping" in text


# --------------------------------------------------------------------------- the chief's log

TRACE = [
    b"Traceback (most recent call last):",
    b'  File "train.py", line 3, in <module>',
    b"ValueError: no such column",
]


def test_the_terminal_s_clock_counts_from_the_launch_as_the_report_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobDir(tmp_path)
    job.spec.touch()  # now, by another clock than the events'
    job.events.write_text('{"t":1000.0,"event":"launched"}\n')
    lost = NodeLostEvent(t=1062.0, node="worker-1", reason="silent")
    view = run.open_view(job, Console(file=io.StringIO()))
    view.show(Look(now_s=1063.0, status=None, events=(lost,)))
    assert capsys.readouterr().out.split() == ["1:02", "worker-1", "lost:", "silent"]


def test_a_traceback_that_ends_a_life_is_left_to_the_outcome() -> None:
    log = ChiefLog()
    assert log.feed([b"loss 0.3", *TRACE]) == ["loss 0.3"]
    log.drop()
    assert log.feed([b"loss 0.2"]) == ["loss 0.2"]


def test_the_traceback_of_a_life_that_ended_as_the_one_before_is_not_shown_again() -> None:
    log = ChiefLog()
    log.tell("\n".join(line.decode() for line in TRACE) + "\n")
    assert log.feed([*TRACE, *TRACE, b"the next life"]) == ["the next life"]
    # Later the script lives on after the same error.
    assert log.feed([*TRACE, b"trying again"]) == [
        *(line.decode() for line in TRACE),
        "trying again",
    ]


def test_a_traceback_that_the_script_lived_on_after_is_shown() -> None:
    log = ChiefLog()
    assert log.feed(TRACE[:2]) == []
    assert log.feed(TRACE[2:]) == []
    assert log.feed([b"going on"]) == [*(line.decode() for line in TRACE), "going on"]


@pytest.mark.parametrize("link", sorted(link.encode() for link in CHAINED))
def test_tracebacks_of_one_error_stay_together(link: bytes) -> None:
    chain = [*TRACE, b"", link, b"", *TRACE]
    log = ChiefLog()
    assert log.feed(chain) == []
    log.drop()
    assert log.feed([*chain, b"going on"]) == [*(line.decode() for line in chain), "going on"]
    apart = [*TRACE, b"", b"once more", *TRACE]
    assert log.feed(apart) == [line.decode() for line in apart[:5]]


def test_of_a_line_that_is_rewritten_the_last_state_counts() -> None:
    assert ChiefLog().feed([b" 10 %\r 50 %\r100 %\r"]) == ["100 %"]


@pytest.mark.parametrize(
    ("first", "stops", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, True, 143), (signal.SIGTERM, False, 0)],
)
def test_a_command_that_waits_no_longer_has_the_code_of_the_first_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, stops: bool, code: int
) -> None:
    def follow(_: JobDir, __: list[View], interrupts: Interrupts, **___: object) -> None:
        with interrupts:
            interrupts.first = first

    monkeypatch.setattr(run, "follow", follow)
    monkeypatch.setattr(run, "is_supervised", lambda _: True)
    monkeypatch.setattr(run, "open_view", lambda *_: None)
    assert run.watch(JobDir(tmp_path), Console(), stops=stops) == code
