"""The master's side of Ray: what is wanted, and a gateway process that has it done.

The gateway may die, and so may the head of the cluster: agents go on meanwhile, and the next
gateway gets the whole wish again. Words that it repeats are heard once.
"""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable

import msgspec

from paceline.backends.ray.messages import (
    Begin,
    Close,
    DropNode,
    FreeOnMachines,
    Line,
    Order,
    RunNode,
    Want,
    fits,
)
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.processes import JOB_DIR, SAFE_PATH
from paceline.protocol.nodes.platform import (
    AgentGone,
    AnyWord,
    NodeStopped,
    PlaceLost,
    PlacePending,
    PlaceTaken,
)
from paceline.wire.places import (
    AskedPlace,
    CannotResize,
    Lack,
    Resizing,
    Room,
    core_nodes,
    place_of,
)
from paceline.wire.spec import JobSpec

GATEWAY = ("-m", "paceline.backends.ray.gateway")
RETRY_S, RETRY_MAX_S = 0.5, 10.0
"""Seconds between a gateway's end and the next start: the first wait, which doubles, and the
longest."""
CLOSE_S = 20.0
"""Seconds that the gateway has to give everything back."""
PROBE_S = 60.0
"""Seconds that the cluster has for its first answer."""
LINE_BYTES = 1 << 24

_log = logging.getLogger(__name__)


class RayBackend:
    """`paceline.master.ports.Backend` on a Ray cluster; create it in a running event loop."""

    def __init__(self, job: JobDir, spec: JobSpec) -> None:
        self._job, self._spec = job, spec
        self._loop = asyncio.get_running_loop()
        self._wants: dict[str, Want] = {}
        self._drops: dict[str, DropNode] = {}
        """Nodes that are stopped, and of which something may still run."""
        self._last: dict[str, AnyWord] = {}
        """The newest word about each node."""
        self._words: asyncio.Queue[AnyWord] = asyncio.Queue()
        self._placed: set[str] = set()
        """Nodes that have a place."""
        self._core = {node: place_of(spec, node) for node in core_nodes(spec)}
        """Places that are reserved together, by node."""
        self._free: tuple[dict[str, float], ...] | None = None
        """Free resources of each machine, a moment ago; None: no gateway has said it yet."""
        self._gateway: asyncio.subprocess.Process | None = None
        self._up = asyncio.Event()
        """Event that is set while there is a gateway, which has got its first line."""
        self._serving = self._loop.create_task(self._serve())

    # ------------------------------------------------------------------ the port

    def launch(self, node: str, place: AskedPlace, token: str, *, may_move: bool = False) -> None:
        """Have the node's launcher start an agent; where there is none that answers, a new one."""
        want = self._want(node, place, token, may_move=may_move)
        self._placed.discard(node)
        self._send(RunNode(want))

    def adopt(self, node: str, launch: str, pid: int) -> None:
        """Watch an agent that a former master launched; one of ours is watched already.

        One that is being stopped is not watched: that would withdraw the stop, and its end would be
        nobody's news.
        """
        if node not in self._wants and node not in self._drops:
            self._send(RunNode(self._want(node, place_of(self._spec, node), "")))

    def stop(self, node: str, grace_s: float = 0.0) -> None:
        """Have all that runs of the node ended."""
        want = self._wants.pop(node, None)
        self._last.pop(node, None)
        drop = DropNode(node, want.launch if want is not None else "", grace_s)
        self._drops[node] = drop
        self._send(drop)

    async def watch(self) -> AsyncIterator[AnyWord]:
        """Yield what the gateway says of nodes, each word once."""
        while True:
            yield await self._words.get()

    async def picture(self, nodes: Iterable[str]) -> set[str]:
        """Return all nodes: their agents find the master within a moment, if there are any."""
        return set(nodes)

    def resize(self, node: str, place: AskedPlace) -> Resizing:
        """Refuse: Ray keeps the cores and the memory that it placed a node with."""
        return CannotResize("Ray keeps the size of a place")

    def room(self, place: AskedPlace) -> Room:
        """Count how many such nodes had room a moment ago; a launch of now waits for none of it."""
        if self._free is None:
            return Room()
        count = fits(place, self._free)
        return Room(count=count, why=Lack.NO_NODE, pending_s=0.0 if count else None)

    async def close(self) -> None:
        """Have everything given back, and end the gateway."""
        self._wants.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._up.wait()  # between two gateways: the next one is about to start
                if self._gateway is not None:
                    self._send(Close())
                    await self._gateway.wait()
        gateway = self._gateway
        self._serving.cancel()
        await asyncio.wait({self._serving})
        if gateway is not None:
            await gateway.wait()

    # ------------------------------------------------------------------ the gateway

    def _want(self, node: str, place: AskedPlace, launch: str, *, may_move: bool = False) -> Want:
        bundle = list(self._core).index(node) if node in self._core else None
        if bundle is not None:
            self._core[node] = place
        want = Want(node=node, launch=launch, place=place, bundle=bundle, may_move=may_move)
        self._wants[node] = want
        self._drops.pop(node, None)
        self._last.pop(node, None)
        return want

    def _send(self, order: Order) -> None:
        """Send it, or leave it to the next gateway, which gets all that is wanted then."""
        if self._gateway is not None and self._gateway.stdin is not None:
            self._gateway.stdin.write(msgspec.json.encode(order) + b"\n")

    async def _serve(self) -> None:
        wait_s = RETRY_S
        while True:
            begun_s = self._loop.time()
            try:
                words = await self._run_gateway()
            except (OSError, ValueError) as error:  # it cannot be started, or is not understood
                words = str(error)
            if words:
                _log.warning("gateway_ended reason=%s", words)
                for node in self._wants.keys() - self._placed:
                    self._heard(node, PlacePending(node=node, why=words))
            wait_s = RETRY_S if self._loop.time() - begun_s > RETRY_MAX_S else 2 * wait_s
            await asyncio.sleep(min(wait_s, RETRY_MAX_S))

    async def _run_gateway(self) -> str:
        """Run one to its end; what it said at last."""
        address = self._spec.ray_address or "auto"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *SAFE_PATH, *GATEWAY, address, "--job-dir", str(self._job.path)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, JOB_DIR: str(self._job.path)},
            limit=LINE_BYTES,
            start_new_session=True,
        )
        assert process.stdout is not None and process.stderr is not None
        self._gateway, tail = process, self._loop.create_task(_tail(process.stderr))
        self._leave_what_runs()
        begin = Begin(
            gang=tuple(self._core.values()) if len(self._core) > 1 else (),
            wants=tuple(self._wants.values()),
            drops=tuple(self._drops.values()),
        )
        self._send(begin)
        self._up.set()
        try:
            async for line in process.stdout:
                self._on_line(msgspec.json.decode(line, type=Line))
        except BaseException:  # it is not understood, or the backend is closed
            tail.cancel()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
        finally:
            self._gateway = None
            self._up.clear()
            self._free = None
        code, said = await process.wait(), await tail
        return (said or f"exit code {code}") if code else ""

    def _leave_what_runs(self) -> None:
        """Have a fresh gateway start nothing in place of what has ended, or works unbacked."""
        for node, word in self._last.items():
            if isinstance(word, AgentGone):
                self._wants.pop(node, None)  # the master has been told, and launches it if need be
            elif isinstance(word, PlaceLost) and node in self._wants:
                self._wants[node] = msgspec.structs.replace(self._wants[node], launch="")

    def _on_line(self, message: Line) -> None:
        if isinstance(message, FreeOnMachines):
            self._free = message.machines
            return
        word = message.word
        if isinstance(word, NodeStopped):
            if self._drops.pop(word.node, None) is not None:
                self._words.put_nowait(word)
            return
        want = self._wants.get(word.node)
        if want is not None and want.launch == message.launch:
            self._heard(word.node, word)

    def _heard(self, node: str, word: AnyWord) -> None:
        last = self._last.get(node)
        if last == word or isinstance(last, AgentGone):
            return  # a launch that is over, or was told: another gateway says it again
        self._last[node] = word
        if isinstance(word, PlaceTaken):
            self._placed.add(node)
        if isinstance(word, AgentGone):
            self._placed.discard(node)
        self._words.put_nowait(word)


async def _tail(stream: asyncio.StreamReader) -> str:
    """The last line that was printed."""
    last = ""
    async for line in stream:
        text = line.decode(errors="replace").strip()
        last = text or last
    return last


class Probed(msgspec.Struct, frozen=True):
    """Answer of the cluster to the command that starts a job."""

    address: str
    host: str


def prepare(spec: JobSpec) -> JobSpec:
    """Fill in where the cluster is, and at which address its machines reach this one.

    Raises:
        ConfigError: no cluster answers, or Ray is not installed.
    """
    # A job that goes on may have been on another cluster.
    given = spec.ray_address if "ray_address" in spec.sources else None
    of_shell = os.environ.get("RAY_ADDRESS")
    address = given or of_shell or spec.ray_address or "auto"
    where = spec.sources.get("ray_address", "RAY_ADDRESS" if of_shell else "ray_address")
    if "://" in address:
        raise ConfigError(
            f"{where}: got {address}, expected HOST:PORT of the head alone, e.g. 10.0.0.5:6379"
        )
    command = [sys.executable, *SAFE_PATH, *GATEWAY, address]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"{where}: got {address}, where nothing answers within {PROBE_S:.0f} s; start a "
            "cluster with `ray start --head`, or name another"
        ) from error
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()
        last = text.splitlines()[-1] if text else f"exit code {done.returncode}"
        raise ConfigError(
            f"{where}: got {address}, expected a Ray cluster: {last}; start one with "
            "`ray start --head`, or name another"
        )
    found = msgspec.json.decode(done.stdout, type=Probed)
    plane = msgspec.structs.replace(spec.data_plane, transport="tcp")
    listen = spec.listen if "listen" in spec.sources else found.host
    return msgspec.structs.replace(spec, ray_address=found.address, listen=listen, data_plane=plane)


def open_backend(job: JobDir, spec: JobSpec) -> RayBackend:
    """The backend of a job; call it in a running event loop."""
    return RayBackend(job, spec)
