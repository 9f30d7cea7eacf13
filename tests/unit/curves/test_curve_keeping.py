"""What workers log becomes one point for each step, whatever is lost, late or done again."""

import errno
import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from paceline.base.numbering import Inc
from paceline.features.curves import keeping as curve_keeping
from paceline.features.curves.keeping import SETTLE_S, CurveKeeping
from paceline.features.curves.wire import Logged, LoggedStep, LoggedTotal, LogKept, NotLoggedEvent
from paceline.jobs import curves
from paceline.jobs.curves import CurveFile, CurveLine, last_logged, read_curves
from paceline.master.holding.edge import ModelPlace
from paceline.wire.client import LastLogged
from paceline.wire.events.base import Event
from paceline.wire.messages.base import UNPLACED, Attempt


class Said:
    """What the master tells."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.answers: list[tuple[int, int]] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def send(self, inc: Inc, message: LogKept) -> None:
        self.answers.append((inc, message.n))


class Job:
    """The curves of a job, whose workers say what they log."""

    def __init__(self, folder: Path) -> None:
        self.path, self.said, self.now_s = folder / "curves.jsonl", Said(), 100.0
        self.numbers: dict[int, int] = {}
        self.begin()

    def begin(self) -> None:
        """A master begins."""
        self.keeping = CurveKeeping(
            self.path,
            self.said.tell,
            self.said.send,
            lambda: self.now_s,
        )

    def logs(
        self,
        inc: int,
        step: int,
        attempt: tuple[int, int] = (1, 1),
        between: bool = False,
        **of: float,
    ) -> Logged:
        self.numbers[inc] = self.numbers.get(inc, 0) + 1
        values = {name: LoggedTotal(value, 1) for name, value in of.items()}
        logged = LoggedStep(Attempt(*attempt), step, 10 * step, values, between)
        message = Logged(n=self.numbers[inc], steps=(logged,))
        self.hears(inc, message)
        return message

    def hears(self, inc: int, message: Logged) -> None:
        self.keeping.heard(Inc(inc), message, self.now_s, lambda: ModelPlace(Attempt(3), 50, 500))

    def seconds(self, count: float) -> None:
        self.now_s += count
        self.keeping.tick(self.now_s)

    def curve(self, name: str = "loss") -> dict[int, float]:
        """By step; each is there once, in order."""
        points = read_curves(self.path).points.get(name, [])
        assert all(one.step < other.step for one, other in pairwise(points))
        return {point.step: point.value for point in points}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_point_is_the_mean_of_what_the_workers_logged(job: Job) -> None:
    job.logs(1, 7, loss=1.0)
    job.seconds(2)
    job.logs(2, 7, loss=4.0)
    job.seconds(SETTLE_S - 2)
    assert job.curve() == {7: 2.5}
    (line,) = job.path.read_text().splitlines()
    assert json.loads(line)["samples"] == 70


def test_what_comes_late_or_again_changes_nothing(job: Job) -> None:
    again = job.logs(1, 7, loss=1.0)
    job.hears(1, again)
    job.seconds(SETTLE_S)
    job.logs(2, 7, loss=9.0)
    job.logs(1, 7, auc=0.5)  # an evaluation takes its time
    job.seconds(SETTLE_S)
    assert job.curve() == {7: 1.0}
    assert job.curve("auc") == {7: 0.5}


def test_a_worker_is_answered_when_its_values_are_in_the_file(job: Job) -> None:
    job.logs(1, 7, loss=1.0)
    job.seconds(SETTLE_S - 1)
    assert not job.said.answers and not job.path.exists()
    job.seconds(1)
    assert job.said.answers == [(1, 1)]
    assert job.curve() == {7: 1.0}


def test_steps_that_come_again_take_the_place_of_those_before(job: Job) -> None:
    for step in range(1, 10):
        job.logs(1, step, (1, 1), loss=1.0)
    job.seconds(SETTLE_S)
    for step in range(6, 9):  # back to a cut of step 5
        job.logs(1, step, (2, 2), loss=2.0)
    job.seconds(SETTLE_S)
    assert job.curve() == dict.fromkeys(range(1, 6), 1.0) | dict.fromkeys(range(6, 9), 2.0)


def test_they_do_so_while_neither_is_written(job: Job) -> None:
    for step in range(1, 10):
        job.logs(1, step, (1, 1), loss=1.0)
    job.logs(2, 6, (2, 2), loss=2.0)
    job.logs(1, 7, (1, 1), loss=1.0)  # of a worker that has not heard yet
    job.seconds(SETTLE_S)
    assert job.curve() == dict.fromkeys(range(1, 6), 1.0) | {6: 2.0}


def test_what_a_worker_logs_between_loops_takes_no_step_away(job: Job) -> None:
    job.logs(1, 7, (1, 1), loss=1.0)
    job.seconds(SETTLE_S)
    job.logs(2, 7, (1, 2), between=True, auc=0.5)
    job.seconds(SETTLE_S)
    assert job.curve() == {7: 1.0}
    assert job.curve("auc") == {7: 0.5}


def test_a_worker_that_does_not_know_where_it_is_logs_where_the_model_is(job: Job) -> None:
    job.logs(1, UNPLACED, test=0.5)
    job.seconds(SETTLE_S)
    assert job.curve("test") == {50: 0.5}


def test_it_takes_no_step_away_from_the_group_that_goes_on(job: Job) -> None:
    job.logs(1, 49, loss=1.0)
    job.logs(2, UNPLACED, test=0.5)  # the model is in a newer group there
    job.seconds(SETTLE_S)
    job.logs(1, 50, loss=2.0)
    job.logs(1, 51, loss=3.0)
    job.seconds(SETTLE_S)
    assert job.curve() == {49: 1.0, 50: 2.0, 51: 3.0}


def test_what_the_job_has_gone_back_from_is_not_shown_any_more(job: Job) -> None:
    job.logs(1, 40, loss=1.0, auc=0.7)
    job.seconds(SETTLE_S)
    job.logs(1, 20, (2, 1), loss=2.0)
    job.seconds(SETTLE_S)
    assert job.keeping.last() == (LastLogged("loss", 2.0, 20),)


def test_a_full_disk_leaves_a_long_curve_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "MAX_BYTES", 4_000)
    monkeypatch.setattr(curves, "LEAST_POINTS", 4)

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "curves.jsonl"
    file = CurveFile(path)
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", refuse)
        for step in range(100):
            file.add(CurveLine(t=1.0, step=step, samples=step, values={"loss": 1.0}))
            file.flush()
    assert len(read_curves(path).points["loss"]) == 100
    for step in range(100, 200):
        file.add(CurveLine(t=1.0, step=step, samples=step, values={"loss": 1.0}))
        file.flush()
    assert path.stat().st_size < 5_000
    assert [each.name for each in tmp_path.iterdir()] == ["curves.jsonl"]


def test_a_new_master_goes_on_with_the_file(job: Job) -> None:
    first = job.logs(1, 7, loss=1.0)
    job.seconds(SETTLE_S)
    job.begin()
    job.hears(1, first)  # its answer was lost
    job.logs(2, 7, loss=9.0)
    job.logs(1, 8, loss=2.0)
    job.seconds(SETTLE_S)
    assert job.curve() == {7: 1.0, 8: 2.0}


def test_a_new_master_hears_what_the_one_before_has_not_written(job: Job) -> None:
    lost = [job.logs(1, step, loss=float(step)) for step in (7, 8)]
    job.begin()
    job.logs(1, 9, loss=9.0)
    for message in lost:
        job.hears(1, message)
    job.seconds(SETTLE_S)
    assert job.curve() == {7: 7.0, 8: 8.0, 9: 9.0}


def test_what_is_not_finite_is_kept_and_shown(job: Job) -> None:
    for step, value in enumerate([float("nan"), float("inf"), -float("inf")], start=1):
        job.logs(1, step, loss=value)
    job.keeping.close()
    assert [str(value) for value in job.curve().values()] == ["nan", "inf", "-inf"]
    assert all(json.loads(line)["values"]["loss"] for line in job.path.read_text().splitlines())
    assert job.keeping.last() == (LastLogged("loss", "-inf", 3),)
    assert last_logged(job.path) == (LastLogged("loss", "-inf", 3),)


def test_names_are_bounded_and_the_job_says_so_once(job: Job) -> None:
    job.logs(1, 1, **{f"m{k}": 1.0 for k in range(130)})
    job.logs(2, 2, **{f"n{k}": 1.0 for k in range(130)})
    job.keeping.close()
    assert len(read_curves(job.path).points) == 100
    assert job.said.events == [NotLoggedEvent(first="m100", most=100)]


def test_steps_that_wait_are_bounded(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_keeping, "MAX_OPEN", 10)
    for step in range(1, 101):
        job.logs(1, step, loss=float(step))
    job.seconds(0)
    assert job.curve() == {step: float(step) for step in range(1, 92)}
    job.keeping.close()
    assert len(job.curve()) == 100


def test_a_long_curve_takes_bounded_room_and_is_as_dense_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "MAX_BYTES", 40_000)
    monkeypatch.setattr(curves, "LEAST_POINTS", 20)
    path, largest = tmp_path / "curves.jsonl", 0
    file = CurveFile(path)
    for step in range(1, 5001):
        values: dict[str, float | str] = {"loss": 1.0 / step}
        if step % 500 == 0:
            values["auc"] = step / 5000
        file.add(CurveLine(t=float(step), step=step, samples=step, values=values))
        file.flush()
        largest = max(largest, path.stat().st_size)
    file.close()
    assert largest < 41_000
    found = read_curves(path).points
    assert [point.step for point in found["auc"]] == list(range(500, 5001, 500))
    steps = [point.step for point in found["loss"]]
    assert steps[0] == 1 and steps[-1] == 5000
    gaps = [later - sooner for sooner, later in pairwise(steps)][:-1]
    assert max(gaps) <= 2 * min(gaps), "no part of the curve is finer than another"


def test_a_torn_line_costs_its_own_values_only(job: Job) -> None:
    job.logs(1, 7, loss=1.0)
    job.keeping.close()
    with job.path.open("a") as file:
        file.write('{"t": 1.0, "step": 8, "sam\n')
    job.begin()
    job.logs(1, 9, loss=2.0)
    job.keeping.close()
    assert job.curve() == {7: 1.0, 9: 2.0}
