"""What a synchronous step consists of is a function of what is in the model."""

from collections.abc import Sequence
from itertools import accumulate

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.base.samples import Intervals, Span
from paceline.wire.messages.feeds import Feed


def test_blocks_of_a_slice_lie_where_they_do_whoever_computes_them() -> None:
    feed = Feed(
        feed=0,
        purpose="train",
        num_samples=25,
        epochs=2,
        batch_size=10,
        shard_size=25,
        shuffle=False,
        seed=0,
        blocks=4,
    )
    ends = [feed.block_end(position) for position in range(50)]
    # Of 10 samples: 2, 3, 2 and 3; of the last 5 of an epoch half as many blocks.
    assert list(dict.fromkeys(ends[:25])) == [2, 5, 7, 10, 12, 15, 17, 20, 22, 25]
    assert list(dict.fromkeys(ends[25:])) == [27, 30, 32, 35, 37, 40, 42, 45, 47, 50]
    assert all(position < end for position, end in enumerate(ends))


def feed(
    num_samples: int = 10, *, batch_size: int = 4, epochs: int = 2, per_worker: bool = False
) -> Feed:
    return Feed(
        feed=0,
        purpose="train",
        num_samples=num_samples,
        epochs=epochs,
        batch_size=batch_size,
        per_worker=per_worker,
        shard_size=4,
        shuffle=False,
        seed=0,
    )


def test_slices_come_in_order_and_none_crosses_an_epoch() -> None:
    done, found = Intervals(), []
    while whole := feed().next_slice(done):
        (span,) = whole
        found.append((span.start, span.stop))
        done.add(span.start, span.stop)

    assert found == [(0, 4), (4, 8), (8, 10), (10, 14), (14, 18), (18, 20)]


def test_what_was_left_out_comes_at_the_end_of_its_epoch() -> None:
    one = feed()

    assert one.next_slice(Intervals([0, 3, 5, 8])) == (Span(0, 8, 10),)
    left = one.next_slice(Intervals([0, 3, 5, 8, 9, 10]))
    assert left == (Span(0, 3, 5), Span(0, 8, 9))
    assert one.next_slice(Intervals([0, 10])) == (Span(0, 10, 14),)
    assert not one.is_in_order(left)
    assert one.rank(left) == 4, "dealt as the first slice of the next epoch is"


def test_what_was_left_out_is_cut_into_slices_of_the_same_size() -> None:
    one = feed(epochs=1)

    assert one.next_slice(Intervals([0, 1, 7, 8, 9, 10])) == (Span(0, 1, 5),)
    assert one.next_slice(Intervals([0, 5, 7, 8, 9, 10])) == (Span(0, 5, 7), Span(0, 8, 9))
    assert one.start_of(one.rank((Span(0, 1, 5),))) == 10, "the end"


@given(st.data())
def test_whatever_is_left_out_all_samples_come_once_and_in_their_epoch(data: st.DataObject) -> None:
    one = feed(
        data.draw(st.integers(1, 30)),
        batch_size=data.draw(st.integers(1, 12)),
        epochs=data.draw(st.integers(1, 3)),
    )
    size, done, steps = one.num_samples or 0, Intervals(), 0
    while whole := one.next_slice(done):
        steps += 1
        points = [p for span in whole for p in range(span.start, span.stop)]
        assert len(points) <= one.batch_size
        assert len({p // size for p in points}) == 1
        assert not any(list(done.within(p, p + 1)) for p in points)
        assert not list(done.gaps(0, points[0] // size * size)), (
            "no epoch begins before another ends"
        )
        if one.is_in_order(whole):
            assert one.slice_no(one.rank(whole)) == whole[0]
        kept = data.draw(st.sets(st.sampled_from(points), min_size=1))
        for point in kept:
            done.add(point, point + 1)
    assert len(done) == size * one.epochs
    assert steps >= one.num_slices


def of_sizes(sizes: Sequence[int]) -> Feed:
    one = feed(sum(sizes), batch_size=max(sizes), epochs=1)
    return msgspec.structs.replace(one, ends=tuple(accumulate(sizes)))


def test_slices_of_several_sizes_end_where_the_batches_do() -> None:
    one, done, found = of_sizes([2, 5, 1, 3]), Intervals(), []
    assert one.num_slices == one.last_step == 4
    while whole := one.next_slice(done):
        (span,) = whole
        found.append((span.start, span.stop))
        assert {one.number_at(k) for k in range(span.start, span.stop)} == {len(found)}
        assert one.steps_between(span.start, span.stop, len(span)) == 1
        done.add(span.start, span.stop)
    assert found == [(0, 2), (2, 7), (7, 8), (8, 11)]
    assert one.start_of(5) == 11


@given(st.data())
def test_what_is_left_out_of_slices_of_several_sizes_is_never_mixed(data: st.DataObject) -> None:
    one, done = (
        of_sizes(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=8))),
        Intervals(),
    )
    while whole := one.next_slice(done):
        points = [p for span in whole for p in range(span.start, span.stop)]
        assert len({one.number_at(p) for p in points}) == 1
        assert not any(list(done.within(p, p + 1)) for p in points)
        before = one.steps_in(len(done))
        for point in data.draw(st.sets(st.sampled_from(points), min_size=1)):
            done.add(point, point + 1)
        assert one.steps_in(len(done)) >= before
    assert len(done) == one.num_samples
    assert one.steps_in(len(done)) == one.num_slices


def test_a_step_has_as_many_slices_of_one_epoch_as_workers_do_it() -> None:
    one = feed(per_worker=True)

    assert one.global_batch(2) == 8
    assert one.next_slice(Intervals(), 2) == (Span(0, 0, 8),)
    assert one.next_slice(Intervals([0, 4]), 3) == (Span(0, 4, 10),), "the epoch ends"
    assert one.next_slice(Intervals([0, 3, 5, 10]), 2) == (Span(0, 3, 5),), "what was left out"
    assert feed().next_slice(Intervals(), 2) == (Span(0, 0, 4),)


@given(st.data())
def test_however_many_do_a_step_all_samples_come_once_and_in_their_epoch(
    data: st.DataObject,
) -> None:
    one = feed(
        data.draw(st.integers(1, 40)),
        batch_size=data.draw(st.integers(1, 6)),
        epochs=data.draw(st.integers(1, 3)),
        per_worker=True,
    )
    size, done = one.num_samples or 0, Intervals()
    while whole := one.next_slice(done, workers := data.draw(st.integers(1, 4))):
        points = [p for span in whole for p in range(span.start, span.stop)]
        assert len(points) <= one.global_batch(workers)
        (epoch,) = {p // size for p in points}
        left = sum(stop - start for start, stop in done.gaps(epoch * size, (epoch + 1) * size))
        assert len(points) == left or len(points) > one.global_batch(workers - 1)
        assert not any(list(done.within(p, p + 1)) for p in points)
        for point in data.draw(st.sets(st.sampled_from(points), min_size=1)):
            done.add(point, point + 1)
    assert len(done) == size * one.epochs


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_an_epoch_has_as_many_global_batches_whatever_its_steps_lack(data: st.DataObject) -> None:
    one = feed(
        data.draw(st.integers(1, 40)),
        batch_size=data.draw(st.integers(1, 6)),
        epochs=data.draw(st.integers(1, 3)),
        per_worker=data.draw(st.booleans()),
    )
    workers = data.draw(st.integers(1, 4))
    size, batch = one.num_samples or 0, one.global_batch(workers)
    done, found = Intervals(), 0
    while whole := one.next_slice(done, workers):
        points = [p for span in whole for p in range(span.start, span.stop)]
        before = len(done)
        for point in data.draw(st.sets(st.sampled_from(points), min_size=1)):
            done.add(point, point + 1)
        found += one.steps_between(before, len(done), batch)
        if len(done) % size == 0:
            assert found == len(done) // size * -(-size // batch)
        elif not one.per_worker:
            assert found == one.steps_in(len(done))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_every_whole_step_is_one_global_batch_however_many_do_it(data: st.DataObject) -> None:
    one = feed(
        data.draw(st.integers(1, 40)),
        batch_size=data.draw(st.integers(1, 6)),
        per_worker=data.draw(st.booleans()),
    )
    done = Intervals()
    while whole := one.next_slice(done, workers := data.draw(st.integers(1, 4))):
        before = len(done)
        for span in whole:
            done.add(span.start, span.stop)
        assert one.steps_between(before, len(done), one.global_batch(workers)) == 1
