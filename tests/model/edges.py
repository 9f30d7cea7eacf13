"""Jobs whose workers are whole: `ServersLoop` and `ServerTrainer` over the model's master and servers.

The explorer (`world.py`) drives `WorkerState` by a script that has no pull under way and no batch
staged ahead. Here the production loop and the production trainer run on top of it, in a thread each,
of which one runs at a time: which one, and what arrives meanwhile, is drawn at random, so a seed is
a schedule. Messages between two processes keep their order, as on a socket; what is lost is lost
with a master that dies, or by `Life.loss`.
"""

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from paceline.policy.actions import AdjustBatch, Partial, Share
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.holding.servers.server import ServerState
from paceline.protocol.records import CutValid, Records, SchemaFixed
from paceline.protocol.samples.grant_size import Sizing
from paceline.protocol.samples.plans import GlobalAction
from paceline.protocol.snapshot import Snapshot, restore, take
from paceline.protocol.training import MasterState
from paceline.runtime.data.work import Work
from paceline.runtime.holding.servers import client, loop
from paceline.runtime.holding.servers.client import ServerTrainer
from paceline.runtime.holding.servers.loop import ServersLoop
from paceline.runtime.holding.servers.schedule import Schedule
from paceline.runtime.process.reaching import Unheard
from paceline.wire.messages.base import CutRef, Message, Server
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import Committed, LeaseRequest, OpenFeed, Restore
from paceline.wire.spec import JobSpec

from .cells import (
    FEED,
    FILES,
    MASTER,
    SCHEMA,
    File,
    MasterCell,
    Output,
    ServerCell,
    Violation,
    directory_of,
)

FIRST_WORKER = 1000


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a job."""

    workers: int = 3
    servers: int = 2
    slice: int = 6
    steps: int = 10
    plans: int = 6
    shorts: int = 0
    """Changes of what a step may lack."""
    epochs: int = 0
    """Times at which all servers are replaced by fresh ones, from the last cut."""
    moves: int = 0
    """Times at which a fresh server takes the place of another while training goes on."""
    deaths: int = 0
    """Workers that die; each is started again."""
    passes: int = 1
    """Over the data."""
    restarts: int = 0
    """Masters that die; the next goes on from the journal, or from a snapshot."""
    loss: float = 0.0
    """Part of the messages that never arrive."""
    patience: int = 20_000
    """Events without a step, an epoch or an end after which nobody will ever move again."""


class Ended(SystemExit):
    """The process was killed."""


class Thread:
    """A training thread that runs only while it is told to."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.over = False
        self.error: BaseException | None = None
        threading.Thread(target=self._main, daemon=True).start()

    def _main(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self._run()
        except Ended:
            pass
        except BaseException as error:
            self.error = error  # `resume` raises it
        self.over = True
        self._paused.release()

    def pause(self) -> None:
        """In the thread: let others run."""
        self._paused.release()
        self._go.acquire()
        if self._killed:
            raise Ended

    def resume(self) -> None:
        """Run the thread until it pauses."""
        if not self.over:
            self._go.release()
            self._paused.acquire()
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """End it where it is."""
        self._killed = True
        self.resume()


class Clock:
    """A clock that moves as it is read, and while somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def read(self) -> float:
        """The time, in seconds."""
        self.now_s += 0.001
        return self.now_s


CLOCK = Clock()
"""Of all trainers here: what the real ones read is one, too."""


class Changed:
    """Stands for the lock: one thread runs at a time."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
    def notify_all(self) -> None: ...


class Exchange:
    """`exchange.Exchange` without a thread and a socket: the town says when its turn is."""

    def __init__(self, process: Any, owner: ServerTrainer) -> None:
        self.changed, self.owner, self.process = Changed(), owner, process
        self.errands: list[Callable[[], object]] = []
        self.unheard = Unheard()
        self.data = SimpleNamespace(
            send=self._send, connect=lambda *_: None, disconnect=lambda *_: None, keys=lambda: ()
        )

    def _send(self, server: int, message: Message, frames: Sequence[Any] = ()) -> None:
        self.process.town.send(self.process.inc, [(server, message)])

    def start(self) -> None: ...
    def check(self) -> None: ...
    def halt(self) -> None: ...

    def leave(self, errand: Callable[[], object]) -> None:
        self.errands.append(errand)

    def wait(self, at_most_s: float = 0.0) -> None:
        # What is asked for only after that is asked for when this comes for the second time.
        CLOCK.now_s += at_most_s / 2
        self.process.thread.pause()

    def turn(self, sender: int, message: Any) -> None:
        """One message, or a tick; then all that was left to be done."""
        if message is None:
            self.owner.tick()
        elif sender == MASTER:
            self.owner.from_master(message)
        else:
            self.owner.from_server(sender, message, ())
        while self.errands:
            self.errands.pop(0)()


class Batches:
    """`Reader` of batches that are made in time, or not."""

    def __init__(self, process: "Worker") -> None:
        self._process = process

    def ask(self, works: Iterable[Work]) -> None: ...

    def get(self, work: Work) -> Work:
        self._process.thread.pause()
        return work

    def is_made(self, work: Work) -> bool:
        return self._process.town.chance.random() < 0.8


class Worker:
    """One worker process; what `ServerTrainer` sees of it, and its script."""

    def __init__(self, town: "Town", inc: int, node: str) -> None:
        self.town, self.inc, self.node = town, inc, node
        self.spec = JobSpec(script="train.py", mode="bsp")
        self.rank, self.num_workers = 0, town.life.workers
        self.step = 0
        self.stop_requested = self.told_to_stop = False
        self.link = SimpleNamespace(
            send=lambda message: town.send(inc, [(MASTER, message)]), num_queued_bytes=0
        )
        self.record = lambda _times: None
        self.trainer = ServerTrainer(self)  # type: ignore[arg-type]
        self.exchange: Any = self.trainer._exchange
        self.thread = Thread(self._train)

    def _train(self) -> None:
        self.trainer.prepare(SCHEMA, lambda: ({}, {}))
        feed = self.trainer.open_feed(self.town.feed)
        pause = self.thread.pause
        model = SimpleNamespace(
            load=lambda dense, whole=None: pause(),
            check_values=lambda: None,
            dense=(),
            gradient_of=lambda optimizer: SimpleNamespace(changed=()),
            whole_gradient=lambda grads: {},
            lacking=lambda grads: (),
            rates=lambda grads: (),
            optimizers=[None],
        )
        lookups = SimpleNamespace(
            tables={}, begin=lambda *_: None, end=lambda: None, gradients=dict, waited_s=0.0
        )
        schedule = Schedule((), ())
        loop: Any = ServersLoop(self.trainer, model, lookups, schedule, feed, Batches(self), 2)  # type: ignore[arg-type]
        for _ in loop.run():
            pause()
            loop.on_step(0)
            loop.stepped()
            if self.town.chance.random() < self.town.looks:
                self.trainer.dense()
            pause()


class Journalling(MasterCell):
    """A master whose records are kept for the next one."""

    def __init__(self, state: MasterState, records: list[Records | Snapshot]) -> None:
        super().__init__(state, None)
        self.records = records

    def _journal(self, record: Records, sent: list[Output]) -> None:
        self.records.append(record)


class Town:
    """A job, and a random schedule of it."""

    def __init__(self, life: Life, seed: int) -> None:
        self.life = life
        self.chance = random.Random(seed)
        self.feed = Feed(
            feed=FEED,
            purpose="train",
            num_samples=life.slice * life.steps,
            epochs=life.passes,
            batch_size=life.slice,
            shard_size=1,
            shuffle=False,
            seed=0,
        )
        self.links: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
        #: How often a link or a process has its turn.
        self.speeds: dict[object, float] = defaultdict(lambda: self.chance.choice((0.1, 1, 1, 3)))
        #: How often a script looks at the parameters between two steps.
        self.looks = self.chance.choice((0.0, 0.0, 0.2))
        self.files: dict[str, File] = {}
        self.workers: dict[int, Worker] = {}
        self.servers: dict[int, ServerCell] = {}
        self.next_inc = 1
        self.seen: object = None
        self.num_idle = self.num_events = 0
        cut = CutRef(cut_no=0)
        directory = directory_of(cut)
        self.files[directory] = File(directory=directory, inc=0, step=0, content=0)
        valid = CutValid(cut=cut, step=0, committed=(), epoch_no=0)
        self.master = self._begin_master([SchemaFixed(model=SCHEMA), valid])
        for number in range(life.workers):
            self._start_worker(FIRST_WORKER + number, f"worker-{number}")
        self._new_epoch()

    # ------------------------------------------------------------------ the network

    def send(self, sender: int, outputs: Iterable[Output]) -> None:
        """Put on the wire, if it is not there; copies of cuts are there at once."""
        for to, message in outputs:
            if to == FILES:
                assert isinstance(message, File)
                self.files[message.directory] = message
                continue
            # The leader's report comes now and then.
            odds = 0.8 if isinstance(message, Committed) else self.life.loss
            lost = odds > 0 and self.chance.random() < odds
            if not lost and message not in self.links[sender, to]:
                self.links[sender, to].append(message)

    def _deliver(self, link: tuple[int, int]) -> None:
        (sender, to), message = link, self.links[link].popleft()
        if to == MASTER:
            self._tell_master(message)
        elif to in self.servers:
            file = self.files[directory_of(message.cut)] if isinstance(message, Restore) else None
            event = (message, file) if isinstance(message, Restore) else message
            self.send(to, self.servers[to].handle(event))
        elif to in self.workers:
            self.workers[to].exchange.turn(sender, message)

    def _tell_master(self, event: object) -> None:
        cell = self.master
        if isinstance(event, LeaseRequest):
            steps = self.chance.choice((2, 4, 12))
            self.send(MASTER, cell._perform(cell.state.request(event, Sizing(steps=steps))))
        elif isinstance(event, OpenFeed):
            self.send(MASTER, cell._perform(cell.state.open_feed(event)))
        else:
            self.send(MASTER, cell._perform(cell._call(event)))

    def _tick(self, pid: int) -> None:
        if pid == MASTER:
            self.send(MASTER, self.master._perform(self.master.state.resend()))
        elif pid in self.servers:
            self.send(pid, self.servers[pid].handle("resend"))
        else:
            self.workers[pid].exchange.turn(MASTER, None)

    # ------------------------------------------------------------------ what happens

    def _start_worker(self, inc: int, node: str) -> None:
        self.workers[inc] = Worker(self, inc, node)
        self._tell_master(("worker_up", inc, node))

    def _new_epoch(self) -> None:
        """All servers are fresh ones."""
        incs = range(self.next_inc, self.next_inc + self.life.servers)
        self.next_inc = incs.stop
        self.servers = {inc: self._server(inc) for inc in incs}
        servers = tuple(Server(inc, f"server-{inc}", "") for inc in incs)
        self._tell_master(("start_epoch", servers))

    def _move(self) -> bool:
        """A fresh server is to take the place of another; False: not now."""
        holder = self.master.holder
        if holder.moving.begun or holder.restoring or holder.map is None:
            return False
        old = self.chance.choice(holder.map.servers).inc
        new, self.next_inc = self.next_inc, self.next_inc + 1
        self.servers[new] = self._server(new)
        self._tell_master(("change_servers", (Server(new, f"server-{new}", ""),), (old,)))
        return True

    def _server(self, inc: int) -> ServerCell:
        lacking = self.life.slice - 1 if self.life.shorts else 0
        return ServerCell(ServerState(inc), lacking)

    def _replace_worker(self, inc: int) -> None:
        dead = self.workers.pop(inc)
        dead.thread.kill()
        self._tell_master(("worker_lost", inc))
        self._start_worker(max([inc, *self.workers]) + 1, dead.node)

    def _begin_master(self, records: list[Records | Snapshot]) -> Journalling:
        state = MasterState(ServerHolder(), mode="bsp", samples="exactly-once")
        for record in records:
            if isinstance(record, Snapshot):
                restore(state, record)
            else:
                state.apply(record)
        return Journalling(state, records)

    def _restart_master(self) -> None:
        """What was on its way to or from the dead one is lost, or not."""
        records = self.master.records
        if self.chance.random() < 0.5:
            records = [take(self._begin_master(records).state)]
        self.master = self._begin_master(records)
        state, odds = self.master.state, self.chance.random()
        for link, queue in self.links.items():
            if MASTER in link and self.chance.random() < odds:
                queue.clear()
        self._tell_master(("resume",))
        for inc in sorted((state.grants.keys() | state.ledger.leases) - state.gone):
            if inc not in self.workers:
                self._tell_master(("worker_lost", inc))
        for inc, worker in self.workers.items():
            if not worker.thread.over:
                self._tell_master(("worker_up", inc, worker.node))

    def _plan(self) -> None:
        """Other shares from some step on; who is left out has none."""
        nodes = [worker.node for worker in self.workers.values()]
        nodes = self.chance.sample(nodes, self.chance.randint(1, len(nodes)))
        sizes = dict.fromkeys(nodes, 1)
        for _ in range(self.life.slice - len(nodes)):
            sizes[self.chance.choice(nodes)] += 1
        lead = self.chance.choice((0, 1, 2, 4))
        plan = {}
        for node, size in sizes.items():
            halves = size % 2 == 0 and self.chance.random() < 0.3
            plan[node] = Share(size // 2, 2) if halves else Share(size)
        self._carry_out(AdjustBatch(shares=plan), lead)

    def _short(self) -> None:
        """From some step on it may lack some samples, and shares come in chunks; or no longer."""
        left_out, late = self.chance.choices((0, 1, self.life.slice // 2, self.life.slice - 1), k=2)
        chunks = self.chance.choice((1, 1, 2))
        partial_steps = Partial(left_out=left_out, chunks=chunks, late=late, grace_s=1.0)
        self._carry_out(partial_steps, self.chance.choice((0, 1, 2, 4)))

    def _carry_out(self, action: GlobalAction, lead: int) -> None:
        self.send(MASTER, self.master._perform(self.master.state.carry_out(action, lead)))

    # ------------------------------------------------------------------ a schedule

    def run(self) -> None:
        """Until all workers have left their loops.

        Raises:
            Violation: an invariant does not hold; F: nobody moves any more.
        """
        left = self.life
        try:
            while not all(worker.thread.over for worker in self.workers.values()):
                left = self._unusual(left)
                self._event()
                self._check_progress()
        finally:
            for worker in self.workers.values():
                worker.thread.kill()

    def _unusual(self, left: Life) -> Life:
        """Something that happens seldom; what is left of it."""
        kinds = ("plans", "shorts", "moves", "epochs", "deaths", "restarts", "cut")
        kind = self.chance.choice(kinds)
        if self.chance.random() > 0.01 or self.master.state.plans.in_training() is None:
            return left
        if kind == "cut":
            self._tell_master(("take_cut",))
        elif not getattr(left, kind):
            return left
        elif kind == "plans":
            self._plan()
        elif kind == "shorts":
            self._short()
        elif kind == "moves":
            if not self._move():
                return left
        elif kind == "epochs":
            self._new_epoch()
        elif kind == "restarts":
            self._restart_master()
        else:
            self._replace_worker(self.chance.choice(sorted(self.workers)))
        if kind == "cut":
            return left
        return msgspec.structs.replace(left, **{kind: getattr(left, kind) - 1})

    def _event(self) -> None:
        """A message arrives, a thread runs, or (seldom) somebody says again what is unanswered."""
        pids = [MASTER, *self.servers, *self.workers]
        links = [link for link, queue in self.links.items() if queue and link[1] in pids]
        if self.chance.random() < 0.02:
            self._tick(self.chance.choice(pids))
            return
        in_grace = [i for i in self.servers if self.servers[i].state.readiness.grace_s is not None]
        if in_grace and self.chance.random() < 0.1:
            leader = self.chance.choice(in_grace)
            self.send(leader, self.servers[leader].handle("grace over"))
            return
        running = [w.inc for w in self.workers.values() if not w.thread.over]
        options: list[object] = [*links, *running]
        # A slow link holds things up, and does not grow without end.
        waiting = [max(1, len(self.links[link]) - 20) for link in links] + [1] * len(running)
        odds = [self.speeds[one] * n for one, n in zip(options, waiting, strict=True)]
        (found,) = self.chance.choices(options, odds)
        if isinstance(found, int):
            self.workers[found].thread.resume()
        else:
            self._deliver(found)  # type: ignore[arg-type]

    def _check_progress(self) -> None:
        self.num_events += 1
        steps = tuple(server.state.contents.step for server in self.servers.values())
        over = sum(worker.thread.over for worker in self.workers.values())
        seen = (self.master.state.epoch_no, steps, over)
        self.num_idle = 0 if seen != self.seen else self.num_idle + 1
        self.seen = seen
        if self.num_idle > self.life.patience:
            raise Violation("F", f"nobody moves any more: epoch and steps {seen}")


def substitute(patch: Callable[[object, str, object], None]) -> None:
    """Have the trainer use what is here instead of threads, sockets and the clock."""
    CLOCK.now_s = 0.0
    patch(client, "Exchange", Exchange)
    patch(client, "time", SimpleNamespace(monotonic=CLOCK.read, perf_counter=CLOCK.read))
    patch(loop, "monotonic", CLOCK.read)
