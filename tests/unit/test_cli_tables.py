"""Markdown of results that were made up, so that every number is known."""

import re
from pathlib import Path

import pytest

from paceline.cli.stragglers.tables import markdown
from paceline.sim.catalogue import presets
from paceline.sim.experiments import FIRST_EVALUATION_SEED
from paceline.sim.outcome import Outcome
from paceline.sim.results import Method, Results, Run

Jcts = dict[tuple[str, str, str], list[float]]


def results_of(jcts_s: Jcts, *, first_seed: int = 0, oracle_s: float = 1.0) -> Results:
    """By scenario, mode and method: the JCT of each seed."""
    results = Results(
        clock="virtual", preset="test", version="0", commit="c", command="x", started="now"
    )
    for (scenario, mode, method), each_s in jcts_s.items():
        results.methods[method] = Method(label=method, solution="none")
        results.runs += [
            Run(
                scenario=scenario,
                mode=mode,
                method=method,
                seed=seed,
                outcome=Outcome(jct_s=jct_s, samples=1, steps=1),
                oracle_s=oracle_s,
            )
            for seed, jct_s in enumerate(each_s, first_seed)
        ]
    return results


def row_of(text: str, head: str) -> list[str]:
    """The cells after the first of the only row that begins so."""
    (row,) = re.findall(rf"^\| {re.escape(head)} \|(.*)\|$", text, re.MULTILINE)
    return [cell.strip() for cell in row.split("|")]


def test_the_papers_factor_with_a_slow_server_in_asp_is_against_an_even_partition() -> None:
    # AntDT section VII-B: "two times as fast as the native ASP", which has an even partition.
    results = results_of(
        {
            ("server 0.8", "asp", "ASP"): [300.0],
            ("server 0.8", "asp", "ASP-DDS"): [200.0],
            ("server 0.8", "asp", "ND"): [100.0],
        }
    )
    text = markdown(results)
    assert row_of(text, "server 0.8, asp: ASP") == ["3.00", "2.00"]
    assert "server 0.8, asp: ASP-DDS" not in text


@pytest.mark.parametrize(
    ("first_seed", "said"),
    [
        (0, "Seeds 0 to 1: development seeds"),
        (FIRST_EVALUATION_SEED - 1, "Seeds 4999 to 5000: in part development seeds"),
        (FIRST_EVALUATION_SEED, "Seeds 5000 to 5001: held out"),
    ],
)
def test_the_page_says_which_seeds_were_run_and_whether_they_are_held_out(
    first_seed: int, said: str
) -> None:
    results = results_of({("a", "bsp", "BSP"): [1.0, 2.0]}, first_seed=first_seed)
    assert said in markdown(results)


def test_solutions_are_judged_on_held_out_seeds(tmp_path: Path) -> None:
    judging = {"families", "families-asp", "pai"}
    firsts = {each.first_seed for each in presets(tmp_path).values() if each.name in judging}
    assert firsts == {FIRST_EVALUATION_SEED}
