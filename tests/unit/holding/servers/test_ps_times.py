"""What a worker is told of its step's time by servers, with one worker that is late."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.protocol.holding.servers.server_acts import Key
from paceline.runtime.holding.servers.port import PulledModel
from paceline.runtime.holding.servers.pulling import Pulling
from paceline.runtime.server.server import ServerProcess
from tests.unit.holding.servers.ps_world import World, gradients, world

LATE_S, UPDATE_S, STEPS = 0.2, 0.08, 4


class SlowUpdates(ServerProcess):
    def _apply(self, keys: Sequence[Key], factor: float) -> None:
        time.sleep(UPDATE_S)
        super()._apply(keys, factor)


def train(job: World, rank: int, compute_s: float, told: list[tuple[PulledModel, float]]) -> None:
    """As `ServersLoop` does: the next pull begins right after the push."""
    trainer = job.trainer(rank)
    staged = None
    for _ in range(job.steps):
        start_s = time.monotonic()
        work = trainer.next_work(0)
        assert work is not None
        if work is not staged:
            trainer.start_pull(work, {})
        pulled = trainer.wait_pull(work)
        assert pulled is not None
        told.append((pulled, time.monotonic() - start_s))
        time.sleep(compute_s)
        trainer.push([work], gradients())
        for staged in trainer.upcoming(0, 1):
            trainer.start_pull(staged, {})
    trainer.drain()


def test_a_prompt_worker_is_not_told_that_the_wire_is_as_slow_as_the_late_one(
    tmp_path: Path,
) -> None:
    prompt, late = list[tuple[PulledModel, float]](), list[tuple[PulledModel, float]]()
    with world(tmp_path, workers=2, steps=STEPS, server=SlowUpdates) as job:
        other = threading.Thread(target=train, args=(job, 1, LATE_S, late))
        other.start()
        train(job, 0, 0.0, prompt)
        other.join()
        page = job.process.reader.read()
    assert len(prompt) == len(late) == STEPS
    # Without the first, which compiles. All together: a busy machine may hold up the prompt one.
    assert sum(waited_s for _, waited_s in prompt[1:]) > (STEPS - 1) * LATE_S, "it was early"
    for told in (prompt[1:], late[1:]):
        # The least of them, since a busy machine only adds.
        assert min(pulled.message_s for pulled, _ in told) < LATE_S / 2
        # Neither with the update nor with the other's answer, whoever completes the step.
        assert min(pulled.server_s for pulled, _ in told) < UPDATE_S / 2
    assert page is not None
    assert sum(r.server_s * r.samples for r in page.records) > (STEPS - 1) * UPDATE_S


def test_a_pull_that_is_asked_for_anew_has_not_been_under_way_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(perf_counter=iter((1.0, 5.0)).__next__)
    monkeypatch.setattr("paceline.runtime.holding.servers.pulling.time", clock)
    pulling = Pulling(None, None, 1)  # type: ignore[arg-type]
    pulling.ask_again(None, 2)  # type: ignore[arg-type]
    assert pulling.start_s == 5.0


def test_a_server_without_anything_to_do_says_that_it_lives(tmp_path: Path) -> None:
    with world(tmp_path, workers=1, steps=1) as job:
        assert job.process.repeated.wait(5.0)
