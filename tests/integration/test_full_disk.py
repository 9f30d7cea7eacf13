"""A master whose disk is full for a while, over fakes of everything else."""

import asyncio
from pathlib import Path

from paceline.jobs.outcome import make_room
from paceline.wire.client import Done, StopJob
from paceline.wire.messages.agent import ExitEvidence
from tests.conftest import fill
from tests.integration.test_master import Bench, make_spec, play

SPEC = make_spec()


def test_a_job_on_a_full_disk_stands_still_and_goes_on_when_there_is_room(
    small_disk: Path,
) -> None:
    async def body(bench: Bench) -> None:
        bench.world.work_s = 0.05
        await bench.until(lambda: bench.progress > 300)
        ballast = fill(small_disk)
        await bench.until(lambda: bool(bench.master.parts.outbox.refused))
        bench.backend.agents["worker-1"].end_process(ExitEvidence(signal=9))
        await asyncio.sleep(1.5)  # longer than anybody may be silent
        assert (await bench.status()).state == "training"
        assert bench.event_names()[-1] == "disk_refuses"
        ballast.unlink()
        bench.world.work_s = 0.001
        outcome = await bench.done()
        bench.assert_each_sample_once()
        assert outcome.state == "finished"
        names = bench.event_names()
        assert names.count("disk_refuses") == names.count("disk_heals") == 1
        assert "node_lost" not in names

    play(small_disk, body, SPEC)


def test_a_job_that_is_stopped_at_once_on_a_full_disk_ends_and_can_be_resumed(
    small_disk: Path,
) -> None:
    async def body(bench: Bench) -> None:
        make_room(bench.job.outcome)
        bench.world.work_s = 0.05
        await bench.until(lambda: bench.has_cut_of(200))
        ballast = fill(small_disk)
        await bench.until(lambda: bool(bench.master.parts.outbox.refused))
        reply = await bench.call(StopJob())
        assert isinstance(reply, Done)
        assert "no space left on" in reply.error
        assert await bench.call(StopJob(now=True)) == Done()
        outcome = await bench.running
        assert outcome.state == "stopped"
        ballast.unlink()
        bench.job.outcome.unlink()
        bench.backend.agents.clear()
        bench.world.work_s = 0.001
        bench.start_master()
        assert (await bench.done()).state == "finished"
        bench.assert_each_sample_once()
        assert bench.world.epoch_no == 2

    play(small_disk, body, SPEC)
