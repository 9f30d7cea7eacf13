"""Faults of a storm: which, when, on whom; and how each of them is done.

All are real but one: the clocks of a machine are set by a library that its processes load, since
machines of namespaces share the kernel's.
"""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes, kill_quietly
from paceline_experiments.machines import Machine, paceline, that_yields
from paceline_experiments.storm.account import Done, Life, end_of, read_lives

KINDS = {
    "worker": "a worker is killed",
    "agent": "an agent is killed; its worker lives",
    "master": "the master is killed",
    "machine": "a machine loses its power, and comes back 3 s later",
    "cable": "a machine's cable is pulled for 0.5 or for 6 s",
    "freeze": "a worker and its agent are stopped for 1 s",
    "slow": "a worker takes twice as long for 12 s",
    "disk": "the disk of the master's machine is full for 5 s",
    "clock": "the clock of a machine is set an hour forth or back, for 10 s",
    "drain": "all workers of a machine are asked to leave, and join again",
    "join": "one more worker joins",
    "leave": "a worker leaves, and joins again",
}
BACK_S, FROZEN_S, SLOW_S, FULL_S, WRONG_S = 3.0, 1.0, 12.0, 5.0, 10.0
CUT_S = (0.5, 6.0)
SLOW = 2.0
HOUR_S = 3600.0
SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset_s;
__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("STORM_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset_s = page;
    close(file);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset_s;
    return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
"""
"""Sets the time of day of the processes that load it by the seconds that a file holds."""


class Planned(NamedTuple):
    """A fault to come.

    Attributes:
        at_s: seconds after the storm's beginning.
        kind: of `KINDS`.
        seed: of the choice of whom it strikes.
    """

    at_s: float
    kind: str
    seed: int


def plan(seed: int, minutes: float, every_s: float) -> list[Planned]:
    """Return the faults of a storm: every kind once before any comes again."""
    chance = random.Random(seed)
    number = int(minutes * 60 / every_s)
    kinds: list[str] = []
    while len(kinds) < number:
        kinds += chance.sample(sorted(KINDS), len(KINDS))
    return [
        Planned(place * every_s, kind, chance.randrange(1 << 30))
        for place, kind in enumerate(kinds[:number])
    ]


class Clock:
    """The time of day of one machine, which can be set."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.set(0)
        self.env = {"LD_PRELOAD": str(library), "STORM_CLOCK": str(file)}

    def set(self, offset_s: float) -> None:
        """Set it so far forth of the kernel's."""
        with os.fdopen(os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            file.write(int(offset_s).to_bytes(8, "little", signed=True))


def make_shim(folder: Path) -> Path:
    """Compile the library that sets clocks."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SHIM)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


class Joined(NamedTuple):
    """A command by which so many workers of a machine have joined."""

    command: subprocess.Popen[bytes]
    workers: int


class Weather:
    """Does faults to a job, and keeps the diary.

    Args:
        job: of the job.
        out: where its script writes.
        hosts: the machines; the master is on the first.
        clocks: of each machine.
        ticket: a copy of the job's ticket, which all machines can read.
        group: of `yielding`, in which machines start.
    """

    def __init__(
        self,
        job: JobDir,
        out: Path,
        hosts: Sequence[Machine],
        clocks: Sequence[Clock],
        ticket: Path,
        group: Path | None = None,
    ) -> None:
        self.diary: list[Done] = []
        self._job, self._out, self._hosts, self._clocks = job, out, hosts, clocks
        self._ticket, self._group = ticket, group
        self._joined: dict[str, list[Joined]] = {one.name: [] for one in hosts}

    # ------------------------------------------------------------------ machines

    def join(self, host: Machine, number: int) -> None:
        """Have so many workers of a machine join: all but one by one command.

        The last one has a command of its own, so that it can leave alone.
        """
        clock = self._clocks[self._hosts.index(host)]
        for count in filter(None, (number - 1, min(number, 1))):
            words = paceline("agent", "--join", self._ticket, "--workers", count)
            command = that_yields(self._group, words)
            log = self._out / f"{host.name}.log"
            env = {**clock.env, "STORM_YIELDING": str(self._group or "")}
            self._joined[host.name].append(Joined(host.start(command, log, **env), count))

    def close(self) -> None:
        """Wait for those who joined; the job has ended."""
        for commands in self._joined.values():
            for one in commands:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.command.wait(20)

    def _living(self) -> list[Life]:
        lives = read_lives(self._out)
        now_s = time.monotonic()
        return [one for one in lives if end_of(one, lives, self.diary) > now_s and _runs(one.pid)]

    def _of(self, host: Machine) -> tuple[int, ...]:
        return tuple(one.pid for one in self._living() if one.host == host.name)

    # ------------------------------------------------------------------ faults

    def strike(self, fault: Planned) -> Done:
        """Do a fault to its end, and note it."""
        chance = random.Random(fault.seed)
        act: Callable[[random.Random], Done] = getattr(self, f"_{fault.kind}")
        done = act(chance)
        self.diary.append(done)
        return done

    def _worker(self, chance: random.Random) -> Done:
        life = chance.choice(self._living())
        now_s = time.monotonic()
        os.kill(life.pid, signal.SIGKILL)
        return Done("worker", life.node, now_s, now_s, pids=(life.pid,))

    def _agent(self, chance: random.Random) -> Done:
        life = chance.choice([one for one in self._living() if one.host == self._hosts[0].name])
        now_s = time.monotonic()
        for process in find_job_processes(self._job.path):
            if process.runs("paceline.agent") and process.argv[-1] == life.node:
                os.kill(process.pid, signal.SIGKILL)
        return Done("agent", life.node, now_s, now_s)

    def _master(self, _: random.Random) -> Done:
        now_s = time.monotonic()
        for process in find_job_processes(self._job.path):
            if process.runs("paceline.master"):
                os.kill(process.pid, signal.SIGKILL)
        return Done("master", self._hosts[0].name, now_s, now_s)

    def _machine(self, chance: random.Random) -> Done:
        host = chance.choice(self._hosts[1:])
        pids, number = self._of(host), self._num_joined(host)
        now_s = time.monotonic()
        host.lose_power()
        time.sleep(BACK_S)
        host.plug(in_=True)
        self.join(host, number)
        return Done("machine", host.name, now_s, now_s + BACK_S, pids=pids)

    def _cable(self, chance: random.Random) -> Done:
        host = chance.choice(self._hosts[1:])
        pids = self._of(host)
        now_s = time.monotonic()
        host.plug(in_=False)
        time.sleep(chance.choice(CUT_S))
        host.plug(in_=True)
        return Done("cable", host.name, now_s, time.monotonic(), away=pids)

    def _freeze(self, chance: random.Random) -> Done:
        life = chance.choice(self._living())
        stopped = [life.pid, *self._agents_of(life)]
        now_s = time.monotonic()
        for pid in stopped:
            kill_quietly(pid, signal.SIGSTOP)
        time.sleep(FROZEN_S)
        for pid in stopped:
            kill_quietly(pid, signal.SIGCONT)
        return Done("freeze", life.node, now_s, time.monotonic(), away=(life.pid,))

    def _slow(self, chance: random.Random) -> Done:
        life = chance.choice(self._living())
        file = self._out / f"{life.node}.slow"
        now_s = time.monotonic()
        file.write_text(str(SLOW))
        time.sleep(SLOW_S)
        file.unlink()
        return Done("slow", life.node, now_s, time.monotonic(), away=(life.pid,), left=1 / SLOW)

    def _disk(self, _: random.Random) -> Done:
        now_s = time.monotonic()
        ballast = self._hosts[0].home / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        time.sleep(FULL_S)
        ballast.unlink()
        return Done("disk", self._hosts[0].name, now_s, time.monotonic())

    def _clock(self, chance: random.Random) -> Done:
        place = chance.randrange(len(self._hosts))
        now_s = time.monotonic()
        self._clocks[place].set(chance.choice((-HOUR_S, HOUR_S)))
        time.sleep(WRONG_S)
        self._clocks[place].set(0)
        return Done("clock", self._hosts[place].name, now_s, time.monotonic())

    def _drain(self, chance: random.Random) -> Done:
        host = chance.choice(self._hosts[1:])
        pids, number = self._of(host), self._num_joined(host)
        now_s = time.monotonic()
        self._dismiss(host)
        self.join(host, number)
        return Done("drain", host.name, now_s, time.monotonic(), pids=pids)

    def _join(self, chance: random.Random) -> Done:
        host = chance.choice(self._hosts[1:])
        now_s = time.monotonic()
        self.join(host, 1)
        return Done("join", host.name, now_s, now_s)

    def _leave(self, chance: random.Random) -> Done:
        host = chance.choice(self._hosts[1:])
        before = set(self._of(host))
        now_s = time.monotonic()
        self._dismiss(host, alone=True)
        gone = tuple(before.difference(self._of(host)))
        self.join(host, 1)
        return Done("leave", host.name, now_s, time.monotonic(), pids=gone)

    # ------------------------------------------------------------------ whom

    def _num_joined(self, host: Machine) -> int:
        """Forget the commands of a machine that have ended, and count the others' workers."""
        commands = [one for one in self._joined[host.name] if one.command.poll() is None]
        self._joined[host.name] = commands
        return sum(one.workers for one in commands)

    def _dismiss(self, host: Machine, *, alone: bool = False) -> None:
        """Have all workers of a machine leave in order; ``alone``: one that has its command."""
        self._num_joined(host)
        leaving = [one for one in self._joined[host.name] if not alone or one.workers == 1]
        if alone:
            leaving = leaving[-1:]
        for one in leaving:
            kill_quietly(one.command.pid, signal.SIGINT)
        for one in leaving:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.command.wait(20)

    def _agents_of(self, life: Life) -> list[int]:
        """Return the agent of a life: it is among the parents of its process."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for parent in psutil.Process(life.pid).parents():
                words = parent.cmdline()
                if "paceline.agent" in words:
                    found.append(parent.pid)
        return found


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
