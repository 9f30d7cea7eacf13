"""One parameter server and its workers, with real frames between them, as threads of the test.

The test is the master: it says what it would say, through links that lead nowhere else.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.base.samples import Span
from paceline.cuts.store import LocalCuts
from paceline.master.cut_folders import CutFolders
from paceline.runtime.holding.servers.client import ServerTrainer
from paceline.runtime.server.server import ServerProcess
from paceline.runtime.server.store import Gradients
from paceline.wire.messages.base import CutRef, Server, ServerMap
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import (
    FeedOpened,
    Grant,
    InitialWritten,
    LeaseRequest,
    NewEpoch,
    NodeDown,
    NodeUp,
    OpenFeed,
    Prepared,
    Restore,
    Restored,
    Stop,
    WriteInitial,
)
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, OptimizerGroup
from paceline.wire.spec import DataPlaneSpec, JobSpec
from paceline.wire.step_ledger import StepLedgerReader, StepLedgerWriter

SERVER = 1
SHARE = 2
"""Samples of a step that each worker computes."""
SCHEMA = ModelSchema(
    dense=(DenseTensor(name="w", shape=(64,), dtype="float32", offset=0, group=0),),
    groups=(OptimizerGroup(kind="sgd"),),
    block_elems=16,
)


class Link:
    """A process's end of a link to its agent."""

    num_queued_bytes = 0

    def __init__(self) -> None:
        self._alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._waiting: list[NodeDown] = []
        self._lock = threading.Lock()
        self.sent: list[NodeUp] = []
        self.on_sent: Callable[[Any], None] = self.sent.append

    def fileno(self) -> int:
        return self._alarm

    def send(self, message: NodeUp) -> bool:
        self.on_sent(message)
        return True

    def say(self, message: NodeDown) -> None:
        """To the process."""
        with self._lock:
            self._waiting.append(message)
            os.eventfd_write(self._alarm, 1)

    def receive(self) -> list[NodeDown]:
        with self._lock:
            if self._waiting:
                os.eventfd_read(self._alarm)
            found, self._waiting = self._waiting, []
        return found


class Job:
    """The part of a `JobDir` that processes use."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = self.cuts = self.memory = folder
        self.has_memory = False

    def secret(self) -> bytes:
        return b"ab" * 32


class Process:
    """The part of a training process that servers and trainers use."""

    def __init__(self, folder: Path, node: str, inc: int, spec: JobSpec) -> None:
        self.node, self.inc, self.spec, self.job = node, inc, spec, Job(folder)
        self.cuts = LocalCuts(folder / "cuts", folder / "memory")
        self.role, _, rank = node.partition("-")
        self.rank, self.num_workers = int(rank), spec.workers.count
        self.step = 0
        self.stop_requested = self.told_to_stop = False
        self.features = None
        self.at_end: Callable[[], None] = lambda: None
        self.link: Any = Link()
        path = folder / f"{node}.ledger"
        self.ledger, self.reader = StepLedgerWriter(path, inc), StepLedgerReader(path)
        self.address = ""
        self.announced, self.repeated = threading.Event(), threading.Event()

    def announce(self, address: str) -> None:
        self.address = address
        self.announced.set()

    def repeat_announcement(self) -> None:
        self.repeated.set()

    def keep_link(self) -> bool:
        return True


class World:
    """A BSP job of some steps, each of them in equal parts of its workers."""

    def __init__(self, folder: Path, workers: int, steps: int, server: type[ServerProcess]) -> None:
        plane = DataPlaneSpec(transport="shm")
        spec = JobSpec(script="train.py", data_plane=plane)
        self.spec = msgspec.structs.replace(
            spec, workers=msgspec.structs.replace(spec.workers, count=workers)
        )
        self.folder, self.steps = folder, steps
        size = workers * SHARE
        self.feed = Feed(
            feed=0,
            purpose="train",
            num_samples=steps * size,
            epochs=1,
            batch_size=size,
            shard_size=size,
            shuffle=False,
            seed=0,
        )
        self.process: Any = Process(folder, "server-0", SERVER, self.spec)
        self.server = server(self.process)
        self.workers: list[Any] = [
            Process(folder, f"worker-{rank}", 10 + rank, self.spec) for rank in range(workers)
        ]
        self.process.link.on_sent = self._of_server
        for worker in self.workers:
            worker.link.on_sent = self._of_worker
        self._lock = threading.Lock()
        self._begun = False

    @property
    def map(self) -> ServerMap:
        servers = (Server(SERVER, "server-0", self.process.address),)
        return ServerMap(version=1, servers=servers, owners=(0,) * NUM_BUCKETS)

    def _of_server(self, message: NodeUp) -> None:
        if isinstance(message, Restored):
            for worker in self.workers:
                worker.link.say(NewEpoch(epoch_no=1, inc=worker.inc, map=self.map, step=0))

    def _of_worker(self, message: NodeUp) -> None:
        match message:
            case Prepared():
                with self._lock:
                    begun, self._begun = self._begun, True
                if not begun:
                    cut = WriteInitial(inc=message.inc)
                    self._link_of(message.inc).say(cut)
            case InitialWritten():
                CutFolders(self.folder / "cuts", self.folder / "memory").seal_first(message, SCHEMA)
                restore = Restore(
                    epoch_no=1,
                    inc=SERVER,
                    cut=CutRef(cut_no=0),
                    map=self.map,
                    mode="bsp",
                    samples="exactly-once",
                )
                self.process.link.say(restore)
            case OpenFeed():
                self._link_of(message.inc).say(FeedOpened(inc=message.inc, feed=self.feed))
            case LeaseRequest(n=1):
                self._grant(message)
            case _:
                pass

    def _link_of(self, inc: int) -> Link:
        found: Link = self.workers[inc - 10].link
        return found

    def _grant(self, request: LeaseRequest) -> None:
        """All of its share of all steps."""
        first = (request.inc - 10) * SHARE
        starts = range(first, self.steps * self.feed.batch_size, self.feed.batch_size)
        grant = Grant(
            epoch_no=1,
            inc=request.inc,
            n=request.n,
            feed=0,
            spans=tuple(Span(0, start, start + SHARE) for start in starts),
        )
        self._link_of(request.inc).say(grant)

    def trainer(self, rank: int) -> ServerTrainer:
        """A worker's, ready to train."""
        trainer = ServerTrainer(self.workers[rank])
        zeros = np.zeros(64, np.float32)
        trainer.prepare(SCHEMA, lambda: ({"float32": zeros}, {}))
        trainer.open_feed(self.feed)
        return trainer


def gradients() -> Gradients:
    """Of one worker's share."""
    return Gradients(
        dense={"float32": np.ones(64, np.float32)},
        sparse={},
        weight=SHARE,
        rates=(0.1,),
        distinct=True,
    )


@contextmanager
def world(
    folder: Path, *, workers: int, steps: int, server: type[ServerProcess] = ServerProcess
) -> Iterator[World]:
    """Its server runs."""
    made = World(folder, workers, steps, server)
    thread = threading.Thread(target=made.server.run)
    thread.start()
    made.process.announced.wait(5.0)
    try:
        yield made
    finally:
        for worker in made.workers:
            worker.at_end()
        made.process.link.say(Stop(inc=SERVER))
        thread.join(5.0)
