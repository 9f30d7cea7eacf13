"""How long slow spells last, by those that were."""

import math

import pytest

from paceline.policy.stats.spells import LifeTable


def table(*seconds: float) -> LifeTable:
    spells = LifeTable()
    for each in seconds:
        spells = spells.with_spell(each)
    return spells


@pytest.mark.parametrize("age_s", [0.5, 3.0, 100.0])
@pytest.mark.parametrize("until_s", [1.0, 50.0, 1e5])
def test_without_spells_one_of_any_age_is_as_likely_to_end_before_it_is_twice_as_old(
    age_s: float, until_s: float
) -> None:
    expected_s = age_s * math.log1p(until_s / age_s)
    assert LifeTable().expected_s(age_s, 0.0, until_s) == pytest.approx(expected_s)
    assert LifeTable().survival(age_s, age_s) == pytest.approx(0.5)


def test_a_time_ahead_may_begin_later() -> None:
    both_s = [LifeTable().expected_s(7.0, *span) for span in ((0.0, 20.0), (20.0, 90.0))]
    assert sum(both_s) == pytest.approx(LifeTable().expected_s(7.0, 0.0, 90.0))


def test_it_is_expected_to_end_as_those_before_did() -> None:
    short = table(*[40.0] * 50)
    assert short.expected_s(35.0, 0.0, 1000.0) < 0.2 * LifeTable().expected_s(35.0, 0.0, 1000.0)
    assert short.survival(33.0, 31.0) < 0.05
    assert short.survival(8.0, 16.0) > 0.9, "none of them ended so young"


def test_what_has_outlived_all_others_goes_on_as_if_there_had_been_none() -> None:
    assert table(*[40.0] * 50).expected_s(100.0, 0.0, 1000.0) == pytest.approx(
        LifeTable().expected_s(100.0, 0.0, 1000.0)
    )


def test_of_a_spell_that_was_cut_short_only_its_age_is_known() -> None:
    cut = LifeTable().with_spell(40.0, over=False)
    assert cut.survival(8.0, 8.0) > 0.5
    assert cut.survival(33.0, 10.0) == LifeTable().survival(33.0, 10.0)


def test_old_spells_fade() -> None:
    spells = table(*[40.0] * 1000)
    for _ in range(400):
        spells = spells.with_spell(1000.0)
    assert spells.survival(33.0, 30.0) > 0.8


def test_an_edge_belongs_to_the_interval_that_it_begins() -> None:
    for exponent in range(-3, 20):
        edge_s = 2.0**exponent
        assert math.isfinite(LifeTable().expected_s(edge_s, 0.0, edge_s))
