"""One parameter server: sockets, tensors and cut files around the pure `ServerState`.

One thread does everything in the order of messages; only what becomes of a copied cut (`CutWriter`)
runs beside it. Never imports torch.
"""

import logging
import time
from collections.abc import Sequence

import numpy as np

from paceline.base.errors import PermanentError, TransientError
from paceline.base.samples import SampleSet
from paceline.runtime.process import Process
from paceline.runtime.ps import cutfile
from paceline.runtime.ps.admission import Admission
from paceline.runtime.ps.cut_writer import CutWriter
from paceline.runtime.ps.kernels import Array
from paceline.runtime.ps.state import (
    AnswerPull,
    Apply,
    CopyState,
    Forget,
    Instruction,
    Keep,
    Key,
    Load,
    Reply,
    Report,
    ServerState,
    Tell,
)
from paceline.runtime.ps.store import Gradients, Store
from paceline.wire.copying import copy
from paceline.wire.cut import places
from paceline.wire.data_plane import DataClient, DataServer, bind_address
from paceline.wire.messages import (
    Allow,
    At,
    Data,
    Export,
    Exported,
    Fence,
    NodeDown,
    Order,
    Part,
    Pull,
    Pulled,
    Ready,
    Restore,
    Stop,
    TakeCut,
)

RESEND_S = 0.5
"""Unanswered orders are repeated this often."""
REPORT_S = 0.1
"""The leader tells the master what is in the model at most this often, when it changed."""
REPORT_ANYWAY_S = 1.0
IDLE_S = 0.05
"""Longest wait for a message before the timers above are looked at."""
MAX_REFUSALS_LOGGED = 1_000
EXPORT_BYTES = 32 << 20
"""Values in one piece of an export."""

_log = logging.getLogger(__name__)


class Server:
    """The edge of one server incarnation."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.inc = process.inc
        self.state = ServerState(process.inc)
        self.store: Store | None = None
        self.admission: Admission | None = None
        secret = process.job.secret()
        name = f"{process.node}-{process.inc}"
        bind = bind_address(process.spec.data_plane, process.spec.listen, process.job.run_dir, name)
        self.data = DataServer(bind, secret)
        self.peers = DataClient({}, secret, ident=name, arena_bytes=0)
        self.writer = CutWriter(process)
        #: Gradients of held contributions: views of the frames that they came in.
        self.tensors: dict[Key, Gradients] = {}
        #: Where each worker (or the leader) sent its last message from.
        self.route: dict[int, bytes] = {}
        self.pull_ids: dict[int, Sequence[memoryview]] = {}
        #: Seconds spent on a worker's messages since its last pull was answered (T^s).
        self.handler_s: dict[int, float] = {}
        self.parting: tuple[Part, Sequence[memoryview]] | None = None
        self.resend_at_s = self.report_at_s = 0.0
        self.reported: tuple[int, int] = (0, -1)
        self.refused: set[tuple[bytes, str]] = set()

    def run(self) -> None:
        """Serve until the master or the agent says stop."""
        self.process.announce(self.data.address)
        while not self.process.stop_requested:
            self._turn()
        self.data.close()
        self.peers.close()

    def _turn(self) -> None:
        """Take what has arrived; nothing holds its frames afterwards but `tensors`."""
        self.process.keep_link()
        link = self.process.link
        for peer, message, frames in self.data.poll(IDLE_S, extra=link.fileno()):
            self._serve(peer, message, frames)
        for order in link.receive():
            self._obey(order)
        for _, message, _frames in self.peers.poll(0.0):
            if isinstance(message, At):
                self._do(self.state.at(message))
        self._tick(time.monotonic())

    # ------------------------------------------------------------------ events

    def _serve(self, peer: bytes, message: Data, frames: Sequence[memoryview]) -> None:
        start_s = time.perf_counter()
        inc = self.state.leader_inc if isinstance(message, Order) else getattr(message, "inc", 0)
        if not self._admits(peer, inc, message, frames):
            return
        self.route[inc] = peer
        match message:
            case Part():
                self.parting = (message, frames)
                self._do(self.state.part(message))
                self.parting = None
            case Ready():
                self._do(self.state.ready(message))
            case Pull():
                self.pull_ids[inc] = frames
                self._do(self.state.pull(message))
                if inc not in self.state.waiting:  # answered, or refused
                    self.pull_ids.pop(inc, None)
            case Order():
                self._do(self.state.order(message))
            case Export():
                self._export(message)
            case _:
                pass
        self.handler_s[inc] = self.handler_s.get(inc, 0.0) + time.perf_counter() - start_s

    def _admits(self, peer: bytes, inc: int, message: Data, frames: Sequence[memoryview]) -> bool:
        """Whether the state machine may see it; it is the one to answer what is out of date."""
        reason = ""
        if not peer.endswith(b"-%d" % inc):
            reason = f"it says that it is from incarnation {inc}"
        elif message.epoch_no != self.state.epoch_no:
            self._refuse(peer, message, "not of this epoch")
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
            case Stop():
                self.process.stop_requested = True
            case _:
                _log.warning("a server has no use for %s", type(message).__name__)

    def _tick(self, now_s: float) -> None:
        resend = now_s >= self.resend_at_s
        if resend:
            self.resend_at_s = now_s + RESEND_S
        self._do(self.state.orders(resend=resend))
        copied = self.writer.finished()
        if copied is not None:
            self._do(self.state.copy_is_safe(copied))
        if self.state.leads and now_s >= self.report_at_s:
            now = (self.state.epoch_no, self.state.position)
            if now != self.reported or now_s >= self.report_at_s + REPORT_ANYWAY_S:
                self.reported, self.report_at_s = now, now_s + REPORT_S
                self.process.link.send(self.state.progress())

    # ------------------------------------------------------------------ instructions

    def _do(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Reply(inc, message):
                    self._reply(inc, message)
                case Tell(inc, message):
                    self._tell(inc, message)
                case Report(message):
                    self.process.link.send(message)
                case Keep(key):
                    self._keep(key)
                case Apply(keys):
                    self._apply(keys)
                case Forget(keys):
                    for key in keys:
                        self.tensors.pop(key)
                case AnswerPull(pull):
                    self._answer(pull)
                case CopyState(copied):
                    assert self.store is not None
                    self.writer.copy(copied, self.store)
                case Load(restore):
                    self._load(restore)

    def _reply(self, inc: int, message: Data) -> None:
        if inc in self.route:
            self.data.send(self.route[inc], message, ())

    def _tell(self, inc: int, message: Data) -> None:
        if isinstance(message, At):
            self._reply(inc, message)
        else:
            self.peers.send(inc, message, ())

    def _keep(self, key: Key) -> None:
        assert self.parting is not None and self.store is not None
        part, frames = self.parting
        num_dense = len(part.dense)
        dense = {
            dtype: np.frombuffer(frame, dtype)
            for dtype, frame in zip(part.dense, frames[:num_dense], strict=True)
        }
        sparse = {}
        for table, ids, rows in zip(
            part.tables, frames[num_dense::2], frames[num_dense + 1 :: 2], strict=True
        ):
            spec = self.store.schema.tables[table]
            values = np.frombuffer(rows, spec.dtype).reshape(-1, spec.dim)
            sparse[table] = (np.frombuffer(ids, np.int64), values)
        self.tensors[key] = Gradients(
            dense=dense, sparse=sparse, weight=part.weight, rates=part.rates, distinct=True
        )

    def _apply(self, keys: Sequence[Key]) -> None:
        assert self.store is not None
        self.store.apply([self.tensors.pop(key) for key in keys])

    def _answer(self, pull: Pull) -> None:
        start_s = time.perf_counter()
        asked, peer = self.pull_ids.pop(pull.inc, ()), self.route.get(pull.inc)
        if peer is None or self.store is None:
            return
        dense = self.store.dense() if pull.dense else {}
        frames = [self._copied(peer, values) for values in dense.values()]
        for table, ids in zip(pull.tables, asked, strict=True):
            frames.append(self._rows(peer, table, np.frombuffer(ids, np.int64)))
        spent_s = self.handler_s.pop(pull.inc, 0.0) + time.perf_counter() - start_s
        answer = Pulled(
            epoch_no=self.state.epoch_no,
            server=self.inc,
            inc=pull.inc,
            ticket=pull.ticket,
            step=self.state.step,
            last_seq=self.state.last_seq.get(pull.inc, 0),
            slice=self.state.next_slice(pull.feed),
            handler_s=spent_s,
            dense=tuple(dense),
        )
        self.data.send(peer, answer, frames)

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
        if self.store is None or message.epoch_no != self.state.epoch_no:
            return
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
        try:
            manifest, files = cutfile.read_cut(*places(restore.cut))
        except PermanentError as error:
            # The master reads a cut before an epoch starts from it again, and finds another.
            text = f"cut {restore.cut.cut_no} cannot be loaded: {error}"
            raise TransientError(text) from error
        owners = restore.map.owners
        me = next(i for i, s in enumerate(restore.map.servers) if s.inc == self.inc)
        self.store = Store(manifest.schema, owners, me)
        self.store.load(files.values())
        self.writer.start_epoch(restore)
        self.tensors.clear()
        self.pull_ids.clear()
        for server in restore.map.servers:
            if server.inc != self.inc:
                self.peers.connect(server.inc, server.address)
        self._do(self.state.loaded(restore, manifest.step, SampleSet(manifest.committed)))
        self.admission = Admission(self.state, manifest.schema, self.store.dense())


def main(process: Process) -> None:
    """Run a server incarnation; called by `paceline.runtime.process`."""
    Server(process).run()
