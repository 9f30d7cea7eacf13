"""Agents with real processes, under a master that only records and orders."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from paceline.base.cgroups import create_node_group, find_node_group, remove_job
from paceline.base.jobdir import JobDir
from paceline.base.processes import (
    FoundProcess,
    find_job_process,
    find_job_processes,
    kill_quietly,
    start_detached,
    try_lock,
)
from paceline.jobs.outcome import Outcome, write_outcome
from paceline.runtime.process.process import EXIT_TERMINATED
from paceline.wire.client import Call, Done, Reply
from paceline.wire.control import AgentStream, ControlServer
from paceline.wire.messages.agent import (
    AgentDown,
    AgentHello,
    AgentUp,
    FromProcess,
    Heartbeat,
    Leave,
    NodeFacts,
    ProcessExited,
    StartProcess,
    StopProcess,
)
from paceline.wire.messages.node import ProcessUp, ScriptError
from paceline.wire.spec import JobSpec, NodeSpec, save

NODE = "worker-0"
PATIENCE_S = 60.0

WAITING_SCRIPT = """
import os, pathlib, signal, sys, time
pathlib.Path(sys.argv[1], f"up.{os.environ['PACELINE_INC']}").write_text(str(time.time()))
from paceline.runtime.process.process import current
while not current().stop_requested:
    current().link.receive()
    current().keep_link()
    time.sleep(0.02)
"""


class FakeMaster:
    """Records what agents say; sends what a test tells it to."""

    def __init__(self, job: JobDir, node: str) -> None:
        self.job = job
        self.node = node
        self.seen: list[AgentUp] = []
        self.streams: list[AgentStream] = []
        self.agents: list[subprocess.Popen[bytes]] = []
        self.supervisor_lock = -1
        """Held for the job, so that its agent starts no supervisor, and that no real master."""
        self._server: ControlServer | None = None
        self._news = asyncio.Event()

    async def start(self) -> None:
        self._server = ControlServer(self.job.secret(), self._on_agent, self._on_call)
        await self._server.start(path=self.job.master_socket)

    async def stop(self) -> None:
        if self._server:
            await self._server.stop()
        self._server = None

    def launch_agent(self) -> subprocess.Popen[bytes]:
        arguments = ["--job-dir", str(self.job.path), "--node", self.node]
        log = self.job.logs / "agents.log"
        self.agents.append(start_detached("paceline.agent", arguments, self.job.path, log))
        return self.agents[-1]

    async def _on_agent(self, stream: AgentStream) -> None:
        self.streams.append(stream)
        async for message in stream:
            self.seen.append(message)
            self._news.set()
        self.streams.remove(stream)
        self._news.set()

    async def _on_call(self, call: Call) -> Reply:
        return Done()

    def send(self, message: AgentDown) -> None:
        for stream in self.streams:
            stream.send_nowait(message)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.05)

    async def message(self, matches: Callable[[AgentUp], bool]) -> AgentUp:
        await self.until(lambda: any(map(matches, self.seen)))
        return next(filter(matches, self.seen))

    async def hello(self) -> AgentHello:
        found = await self.message(lambda m: isinstance(m, AgentHello))
        assert isinstance(found, AgentHello)
        return found

    async def up(self, inc: int) -> ProcessUp:
        def is_it(message: AgentUp) -> bool:
            return (
                isinstance(message, FromProcess)
                and isinstance(message.body, ProcessUp)
                and message.body.inc == inc
            )

        found = await self.message(is_it)
        assert isinstance(found, FromProcess)
        assert isinstance(found.body, ProcessUp)
        return found.body

    async def exited(self, inc: int) -> ProcessExited:
        found = await self.message(lambda m: isinstance(m, ProcessExited) and m.inc == inc)
        assert isinstance(found, ProcessExited)
        return found


def start(inc: int) -> StartProcess:
    return StartProcess(inc=inc, role="worker", rank=0, num_workers=1)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobDir]:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = JobDir.create("node-plane")
    yield job
    # What a supervisor would remove at the end.
    shutil.rmtree(job.run_dir)
    assert remove_job(job.job_id)


@contextlib.asynccontextmanager
async def running_agent(
    job: JobDir, script: str, workers: NodeSpec | None = None, node: str = NODE
) -> AsyncIterator[FakeMaster]:
    """A fake master with one agent; afterwards nothing of the job may be left."""
    path = job.path / "train.py"
    path.write_text(script)
    spec = JobSpec(script=str(path), args=(str(job.path),), workers=workers or NodeSpec())
    save(spec, job.spec)
    master = FakeMaster(job, node)
    lock = try_lock(job.supervisor_lock)
    assert lock is not None
    await master.start()
    master.supervisor_lock = lock
    master.launch_agent()
    try:
        yield master
        master.send(Leave())
        await master.until(lambda: not find_job_processes(job.path))
        assert {path.name for path in job.run_dir.iterdir()} <= {"master.sock"}
        assert find_node_group(job.job_id, node).join_files == ()
    finally:
        for process in find_job_processes(job.path):
            kill_quietly(process.pid)
        for agent in master.agents:
            agent.wait()
        os.close(master.supervisor_lock)
        await master.stop()


def find(job: JobDir, module: str, other_than: int) -> FoundProcess:
    found = find_job_processes(job.path)
    return next(p for p in found if p.runs(module) and p.pid != other_than)


def test_an_agent_runs_stops_and_leaves_in_order(job: JobDir) -> None:
    async def scenario() -> None:
        async with running_agent(job, WAITING_SCRIPT) as master:
            hello = await master.hello()
            assert hello.running == ()
            master.send(start(1))
            master.send(start(1))
            up = await master.up(1)
            assert up.role == "worker"
            master.send(StopProcess(inc=1, grace_s=5.0))
            exited = await master.exited(1)
            assert exited.evidence.exit_code == EXIT_TERMINATED
            assert exited.evidence.stopped_by_us
            said = [m.body for m in master.seen if isinstance(m, FromProcess)]
            assert [type(body) for body in said] == [ProcessUp], (
                "a terminated script is not finished"
            )

    asyncio.run(scenario())


def test_a_process_killed_again_and_again_is_up_again_each_time(job: JobDir) -> None:
    async def scenario() -> None:
        async with running_agent(job, WAITING_SCRIPT) as master:
            await master.hello()
            master.send(start(1))
            up = await master.up(1)
            for inc in range(2, 7):
                os.kill(up.pid, signal.SIGKILL)
                exited = await master.exited(inc - 1)
                assert exited.evidence.signal == signal.SIGKILL
                master.send(start(inc))
                up = await master.up(inc)
                mark = job.path / f"up.{inc}"
                await master.until(lambda mark=mark: mark.exists() and mark.stat().st_size > 0)

    asyncio.run(scenario())


def test_a_server_says_where_it_listens_and_ends_when_stopped(job: JobDir) -> None:
    async def scenario() -> None:
        async with running_agent(job, "", node="server-0") as master:
            await master.hello()
            master.send(StartProcess(inc=1, role="server", rank=0, num_workers=1))

            def has_address(message: AgentUp) -> bool:
                return (
                    isinstance(message, FromProcess)
                    and isinstance(message.body, ProcessUp)
                    and message.body.address != ""
                )

            await master.message(has_address)
            master.send(StopProcess(inc=1, grace_s=5.0))
            assert (await master.exited(1)).evidence.exit_code == 0

    asyncio.run(scenario())


def test_a_zygote_has_one_thread_when_it_forks(job: JobDir) -> None:
    async def scenario() -> None:
        async with running_agent(job, WAITING_SCRIPT) as master:
            await master.hello()
            master.send(start(1))
            up = await master.up(1)
            zygote = find(job, "paceline.runtime.process.zygote", other_than=up.pid)
            assert len(os.listdir(f"/proc/{zygote.pid}/task")) == 1

    asyncio.run(scenario())


RAISING_SCRIPT = """print('hello')
def train():
    return {}['key']
train()
"""
EXITING_SCRIPT = "import sys; sys.exit(42)"
STUBBORN_SCRIPT = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    time.sleep(0.01)
"""
SPAWNING_SCRIPT = "import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True)"


def test_the_master_is_told_how_each_life_ended(job: JobDir) -> None:
    async def scenario() -> None:
        async with running_agent(job, RAISING_SCRIPT) as master:
            await master.hello()
            master.send(start(1))
            check_user_error(await master.exited(1), master)

            (job.path / "train.py").write_text(EXITING_SCRIPT)
            master.send(start(2))
            assert (await master.exited(2)).evidence.exit_code == 42

            (job.path / "train.py").write_text(STUBBORN_SCRIPT)
            master.send(start(3))
            await master.up(3)
            master.send(StopProcess(inc=3, grace_s=0.2))
            evidence = (await master.exited(3)).evidence
            assert evidence.stopped_by_us
            assert evidence.exit_code is None

            (job.path / "train.py").write_text(SPAWNING_SCRIPT)
            master.send(start(4))
            assert (await master.exited(4)).evidence.exit_code == 0
            await master.until(
                lambda: all(p.argv[0] != "sleep" for p in find_job_processes(job.path))
            )

    asyncio.run(scenario())


def check_user_error(exited: ProcessExited, master: FakeMaster) -> None:
    said = [m.body for m in master.seen if isinstance(m, FromProcess)]
    error = said[-1]
    assert isinstance(error, ScriptError)
    assert error.kind == "KeyError"
    assert error.in_user_code
    first, second = error.traceback.splitlines()[:2]
    assert first == "Traceback (most recent call last):"
    assert second.endswith('train.py", line 4, in <module>')
    assert "paceline/runtime" not in error.traceback
    assert exited.evidence.exit_code == 1
    assert exited.evidence.log_tail == "hello\n" + error.traceback.rstrip()


def test_a_new_agent_adopts_the_process_of_a_killed_one(job: JobDir) -> None:
    async def scenario() -> None:
        async with running_agent(job, WAITING_SCRIPT) as master:
            first = await master.hello()
            master.send(start(1))
            up = await master.up(1)
            os.kill(first.agent_pid, signal.SIGKILL)
            await master.until(lambda: not master.streams)
            master.seen.clear()
            successor = master.launch_agent()
            hello = await master.hello()
            assert hello.agent_pid == successor.pid
            assert hello.running == (up,)
            os.kill(up.pid, signal.SIGKILL)
            evidence = (await master.exited(1)).evidence
            assert (evidence.exit_code, evidence.signal) == (None, None)
            master.send(start(2))
            await master.up(2)

    asyncio.run(scenario())


def test_the_newest_agent_of_a_node_takes_the_place_of_one_that_hangs(job: JobDir) -> None:
    async def scenario() -> None:
        async with running_agent(job, WAITING_SCRIPT) as master:
            first = await master.hello()
            os.kill(first.agent_pid, signal.SIGSTOP)
            master.seen.clear()
            successor = master.launch_agent()
            assert (await master.hello()).agent_pid == successor.pid
            await master.until(lambda: len(master.streams) == 1)

    asyncio.run(scenario())


def test_a_killed_zygote_costs_neither_the_process_nor_the_next_one(job: JobDir) -> None:
    async def scenario() -> None:
        async with running_agent(job, WAITING_SCRIPT) as master:
            await master.hello()
            master.send(start(1))
            up = await master.up(1)
            os.kill(
                find(job, "paceline.runtime.process.zygote", other_than=up.pid).pid, signal.SIGKILL
            )
            await master.until(lambda: len(find_job_processes(job.path)) == 3)
            os.kill(up.pid, signal.SIGKILL)
            assert (await master.exited(1)).evidence.exit_code is None
            master.send(start(2))
            await master.up(2)

    asyncio.run(scenario())


def test_a_process_goes_on_without_a_master_and_the_next_one_is_told_all(job: JobDir) -> None:
    async def scenario() -> None:
        async with running_agent(job, WAITING_SCRIPT) as master:
            await master.hello()
            master.send(start(1))
            up = await master.up(1)
            await master.stop()
            master.seen.clear()
            await master.start()
            assert (await master.hello()).running == (up,)
            await master.stop()
            master.seen.clear()
            os.kill(up.pid, signal.SIGTERM)
            await master.until(lambda: find_job_process(up.pid, job.path) is None)
            await master.start()
            assert (await master.exited(1)).evidence.exit_code == EXIT_TERMINATED
            told = [m for m in master.seen if not isinstance(m, Heartbeat)]
            assert told[-1] == await master.exited(1)

    asyncio.run(scenario())


def test_a_terminated_agent_takes_its_process_along_in_order(job: JobDir) -> None:
    async def scenario() -> None:
        async with running_agent(job, WAITING_SCRIPT) as master:
            hello = await master.hello()
            master.send(start(1))
            await master.up(1)
            os.kill(hello.agent_pid, signal.SIGTERM)
            assert (await master.exited(1)).evidence.exit_code == EXIT_TERMINATED
            await master.until(lambda: not find_job_processes(job.path))

    asyncio.run(scenario())


def limits_are_permitted() -> bool:
    group, note = create_node_group("test-probe", "node", 1.0, 1 << 30)
    group.remove()
    remove_job("test-probe")
    return not note


def test_an_agent_tells_the_master_of_a_limit_that_it_cannot_set(job: JobDir) -> None:
    # More than the kernel's largest quota: refused also where limits are permitted.
    async def scenario() -> None:
        async with running_agent(job, WAITING_SCRIPT, NodeSpec(cpu=(1e12,))) as master:
            hello = await master.hello()
            assert hello.note.startswith(f"{NODE} runs without limits (cpu limit ")

    asyncio.run(scenario())


needs_limits = pytest.mark.skipif(
    not limits_are_permitted(), reason="control groups are not permitted here"
)


@needs_limits
def test_a_process_above_its_memory_limit_is_recognised_by_the_kernels_counter(
    job: JobDir,
) -> None:
    script = "block = bytearray(2 << 30)\n"

    async def scenario() -> None:
        async with running_agent(job, script, NodeSpec(memory_bytes=700 << 20)) as master:
            await master.hello()
            master.send(start(1))
            evidence = (await master.exited(1)).evidence
            assert evidence.signal == signal.SIGKILL
            assert evidence.oom_kills == 1

    asyncio.run(scenario())


def test_heartbeats_tell_steps_and_what_they_cost(job: JobDir) -> None:
    script = """
import time
from paceline.runtime.process.process import current
process = current()
for step in range(1, 11):
    process.ledger.write(step=step, t_start_s=time.monotonic(), bpt_s=0.2, compute_s=0.1,
                         server_s=0.05, message_s=0.03, wait_s=0.02, samples=64)
while not process.stop_requested:
    pass
"""

    async def scenario() -> None:
        async with running_agent(job, script) as master:
            await master.hello()
            master.send(start(1))
            await master.up(1)

            def facts() -> list[NodeFacts]:
                return [m.facts for m in master.seen if isinstance(m, Heartbeat) and m.facts]

            # A beat may come between two steps, or before the kernel has counted a tick of cpu.
            await master.until(lambda: sum(f.steps for f in facts()) == 10)
            await master.until(lambda: facts()[-1].cpu_s > 0)
            with_steps = [f for f in facts() if f.steps]
            assert (with_steps[-1].step, with_steps[-1].samples) == (10, 640)
            for beat in with_steps:
                assert beat.bpt_s == pytest.approx(0.2)
                assert beat.compute_s == pytest.approx(0.1)
            assert facts()[-1].rss_bytes > 1 << 20
            assert facts()[-1].samples == 640

    asyncio.run(scenario())


def test_an_agent_starts_a_supervisor_when_there_is_none(job: JobDir) -> None:
    async def scenario() -> None:
        async with running_agent(job, WAITING_SCRIPT) as master:
            hello = await master.hello()
            # The new supervisor sees a living master, and so does nothing but watch.
            lock = try_lock(job.master_lock)
            assert lock is not None
            os.close(master.supervisor_lock)
            await master.until(
                lambda: any(p.runs("paceline.supervisor") for p in find_job_processes(job.path))
            )
            await master.until(job.events.exists)
            write_outcome(Outcome(state="finished", exit_code=0), job.outcome)
            # It removes what is left of the job, the agent included.
            await master.until(lambda: not find_job_processes(job.path))
            assert find_job_process(hello.agent_pid, job.path) is None
            assert not job.run_dir.exists()
            os.close(lock)
            master.supervisor_lock = os.open(os.devnull, os.O_RDONLY)
            job.make_run_dir()

    asyncio.run(scenario())


SLOW_TO_IMPORT = ("torch", "numba", "matplotlib", "pyarrow", "sqlalchemy", "rich", "unittest")


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("paceline.agent.__main__", ""),
        ("paceline.backends.local.backend", ""),
        ("paceline.cli.main", "rich"),
        ("paceline.master.__main__", ""),
        ("paceline.runtime.process.running", ""),  # all that the zygote of a program imports
        ("paceline.runtime.server.server", "numba"),
        ("paceline.runtime.process.zygote", ""),
        ("paceline.supervisor.__main__", ""),
    ],
)
def test_processes_around_training_import_nothing_slow(module: str, allowed: str) -> None:
    # So that they start in half a second; `experiments/benchmarks/control_start.py` times them.
    code = f"import {module}, sys; print(*sorted(set({SLOW_TO_IMPORT}) & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == allowed
