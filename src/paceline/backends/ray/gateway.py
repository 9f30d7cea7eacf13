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
    kind_of,
    knock,
    names_of,
    namespace_of,
    remote_launcher,
    state_of,
    words_of,
)
from paceline.backends.ray.gang import ANSWER_S, Gang
from paceline.backends.ray.launcher import AgentOrder, AgentStarted
from paceline.backends.ray.messages import (
    Begin,
    Close,
    DropNode,
    FreeOnMachines,
    Line,
    Order,
    RunNode,
    Said,
    Want,
    fits,
    resources_of,
)
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.jobs.tickets import ticket_of
from paceline.protocol.nodes.ends import AgentEnd, EndKind
from paceline.protocol.nodes.platform import (
    AgentGone,
    AnyWord,
    NodeStopped,
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
        self._begun: set[str] = set()
        """Launchers, by name, that may have started what nobody has seen end."""
        self._gang = Gang()
        self._draining: set[str] = set()

    async def begin(self, order: Begin) -> None:
        """Take in what is wanted, and what no longer is."""
        await asyncio.to_thread(self._gang.reserve, order.gang)
        for drop in order.drops:
            self.drop(drop)
        for want in order.wants:
            self.launch(want)

    def launch(self, want: Want) -> None:
        """Run this node from now on."""
        if (before := self._keeping.pop(want.node, None)) is not None:
            before.cancel()
        self._launches[want.node] = want.launch
        self._coming[want.node] = want
        self._places.pop(want.node, None)  # until it has one, which may be another
        self._keeping[want.node] = asyncio.get_running_loop().create_task(self._keep(want))

    def drop(self, order: DropNode) -> "asyncio.Task[None]":
        """End all that runs of a node, and say so if it is so; a launch that follows waits."""
        node = order.node
        if (keeping := self._keeping.pop(node, None)) is not None:
            keeping.cancel()
        self._places.pop(node, None)
        self._coming.pop(node, None)
        lock = self._lock_of(node)
        # The next launch asks for the lock in a task of its own, which begins after this one.
        dropping = asyncio.get_running_loop().create_task(self._dropped(order, lock))
        self._drops.add(dropping)
        dropping.add_done_callback(self._drops.discard)
        return dropping

    async def _dropped(self, order: DropNode, lock: asyncio.Lock) -> None:
        async with lock:
            ended = await self._have_ended(order)
            while ended is None:
                await asyncio.sleep(LOOK_S)
                ended = await self._have_ended(order)
            self._gang.may_be_free = True
        if not ended:  # the master has patience, and then launches it all the same
            _log.warning("stop_unconfirmed node=%s", order.node)
            return
        word = NodeStopped(node=order.node, launch=order.launch)
        self._say(Said(launch=order.launch, word=word))

    async def _have_ended(self, order: DropNode) -> bool | None:
        """Tell whether nothing of a node runs any more; None: Ray has not answered."""
        try:
            return await self._end_launchers(order)
        except ray.exceptions.RayError as error:
            _log.warning("drop_failed node=%s error=%s", order.node, error)
            return None

    async def _end_launchers(self, order: DropNode) -> bool:
        """End what there is; tell whether that is all that may run.

        What a launcher has started outlives it, so one that is gone has ended nothing.
        """
        node = order.node
        names = await asyncio.to_thread(names_of, node)
        for name in names:
            self._begun.add(name)
            if await self._end_launcher(name, order.grace_s):
                self._begun.discard(name)
        is_known = names or not order.launch or node in self._launches
        return bool(is_known) and not self._begun_of(node)

    def _begun_of(self, node: str) -> list[str]:
        return [name for name in self._begun if name.rpartition(".")[0] == node]

    async def _end_launcher(self, name: str, grace_s: float) -> bool:
        """End it; tell whether nothing runs any more that it has started."""
        ended = False
        with contextlib.suppress(ValueError, ray.exceptions.RayError, TimeoutError):
            actor = await asyncio.to_thread(ray.get_actor, name)
            state = await asyncio.to_thread(state_of, actor)
            ended = state not in ("ALIVE", "DEAD")
            if state == "ALIVE":  # else it would not answer
                with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
                    stop = actor.stop.remote(grace_s)
                    ended = bool(await asyncio.wait_for(stop, STOP_S + grace_s))
            ray.kill(actor)
        return ended

    async def close(self) -> None:
        """End everything, and give all places back."""
        names = await asyncio.to_thread(ray.util.list_named_actors)
        nodes = {name.rpartition(".")[0] for name in names} | set(self._keeping)
        await asyncio.gather(*(self.drop(DropNode(node)) for node in nodes))
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
                self._begun.add(f"{want.node}.0")  # its agent has spoken; no launcher has this name
                self._tell(want, PlaceLost(node=want.node, why="its launcher is gone"))
                return
            await self._follow(want, actor)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            lost = PlaceLost(node=want.node, why=words_of(error), kind=self._kind_of(want, error))
            self._tell(want, lost)
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
        gone = AgentGone(node=want.node, launch=started.launch, end=ended)
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

    async def _end_of(self, want: Want, actor: Any, started: AgentStarted) -> AgentEnd:
        """Wait for the agent's end, also through times in which its launcher is out of reach."""
        while True:
            try:
                line = await actor.wait.remote(started.launch)
                return msgspec.json.decode(line, type=AgentEnd)
            except ray.exceptions.ActorUnavailableError as error:
                self._tell(want, PlaceLost(node=want.node, why=words_of(error)))
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(TimeoutError, ray.exceptions.ActorUnavailableError):
                await asyncio.wait_for(actor.state.remote(), ANSWER_S)
                self._tell(want, self._taken(want, started))

    def _kind_of(self, want: Want, error: Exception) -> EndKind:
        """Return how a launcher ended: a machine that drained has been taken away."""
        drained = self._places.get(want.node) in self._draining
        return EndKind.PREEMPTED if drained else kind_of(error)

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
        self._begun.update(names)
        for name in reversed(names):
            with contextlib.suppress(ValueError, TimeoutError, ray.exceptions.RayError):
                actor = await asyncio.to_thread(ray.get_actor, name)
                line = await asyncio.wait_for(actor.state.remote(), ANSWER_S)
                if not want.launch or self._serves(want, line):
                    return actor
                if await asyncio.wait_for(actor.stop.remote(), STOP_S):
                    self._begun.discard(name)
        for name in names if want.launch else ():
            with contextlib.suppress(ValueError, ray.exceptions.RayError):
                ray.kill(await asyncio.to_thread(ray.get_actor, name))
        if not want.launch:
            return None
        self._gang.may_be_free |= bool(names)
        known = (*names, *self._begun_of(want.node))
        number = 1 + max((int(name.rpartition(".")[2]) for name in known), default=0)
        self._begun.add(name := f"{want.node}.{number}")
        return await asyncio.to_thread(self._create, want, name)

    def _serves(self, want: Want, line: bytes) -> bool:
        """Tell whether the node may go on at the place of this launcher."""
        found = msgspec.json.decode(line, type=AgentStarted)
        has_its_size = found.size == want.place.size or not want.may_move
        return has_its_size and found.place not in self._draining

    def _create(self, want: Want, name: str) -> Any:
        place, asked = want.place, resources_of(want.place)
        options: dict[str, Any] = {
            "name": name,
            "lifetime": "detached",
            "max_restarts": 0,
            "max_task_retries": 0,
            "num_cpus": asked.get("CPU", 0.0),
            "num_gpus": place.gpus,
            "memory": place.size.memory_bytes,
            **self._gang.scheduling(want, self._draining),
        }
        return self._actor_class.options(**options).remote(msgspec.json.encode(place.size))

    # ------------------------------------------------------------------ what is said

    def _tell(self, want: Want, word: AnyWord) -> None:
        if self._launches.get(want.node) == want.launch:
            self._say(Said(launch=want.launch, word=word))

    def _why_pending(self, want: Want) -> str:
        asked = resources_of(want.place)
        needs = ", ".join(f"{amount:g} {name}" for name, amount in asked.items())
        gang = self._gang.waits(want)
        if gang[1] if gang is not None else fits(want.place, self._free()):
            return f"there is room for the {needs} that it needs: Ray starts its launcher"
        free = ray.available_resources()
        has = ", ".join(f"{free.get(name, 0.0):g} {name}" for name in asked)
        together = ""
        if gang is not None:
            together = f", reserved together with {gang[0] - 1} more"
        return f"it needs {needs} on one machine{together}; free in the whole cluster: {has}"

    async def look(self) -> None:
        """Say which places are going away, and how many are free; never returns."""
        free: tuple[dict[str, float], ...] = ()
        while True:
            try:
                draining = await asyncio.to_thread(draining_machines)
                now = await asyncio.to_thread(self._free)
                await self._look_at_gang()
            except Exception as error:  # noqa: BLE001 - of Ray's inner parts; the next look may do
                _log.warning("look_failed error=%r", error)
            else:
                if now != free:
                    self._say(FreeOnMachines(now))
                free, self._draining = now, set(draining)
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

    @staticmethod
    def _free() -> tuple[dict[str, float], ...]:
        """Return the free resources of each machine, as far as nodes can ask for them."""
        per_node = ray._private.state.available_resources_per_node()
        return tuple(
            {name: free.get(name, 0.0) for name in ("CPU", "GPU", "memory")}
            for free in per_node.values()
        )


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
            case DropNode():
                gateway.drop(order)
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
