"""Each sample is in one place: to do, leased, or done."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.base.samples import Portion, SampleSet, Span
from paceline.protocol.samples.ledger import Ledger, Part
from paceline.wire.messages.feeds import Feed


def feed(num_samples: int = 10, *, epochs: int = 1, batch_size: int = 4) -> Feed:
    return Feed(
        feed=0,
        purpose="train",
        num_samples=num_samples,
        epochs=epochs,
        batch_size=batch_size,
        shard_size=4,
        shuffle=True,
        seed=1,
    )


@pytest.fixture
def ledger() -> Ledger:
    found = Ledger()
    found.open(feed())
    return found


def grant(ledger: Ledger, inc: int, count: int) -> list[Span]:
    spans = ledger.pick(0, count)
    ledger.grant(inc, spans)
    return spans


def test_grants_follow_each_other(ledger: Ledger) -> None:
    assert grant(ledger, 1, 4) == [Span(0, 0, 4)]
    assert grant(ledger, 2, 4) == [Span(0, 4, 8)]
    assert grant(ledger, 1, 4) == [Span(0, 8, 10)]
    assert ledger.pick(0, 4) == []


def test_a_pick_takes_nothing(ledger: Ledger) -> None:
    assert ledger.pick(0, 4) == ledger.pick(0, 4)


def test_a_lost_lease_goes_back_without_what_is_in_the_model(ledger: Ledger) -> None:
    grant(ledger, 1, 10)
    ledger.commit([Span(0, 2, 5)])
    ledger.lose(1)

    assert grant(ledger, 2, 10) == [Span(0, 0, 2)]
    assert grant(ledger, 2, 10) == [Span(0, 5, 10)]
    assert ledger.lease_size(1, 0) == 0
    assert ledger.lease_size(2, 0) == 7


def test_what_came_back_is_read_at_the_end_of_the_epoch() -> None:
    ledger = Ledger()
    ledger.open(feed(4, epochs=2))
    grant(ledger, 1, 2)
    ledger.lose(1)

    assert [grant(ledger, 2, 2) for _ in range(4)] == [
        [Span(0, 2, 4)],
        [Span(0, 0, 2)],
        [Span(0, 4, 6)],
        [Span(0, 6, 8)],
    ]


def test_a_restore_leaves_the_complement_of_the_cut_to_do(ledger: Ledger) -> None:
    grant(ledger, 1, 8)
    ledger.commit([Span(0, 0, 8)])
    ledger.restore([Span(0, 0, 3)])

    assert ledger.done == SampleSet([Span(0, 0, 3)])
    assert not ledger.leases
    spans = [grant(ledger, 2, 10) for _ in range(2)]
    assert sorted(span for found in spans for span in found) == [Span(0, 3, 8), Span(0, 8, 10)]


def test_a_feed_is_complete_when_all_of_it_is_in_the_model(ledger: Ledger) -> None:
    grant(ledger, 1, 10)
    ledger.commit([Span(0, 0, 9)])
    assert not ledger.is_complete(0)
    ledger.commit([Span(0, 9, 10)])
    assert ledger.is_complete(0)


def parts(ledger: Ledger, member: int) -> list[Part]:
    """The first two slices, shared by two members alike."""
    wholes = [ledger.feeds[0].slice_of(step) for step in (1, 2)]
    return [((whole,), Portion(member, member + 1, 2).of([whole])) for whole in wholes]


def test_members_share_each_slice(ledger: Ledger) -> None:
    assert ledger.pick_parts(parts(ledger, 0)) == [Span(0, 0, 2), Span(0, 4, 6)]
    assert ledger.pick_parts(parts(ledger, 1)) == [Span(0, 2, 4), Span(0, 6, 8)]


def test_who_has_nothing_left_gets_what_others_left_of_the_undecided_step(ledger: Ledger) -> None:
    ledger.grant(1, [Span(0, 0, 2)])
    first = parts(ledger, 0)[:1]

    assert ledger.pick_parts(first) == []
    assert ledger.pick_parts(first, urgent=2) == [Span(0, 2, 4)]
    assert ledger.pick_parts(first, urgent=1) == [Span(0, 2, 3)]


def test_nobody_helps_with_what_may_be_missing(ledger: Ledger) -> None:
    ledger.grant(1, [Span(0, 0, 2)])
    first = parts(ledger, 0)[:1]

    assert ledger.pick_parts(first, urgent=2, spared=1) == [Span(0, 3, 4)]
    assert ledger.pick_parts(first, urgent=2, spared=2) == []
    # Where a step is computed in blocks none is divided.
    assert ledger.pick_parts(first, urgent=1, edge=lambda at: -(-at // 4) * 4) == [Span(0, 2, 4)]


def test_what_an_owner_gives_back_is_to_do_again(ledger: Ledger) -> None:
    grant(ledger, 1, 6)
    ledger.give_back(1, [Span(0, 4, 10)])

    assert ledger.lease_size(1, 0) == 4
    assert ledger.holders(0, 3) == [1]
    assert ledger.holders(0, 4) == []
    assert ledger.num_to_do(0) == 6


class _Job(Ledger):
    """A ledger that counts where every sample is."""

    def places(self, size: int) -> list[int]:
        line = self.lines[0]
        spans = [
            *self.done,
            *(span for lease in self.leases.values() for span in lease),
            *(Span(0, *back) for back in line.returned),
            Span(0, line.cursor, size),
        ]
        return sorted(p for span in spans for p in range(span.start, span.stop))


@given(
    st.lists(
        st.tuples(st.sampled_from(["grant", "lose", "commit", "restore"]), st.integers(1, 4)),
        max_size=40,
    )
)
def test_every_sample_is_in_exactly_one_place(acts: list[tuple[str, int]]) -> None:
    ledger = _Job()
    ledger.open(feed(12))
    for act, number in acts:
        match act:
            case "grant":
                grant(ledger, number, 1 + number % 3)
            case "lose":
                ledger.lose(number)
            case "commit":
                lease = ledger.leases.get(number, SampleSet())
                ledger.commit(lease.spans()[:1])
            case "restore":
                ledger.restore(ledger.done.spans()[: number - 1])
        assert ledger.places(12) == list(range(12))


def evaluated(num_samples: int = 10) -> tuple[Ledger, Feed]:
    """A ledger of a training feed, all of it leased, and an evaluation."""
    found = Ledger()
    found.open(feed())
    grant(found, 1, 10)
    other = msgspec.structs.replace(
        feed(num_samples), feed=1, purpose="evaluate", shuffle=False, first_step=0
    )
    found.open(other)
    return found, other


def test_at_most_once_only_what_was_to_be_trained_on_counts_as_done_with_its_owner() -> None:
    ledger, evaluation = evaluated()
    ledger.grant(1, ledger.pick(1, 6))
    ledger.lose(1, again=False)
    assert ledger.is_complete(0)
    line = evaluation.line()
    assert not ledger.done.overlap(Span(line, 0, 10))
    left = [span for _ in range(3) for span in take(ledger, 1, 6)]
    assert sorted(left) == [Span(line, 0, 6), Span(line, 6, 10)]


def test_at_most_once_a_restore_begins_an_evaluation_anew_and_trains_on_nothing_again() -> None:
    ledger, evaluation = evaluated()
    line = evaluation.line()
    ledger.grant(2, ledger.pick(1, 6))
    ledger.commit([Span(line, 0, 4)])
    ledger.restore([], again=False)
    assert not ledger.leases
    assert ledger.is_complete(0)
    assert ledger.pick(0, 10) == []
    left = [span for _ in range(3) for span in take(ledger, 1, 6)]
    assert sorted(left) == [Span(line, 0, 6), Span(line, 6, 10)]


def take(ledger: Ledger, feed: int, count: int) -> list[Span]:
    spans = ledger.pick(feed, count)
    ledger.grant(9, spans)
    return spans
