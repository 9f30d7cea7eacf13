"""Networks of a bench: a namespace for each rank, which a bridge connects, and slow links."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.base.errors import PermanentError

MADE_S = 10.0
"""Seconds for a process to be in its namespace."""
PORT = "port"
"""The interface of a rank in its namespace."""
_BUCKET = "burst 4k"
_PROBE = (
    "ip link add hub type bridge && ip link add one type veth peer name two && "
    f"tc qdisc add dev one root tbf rate 100mbit {_BUCKET} latency 50ms && "
    "tc qdisc add dev two root handle 1: htb && "
    "tc filter add dev two parent 1: protocol ip u32 match ip dst 10.0.0.1/32 flowid 1:1"
)


def can_make_networks() -> bool:
    """Tell whether namespaces, bridges and shapers can be made here."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "nsenter", "ip", "tc"))):
        return False
    probe = ["unshare", "--net", "sh", "-c", _PROBE]
    return not subprocess.run(probe, capture_output=True, check=False, timeout=20).returncode


class Networks:
    """The namespaces of all ranks, made by `connected`; the bridge is in one more.

    Args:
        hub: the process in the namespace of the bridge.
        pids: of the processes that hold the ranks' namespaces.
    """

    def __init__(self, hub: int, pids: Sequence[int]) -> None:
        self._hub, self.pids = hub, tuple(pids)
        self._shaped: list[tuple[int, str]] = []
        """Process and device."""

    def address(self, rank: int) -> str:
        """The rank's own."""
        return f"10.99.0.{rank + 1}"

    def env(self) -> dict[str, str]:
        """Return what the script's processes need in their environment."""
        return {"MASTER_ADDR": self.address(0), "GLOO_SOCKET_IFNAME": PORT}

    def within(self, pid: int, commands: str) -> None:
        """Run commands of the shell in a namespace."""
        enter = ["nsenter", "-t", str(pid), "-n", "sh", "-ec", commands]
        subprocess.run(enter, check=True, capture_output=True, timeout=20)

    def build(self) -> None:
        """Lay the cables."""
        self.within(self._hub, "ip link add hub type bridge; ip link set hub up")
        for rank, pid in enumerate(self.pids):
            cable = f"ip link add p{rank} type veth peer name {PORT} netns {pid}"
            self.within(self._hub, f"{cable}; ip link set p{rank} master hub up")
            address = f"ip addr add {self.address(rank)}/24 dev {PORT}"
            self.within(pid, f"ip link set lo up; {address}; ip link set {PORT} up")

    def slow_cable(self, rank: int, bytes_per_s: float) -> None:
        """Let all that a rank sends, and all that it is sent, pass at a rate."""
        shaped = f"root tbf rate {_rate(bytes_per_s)} {_BUCKET} latency 1s"
        ends = (self.pids[rank], PORT), (self._hub, f"p{rank}")
        self._shape({end: f"tc qdisc add dev {end[1]} {shaped}" for end in ends})

    def slow_link(self, one: int, other: int, bytes_per_s: float) -> None:
        """Let what two ranks send each other pass at a rate."""
        rate = f"rate {_rate(bytes_per_s)} {_BUCKET}"
        filtered = f"tc filter add dev {PORT} parent 1: protocol ip u32 match ip dst"
        self._shape(
            {
                (self.pids[here], PORT): f"tc qdisc add dev {PORT} root handle 1: htb; "
                f"tc class add dev {PORT} parent 1: classid 1:1 htb {rate}; "
                f"{filtered} {self.address(there)}/32 flowid 1:1"
                for here, there in ((one, other), (other, one))
            }
        )

    def mend(self) -> None:
        """Make all links quick."""
        shaped, self._shaped = self._shaped, []
        self._shape({end: f"tc qdisc del dev {end[1]} root" for end in shaped}, keep=False)

    def _shape(self, commands: dict[tuple[int, str], str], *, keep: bool = True) -> None:
        """Run commands in several namespaces at once."""
        started = [
            subprocess.Popen(["nsenter", "-t", str(pid), "-n", "sh", "-ec", one])
            for (pid, _), one in commands.items()
        ]
        codes = [one.wait(20) for one in started]
        if any(codes):
            raise PermanentError("a link was not shaped; see what tc says above")
        self._shaped += commands if keep else ()


def _rate(bytes_per_s: float) -> str:
    return f"{max(8 * bytes_per_s / 1e3, 64):.0f}kbit"


@contextlib.contextmanager
def connected(size: int) -> Iterator[Networks]:
    """Make namespaces for so many ranks; they end with the context."""
    waits = ["unshare", "--net", "sh", "-c", "read -r line"]
    made = [subprocess.Popen(waits, stdin=subprocess.PIPE) for _ in range(size + 1)]
    try:
        own, deadline_s = Path("/proc/self/ns/net").readlink(), time.monotonic() + MADE_S
        for one in made:
            while Path(f"/proc/{one.pid}/ns/net").readlink() == own:
                if time.monotonic() > deadline_s:
                    raise TimeoutError("a network namespace was not made")
                time.sleep(0.01)
        networks = Networks(made[0].pid, [one.pid for one in made[1:]])
        networks.build()
        yield networks
    finally:
        for one in made:
            one.kill()
            one.communicate()
