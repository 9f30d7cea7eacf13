"""One parameter server: sockets, tensors and cut files around the pure `ServerState`.

One thread does everything in the order of messages; only the copying of a cut (`Aside`) and what
becomes of it (`CutWriter`) run at the same time. Never imports torch.
"""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import assert_never

from paceline.protocol.holding.servers.server import ServerState, ServerStateTakes
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
from paceline.runtime.process.process import Process
from paceline.runtime.server.admission import Admission, Parted, ServiceTakes
from paceline.runtime.server.answering import WaitingPull, exported, pull_frames, pulled
from paceline.runtime.server.grace import Grace
from paceline.runtime.server.moving import ArrivingShare, Sender, free, held
from paceline.runtime.server.peers import listen, nodes_of
from paceline.runtime.server.restoring import load_share, manifest_of
from paceline.runtime.server.service_time import ServiceTime
from paceline.runtime.server.store import Store
from paceline.wire.messages.data import (
    AskMap,
    At,
    Data,
    Echo,
    Echoed,
    Export,
    Order,
    Part,
    Piece,
    Pull,
    Ready,
    ScriptPart,
)
from paceline.wire.messages.node import (
    BucketLoads,
    Copied,
    CutKept,
    JoinServers,
    NodeDown,
    Restore,
    Stop,
    TablesHeld,
)

RESEND_S = 0.5
"""Seconds after which unanswered orders are repeated."""
REPORT_S = 0.1
"""The leader tells the master what is in the model at most this often, when it changed."""
REPORT_ANYWAY_S = 1.0
IDLE_S = 0.05
"""Longest wait for a message before the timers above are looked at."""
MAX_REFUSALS_LOGGED = 1_000
MAX_EARLY = 16
"""Messages of one worker that wait for the entry of their map; all are sent again."""
ECHO_BYTES = 1 << 20
"""Most bytes that are sent back at a time."""
CATCH_UP = 8
"""Entries that a server which has joined applies at a time: parts must be kept meanwhile."""

_log = logging.getLogger(__name__)

ServerTakes = CutKept | Stop
"""Messages of the master and the agent to a server, beside `ServerStateTakes`."""
LeaderTakes = At
"""Answer of a leader to a server."""


class ServerProcess:
    """The edge of one server incarnation."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.inc = process.inc
        self.state = ServerState(process.inc)
        self.store: Store | None = None
        self.sender: Sender | None = None
        self.arriving: ArrivingShare | None = None
        self.admission: Admission | None = None
        self.data, self.peers = listen(process)
        self.writer = CutWriter(process)
        self.copier = ThreadPoolExecutor(1, "paceline-cut")
        #: The cut that is being copied.
        self.copying: Future[None] | None = None
        self.service = ServiceTime(process.ledger, IDLE_S)
        #: Gradients of held contributions: views of the frames that they came in.
        self.tensors: dict[Key, Parted] = {}
        #: Messages by a map that is not in force here yet, by sender, kind and number.
        self.early: dict[tuple[int, str, int], tuple[bytes, Data, Sequence[memoryview]]] = {}
        #: Address from which each worker (or the leader) sent its last message.
        self.route: dict[int, bytes] = {}
        #: The pulls that `ServerState.waiting` knows.
        self.asked: dict[int, WaitingPull] = {}
        #: Seconds spent on a worker's messages since its last pull was answered (T^s).
        self.handler_s: dict[int, float] = {}
        #: Seconds spent on updates and answers, whichever worker's message caused them.
        self.aside_s = 0.0
        self.parting: tuple[Part, Sequence[memoryview]] | None = None
        self.resend_at_s = self.report_at_s = self.tables_at_s = 0.0
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
            if isinstance(message, LeaderTakes):
                self._do(self.state.at(message))
                self._let_go()

    # ------------------------------------------------------------------ events

    def _serve(self, peer: bytes, message: Data, frames: Sequence[memoryview]) -> None:  # noqa: C901
        start_s, aside_s = time.perf_counter(), self.aside_s
        inc = _sender_of(message)
        if isinstance(message, Echo):
            self._echo(peer, message, frames)
            return
        if not self._admits(peer, inc, message, frames):
            return
        if isinstance(message, Piece):
            self._take_piece(peer, message, frames)
            return
        self.route[inc] = peer
        if not isinstance(message, ServiceTakes):
            return  # a server sends it, or a member of a group: no worker does
        if isinstance(message, Part | Pull | Export) and self._is_early(message):
            number = message.seq if isinstance(message, Part) else message.ticket
            if sum(sender == inc for sender, _, _ in self.early) < MAX_EARLY:
                self.early[inc, type(message).__name__, number] = (peer, message, frames)
            return
        match message:
            case Part():
                self.parting = (message, frames)
                self._do(self.state.part(message))
                self.parting = None
            case Ready():
                self._do(self.state.ready(message))
            case ScriptPart():
                self._keep_script(message)
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
                assert_never(message)
        # Leave out what a step costs when this message happens to be the one that completes it.
        spent_s = time.perf_counter() - start_s - (self.aside_s - aside_s)
        self.handler_s[inc] = self.handler_s.get(inc, 0.0) + spent_s

    def _keep_script(self, part: ScriptPart) -> None:
        for share in self._shares() if part.epoch_no == self.state.epoch_no else ():
            share.scripts.keep(part.script)

    def _is_early(self, message: Part | Pull | Export) -> bool:
        """Tell whether a worker has heard of a map before its entry has come here."""
        now = self.state.map
        return now is not None and message.map_version > now.version

    def _serve_early(self) -> None:
        """Take up what has waited for its map."""
        early, self.early = self.early, {}
        for peer, message, frames in early.values():
            self._serve(peer, message, frames)

    def _shares(self) -> list[Store | ArrivingShare]:
        return [one for one in (self.store, self.arriving) if one is not None]

    def _echo(self, peer: bytes, message: Echo, frames: Sequence[memoryview]) -> None:
        """Send back what came; the peer measures the link to us, in a connection of its own."""
        if sum(map(len, frames)) <= ECHO_BYTES:
            echoed = Echoed(
                epoch_no=message.epoch_no, server=self.inc, inc=message.inc, number=message.number
            )
            self.data.send(peer, echoed, [bytes(frame) for frame in frames])

    def _take_pull(self, pull: Pull, ids: Sequence[memoryview]) -> None:
        before, since_s = self.asked.get(pull.inc), time.perf_counter()
        if before is not None and before.ticket == pull.ticket:  # it came again
            since_s = before.since_s
        self.asked[pull.inc] = WaitingPull(pull.ticket, ids, since_s)
        self._do(self.state.pull(pull))
        if pull.inc not in self.state.waiting.pulls:  # answered, or refused
            self.asked.pop(pull.inc, None)

    def _admits(self, peer: bytes, inc: int, message: Data, frames: Sequence[memoryview]) -> bool:
        """Tell whether the state machine may see it, which answers what is out of date itself."""
        reason = ""
        if not peer.endswith(b"-%d" % inc):
            reason = f"it says that it is from incarnation {inc}"
        elif message.epoch_no != self.state.epoch_no:
            self._refuse(peer, message, "not of this epoch")
            return not isinstance(message, Piece)  # of which the state machine hears when all came
        elif isinstance(message, Part | Pull | Export) and self._is_early(message):
            return True  # it is looked at when its map is in force
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
        if isinstance(message, ServerStateTakes):
            self._do(self.state.on_master(message))
        elif isinstance(message, ServerTakes):
            self._obey_here(message)
        else:
            _log.warning("a server has no use for %s", type(message).__name__)
        self._let_go()

    def _obey_here(self, message: ServerTakes) -> None:
        match message:
            case CutKept():
                self.writer.kept(message)
            case Stop():
                self.process.stop_requested = True
            case _:
                assert_never(message)

    def _tick(self, now_s: float) -> None:  # noqa: C901
        if self.grace.is_over(self.state.contents.step + 1, self.state.readiness.grace_s, now_s):
            self._do(self.state.grace_over())
        resend = now_s >= self.resend_at_s
        if resend:
            self.resend_at_s = now_s + RESEND_S
        if self.early:
            self._serve_early()
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
        if self.store is not None and now_s >= self.tables_at_s:
            self.tables_at_s = now_s + REPORT_ANYWAY_S
            self._report_share(self.store, now_s)

    def _report_share(self, store: Store, now_s: float) -> None:
        """Tell the master what the share holds that grows, and what is asked of it."""
        if tables := store.growing():
            self.process.link.send(TablesHeld(inc=self.inc, tables=tables))
        per_s = store.load_of_buckets.per_s(now_s)
        if self.state.owns and any(per_s):
            self.process.link.send(BucketLoads(inc=self.inc, per_s=per_s))

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
            self.peers.let_go(state.map, state.log.applied_at)

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
            case SendBuckets(to):
                assert self.store is not None
                self._stop_sending()
                self.sender = Sender(self.process, self.store, to)
            case MapInForce():
                self._remap(instruction)
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
        for share in self._shares() if part.step else ():
            share.scripts.reached(part.position)
        assert self.admission is not None
        parted = self.admission.gradients(part, frames)
        moved = part.map_version < self.state.owned_since
        self.tensors[key] = self._as_held(parted, moved=moved)

    def _as_held(self, parted: Parted, *, moved: bool) -> Parted:
        """Return what of a part there is room for; ``moved``: what was arriving is our own now."""
        if self.arriving is not None:
            return parted
        return Parted(parted.arriving if moved and parted.arriving is not None else parted.own)

    def _apply(self, keys: Sequence[Key], factor: float) -> None:
        parts = [self.tensors.pop(key) for key in keys]
        if self.store is not None:
            self.store.apply([part.own for part in parts if part.own is not None], factor)
        if self.arriving is not None:
            given = [part.arriving for part in parts if part.arriving is not None]
            self.arriving.apply(given, factor)
        if self.state.synchronous:
            self.service.round_done()

    def _answer(self, pull: Pull) -> None:
        start_s = time.perf_counter()
        asked, peer = self.asked.pop(pull.inc, None), self.route.get(pull.inc)
        if asked is None or peer is None or self.store is None:
            return
        dense, frames = pull_frames(self.data, peer, self.store, pull, asked.ids)
        spent_s = self.handler_s.pop(pull.inc, 0.0) + time.perf_counter() - start_s
        times_s = spent_s, start_s - asked.since_s
        self.data.send(peer, pulled(self.state, self.store, pull, dense, times_s), frames)
        # Without tensors it only asks how far the job is.
        if not self.state.synchronous and (pull.dense or pull.tables):
            self.service.round_done()

    def _export(self, message: Export) -> None:
        state = self.state
        strange = message.epoch_no != state.epoch_no or message.inc in state.fenced
        # What is still here of a share that has moved is of the past.
        if strange or not state.owns or message.map_version < state.owned_since:
            self._do(state.ask_map(AskMap(epoch_no=message.epoch_no, inc=message.inc)))
            return
        assert self.store is not None
        answer, frames = exported(state, self.store, message)
        self.data.send(self.route[message.inc], answer, frames)

    def _load(self, restore: Restore) -> None:
        me = next(i for i, s in enumerate(restore.map.servers) if s.inc == self.inc)
        places = self.process.cuts.places(restore.cut)
        manifest = manifest_of(restore, *places)
        self._start_epoch()
        self.store, committed = load_share(restore, manifest, me, *places)
        self.writer.start_epoch(nodes_of(restore.map), from_memory=restore.cut.in_memory)
        self.peers.meet(restore.map)
        self._do(self.state.loaded(restore, manifest.step, committed))
        self.admission = Admission(self.state, manifest.schema, restore.map)

    def _start_epoch(self) -> None:
        self._wait_copied()
        self._stop_receiving()
        self.store = None
        self._stop_sending()
        self.tensors.clear()
        self.asked.clear()
        self.early.clear()

    # ------------------------------------------------------------------ moving buckets

    def _make_room(self, join: JoinServers) -> None:
        """Keep gradients from now on, and pieces of what they belong to."""
        self._start_epoch()
        self.arriving = ArrivingShare(join.model, join.map, self.inc)
        self.admission = Admission(self.state, join.model, join.map)

    def _take_piece(self, peer: bytes, piece: Piece, frames: Sequence[memoryview]) -> None:
        arriving, now = self.arriving, self.state.map
        if arriving is not None and arriving.version == piece.map.version:
            arriving.take(peer, piece, frames[0])
        elif now is None or now.version >= piece.map.version:
            self.data.send(peer, held(piece))
        # Otherwise the entry of its map has not come here: it is sent again.

    def _settle_in(self, arriving: ArrivingShare) -> None:
        """Catch up with what was ordered since the share that arrives was set aside."""
        for peer, answer in arriving.answers():
            self.data.send(peer, answer)
        self.state.progress_made = arriving.progress
        if arriving.settle() and self.state.map is None:
            piece = arriving.piece
            assert piece is not None
            self.peers.meet(piece.map)
            self._do(self.state.arrived(piece))
            self.writer.start_epoch(nodes_of(piece.map), from_memory=False)
        if self.state.owns:
            arriving.catch_up()
            if arriving.has_caught_up and self.state.caught_up != arriving.version:
                self._do(self.state.share_is_here(arriving.version))

    def _remap(self, change: MapInForce) -> None:
        now, admission = change.map, self.admission
        assert admission is not None
        self.peers.meet(now)
        admission.meet(now)
        if now.copies:
            if self.state.owns and self.inc in now.receivers:
                self.arriving = ArrivingShare(admission.schema, now, self.inc)
            return
        self._stop_sending()
        moved = now.version == self.state.owned_since
        arriving = self._stop_receiving()
        if arriving is not None and moved:
            self._take_over(arriving)
        for key, parted in self.tensors.items():
            self.tensors[key] = self._as_held(parted, moved=moved)
        if self.state.owns:
            self.writer.set_holders(nodes_of(now))

    def _take_over(self, arriving: ArrivingShare) -> None:
        """Hold what has arrived from here on."""
        former, self.store = self.store, arriving.whole()
        # A cut that is being copied reads it: then it goes when that is over.
        if former is not None and self.copying is None:
            held_before = [former]
            del former
            free(held_before)

    def _stop_receiving(self) -> ArrivingShare | None:
        """Return what was arriving."""
        arriving, self.arriving = self.arriving, None
        if arriving is not None:
            arriving.stop()
        return arriving

    def _stop_sending(self) -> None:
        if self.sender is not None:
            self.sender.stop()
            self.sender = None


def _sender_of(message: Data) -> int:
    if isinstance(message, Order):
        return message.leader
    return message.server if isinstance(message, Piece) else getattr(message, "inc", 0)


def main(process: Process) -> None:
    """Run a server incarnation; called by `paceline.runtime.process.running`."""
    ServerProcess(process).run()
