"""``python -m paceline.backends.ray.gateway``: the process of a job that is connected to Ray.

A process of its own, since Ray ends a process that has lost the head of its cluster for a minute:
that must not be the master. It keeps no state. The backend says what is wanted, the cluster says
what runs, and the actors of the job outlive this process.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_never

import msgspec
import ray
import ray.exceptions
import ray.util

from paceline.backends.ray.cluster import (
    connect,
    draining_machines,
    fits,
    is_placed,
    knock,
    names_of,
    namespace_of,
    remote_launcher,
    words_of,
)
from paceline.backends.ray.gang import ANSWER_S, Gang
from paceline.backends.ray.launcher import AgentEnded, AgentOrder, AgentStarted
from paceline.backends.ray.messages import (
    Begin,
    Close,
    DropNode,
    Line,
    Order,
    Room,
    RunNode,
    Said,
    SetRoles,
    Shape,
    Want,
)
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir, role_of
from paceline.jobs.tickets import ticket_of
from paceline.protocol.nodes.platform import (
    AgentGone,
    AnyWord,
    PlaceDraining,
    PlaceLost,
    PlacePending,
    PlaceRefused,
    PlaceTaken,
)
from paceline.wire.spec import load

PENDING_S = 1.0
"""Seconds without a place after which a node is said to wait."""
LOOK_S = 2.0
"""Seconds between looks at machines that drain, and at launchers that could not be reached."""
STOP_S = 10.0
"""Seconds that launchers have to end what they have started."""

_log = logging.getLogger(__name__)


class Gateway:
    """Keeps what is wanted running; create it connected to Ray, in a running event loop.

    Args:
        job: the job's directory.
        say: sends a line to the backend.
    """

    def __init__(self, job: JobDir, say: Callable[[Line], None]) -> None:
        self._job, self._say = job, say
        self._spec = load(job.spec)
        self._actor_class = remote_launcher()
        self._keeping: dict[str, asyncio.Task[None]] = {}
        #: Ray's name of the machine that each node is on, by node.
        self._places: dict[str, str] = {}
        self._launches: dict[str, str] = {}
        #: Nodes that are launched and have no place yet, by their names.
        self._coming: dict[str, Want] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._drops: set[asyncio.Task[None]] = set()
        self._roles: dict[str, Shape] = {}
        self._gang = Gang()
        self._draining: set[str] = set()

    async def begin(self, order: Begin) -> None:
        """Take in what is wanted, and what no longer is."""
        self._roles = order.roles
        await asyncio.to_thread(self._gang.reserve, order.gang)
        for node in order.drops:
            self.drop(node)
        for want in order.wants:
            self.launch(want)

    def set_roles(self, order: SetRoles) -> None:
        """Count places for such nodes from now on."""
        self._roles = order.roles

    def launch(self, want: Want) -> None:
        """Run this node from now on."""
        if (before := self._keeping.pop(want.node, None)) is not None:
            before.cancel()
        self._launches[want.node] = want.launch
        self._coming[want.node] = want
        self._places.pop(want.node, None)  # until it has one, which may be another
        self._keeping[want.node] = asyncio.get_running_loop().create_task(self._keep(want))

    def drop(self, node: str) -> "asyncio.Task[None]":
        """End all that runs of a node; a launch that follows waits for that."""
        if (keeping := self._keeping.pop(node, None)) is not None:
            keeping.cancel()
        self._places.pop(node, None)
        self._coming.pop(node, None)
        lock = self._lock_of(node)
        # The next launch asks for the lock in a task of its own, which begins after this one.
        dropping = asyncio.get_running_loop().create_task(self._dropped(node, lock))
        self._drops.add(dropping)
        dropping.add_done_callback(self._drops.discard)
        return dropping

    async def _dropped(self, node: str, lock: asyncio.Lock) -> None:
        async with lock:
            while not await self._have_ended(node):  # noqa: ASYNC110 - Ray is asked, not an event
                await asyncio.sleep(LOOK_S)
            self._gang.may_be_free = True

    async def _have_ended(self, node: str) -> bool:
        try:
            await self._end_launchers(node)
        except ray.exceptions.RayError as error:
            _log.warning("drop_failed node=%s error=%s", node, error)
            return False
        return True

    async def _end_launchers(self, node: str) -> None:
        for name in await asyncio.to_thread(names_of, node):
            with contextlib.suppress(ValueError, ray.exceptions.RayError, TimeoutError):
                actor = await asyncio.to_thread(ray.get_actor, name)
                if await asyncio.to_thread(is_placed, actor):  # else it would not answer
                    with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
                        await asyncio.wait_for(actor.stop.remote(), STOP_S)
                ray.kill(actor)

    async def close(self) -> None:
        """End everything, and give all places back."""
        names = await asyncio.to_thread(ray.util.list_named_actors)
        nodes = {name.rpartition(".")[0] for name in names} | set(self._keeping)
        await asyncio.gather(*map(self.drop, nodes))
        await asyncio.to_thread(self._gang.give_back)

    def _lock_of(self, node: str) -> asyncio.Lock:
        return self._locks.setdefault(node, asyncio.Lock())

    # ------------------------------------------------------------------ one node

    async def _keep(self, want: Want) -> None:
        """Have the node run, and say what becomes of it."""
        try:
            async with self._lock_of(want.node):  # a launcher that ends is not used again
                actor = await self._actor(want)
            if actor is None:
                self._tell(want, PlaceLost(node=want.node, why="its launcher is gone"))
                return
            await self._follow(want, actor)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            self._tell(want, PlaceLost(node=want.node, why=words_of(error)))
        except (ray.exceptions.RayError, ConfigError, OSError, ValueError) as error:
            # Also a name that a gateway before this one has just taken: it is asked for again.
            self._tell(want, PlaceRefused(node=want.node, why=words_of(error)))

    async def _follow(self, want: Want, actor: Any) -> None:
        begin = self._begin_agent(want, actor)
        started = await self._until_placed(want, asyncio.ensure_future(begin))
        self._places[want.node] = started.place
        self._coming.pop(want.node, None)
        self._gang.may_be_free |= not started.reserved_together  # it may have left one of these
        self._tell(want, self._taken(want, started))
        ended = await self._end_of(want, actor, started)
        gone = AgentGone(node=want.node, launch=started.launch, reason=ended.reason)
        self._tell(want, gone)

    async def _begin_agent(self, want: Want, actor: Any) -> AgentStarted:
        if not want.launch:
            return msgspec.json.decode(await actor.state.remote(), type=AgentStarted)
        order = AgentOrder(
            job_id=self._job.job_id,
            path=str(self._job.path),
            node=want.node,
            ticket=ticket_of(self._job),
            spec=self._spec,
        )
        line = msgspec.json.encode(order)
        return msgspec.json.decode(await actor.start.remote(want.launch, line), type=AgentStarted)

    async def _end_of(self, want: Want, actor: Any, started: AgentStarted) -> AgentEnded:
        """Wait for the agent's end, also through times in which its launcher is out of reach."""
        while True:
            try:
                line = await actor.wait.remote(started.launch)
                return msgspec.json.decode(line, type=AgentEnded)
            except ray.exceptions.ActorUnavailableError as error:
                self._tell(want, PlaceLost(node=want.node, why=words_of(error)))
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(TimeoutError, ray.exceptions.ActorUnavailableError):
                await asyncio.wait_for(actor.state.remote(), ANSWER_S)
                self._tell(want, self._taken(want, started))

    def _taken(self, want: Want, started: AgentStarted) -> PlaceTaken:
        # Cuts at a URL are all that a job needs to go on.
        unseen = not (started.sees_job or self._spec.checkpoint.url)
        path = str(self._job.path) if unseen else ""
        return PlaceTaken(node=want.node, host=started.host, unseen=path)

    async def _until_placed(
        self, want: Want, started: "asyncio.Future[AgentStarted]"
    ) -> AgentStarted:
        wait_s = PENDING_S
        try:
            while True:
                done, _ = await asyncio.wait({started}, timeout=wait_s)
                if done:
                    return started.result()
                why = await asyncio.to_thread(self._why_pending, want)
                self._tell(want, PlacePending(node=want.node, why=why))
                wait_s = LOOK_S
        finally:
            started.cancel()

    async def _actor(self, want: Want) -> Any:
        """The node's launcher: the newest that answers, or a new one; None: none to watch."""
        names = await asyncio.to_thread(names_of, want.node)
        for name in reversed(names):
            with contextlib.suppress(ValueError, TimeoutError, ray.exceptions.RayError):
                actor = await asyncio.to_thread(ray.get_actor, name)
                line = await asyncio.wait_for(actor.state.remote(), ANSWER_S)
                if not want.launch or self._serves(want, line):
                    return actor
                await asyncio.wait_for(actor.stop.remote(), STOP_S)
        for name in names if want.launch else ():
            with contextlib.suppress(ValueError, ray.exceptions.RayError):
                ray.kill(await asyncio.to_thread(ray.get_actor, name))
        if not want.launch:
            return None
        self._gang.may_be_free |= bool(names)
        number = 1 + max((int(name.rpartition(".")[2]) for name in names), default=0)
        return await asyncio.to_thread(self._create, want, f"{want.node}.{number}")

    def _serves(self, want: Want, line: bytes) -> bool:
        """Tell whether the node may go on at the place of this launcher."""
        found = msgspec.json.decode(line, type=AgentStarted)
        has_its_size = found.size == want.shape.size or not want.may_move
        return has_its_size and found.place not in self._draining

    def _create(self, want: Want, name: str) -> Any:
        shape = want.shape
        options: dict[str, Any] = {
            "name": name,
            "lifetime": "detached",
            "max_restarts": 0,
            "max_task_retries": 0,
            "num_cpus": shape.cpus,
            "num_gpus": shape.gpus,
            "memory": shape.size.memory_bytes,
            **self._gang.scheduling(want),
        }
        return self._actor_class.options(**options).remote(msgspec.json.encode(shape.size))

    # ------------------------------------------------------------------ what is said

    def _tell(self, want: Want, word: AnyWord) -> None:
        if self._launches.get(want.node) == want.launch:
            self._say(Said(launch=want.launch, word=word))

    def _why_pending(self, want: Want) -> str:
        needs = ", ".join(f"{amount:g} {name}" for name, amount in want.shape.resources.items())
        gang = self._gang.waits(want)
        if gang[1] if gang is not None else self._room().get(role_of(want.node)):
            return f"there is room for the {needs} that it needs: Ray starts its launcher"
        free = ray.available_resources()
        has = ", ".join(f"{free.get(name, 0.0):g} {name}" for name in want.shape.resources)
        together = ""
        if gang is not None:
            together = f", reserved together with {gang[0] - 1} more"
        return f"it needs {needs} on one machine{together}; free in the whole cluster: {has}"

    async def look(self) -> None:
        """Say which places are going away, and how many are free; never returns."""
        room: dict[str, int] = {}
        while True:
            try:
                draining = await asyncio.to_thread(draining_machines)
                now = await asyncio.to_thread(self._room)
                await self._look_at_gang()
            except Exception as error:  # noqa: BLE001 - of Ray's inner parts; the next look may do
                _log.warning("look_failed error=%r", error)
            else:
                if now != room:
                    self._say(Room(now))
                room, self._draining = now, set(draining)
                for node, place in self._places.items():
                    if place in draining:
                        word = PlaceDraining(
                            node=node, why="Ray drains its machine", within_s=draining[place]
                        )
                        self._say(Said(launch=self._launches.get(node, ""), word=word))
            await asyncio.sleep(LOOK_S)

    async def _look_at_gang(self) -> None:
        if self._gang.may_be_free:
            coming = tuple(self._coming.values())
            await asyncio.to_thread(self._gang.give_back_if_free, coming)

    def _room(self) -> dict[str, int]:
        per_node = ray._private.state.available_resources_per_node()
        return {
            role: sum(fits(shape, free) for free in per_node.values())
            for role, shape in self._roles.items()
        }


# ----------------------------------------------------------------------------- process


async def serve(job: JobDir, out: int) -> None:
    """Obey the backend until it closes the job, or dies; agents work on in that case.

    Args:
        job: the job's directory.
        out: the descriptor that the backend reads.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def say(message: Line) -> None:
        os.write(out, msgspec.json.encode(message) + b"\n")

    gateway = Gateway(job, say)
    looking = loop.create_task(gateway.look())
    async for line in reader:
        order: Order = msgspec.json.decode(line, type=Order)
        match order:
            case Begin():
                await gateway.begin(order)
            case RunNode(want=want):
                gateway.launch(want)
            case SetRoles():
                gateway.set_roles(order)
            case DropNode(node=node):
                gateway.drop(node)
            case Close():
                await gateway.close()
                break
            case _:
                assert_never(order)
    looking.cancel()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m paceline.backends.ray.gateway")
    parser.add_argument("address")
    parser.add_argument("--job-dir", type=Path)
    options = parser.parse_args()
    out = os.dup(1)
    os.dup2(2, 1)  # Ray prints to descriptor 1: that must not mix with our lines
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    try:
        if options.job_dir is None:
            probe(options.address, out)
            return
        job = JobDir(options.job_dir)
        connect(options.address, namespace_of(job.job_id))
        # `ray job stop` sends it to all that descends from the command; our order is the pipe's.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        asyncio.run(serve(job, out))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    finally:
        ray.shutdown()


def probe(address: str, out: int) -> None:
    """Say where the cluster is, and which address of this machine it knows."""
    knock(address)
    connect(address, "paceline")
    found = {
        "address": ray.get_runtime_context().gcs_address,
        "host": ray.util.get_node_ip_address(),
    }
    os.write(out, msgspec.json.encode(found) + b"\n")


if __name__ == "__main__":
    main()
