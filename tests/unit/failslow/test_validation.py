"""What is measured in a validation, and what the measurements say."""

import itertools

import pytest

from paceline.features.failslow.policy.passes import Hop
from paceline.features.failslow.policy.profile import summarise
from paceline.features.failslow.policy.suspects import Findings, Suspect, find_suspects
from paceline.features.failslow.policy.validation import (
    Measurements,
    ValidationPlan,
    ValidationResult,
    judge,
    plan_validation,
)
from tests.unit.failslow.emulated_mesh import EmulatedMesh

LINKS_S = {(0, 1): 12.8, (1, 2): 16.3, (2, 3): 17.0, (3, 0): 18.9}
"""Healthy PCIe links in the log of the published artifact, ms: 1.5 times apart."""
ALL = ValidationPlan(ranks=(0, 1, 2, 3), passes=())


def measured(
    links: dict[Hop, float] | None = None, products: dict[int, float] | None = None, ranks: int = 4
) -> Measurements:
    """Times of four healthy ranks and links, but for these factors."""
    slower = links or {}
    return Measurements(
        products_s={rank: (products or {}).get(rank, 1.0) * 0.065 for rank in range(ranks)},
        hops=tuple(
            (hop, slower.get(hop, 1.0) * ms / 1e3)
            for hop, ms in LINKS_S.items()
            if max(hop) < ranks
        ),
    )


def named(result: ValidationResult) -> set[tuple[str, tuple[int, ...]]]:
    return {(one.kind, one.ranks) for one in result.slow}


def test_healthy_links_that_differ_by_half_give_no_alarm() -> None:
    well = tuple((rank,) for rank in range(4)) + tuple(LINKS_S)
    assert judge(ALL, measured(), measured()) == ValidationResult(
        well=well, products=dict.fromkeys(range(4), 1.0)
    )
    assert judge(ALL, measured()) == ValidationResult(well=well)
    jitter = measured({(0, 1): 1.15, (2, 3): 0.9}, {2: 1.15})
    assert judge(ALL, jitter, measured()).slow == ()


@pytest.mark.parametrize("hop", LINKS_S)
def test_a_link_is_slow_against_its_own_time_from_the_start(hop: Hop) -> None:
    slower = measured({hop: 1.3})
    assert judge(ALL, slower).slow == ()  # within what healthy links differ by
    result = judge(ALL, slower, measured())
    assert named(result) == {("link", tuple(sorted(hop)))}
    assert hop not in result.well and len(result.well) == 7
    assert result.slow[0].ratio == pytest.approx(1.3)
    assert result.slow[0].against == "baseline"


@pytest.mark.parametrize("with_baseline", [False, True])
def test_slow_ranks_and_links_are_both_named_the_slowest_first(with_baseline: bool) -> None:
    result = judge(ALL, measured({(1, 2): 3.0}, {3: 7.9}), measured() if with_baseline else None)
    assert named(result) == {("computation", (3,)), ("link", (1, 2))}
    assert [one.kind for one in result.slow] == ["computation", "link"]
    assert result.slow[0].against == ("baseline" if with_baseline else "peers")


def test_a_gpu_that_is_a_fifth_slower_is_found_with_a_baseline() -> None:
    result = judge(ALL, measured(products={1: 1.25}), measured())
    assert named(result) == {("computation", (1,))}


def test_all_links_of_a_rank_are_its_own_fault() -> None:
    result = judge(ALL, measured({(0, 1): 2.0, (1, 2): 4.0}), measured())
    assert named(result) == {("link", (1,))}
    assert result.slow[0].ratio == pytest.approx(4.0)


def test_a_link_that_is_a_little_slow_beside_a_very_slow_one_is_not_the_rank_s_fault() -> None:
    result = judge(ALL, measured({(0, 1): 400.0, (1, 2): 3.0}), measured())
    assert named(result) == {("link", (0, 1)), ("link", (1, 2))}
    result = judge(ALL, measured({(0, 1): 400.0, (1, 2): 100.0}), measured())
    assert named(result) == {("link", (1,))}


def test_a_rank_short_of_a_processor_sends_as_slowly_as_it_computes() -> None:
    slow = {(0, 1): 3.0, (1, 2): 3.0}
    assert named(judge(ALL, measured(slow, {1: 3.0}), measured())) == {("computation", (1,))}
    slow[0, 1] = 9.0
    result = judge(ALL, measured(slow, {1: 3.0}), measured())
    assert named(result) == {("computation", (1,)), ("link", (0, 1))}


def test_a_rank_that_did_not_come_is_named_and_its_links_are_not_judged() -> None:
    result = judge(ALL, measured({(1, 2): 2.0}, ranks=3), measured())
    assert result.absent == (3,)
    assert named(result) == {("link", (1, 2))}
    stale = Measurements(products_s={0: 0.065}, hops=(((0, 1), 9.0),))
    assert judge(ALL, stale, measured()).absent == (1, 2, 3)
    assert judge(ALL, stale, measured()).slow == ()


def test_one_component_without_anything_to_compare_it_with_is_no_fault() -> None:
    alone = Measurements(products_s={0: 9.0}, hops=(((0, 1), 9.0),))
    assert judge(ValidationPlan(ranks=(0,), passes=()), alone) == ValidationResult()


def parts_of(plan: ValidationPlan) -> int:
    """How many ranks and links are measured."""
    links = {frozenset(hop) for hop in itertools.chain.from_iterable(plan.passes)}
    return len(plan.ranks) + len(links)


def mesh_groups(mesh: EmulatedMesh) -> list[tuple[int, ...]]:
    return sorted({call.group for call in mesh.window(1).calls})


@pytest.mark.parametrize(
    ("factors", "links"),
    [({5: 2.0}, {}), ({}, {(1, 5, 9, 13): 6.0}), ({9: 2.0}, {(2, 3): 9.0}), ({}, {(17, 33): 9.0})],
)
def test_only_the_groups_of_suspects_are_measured(
    factors: dict[int, float], links: dict[tuple[int, ...], float]
) -> None:
    mesh = EmulatedMesh(tp=4, dp=4, pp=4, factors=factors, links=links)
    found = find_suspects(summarise(mesh.window(4)))
    assert found.suspects
    groups = mesh_groups(EmulatedMesh(tp=4, dp=4, pp=4))
    plan = plan_validation(found, groups)
    assert parts_of(plan) <= 0.25 * parts_of(plan_validation(Findings(), groups))
    for one in found.suspects:
        assert set(one.ranks) <= set(plan.ranks)
        if one.kind == "link":
            asked = {frozenset(hop) for hop in itertools.chain.from_iterable(plan.passes)}
            ring = zip(one.ranks, [*one.ranks[1:], one.ranks[0]], strict=True)
            assert {frozenset(hop) for hop in ring} <= asked
    assert len(plan.passes) <= 7
    for one_pass in plan.passes:
        busy = list(itertools.chain.from_iterable(one_pass))
        assert len(busy) == len(set(busy))
    assert len(plan.ranks) > 1  # a rank alone could not be compared


def test_without_suspects_everything_is_measured() -> None:
    groups = mesh_groups(EmulatedMesh())
    plan = plan_validation(Findings(), groups)
    assert plan.ranks == tuple(range(8))
    hops = {frozenset(hop) for hop in itertools.chain.from_iterable(plan.passes)}
    assert hops == {frozenset(group) for group in groups}


def test_what_could_not_be_compared_is_measured() -> None:
    plan = plan_validation(
        Findings(lone_ranks=(2,), lone_groups=((0, 1),)), [(0, 1), (2, 3), (4, 5)]
    )
    assert plan.ranks == (0, 1, 2)
    assert set(itertools.chain.from_iterable(plan.passes)) == {(0, 1), (1, 0)}


def test_a_suspected_rank_in_no_group_is_measured_alone() -> None:
    one = Suspect(
        kind="computation", ranks=(0,), seconds=2, reference_s=1, against="baseline", lost=0.5
    )
    plan = plan_validation(Findings(suspects=(one,)), [])
    assert plan.ranks == (0,)
    assert plan.passes == ()


def test_a_link_of_ring_and_tree_is_measured_once_in_a_direction() -> None:
    plan = plan_validation(Findings(lone_groups=(tuple(range(8)),)), [tuple(range(8))])
    hops = list(itertools.chain.from_iterable(plan.passes))
    assert len(hops) == len(set(map(frozenset, hops)))
    assert len(hops) == 8 + 3  # of a tree's seven links, four are the ring's
