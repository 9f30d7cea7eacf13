"""What each machine promises while buckets move; every interleaving of them is in tests/model."""

import time
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from paceline.base.samples import SampleSet, Span
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.holding.servers.moving import Moving, copying, switched, without
from paceline.protocol.holding.servers.placement import bucket_weights, place
from paceline.protocol.holding.servers.server import ServerState
from paceline.protocol.holding.servers.server_acts import (
    CopyState,
    Forget,
    Instruction,
    Reply,
    SendBuckets,
)
from paceline.protocol.holding.servers.worker import WorkerState
from paceline.protocol.holding.servers.worker_acts import OfferAgain, Remapped, ToMaster, ToServer
from paceline.protocol.records import EpochStarted, MoveBegun, SchemaFixed
from paceline.protocol.training import MasterState
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.holding.servers import partition
from paceline.runtime.server import moving
from paceline.runtime.server import server as ps_server
from paceline.runtime.server.admission import Admission
from paceline.runtime.server.store import Gradients, Store
from paceline.wire.messages.base import CutRef, Server, ServerMap
from paceline.wire.messages.data import (
    AskMap,
    Export,
    MapIs,
    Order,
    Part,
    Piece,
    Pull,
    Ready,
    Refused,
)
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import (
    ChangeMap,
    FeedOpened,
    Fence,
    Grant,
    Joined,
    JoinServers,
    MapSet,
    NewEpoch,
    Restore,
    TakeCut,
)
from paceline.wire.messages.order import Allow, Included, Remap, Update
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, OptimizerGroup, Table

OLD, OTHER, NEW, WORKER = 1, 2, 3, 11
FIRST = ServerMap(
    version=1, servers=(Server(OLD, "a", "x://a"), Server(OTHER, "b", "x://b")), owners=(0, 1)
)
JOINER = Server(NEW, "c", "x://c")
BEGUN = MoveBegun(joining=(JOINER,), leaving=(OLD,), owners=(NEW, OTHER), version=FIRST.version)
COPY = copying(FIRST, BEGUN)
SWITCH = switched(COPY, BEGUN)
SCHEMA = ModelSchema(
    dense=(DenseTensor(name="w", shape=(300,), dtype="float32", offset=0, group=0),),
    tables=(
        Table(name="t", dim=4, dtype="float32", num_rows=500, group=0),
        Table(name="d", dim=2, dtype="float32", num_rows=None, group=0, init_seed=1, init_std=0.1),
    ),
    groups=(OptimizerGroup(kind="adagrad", hyper={"eps": 1e-10}),),
    block_elems=16,
)


def server(inc: int) -> ServerState:
    state = ServerState(inc)
    restore = Restore(
        epoch_no=1,
        inc=inc,
        cut=CutRef(cut_no=0),
        map=FIRST,
        mode="asp",
        samples="exactly-once",
    )
    state.loaded(restore, 0, SampleSet())
    return state


def part(seq: int, version: int, start: int = 0) -> Part:
    spans = (Span(0, start, start + 1),)
    return Part(epoch_no=1, inc=WORKER, seq=seq, map_version=version, spans=spans, weight=1)


def ready(seq: int, version: int, first: int = 1) -> Ready:
    return Ready(epoch_no=1, inc=WORKER, seq=seq, map_version=version, first=first)


def change(to: ServerMap) -> ChangeMap:
    return ChangeMap(epoch_no=1, inc=OLD, map=to)


def told(done: list[Instruction]) -> list[MapIs]:
    return [i.message for i in done if isinstance(i, Reply) and isinstance(i.message, MapIs)]


def joined() -> ServerState:
    state = ServerState(NEW)
    state.join(JoinServers(epoch_no=1, inc=NEW, map=COPY, model=SCHEMA, mode="asp"))
    return state


# ---------------------------------------------------------------------- servers


def test_a_copy_entry_voids_what_was_sent_under_older_maps() -> None:
    leader = server(OLD)
    leader.part(part(1, 1))
    leader.part(part(2, 1, 1))
    leader.ready(ready(1, 1))

    done = leader.change_map(change(COPY))

    assert Forget(((WORKER, 2),)) in done
    (word,) = told(done)
    assert (word.leads, word.barrier, word.seq) == (True, COPY.version, 1)
    assert told(leader.ready(ready(2, 1))) == [word], "refused, and why"
    assert told(leader.part(part(2, 1, 1))) == [word]
    assert leader.contents.position == 2


def test_the_map_is_ordered_once_however_often_it_is_asked_for() -> None:
    leader = server(OLD)
    leader.change_map(change(COPY))

    (again,) = leader.change_map(change(COPY))
    (late,) = leader.change_map(change(FIRST))

    assert again == late
    assert isinstance(again, ToMaster)
    assert leader.contents.position == 1


def test_the_old_owner_sends_what_it_holds_at_the_copy_entry() -> None:
    leader = server(OLD)
    leader.part(part(1, 1))
    leader.ready(ready(1, 1))

    (send,) = (i for i in leader.change_map(change(COPY)) if isinstance(i, SendBuckets))

    ((to, sent),) = send.to
    assert to == JOINER
    assert (sent.position, sent.committed) == (2, (Span(0, 0, 1),))
    assert sent.last_seq == ((WORKER, 1),)


def test_a_cut_while_buckets_are_copied_is_made_by_their_owners() -> None:
    leader = server(OLD)
    leader.change_map(change(COPY))

    (copy,) = leader.take_cut(TakeCut(epoch_no=1, inc=OLD, cut_no=1))

    assert isinstance(copy, CopyState)
    assert copy.copied.sharers == (OLD, OTHER)


def test_a_joining_server_keeps_parts_and_goes_on_from_the_pieces() -> None:
    state = joined()
    state.part(part(2, COPY.version, 1))
    update = Update(included=(Included(WORKER, 2),))
    state.order(Order(epoch_no=1, leader=OLD, start=3, entries=(update,)))
    assert state.contents.position == 0
    assert isinstance(state.pull(Pull(epoch_no=1, inc=WORKER, ticket=1))[0], Reply)

    state.arrived(piece())
    done = state.advance()

    assert state.contents.position == 3
    assert state.contents.committed == SampleSet([Span(0, 0, 2)])
    assert done[-1] == ToMaster(Joined(epoch_no=1, inc=NEW, caught_up=COPY.version, progress=3))


def piece() -> Piece:
    return Piece(
        epoch_no=1,
        server=OLD,
        inc=NEW,
        map=COPY,
        position=2,
        step=0,
        committed=(Span(0, 0, 1),),
        last_seq=((WORKER, 1),),
        last_cut=4,
    )


def test_who_joins_counts_on_from_what_the_old_owner_counted() -> None:
    leader = server(OLD)
    leader.part(part(1, 1))
    leader.ready(ready(1, 1))
    leader.contents.short_steps, leader.contents.left_out = 2, 5
    (send,) = (i for i in leader.change_map(change(COPY)) if isinstance(i, SendBuckets))
    state = joined()

    state.arrived(send.to[0][1])

    assert (state.contents.applied, state.contents.short_steps, state.contents.left_out) == (
        1,
        2,
        5,
    )


def test_after_the_switch_the_new_owner_answers_pulls_and_the_old_one_does_not() -> None:
    leader = server(OLD)
    for to in (COPY, SWITCH):
        leader.change_map(change(to))
    state = joined()
    state.arrived(piece())
    state.order(Order(epoch_no=1, leader=OLD, start=3, entries=(Remap(map=SWITCH),)))
    state.advance()
    pull = Pull(epoch_no=1, inc=WORKER, ticket=1, map_version=SWITCH.version)

    (word,) = told(leader.pull(pull))

    assert not word.leads
    assert word.map == SWITCH
    assert state.leads
    assert not told(state.pull(pull))


def test_the_next_leader_knows_who_is_fenced() -> None:
    leader, state = server(OLD), joined()
    leader.change_map(change(COPY))
    leader.fence(Fence(epoch_no=1, inc=OLD, fenced=WORKER))
    leader.change_map(change(SWITCH))
    state.arrived(piece())
    entries = tuple(leader.log.entries[position] for position in sorted(leader.log.entries))
    state.order(Order(epoch_no=1, leader=OLD, start=3, entries=entries))
    state.advance()

    (reply,) = state.part(part(5, SWITCH.version, 3))

    assert isinstance(reply, Reply)
    assert isinstance(reply.message, Refused)
    assert reply.message.fenced


def test_the_next_leader_knows_what_a_step_may_lack() -> None:
    leader = server(OLD)
    allow = Allow(epoch_no=1, inc=OLD, no=3, step=7, left_out=2, of=8, late=3, grace_s=0.5)
    leader.allow(allow)
    leader.change_map(change(COPY))
    leader.change_map(change(SWITCH))
    entries = tuple(leader.log.entries[position] for position in (1, 2))
    state = joined()
    state.arrived(msgspec.structs.replace(piece(), position=1))

    state.order(Order(epoch_no=1, leader=OLD, start=1, entries=entries))
    state.advance()

    assert state.leads
    assert state.readiness.allowed == [allow]


def test_who_has_handed_over_names_the_next_leader() -> None:
    leader = server(OLD)
    for to in (COPY, SWITCH):
        leader.change_map(change(to))

    (fence,) = leader.fence(Fence(epoch_no=1, inc=OLD, fenced=WORKER))

    assert isinstance(fence, ToMaster)
    assert fence.message == MapSet(epoch_no=1, inc=OLD, map=SWITCH, leads=False)


# ---------------------------------------------------------------------- workers


def worker(*spans: Span) -> WorkerState:
    state = WorkerState(WORKER, mode="asp", samples="exactly-once")
    feed = Feed(
        feed=0,
        purpose="train",
        num_samples=8,
        epochs=1,
        batch_size=1,
        shard_size=4,
        shuffle=False,
        seed=0,
    )
    state.leases.feed_opened(FeedOpened(inc=WORKER, feed=feed))
    state.new_epoch(NewEpoch(epoch_no=1, inc=WORKER, map=FIRST, step=0))
    state.leases.want(0)
    state.grant(Grant(epoch_no=1, inc=WORKER, n=1, feed=0, spans=spans))
    return state


def word(now: ServerMap, *, leads: bool, barrier: int = COPY.version, seq: int = 0) -> MapIs:
    inc = now.servers[0].inc
    return MapIs(epoch_no=1, server=inc, inc=WORKER, map=now, leads=leads, barrier=barrier, seq=seq)


def test_what_is_void_is_offered_again_to_all_servers_of_the_new_map() -> None:
    state = worker(Span(0, 0, 2))
    first, second = state.offer(state.leases.take(0, 1)), state.offer(state.leases.take(0, 1))

    done = state.map_is(word(COPY, leads=True, seq=first.seq))

    (again,) = (i for i in done if isinstance(i, OfferAgain))
    assert (again.seq, again.part.seq) == (second.seq, 3)
    assert again.part.spans == second.spans
    assert again.part.map_version == COPY.version
    assert state.offers[3].not_held_by == {OLD, OTHER, NEW}
    assert state.map_is(word(COPY, leads=True, seq=first.seq)) == [], "a repetition"


def test_a_followers_word_voids_nothing() -> None:
    state = worker(Span(0, 0, 1))
    state.offer(state.leases.take(0, 1))

    done = state.map_is(word(COPY, leads=False))

    assert list(state.offers) == [1]
    assert ToServer(OLD, AskMap(epoch_no=1, inc=WORKER)) in done


def test_after_a_switch_nobody_waits_for_who_has_left() -> None:
    state = worker(Span(0, 0, 1))
    state.map_is(word(COPY, leads=True))
    state.offer(state.leases.take(0, 1))
    for inc in (OTHER, NEW):
        state.offers[1].not_held_by.discard(inc)

    done = state.map_is(word(SWITCH, leads=True))

    (said,) = (i for i in done if isinstance(i, ToServer))
    assert said == ToServer(NEW, ready(1, COPY.version))


def test_a_pull_under_way_is_asked_anew_of_the_owners() -> None:
    state = worker(Span(0, 0, 1))
    state.start_pull((0,))

    (remapped,) = (i for i in state.map_is(word(SWITCH, leads=True)) if isinstance(i, Remapped))

    assert remapped.pull is not None
    assert (remapped.pull.ticket, remapped.pull.tables) == (2, (0,))
    assert state.owners == (NEW, OTHER)


# ---------------------------------------------------------------------- the master


def begun() -> Moving:
    state = Moving()
    state.begun = BEGUN
    return state


def test_one_map_after_the_other() -> None:
    state = begun()
    assert state.wanted_map(FIRST) is None
    state.heard(Joined(epoch_no=1, inc=NEW))
    assert state.wanted_map(FIRST) == COPY
    assert state.wanted_map(COPY) is None
    state.heard(Joined(epoch_no=1, inc=NEW, caught_up=COPY.version))
    assert state.wanted_map(COPY) == SWITCH
    assert not state.is_over(SWITCH, cut_under_way=False), "not all have its entry"
    state.settled = True
    assert not state.is_over(SWITCH, cut_under_way=True)
    assert state.is_over(SWITCH, cut_under_way=False)


def test_an_answer_that_says_nothing_new_leads_to_no_question() -> None:
    holder = ServerHolder()
    core = MasterState(holder, mode="asp", samples="exactly-once")
    core.apply(SchemaFixed(model=SCHEMA))
    core.apply(EpochStarted(epoch_no=1, cut=CutRef(cut_no=0), step=0, committed=(), map=FIRST))
    assert holder.change_servers((JOINER,), (OLD,))
    word = Joined(epoch_no=1, inc=NEW)
    assert holder.server_said(word), "now the map is asked for"
    assert holder.server_said(word) == []
    told = MapSet(epoch_no=1, inc=OLD, map=FIRST, leads=True)
    assert holder.server_said(told) == []
    assert holder.resend(), "what is unanswered is asked again"


def test_until_the_move_is_over_the_old_servers_are_those_that_count() -> None:
    state = begun()

    for now in (FIRST, COPY, SWITCH):
        assert set(state.serving(now)) == {OLD, OTHER}


def test_a_copy_that_is_given_up_needs_a_later_map_to_say_so() -> None:
    state = begun()
    state.heard(Joined(epoch_no=1, inc=NEW))
    state.given_up = True

    wanted = state.wanted_map(FIRST)

    assert wanted == without(FIRST)
    assert not state.is_over(FIRST, cut_under_way=False), "the copy may still be ordered"
    assert state.wanted_map(COPY) == without(COPY)
    assert state.is_over(without(COPY), cut_under_way=False)


def test_a_move_that_is_given_up_too_late_ends_as_one_that_was_not() -> None:
    state = begun()
    state.given_up = True
    assert not state.is_over(SWITCH, cut_under_way=False), "not all have heard of it"
    state.settled = True
    assert state.is_over(SWITCH, cut_under_way=False)
    state.settled, state.lost = False, True
    assert state.is_over(SWITCH, cut_under_way=True), "it died as a server"


# ---------------------------------------------------------------------- tensors


PIECE = Piece(
    epoch_no=1,
    server=OLD,
    inc=NEW,
    map=COPY,
    position=1,
    step=0,
    committed=(),
    last_seq=(),
    last_cut=0,
)


def whole_map(num_servers: int) -> ServerMap:
    servers = tuple(Server(inc, f"s{inc}", "") for inc in range(1, num_servers + 1))
    owners = tuple(bucket % num_servers for bucket in range(NUM_BUCKETS))
    return ServerMap(version=1, servers=servers, owners=owners)


def gradients(seed: int) -> Gradients:
    rng = np.random.default_rng(seed)
    keys = rng.choice(2**62, 40, replace=False)
    ids = rng.choice(500, 60, replace=False)
    return Gradients(
        dense={"float32": rng.normal(size=300).astype("float32")},
        sparse={
            0: (ids, rng.normal(size=(60, 4)).astype("float32")),
            1: (keys, rng.normal(size=(40, 2)).astype("float32")),
        },
        weight=1,
        rates=(0.1,),
        distinct=True,
    )


def test_a_share_that_travelled_in_pieces_is_the_same_share() -> None:
    now = whole_map(2)
    begun = MoveBegun(
        joining=(JOINER,),
        leaving=(1,),
        owners=tuple(NEW if owner == 1 else owner for owner in now.ownership),
        version=1,
    )
    copied = copying(now, begun)
    cut = partition.Partition(SCHEMA, copied)
    old = Store(SCHEMA, now.owners, 0)
    before, after = gradients(1), gradients(2)
    old.apply([shares(cut, before, 1)[0]])
    new = arrived(copied, NEW, {1: old})
    own, coming = shares(cut, after, 1), shares(cut, after, NEW)
    old.apply(own)
    new.apply(coming)

    same(old, new)


def arrived(copied: ServerMap, to: int, owners: dict[int, Store]) -> Store:
    """What a receiver builds of what owners send."""
    arriving = moving.ArrivingShare(SCHEMA, copied, to)
    for owner, store in owners.items():
        sent = msgspec.structs.replace(PIECE, server=owner, inc=to, map=copied)
        image = cutfile.Chunks(store.part(moving.moving_buckets(sent)), moving.PIECE_BYTES)
        sent = msgspec.structs.replace(sent, num_bytes=image.num_bytes)
        arriving.take(b"", sent, memoryview(image.at(0)))
    deadline_s = time.monotonic() + 30.0
    while not arriving.settle():
        assert time.monotonic() < deadline_s
    assert arriving.store is not None
    return arriving.store


def same(one: Store, two: Store) -> None:
    theirs, mine = one.save(), two.save()
    assert theirs.keys() == mine.keys()
    for name in theirs:
        np.testing.assert_array_equal(theirs[name], mine[name], name)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3), (3, 2), (2, 4)])
def test_servers_that_scale_hold_what_a_fixed_number_would(before: int, after: int) -> None:
    now = whole_map(before)
    fresh = tuple(Server(inc, f"s{inc}", "") for inc in range(before + 1, after + 1))
    stays = range(1, after + 1)
    owners = place(now.ownership, stays, bucket_weights(SCHEMA))
    leaving = tuple(range(after + 1, before + 1))
    begun = MoveBegun(joining=fresh, leaving=leaving, owners=owners, version=1)
    copied, cut = copying(now, begun), partition.Partition(SCHEMA, now)
    stores = {inc: Store(SCHEMA, now.owners, inc - 1) for inc in range(1, before + 1)}
    for inc, store in stores.items():
        store.apply(shares(cut, gradients(1), inc))
    received = {
        inc: arrived(copied, inc, sources_of(copied, inc, stores)) for inc in copied.receivers
    }
    cut = partition.Partition(SCHEMA, copied)
    for inc, store in received.items():
        store.apply(shares(cut, gradients(2), inc)[-1:])
    for inc, store in stores.items():
        store.apply(shares(cut, gradients(2), inc)[:1])

    then = switched(copied, begun)
    cut = partition.Partition(SCHEMA, then)
    held = {inc: received.get(inc) or stores[inc] for inc in stays}
    for inc, store in held.items():
        store.apply(shares(cut, gradients(3), inc))
        # A server that was there all the time, and had these buckets from the first.
        fixed = Store(SCHEMA, then.owners, then.index(inc))
        for seed in (1, 2, 3):
            fixed.apply(shares(cut, gradients(seed), inc))
        theirs, mine = fixed.save(), store.save()
        assert theirs.keys() == mine.keys()
        for name in theirs:
            if not name.startswith("table.d."):  # rows are numbered as they come
                np.testing.assert_array_equal(theirs[name], mine[name], name)
        (keys, rows), (others, values) = fixed.export(1), store.export(1)
        np.testing.assert_array_equal(np.sort(keys), np.sort(others))
        np.testing.assert_array_equal(rows[np.argsort(keys)], values[np.argsort(others)])


def sources_of(copied: ServerMap, to: int, stores: dict[int, Store]) -> dict[int, Store]:
    pairs = zip(copied.ownership, copied.copies, strict=True)
    return {owner: stores[owner] for owner, place in pairs if place == copied.index(to)}


def shares(cut: partition.Partition, whole: Gradients, server: int) -> list[Gradients]:
    """As they come out at a server of the map, by its incarnation: own, and arriving."""
    contribution = partition.Contribution(part(1, 1), whole, cut)
    frames = contribution.frames(server)
    return [
        Gradients(
            dense={"float32": frames[at]},
            sparse={
                0: (frames[at + 1], frames[at + 2]),
                1: (frames[at + 3], frames[at + 4]),
            },
            weight=whole.weight,
            rates=whole.rates,
            distinct=True,
        )
        for at in range(0, len(frames), 5)
    ]


def numbered(image: cutfile.Chunks) -> Piece:
    return msgspec.structs.replace(PIECE, num_bytes=image.num_bytes)


def test_a_piece_of_another_size_is_refused() -> None:
    state = joined()
    image = cutfile.Chunks({"a": np.zeros(9)}, moving.PIECE_BYTES)
    admission = Admission(state, SCHEMA, COPY)

    right = admission.misfit(numbered(image), [memoryview(image.at(0))])
    wrong = admission.misfit(numbered(image), [memoryview(b"abc")])
    nothing = admission.misfit(numbered(image), [])
    other = msgspec.structs.replace(numbered(image), inc=NEW + 1)
    strange = admission.misfit(other, [memoryview(image.at(0))])

    assert (right, bool(wrong), bool(nothing)) == ("", True, True)
    assert strange == f"a piece for incarnation {NEW + 1}"


def edge_of(state: ServerState) -> tuple[ps_server.ServerProcess, list[Any]]:
    """A server without a process, and what it sends."""
    edge, sent = object.__new__(ps_server.ServerProcess), list[Any]()
    edge.state, edge.store, edge.admission, edge.arriving, edge.early = state, None, None, None, {}
    edge.route, edge.asked, edge.refused = {}, {}, set()
    edge.handler_s, edge.aside_s = {}, 0.0
    edge.data = SimpleNamespace(send=lambda _, message, *frames: sent.append(message))  # type: ignore[assignment]
    return edge, sent


def test_a_piece_of_another_epoch_is_not_looked_at() -> None:
    edge, sent = edge_of(joined())
    image = cutfile.Chunks({"a": np.zeros(9)}, moving.PIECE_BYTES)
    edge.arriving = moving.ArrivingShare(SCHEMA, COPY, NEW)

    edge._serve(
        b"%d-copy-%d" % (OLD, OLD), msgspec.structs.replace(numbered(image), epoch_no=2), []
    )

    assert (sent, edge.arriving.progress) == ([], 0)


@pytest.mark.parametrize("epoch_no", [1, 2])
def test_an_export_for_a_fenced_worker_or_of_another_epoch_is_refused(epoch_no: int) -> None:
    edge, sent = edge_of(server(OLD))
    edge.state.fenced[WORKER] = 0

    export = Export(epoch_no=epoch_no, inc=WORKER, ticket=1, table=99, offset=0)
    edge._serve(b"worker-%d" % WORKER, export, [])

    assert sent == [Refused(epoch_no=1, server=OLD, inc=WORKER, fenced=epoch_no == 1)]


@pytest.mark.parametrize("size", [1, 64, 100, 4096])
def test_chunks_are_the_packed_save(size: int) -> None:
    saved = {"a": np.arange(100, dtype=np.float64), "b": np.arange(7, dtype=np.int32)}
    packed = bytearray(cutfile.packed_bytes(saved))
    cutfile.pack(saved, packed)

    image = cutfile.Chunks(saved, size)

    pieces = [image.at(offset).tobytes() for offset in range(0, image.num_bytes, size)]
    assert b"".join(pieces) == packed
