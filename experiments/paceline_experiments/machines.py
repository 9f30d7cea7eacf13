"""Machines made of namespaces: each has a network, a host name and file systems of its own.

A cable leads from each to one switch. The switch is in the network of the program that makes the
machines, which has a network of its own for that (`in_own_network`). All share the kernel, the
processors and the clock.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from paceline.base.processes import kill_quietly

INSIDE = "PACELINE_OWN_NETWORK"
SWITCH = "10.98.0.254"
"""Address of the program that makes the machines."""
CPU, PROCESSES = Path("/sys/fs/cgroup/cpu"), "cgroup.procs"
TOOLS = ("unshare", "nsenter", "ip", "mount")


def in_own_network(module: str, arguments: Sequence[str]) -> int | None:
    """Run a module once more, in a network and a mount namespace with a switch.

    Args:
        module: a name, as for ``python -m``, or the path of a script.
        arguments: its own.

    Returns:
        The exit status of the other run; None: this is it.
    """
    if INSIDE in os.environ:
        commands = (
            "mount --make-rprivate /; ip link set lo up; ip link add switch type bridge; "
            f"ip addr add {SWITCH}/24 dev switch; ip link set switch up"
        )
        subprocess.run(["sh", "-ec", commands], check=True)
        return None
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        sys.exit(f"machines of namespaces need root and {', '.join(missing or TOOLS)}")
    run_as = [module] if module.endswith(".py") else ["-m", module]
    command = ["unshare", "--net", "--mount", sys.executable, *run_as, *arguments]
    return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode


class Machine:
    """One machine.

    Args:
        number: from 1; its address is 10.98.0.NUMBER.
        folder: of its own; it is made, and no other machine sees what is in it.
        others: folders of the other machines, which it does not see.
        names: a file that says which machine has which address, as ``/etc/hosts``.
        cable: seconds that a frame takes one way, and the part of the frames that are lost.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        others: Sequence[Path],
        names: Path,
        cable: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.name, self.address = f"machine-{number}", f"10.98.0.{number}"
        self.home = folder
        self._cable = f"cable{number}"
        #: It holds the namespaces while nothing else runs there.
        waits = ["unshare", "--net", "--mount", "--uts", "sh", "-c", "echo up; read -r line"]
        self._holder = subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        self.enter = ["nsenter", "-t", str(self._holder.pid), "-n", "-m", "-u"]
        self._carrier = self._lay(*cable)
        hide = "; ".join(f"mount -t tmpfs none {other}" for other in others) or "true"
        self.do(
            f"hostname {self.name}; ip link set lo up; ip addr add {self.address}/24 dev port; "
            f"ip link set port up; mount -t tmpfs none /dev/shm; "
            f"mount --bind {names} /etc/hosts; {hide}"
        )
        self._network = Path(f"/proc/{self._holder.pid}/ns/net").readlink()

    def _lay(self, delay_s: float, loss: float) -> "subprocess.Popen[bytes] | None":
        """Lay the cable to the switch; the process that carries its frames, if one has to."""
        if delay_s or loss:
            words = map(str, (self._holder.pid, self._cable, delay_s, loss))
            carrier = subprocess.Popen(
                [sys.executable, "-m", "paceline_experiments.lossy", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert carrier.stdout is not None
            assert carrier.stdout.readline() == b"up\n"
            return carrier
        cable = ["ip", "link", "add", self._cable, "type", "veth", "peer", "name", "port"]
        subprocess.run([*cable, "netns", str(self._holder.pid)], check=True)
        subprocess.run(["ip", "link", "set", self._cable, "master", "switch", "up"], check=True)
        return None

    def do(self, commands: str) -> None:
        """Run commands of the shell there, to their end."""
        subprocess.run([*self.enter, "sh", "-ec", commands], check=True)

    def start(self, command: Sequence[str], log: Path, **env: str) -> subprocess.Popen[bytes]:
        """Start a command there, with its output in a file."""
        with log.open("ab") as file:
            return subprocess.Popen(
                [*self.enter, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PACELINE_HOME": str(self.home), **env},
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        """Return the processes that run there, without the one that holds the namespaces."""
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/ns/net").readlink() == self._network:
                    found.append(pid)
        return [pid for pid in found if pid != self._holder.pid]

    def plug(self, *, in_: bool) -> None:
        """Put its cable into the switch, or pull it."""
        state = "up" if in_ else "down"
        subprocess.run(["ip", "link", "set", self._cable, state], check=True)

    def kill_all(self) -> None:
        """End all that runs there at one moment, as far as signals can."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self.pids():
                kill_quietly(pid, number)

    def lose_power(self) -> None:
        """Pull the cable, then end all that runs there: no connection is closed."""
        self.plug(in_=False)
        self.kill_all()

    def close(self) -> None:
        """End it with all that runs there."""
        self.kill_all()
        self._holder.kill()
        self._holder.communicate()
        if self._carrier is not None:
            self._carrier.communicate()
        # It goes with the machine's network, but a little later than its name is wanted again.
        subprocess.run(["ip", "link", "del", self._cable], check=False, capture_output=True)


@contextlib.contextmanager
def yielding() -> Iterator[Path | None]:
    """A cgroup whose processes get a processor when no others want it; None: there is no such.

    Machines of namespaces share the processors: what starts on one would slow down all others. To
    leave it: `stop_yielding`.
    """
    group = CPU / f"yielding-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.shares").write_text("2")
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        stop_yielding(group, map(int, (group / PROCESSES).read_text().split()))
        with contextlib.suppress(OSError):  # a process that ends just now
            group.rmdir()


def stop_yielding(group: Path, pids: Iterable[int]) -> None:
    """Have processes of a cgroup get their share of the processors as all others do."""
    for pid in pids:
        with contextlib.suppress(OSError):
            (group.parent / PROCESSES).write_text(str(pid))


def that_yields(group: Path | None, command: Sequence[str]) -> list[str]:
    """Return a command whose processes begin in a cgroup."""
    if group is None:
        return [*command]
    enter = f'echo $$ > {group / PROCESSES}; exec "$@"'
    return ["sh", "-c", enter, "sh", *command]


@contextlib.contextmanager
def machines(
    number: int, folder: Path, cable: tuple[float, float] = (0.0, 0.0)
) -> Iterator[list[Machine]]:
    """Make so many machines; their homes are folders of this one. See `Machine` for the cable."""
    homes = [folder / f"machine-{each}" for each in range(1, number + 1)]
    for home in homes:
        home.mkdir(parents=True, exist_ok=True)
    lines = [f"10.98.0.{each} machine-{each}\n" for each in range(1, number + 1)]
    names = folder / "hosts"
    names.write_text("".join(["127.0.0.1 localhost\n", *lines]))
    made: list[Machine] = []
    try:
        for each, home in enumerate(homes, 1):
            made.append(
                Machine(each, home, [other for other in homes if other != home], names, cable)
            )
        yield made
    finally:
        for machine in made:
            machine.close()


def paceline(*arguments: Any) -> list[str]:
    """Return the command of this Python's paceline with these arguments."""
    return [sys.executable, "-m", "paceline", *map(str, arguments)]
