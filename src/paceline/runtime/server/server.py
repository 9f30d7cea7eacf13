"""One parameter server: sockets, tensors and cut files around the pure `ServerState`.

One thread does everything in the order of messages; only the copying of a cut (`Aside`) and what
becomes of it (`CutWriter`) run at the same time. Never imports torch.
"""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from paceline.base.copying import copy
from paceline.base.errors import PermanentError, TransientError
from paceline.base.samples import SampleSet
from paceline.cuts.manifest import read_manifest
from paceline.protocol.holding.servers.server import ServerState
from paceline.protocol.holding.servers.server_acts import (
    AnswerPull,
    Apply,
    CopyState,
    Forget,
    Instruction,
    Keep,
    Key,
    Load,
    MakeRoom,
    MapInForce,
    Reply,
    SendBuckets,
    Tell,
)
from paceline.protocol.holding.servers.worker_acts import ToMaster
from paceline.runtime.checkpoint.writer import CutWriter
from paceline.runtime.kernels import Array
from paceline.runtime.process import Process
from paceline.runtime.server.admission import Admission
from paceline.runtime.server.grace import Grace
from paceline.runtime.server.moving import ArrivingShare, Sender, held
from paceline.runtime.server.restoring import read_saves
from paceline.runtime.server.service_time import ServiceTime
from paceline.runtime.server.store import Gradients, Store
from paceline.wire.data_plane import DataClient, DataServer, bind_address
from paceline.wire.messages.base import ServerMap
from paceline.wire.messages.data import (
    AskMap,
    At,
    Data,
    Export,
    Exported,
    Order,
    Part,
    Piece,
    Pull,
    Pulled,
    Ready,
    ScriptPart,
)
from paceline.wire.messages.feeds import feed_of
from paceline.wire.messages.node import (
    ChangeMap,
    Copied,
    CutKept,
    Fence,
    JoinServers,
    NodeDown,
    Restore,
    Stop,
    TakeCut,
)
from paceline.wire.messages.order import Allow
from paceline.wire.schema import ModelSchema

RESEND_S = 0.5
"""Unanswered orders are repeated this often."""
REPORT_S = 0.1
"""The leader tells the master what is in the model at most this often, when it changed."""
REPORT_ANYWAY_S = 1.0
IDLE_S = 0.05
"""Longest wait for a message before the timers above are looked at."""
MAX_REFUSALS_LOGGED = 1_000
CATCH_UP = 8
"""Entries that a server which has joined applies at a time: parts are to be kept meanwhile."""
EXPORT_BYTES = 32 << 20
"""Values in one piece of an export."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WaitingPull:
    """A pull that is not answered."""

    ticket: int
    ids: Sequence[memoryview]
    """Per table; they may lie in memory of the worker."""
    since_s: float


class ServerProcess:
    """The edge of one server incarnation."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.inc = process.inc
        self.state = ServerState(process.inc)
        self.schema = ModelSchema()
        self.store: Store | None = None
        self.sender: Sender | None = None
        self.arriving: ArrivingShare | None = None
        self.admission: Admission | None = None
        secret = process.job.secret()
        name = f"{process.node}-{process.inc}"
        bind = bind_address(process.spec.data_plane, process.spec.listen, process.job.run_dir, name)
        self.data = DataServer(bind, secret)
        self.peers = DataClient({}, secret, ident=name, arena_bytes=0)
        self.writer = CutWriter(process)
        self.copier = ThreadPoolExecutor(1, "paceline-cut")
        #: The cut that is being copied.
        self.copying: Future[None] | None = None
        self.service = ServiceTime(process.ledger, IDLE_S)
        #: Gradients of held contributions: views of the frames that they came in.
        self.tensors: dict[Key, Gradients] = {}
        #: Where each worker (or the leader) sent its last message from.
        self.route: dict[int, bytes] = {}
        #: The pulls that `ServerState.waiting` knows.
        self.asked: dict[int, WaitingPull] = {}
        #: Seconds spent on a worker's messages since its last pull was answered (T^s).
        self.handler_s: dict[int, float] = {}
        #: Seconds spent on updates and answers, whichever worker's message caused them.
        self.aside_s = 0.0
        self.parting: tuple[Part, Sequence[memoryview]] | None = None
        self.resend_at_s = self.report_at_s = 0.0
        self.grace = Grace()
        self.reported: tuple[int, int] = (0, -1)
        self.refused: set[tuple[bytes, str]] = set()

    def run(self) -> None:
        """Serve until the master or the agent says stop."""
        self.process.announce(self.data.address)
        while not self.process.stop_requested:
            self._turn()
        self._stop_sending()
        self.data.close()
        self.peers.close()

    def _turn(self) -> None:
        """Take what has arrived; nothing holds its frames afterwards but `tensors`."""
        self.process.keep_link()
        link = self.process.link
        self.service.wait()
        idle_s = self.grace.left_s(IDLE_S, time.monotonic())
        arrived = self.data.poll(idle_s, extra=link.fileno())
        self.service.work()
        for peer, message, frames in arrived:
            self._serve(peer, message, frames)
        for order in link.receive():
            self._obey(order)
        self._hear_peers()
        self._tick(time.monotonic())
        self.service.rest(self.state.contents.step)

    def _hear_peers(self) -> None:
        for _, message, _frames in self.peers.poll(0.0):
            if isinstance(message, At):
                self._do(self.state.at(message))
                self._let_go()

    # ------------------------------------------------------------------ events

    def _serve(self, peer: bytes, message: Data, frames: Sequence[memoryview]) -> None:  # noqa: C901
        start_s, aside_s = time.perf_counter(), self.aside_s
        inc = _sender_of(message)
        if not self._admits(peer, inc, message, frames):
            return
        if isinstance(message, Piece):
            self._take_piece(peer, message, frames)
            return
        self.route[inc] = peer
        match message:
            case Part():
                self.parting = (message, frames)
                self._do(self.state.part(message))
                self.parting = None
            case Ready():
                self._do(self.state.ready(message))
            case ScriptPart(script=script):
                if self.store is not None and message.epoch_no == self.state.epoch_no:
                    self.store.scripts.keep(script)
            case Pull():
                self._take_pull(message, frames)
            case Order():
                self._do(self.state.order(message))
                self._let_go()
            case Export():
                self._export(message)
            case AskMap():
                self._do(self.state.ask_map(message))
            case _:
                pass
        # Not what a step costs when this message happens to be the one that completes it.
        spent_s = time.perf_counter() - start_s - (self.aside_s - aside_s)
        self.handler_s[inc] = self.handler_s.get(inc, 0.0) + spent_s

    def _take_pull(self, pull: Pull, ids: Sequence[memoryview]) -> None:
        before, since_s = self.asked.get(pull.inc), time.perf_counter()
        if before is not None and before.ticket == pull.ticket:  # it came again
            since_s = before.since_s
        self.asked[pull.inc] = WaitingPull(pull.ticket, ids, since_s)
        self._do(self.state.pull(pull))
        if pull.inc not in self.state.waiting.pulls:  # answered, or refused
            self.asked.pop(pull.inc, None)

    def _admits(self, peer: bytes, inc: int, message: Data, frames: Sequence[memoryview]) -> bool:
        """Whether the state machine may see it; it is the one to answer what is out of date."""
        reason = ""
        if not peer.endswith(b"-%d" % inc):
            reason = f"it says that it is from incarnation {inc}"
        elif message.epoch_no != self.state.epoch_no:
            self._refuse(peer, message, "not of this epoch")
            return not isinstance(message, Piece)  # of which the state machine hears when all came
        elif inc not in self.state.fenced and self.admission is not None:
            reason = self.admission.misfit(message, frames)
        if reason:
            self._refuse(peer, message, reason)
        return not reason

    def _refuse(self, peer: bytes, message: Data, reason: str) -> None:
        """Log what should not come, once: it may come a thousand times a second."""
        key = (peer, type(message).__name__)
        if key not in self.refused and len(self.refused) < MAX_REFUSALS_LOGGED:
            self.refused.add(key)
            _log.warning(
                "message_refused peer=%s type=%s epoch_no=%d reason=%s",
                peer.decode("ascii", "replace"),
                key[1],
                message.epoch_no,
                reason,
            )

    def _obey(self, message: NodeDown) -> None:
        match message:
            case Restore():
                self._do(self.state.restore(message))
            case Fence():
                self._do(self.state.fence(message))
            case Allow():
                self._do(self.state.allow(message))
            case TakeCut():
                self._do(self.state.take_cut(message))
            case JoinServers():
                self._do(self.state.join(message))
            case ChangeMap():
                self._do(self.state.change_map(message))
            case CutKept():
                self.writer.kept(message)
            case Stop():
                self.process.stop_requested = True
            case _:
                _log.warning("a server has no use for %s", type(message).__name__)
        self._let_go()

    def _tick(self, now_s: float) -> None:  # noqa: C901
        if self.grace.is_over(self.state.contents.step + 1, self.state.readiness.grace_s, now_s):
            self._do(self.state.grace_over())
        resend = now_s >= self.resend_at_s
        if resend:
            self.resend_at_s = now_s + RESEND_S
        self._do(self.state.orders(resend=resend))
        if self.arriving is not None:
            self._settle_in(self.arriving)
        if self.state.behind:
            self._do(self.state.advance(CATCH_UP))
        if self.copying is not None and self.copying.done():
            self._wait_copied()
        for keep in self.writer.to_agent(now_s):
            self.process.link.send(keep)
        copied = self.writer.finished()
        if copied is not None:
            self._do(self.state.copy_is_safe(copied))
        if self.state.leads and now_s >= self.report_at_s:
            now = (self.state.epoch_no, self.state.contents.position)
            if now != self.reported or now_s >= self.report_at_s + REPORT_ANYWAY_S:
                self.reported, self.report_at_s = now, now_s + REPORT_S
                self.process.link.send(self.state.progress())
        elif now_s >= self.report_at_s:
            self.report_at_s = now_s + REPORT_ANYWAY_S
            self.process.repeat_announcement()

    def _let_go(self) -> None:
        """Forget fenced workers, pulls that will not be answered, and servers that are gone.

        The ids of a pull may lie in the memory of a process that has ended, and keep it mapped.
        Not while instructions are under way: an answer among them needs what is dropped here.
        """
        state = self.state
        for inc in self.asked.keys() - state.waiting.pulls.keys():
            del self.asked[inc]
        for inc in self.route.keys() & state.fenced.keys():
            del self.route[inc]
            self.handler_s.pop(inc, None)
        if state.map is not None:
            needed = {server.inc for server in state.map.servers} | state.log.applied_at.keys()
            for inc in set(self.peers.keys()) - needed:
                self.peers.disconnect(inc)

    # ------------------------------------------------------------------ instructions

    def _do(self, instructions: Sequence[Instruction]) -> None:  # noqa: C901
        for instruction in instructions:
            match instruction:
                case Reply(inc, message):
                    self._reply(inc, message)
                case Tell(inc, message):
                    self._tell(inc, message)
                case ToMaster(message):
                    self.process.link.send(message)
                case Keep(key):
                    self._keep(key)
                case Apply() | AnswerPull():
                    start_s = time.perf_counter()
                    self._update_or_answer(instruction)
                    self.aside_s += time.perf_counter() - start_s
                case Forget(keys):
                    for key in keys:
                        self.tensors.pop(key)
                case CopyState(copied):
                    self._copy(copied)
                case Load() | MakeRoom() | SendBuckets() | MapInForce():
                    self._change_share(instruction)
                case _:
                    assert_never(instruction)

    def _copy(self, copied: Copied) -> None:
        """Have the share copied as it is now, beside the updates that follow."""
        assert self.store is not None
        self._wait_copied()
        aside = self.store.set_aside()
        self.copying = self.copier.submit(self.writer.copy, copied, aside.saved, aside.pack)
        self.copying.add_done_callback(lambda _: aside.end())

    def _wait_copied(self) -> None:
        """Return when no cut is being copied; raises what has failed."""
        copying, self.copying = self.copying, None
        if copying is not None:
            copying.result()

    def _update_or_answer(self, instruction: Apply | AnswerPull) -> None:
        match instruction:
            case Apply(keys, factor):
                self._apply(keys, factor)
            case AnswerPull(pull):
                self._answer(pull)
            case _:
                assert_never(instruction)

    def _change_share(self, instruction: Load | MakeRoom | SendBuckets | MapInForce) -> None:
        match instruction:
            case Load(restore):
                self._load(restore)
            case MakeRoom(join):
                self._make_room(join)
            case SendBuckets(to, piece):
                assert self.store is not None
                self._stop_sending()
                self.sender = Sender(self.process, self.store, to, piece)
            case MapInForce(server_map):
                self._remap(server_map)
            case _:
                assert_never(instruction)

    def _reply(self, inc: int, message: Data) -> None:
        if inc in self.route:
            self.data.send(self.route[inc], message, ())

    def _tell(self, inc: int, message: Data) -> None:
        if isinstance(message, At):
            self._reply(inc, message)
        else:
            self.peers.send(inc, message, ())

    def _keep(self, key: Key) -> None:
        assert self.parting is not None
        part, frames = self.parting
        if part.step and self.store is not None:
            self.store.scripts.reached(part.position)
        num_dense = len(part.dense)
        dense = {
            dtype: np.frombuffer(frame, dtype)
            for dtype, frame in zip(part.dense, frames[:num_dense], strict=True)
        }
        sparse = {}
        for table, ids, rows in zip(
            part.tables, frames[num_dense::2], frames[num_dense + 1 :: 2], strict=True
        ):
            spec = self.schema.tables[table]
            values = np.frombuffer(rows, spec.dtype).reshape(-1, spec.dim)
            sparse[table] = (np.frombuffer(ids, np.int64), values)
        self.tensors[key] = Gradients(
            dense=dense,
            sparse=sparse,
            weight=part.weight,
            rates=part.rates,
            distinct=True,
            changed=part.changed,
            lacking=part.lacking,
        )

    def _apply(self, keys: Sequence[Key], factor: float) -> None:
        assert self.store is not None
        self.store.apply([self.tensors.pop(key) for key in keys], factor)
        if self.state.synchronous:
            self.service.round_done()

    def _answer(self, pull: Pull) -> None:
        start_s = time.perf_counter()
        asked, peer = self.asked.pop(pull.inc, None), self.route.get(pull.inc)
        if asked is None or peer is None or self.store is None:
            return
        dense = self.store.dense() if pull.dense else {}
        frames = [self._copied(peer, values) for values in dense.values()]
        for table, ids in zip(pull.tables, asked.ids, strict=True):
            frames.append(self._rows(peer, table, np.frombuffer(ids, np.int64)))
        spent_s = self.handler_s.pop(pull.inc, 0.0) + time.perf_counter() - start_s
        answer = Pulled(
            epoch_no=self.state.epoch_no,
            server=self.inc,
            inc=pull.inc,
            ticket=pull.ticket,
            step=self.state.contents.step,
            last_seq=self.state.contents.last_seq.get(pull.inc, 0),
            applied=self.state.contents.applied,
            slice=self.state.next_slice(pull.feed),
            handler_s=spent_s,
            waited_s=start_s - asked.since_s,
            dense=tuple(dense),
            counted=_count(self.state.contents.committed, pull.also.counting),
            script=self.store.scripts.at(pull.also.script),
        )
        self.data.send(peer, answer, frames)
        # Without tensors it only asks how far the job is.
        if not self.state.synchronous and (pull.dense or pull.tables):
            self.service.round_done()

    def _copied(self, peer: bytes, values: Array) -> memoryview:
        """A copy, made where it is sent from: the next update may change the original."""
        frame = self.data.allocate(peer, values.nbytes)
        copy(np.frombuffer(frame, np.uint8), values.view(np.uint8))
        return frame

    def _rows(self, peer: bytes, table: int, ids: Array) -> memoryview:
        assert self.store is not None
        spec = self.store.schema.tables[table]
        frame = self.data.allocate(peer, ids.size * spec.dim * np.dtype(spec.dtype).itemsize)
        self.store.rows(table, ids, np.frombuffer(frame, spec.dtype).reshape(-1, spec.dim))
        return frame

    def _export(self, message: Export) -> None:
        state = self.state
        strange = message.epoch_no != state.epoch_no or message.inc in state.fenced
        # What is still here of a share that has moved is of the past.
        if strange or not state.owns:
            self._do(state.ask_map(AskMap(epoch_no=message.epoch_no, inc=message.inc)))
            return
        assert self.store is not None
        table = self.store.schema.tables[message.table]
        count = max(1, EXPORT_BYTES // (table.dim * np.dtype(table.dtype).itemsize))
        keys, rows, more = self.store.piece(message.table, message.offset, count)
        answer = Exported(
            epoch_no=message.epoch_no,
            server=self.inc,
            inc=message.inc,
            ticket=message.ticket,
            table=message.table,
            offset=message.offset,
            next_offset=more,
        )
        self.data.send(self.route[message.inc], answer, [keys, rows])

    def _load(self, restore: Restore) -> None:
        owners = restore.map.owners
        me = next(i for i, s in enumerate(restore.map.servers) if s.inc == self.inc)
        found = self.process.cuts.places(restore.cut)
        try:
            manifest = read_manifest(*found)
            self._start_epoch(manifest.schema)
            store = Store(manifest.schema, owners, me)
            saves = list(read_saves(store, manifest, *found))
        except PermanentError as error:
            # The master reads a cut before an epoch starts from it again, and finds another.
            text = f"cut {restore.cut.cut_no} cannot be loaded: {error}"
            raise TransientError(text) from error
        store.load(saves)
        self.store = store
        self.writer.start_epoch(_nodes(restore.map), from_memory=restore.cut.in_memory)
        self._connect(restore.map)
        self._do(self.state.loaded(restore, manifest.step, SampleSet(manifest.committed)))
        self.admission = Admission(self.state, manifest.schema, owners, me)

    def _start_epoch(self, schema: ModelSchema) -> None:
        self._wait_copied()
        self.schema = schema
        self.store = self.arriving = None
        self._stop_sending()
        self.tensors.clear()
        self.asked.clear()

    def _connect(self, server_map: ServerMap) -> None:
        for server in server_map.servers:
            if server.inc not in (self.inc, *self.peers.keys()):
                self.peers.connect(server.inc, server.address)

    # ------------------------------------------------------------------ moving buckets

    def _make_room(self, join: JoinServers) -> None:
        """Keep gradients from now on, and pieces of what they belong to."""
        me = join.map.index(self.inc)
        self._start_epoch(join.model)
        self.arriving = ArrivingShare(join.model, join.map.copies, me)
        self.admission = Admission(self.state, join.model, join.map.copies, me)

    def _take_piece(self, peer: bytes, piece: Piece, frames: Sequence[memoryview]) -> None:
        if self.arriving is not None:
            self.arriving.take(piece, frames[0])
            self.state.progress_made = self.arriving.num_bytes
        self.data.send(peer, held(piece))

    def _settle_in(self, arriving: ArrivingShare) -> None:
        """The share is here: catch up with what was ordered since it was set aside."""
        found = arriving.finished()
        if found is None:
            return
        self.arriving = None
        self.store, piece = found
        self._connect(piece.map)
        self._do(self.state.arrived(piece))
        self.writer.start_epoch(_nodes(piece.map), from_memory=False)

    def _remap(self, server_map: ServerMap) -> None:
        self._connect(server_map)
        if not server_map.copies:
            self._stop_sending()
        if self.state.owns:
            self.writer.set_holders(_nodes(server_map))

    def _stop_sending(self) -> None:
        if self.sender is not None:
            self.sender.stop()
            self.sender = None


def _sender_of(message: Data) -> int:
    match message:
        case Order(leader=inc) | Piece(server=inc):
            return inc
        case _:
            return getattr(message, "inc", 0)


def _count(committed: SampleSet, feed: int) -> int:
    """Samples of a feed; of feed -1 none."""
    lines = committed.lines if feed >= 0 else {}
    return sum(len(found) for line, found in lines.items() if feed_of(line) == feed)


def _nodes(server_map: ServerMap) -> list[str]:
    return [server.node for server in server_map.servers]


def main(process: Process) -> None:
    """Run a server incarnation; called by `paceline.runtime.process`."""
    ServerProcess(process).run()
