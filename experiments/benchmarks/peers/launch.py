"""How each peer starts the script of `allreduce_recovery.py`: as its own documents say, locally."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

STOP_S = 10.0


def torchrun(python: Path, workers: int, *flags: str) -> list[str]:
    """The command of torchrun as it is installed, for one machine."""
    return [
        *(str(python), "-m", "torch.distributed.run", *flags),
        *(f"--nproc-per-node={workers}", "--max-restarts=1000"),
    ]


@contextlib.contextmanager
def by_torchrun(
    python: Path, workers: int, script: Sequence[str], log: Path
) -> Iterator[Sequence["subprocess.Popen[bytes]"]]:
    """Start one agent, which restarts all workers."""
    command = [*torchrun(python, workers, "--standalone"), *script]
    with launched({"torchrun": command}, log) as processes:
        yield processes


@contextlib.contextmanager
def by_dlrover(
    python: Path, workers: int, script: Sequence[str], log: Path
) -> Iterator[Sequence["subprocess.Popen[bytes]"]]:
    """Do the same by ``dlrover-run``, which starts a master for itself."""
    command = [
        *(str(python.with_name("dlrover-run")), "--standalone"),
        *(f"--nproc-per-node={workers}", "--max-restarts=1000", *script),
    ]
    memory = Path("/dev/shm")  # where it puts checkpoints, and leaves them
    before = set(memory.iterdir())
    try:
        with launched({"dlrover": command}, log) as processes:
            yield processes
    finally:
        for path in set(memory.glob("*_ckpt_shm_*")) - before:
            path.unlink()


@contextlib.contextmanager
def by_torchft(
    python: Path, workers: int, script: Sequence[str], log: Path, join_ms: int, heartbeat_ms: int
) -> Iterator[Sequence["subprocess.Popen[bytes]"]]:
    """A lighthouse, and a replica group of one worker for each, under a torchrun of its own."""
    lighthouse, *stores = free_ports(1 + workers)
    commands = {
        "lighthouse": [
            *(str(python.with_name("torchft_lighthouse")), "--bind", f"127.0.0.1:{lighthouse}"),
            *("--min_replicas", "1", "--quorum_tick_ms", "100"),
            *("--join_timeout_ms", str(join_ms), "--heartbeat_timeout_ms", str(heartbeat_ms)),
        ]
    } | {
        f"group-{number}": [*torchrun(python, 1, f"--master-port={port}", "--nnodes=1"), *script]
        for number, port in enumerate(stores)
    }
    shared = {
        "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{lighthouse}",
        "NUM_REPLICA_GROUPS": str(workers),
    }
    own = {f"group-{number}": {"REPLICA_GROUP_ID": str(number)} for number in range(workers)}
    with launched(commands, log, shared, own) as processes:
        yield processes


@contextlib.contextmanager
def launched(
    commands: dict[str, list[str]],
    log: Path,
    shared: dict[str, str] | None = None,
    own: dict[str, dict[str, str]] | None = None,
) -> Iterator[Sequence["subprocess.Popen[bytes]"]]:
    """Start these processes; afterwards leave none of them, nor any that they started.

    Without what a job of ours would set, and with one thread for each, as ours have.

    Args:
        commands: by the name of a log.
        log: folder.
        shared: variables of all.
        own: variables of some.
    """
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PACELINE_")}
    with tempfile.TemporaryDirectory(prefix="paceline-peer-") as folder:
        # What they leave in their temporary folder goes with it.
        base = plain | {"OMP_NUM_THREADS": "1", "TMPDIR": folder} | (shared or {})
        processes = []
        try:
            for name, command in commands.items():
                with (log / f"{name}.log").open("wb") as file:
                    environment = base | (own or {}).get(name, {})
                    processes.append(
                        subprocess.Popen(
                            command,
                            stdout=file,
                            stderr=file,
                            start_new_session=True,
                            env=environment,
                        )
                    )
            yield processes
        finally:
            # Of all of them there may be some in sessions of their own; all have this folder.
            mark = f"TMPDIR={folder}".encode()
            end(processes, mark)


def end(processes: Sequence["subprocess.Popen[bytes]"], mark: bytes) -> None:
    """End processes in order if they will; end at once what has ``mark`` in its environment."""
    for process in processes:
        process.terminate()
    deadline_s = time.monotonic() + STOP_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline_s - time.monotonic()))
    for pid in with_variable(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def with_variable(mark: bytes) -> list[int]:
    """The processes that were started with this variable, ``NAME=value``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def free_ports(number: int) -> list[int]:
    """Return so many ports of loopback that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
