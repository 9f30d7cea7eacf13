"""Who computes what of a step."""

import random

import pytest

from paceline.base.samples import Span
from paceline.protocol.holding.group.division import Sharing
from paceline.wire.messages.feeds import Slice
from paceline.wire.messages.group import Division, MemberPart


def samples(spans: Slice) -> list[int]:
    return [place for span in spans for place in range(span.start, span.stop)]


def dealt(sharing: Sharing, whole: Slice, division: Division, members: int) -> list[list[Slice]]:
    """The batches of each member."""
    runs = sharing.runs(whole, members, division)
    accumulations = [part.accumulation for part in division.parts] or [1] * members
    return [
        sharing.batches(whole, run, count) for run, count in zip(runs, accumulations, strict=True)
    ]


@pytest.mark.parametrize("blocks", [0, 1, 5, 16])
def test_all_samples_are_dealt_in_order_and_a_batch_is_never_empty(blocks: int) -> None:
    rng = random.Random(blocks)
    for _ in range(300):
        size, members = rng.randint(1, 80), rng.randint(1, 6)
        gap = rng.randint(0, size)
        whole = tuple(span for span in (Span(0, 0, gap), Span(0, gap + 5, size + 5)) if len(span))
        parts = [MemberPart(rng.randint(1, 9), rng.randint(1, 4)) for _ in range(members)]
        division = Division(1, tuple(parts)) if rng.random() < 0.7 else Division()
        sharing = Sharing(64, blocks)
        batches = dealt(sharing, whole, division, members)
        flat = [one for mine in batches for one in mine]
        assert all(flat)
        assert [place for one in flat for place in samples(one)] == samples(whole)
        weights = [
            sum(map(len, sharing.samples(whole, run)))
            for run in sharing.runs(whole, members, division)
        ]
        assert weights == [sum(len(samples(one)) for one in mine) for mine in batches]


def test_blocks_are_the_same_in_every_division() -> None:
    sharing = Sharing(100, 16)
    for whole in [(Span(0, 0, 100),), (Span(0, 100, 130),), (Span(0, 0, 3), Span(0, 7, 8))]:
        (alone,) = dealt(sharing, whole, Division(), 1)
        for parts in [(1, 1), (1, 2, 3), (5, 1), (1,) * 20]:
            division = Division(1, tuple(MemberPart(size, 3) for size in parts))
            several = dealt(sharing, whole, division, len(parts))
            assert [one for mine in several for one in mine] == alone


def test_a_small_step_has_fewer_blocks_and_not_smaller_ones() -> None:
    sharing = Sharing(64, 16)
    assert sharing.num_units((Span(0, 0, 64),)) == 16
    assert sharing.num_units((Span(0, 0, 16),)) == 4
    assert sharing.num_units((Span(0, 0, 3),)) == 1
    assert sharing.num_units(()) == 0
    assert sharing.num_units((Span(0, 0, 30),)) == 8
    assert Sharing(8, 4).num_units((Span(0, 0, 3),)) == 2  # one of 3 would be larger than the rest
    assert Sharing(8, 16).num_units((Span(0, 0, 8),)) == 8


def test_who_is_absent_has_nothing_and_the_others_have_all() -> None:
    whole = (Span(0, 0, 12),)
    sharing = Sharing(12)
    assert [len(run) for run in sharing.runs(whole, 3, Division(), [2])] == [6, 6, 0]
    parts = Division(1, (MemberPart(1), MemberPart(5), MemberPart(2)))
    assert [len(run) for run in sharing.runs(whole, 3, parts, [1])] == [4, 0, 8]


def test_who_has_nothing_to_compute_is_given_something() -> None:
    whole = (Span(0, 0, 2),)
    for sharing in (Sharing(64), Sharing(64, 16)):
        assert sharing.batches(whole, sharing.stand_in(whole), 1) == [whole]


@pytest.mark.parametrize("per_worker", [False, True])
def test_nobody_gets_a_single_sample_where_a_batch_has_enough(per_worker: bool) -> None:
    rng = random.Random(3)
    for _ in range(500):
        members, size = rng.randint(1, 6), rng.randint(1, 40)
        parts = [MemberPart(rng.randint(1, 9), rng.randint(1, 4)) for _ in range(members)]
        division = Division(1, tuple(parts)) if rng.random() < 0.7 else Division()
        absent = rng.sample(range(members), rng.randint(0, members - 1))
        sharing = Sharing(8 if per_worker else 64, per_worker=per_worker)
        whole = (Span(0, 5, 5 + size),)
        runs = sharing.runs(whole, members, division, absent)
        assert [place for run in runs for place in run] == list(range(size))
        assert all(len(run) != 1 or size == 1 for run in runs), runs
        assert not any(runs[rank] for rank in absent)
        for run, part in zip(runs, parts, strict=True):
            batches = sharing.batches(whole, run, part.accumulation)
            assert all(len(samples(one)) != 1 or size == 1 for one in batches)


def test_a_batch_of_one_sample_for_each_stays_so() -> None:
    whole = (Span(0, 0, 4),)
    assert Sharing(4).runs(whole, 4, Division()) == [range(k, k + 1) for k in range(4)]
    assert Sharing(1, per_worker=True).runs(whole, 4, Division())[3] == range(3, 4)
    assert Sharing(8).runs((Span(0, 0, 2),), 2, Division()) == [range(0), range(2)]
    assert [samples(one) for one in Sharing(4).batches(whole, range(4), 4)] == [[0], [1], [2], [3]]
