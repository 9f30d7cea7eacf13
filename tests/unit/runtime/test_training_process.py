"""The training process: its link, its stop flag, and what a user sees of an error."""

import os
import runpy
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.optim import SGD

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.node_files import NodeFiles
from paceline.runtime.holding.local.strategy import Local
from paceline.runtime.process import process as process_module
from paceline.runtime.process import running
from paceline.runtime.process.exchange import Exchange
from paceline.runtime.process.main_module import (
    kind_of,
    raised_in_user_code,
    user_line,
    user_traceback,
)
from paceline.runtime.process.process import AgentLost, Process
from paceline.runtime.process.running import exit_code
from paceline.runtime.script import job as job_module
from paceline.runtime.script.job import Job
from paceline.wire.messages.node import Finished, ProcessUp
from paceline.wire.spec import JobSpec, save


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    monkeypatch.setitem(
        sys.modules, "__main__", sys.modules["__main__"]
    )  # a script takes its place
    monkeypatch.setattr(sys, "path", [*sys.path])
    job = JobDir.create("process")
    save(JobSpec(script="train.py"), job.spec)
    handler = signal.getsignal(signal.SIGTERM)
    up = ProcessUp(node="server-0", inc=7, pid=os.getpid(), role="server")
    yield Process(job, up, rank=0, num_workers=2)
    signal.signal(signal.SIGTERM, handler)
    shutil.rmtree(job.run_dir)


def test_a_process_goes_on_without_an_agent_for_a_while_only(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not process.keep_link()
    monkeypatch.setattr(process_module, "AGENT_WAIT_S", 0.0)
    with pytest.raises(AgentLost) as lost:
        process.keep_link()
    assert lost.value.code == process_module.EXIT_NO_AGENT
    assert not isinstance(lost.value, Exception)


def said_at_its_end(
    process: Process, script: Callable[[JobSpec], None], monkeypatch: pytest.MonkeyPatch
) -> list[object]:
    """What the master hears of a process whose script this is."""
    monkeypatch.setattr(process_module, "_current", process)
    monkeypatch.setattr(running, "_run_to_its_end", script)
    sent: list[object] = []
    monkeypatch.setattr(process.link, "send", sent.append)
    assert running.run_script(process) == 0
    return sent


@pytest.mark.parametrize("leaves", [False, True])
def test_a_loop_that_the_script_has_left_is_told_with_the_step(
    process: Process, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)

    def script(_: JobSpec) -> None:
        job = Job(Local(JobSpec(script="train.py")))
        job.prepare(model, optimizer)
        for number, x in enumerate(job.batches(torch.ones(64, 1), batch_size=16)):
            process.step = 40 + number
            model(x).sum().backward()
            optimizer.step()
            if leaves and number == 1:
                break
        for x in job.batches(torch.ones(64, 1), batch_size=16):
            model(x).sum().backward()
            optimizer.step()

    assert said_at_its_end(process, script, monkeypatch) == [
        Finished(inc=7, joined=False, left_step=2 if leaves else None)
    ]


def test_a_loop_that_the_script_never_left_is_told_with_the_step_at_its_end(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(Local(JobSpec(script="train.py")))
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    batches = job.batches(torch.ones(64, 1), batch_size=16)

    def script(_: JobSpec) -> None:
        for _ in range(3):
            model(next(batches)).sum().backward()
            optimizer.step()

    assert said_at_its_end(process, script, monkeypatch) == [
        Finished(inc=7, joined=False, left_step=3)
    ]


def test_sigterm_asks_for_a_stop_and_does_no_more(process: Process) -> None:
    assert not process.stop_requested
    os.kill(os.getpid(), signal.SIGTERM)
    assert process.stop_requested


def test_sigterm_after_the_master_s_word_does_not_end_the_step(process: Process) -> None:
    process.stop_requested = process.told_to_stop = True
    os.kill(os.getpid(), signal.SIGTERM)  # would end this very process
    assert process.stop_requested


def test_what_the_script_forks_ends_by_a_signal_and_says_nothing(process: Process) -> None:
    ended = []
    process.at_end = lambda: ended.append("at_end")
    process.at_fork = lambda: ended.append("at_fork")
    pid = os.fork()
    if pid == 0:
        try:
            process.leave_to_fork()
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    process.leave_to_fork()
    process.at_end()
    assert ended == ["at_fork"]
    assert not process.link.send(Finished(inc=7))


def test_a_handler_of_the_script_s_own_stays_in_what_it_forks(process: Process) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    process.leave_to_fork()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_job_is_begun_once_and_by_its_own_process(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_NODE", "worker-0")
    monkeypatch.setattr(process_module, "_current", process)
    process.join(lambda: None)
    with pytest.raises(ConfigError, match="Trainer, which has joined the job already"):
        pl.init()
    once = SimpleNamespace(_strategy=SimpleNamespace(takes_trainings=False))
    monkeypatch.setattr(job_module, "_newest", once)
    with pytest.raises(ConfigError, match=r"called again .* `paceline run train.py -- --fold 1`"):
        pl.init()
    process.is_fork = True
    with pytest.raises(ConfigError, match="was started by the script of a job"):
        pl.init()
    monkeypatch.setattr(process_module, "_current", None)  # as in one that it spawned
    with pytest.raises(ConfigError, match="remove PACELINE_NODE from the environment"):
        pl.init()


def test_nobody_waits_for_the_job_in_what_the_script_forks(process: Process) -> None:
    exchange = Exchange(process, SimpleNamespace(), arena_bytes=0)  # type: ignore[arg-type]
    held = threading.Thread(target=exchange.changed.acquire)
    held.start()
    held.join()
    process.at_fork()
    with exchange.changed, pytest.raises(ConfigError, match="process that the script forked"):
        exchange.check()
    exchange.data.close()


def test_a_folder_that_is_gone_is_told_and_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cwd: got .*/gone, .*No such file"):
        running._enter(str(tmp_path / "gone"))


def test_an_announced_address_is_what_a_later_agent_finds(process: Process) -> None:
    process.announce("tcp://127.0.0.1:4711")
    recorded = NodeFiles(process.job, "server-0").process.read_bytes()
    assert msgspec.json.decode(recorded, type=ProcessUp) == ProcessUp(
        node="server-0", inc=7, pid=os.getpid(), role="server", address="tcp://127.0.0.1:4711"
    )


def test_a_server_that_has_nothing_to_say_repeats_where_it_listens(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    process.announce("tcp://127.0.0.1:4711")
    monkeypatch.setattr(process.link, "send", sent.append)
    process.repeat_announcement()
    assert [up.address for up in sent] == ["tcp://127.0.0.1:4711"]  # type: ignore[attr-defined]


class CustomError(Exception):
    pass


def raised(script: str, path: Path) -> BaseException:
    """What running the script raises, as `run_script` catches it."""
    path.write_text(script)
    with pytest.raises(BaseException) as caught:
        runpy.run_path(str(path), run_name="__main__")
    return caught.value


def launched(error: BaseException) -> str:
    """The traceback as `run_script` would print it: this test's own frame is the launcher's."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    trace = user_traceback(error.with_traceback(trace))
    return "".join(traceback.format_exception(type(error), error, trace))


def test_the_traceback_begins_with_the_users_frame(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = launched(raised("def f():\n    1 / 0\nf()\n", script))
    assert text.splitlines()[1] == f'  File "{script}", line 3, in <module>'
    assert "runpy" not in text


def test_an_error_of_the_user_inside_a_library_is_the_users(tmp_path: Path) -> None:
    error = raised("import json\njson.loads('{')\n", tmp_path / "train.py")
    assert raised_in_user_code(user_traceback(error))
    assert kind_of(error) == "json.decoder.JSONDecodeError"


def test_an_error_in_paceline_is_not_the_users(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path\n"
        "from paceline.base.jobdir import JobDir\n"
        "JobDir(Path('/nonexistent')).secret()\n"
    )
    error = raised(script, tmp_path / "train.py")
    assert not raised_in_user_code(error.__traceback__)


def test_a_callback_of_the_user_under_paceline_is_the_users(tmp_path: Path) -> None:
    script = (
        "from paceline.base.samples import SampleSet\n"
        "class Mine:\n"
        "    def __iter__(self):\n"
        "        raise RuntimeError('mine')\n"
        "SampleSet(Mine())\n"
    )
    error = raised(script, tmp_path / "train.py")
    assert kind_of(error) == "RuntimeError"
    assert raised_in_user_code(error.__traceback__)


def test_an_error_of_a_scheduler_is_the_users_and_has_a_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    wrapped = (
        "import torch\n"
        "from paceline.runtime.script.given import takes_norm_alone\n"
        "optimizer = torch.optim.SGD([torch.ones(1)], lr=1.0); import inspect; rate = type('Rate', "
        "(torch.optim.lr_scheduler.OneCycleLR,), "
        "{'__signature__': inspect.signature(lambda optimizer, max_norm: 0)})\n"
        "def steps(number):\n"
        "    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=-number)\n"
        "def reads(number):\n"
        "    return takes_norm_alone(number)\n"
        "def passes(number):\n"
        "    takes_norm_alone(rate)(optimizer, 1.0)\n"
    )
    error = raised(f"{wrapped}steps(1)\n", script)
    assert raised_in_user_code(error.__traceback__)
    assert user_line(error.__traceback__) == "train.py, line 5"
    error = raised(f"{wrapped}passes(1)\n", script)
    assert kind_of(error) == "ValueError", "by way of paceline"
    assert raised_in_user_code(error.__traceback__)
    assert user_line(error.__traceback__) == "train.py, line 9"
    error = raised(f"{wrapped}reads(1)\n", script)
    assert not raised_in_user_code(error.__traceback__)
    assert user_line(error.__traceback__) == "train.py, line 7"


def test_a_script_that_does_not_compile_is_the_users_error(tmp_path: Path) -> None:
    error = raised("def f(:\n", tmp_path / "train.py")
    assert user_traceback(error.with_traceback(None)) is None
    assert raised_in_user_code(None)
    assert "train.py" in launched(error)


@pytest.mark.parametrize(
    ("argument", "code"), [(None, 0), (0, 0), (7, 7), ("a text is printed", 1)]
)
def test_exit_codes_are_mapped_as_python_maps_them(argument: object, code: int) -> None:
    assert exit_code(SystemExit(argument)) == code


@pytest.mark.parametrize(
    ("script", "ends_well"),
    [
        ("", True),
        ("import sys; sys.exit(0)", True),
        ("import sys; sys.exit()", True),
        ("import sys; sys.exit(3)", False),
        ("raise KeyError", False),
    ],
)
def test_what_is_trained_is_handed_over_when_the_script_has_come_to_its_end(
    process: Process,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    *,
    ends_well: bool,
) -> None:
    monkeypatch.chdir(tmp_path)  # where the process goes, and is brought back from
    path = tmp_path / "train.py"
    path.write_text(script)
    process.spec = JobSpec(script=str(path), strategy="allreduce", cwd=str(tmp_path))
    handed: list[str] = []
    process.join(lambda: handed.append("over"))
    assert (running.run_script(process) == 0) == ends_well
    assert bool(handed) == ends_well


@pytest.mark.parametrize("error", [process_module.Fenced, AgentLost])
def test_what_became_of_others_is_no_error_of_the_script(
    process: Process, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Any
) -> None:
    def run(_: JobSpec) -> None:
        raise error

    sent: list[object] = []
    monkeypatch.setattr(running, "_run", run)
    monkeypatch.setattr(process.link, "send", sent.append)
    assert running.run_script(process) == error.exit_code
    assert (sent, capfd.readouterr().err) == ([], "")


def test_errors_are_named_by_their_qualified_class() -> None:
    assert kind_of(KeyError()) == "KeyError"
    assert kind_of(CustomError()).endswith("test_training_process.CustomError")
