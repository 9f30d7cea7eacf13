"""Why a script is slow: its slownesses, what was done, and what nobody knows."""

from msgspec import structs

from paceline.features.failslow.reasons import reasons
from paceline.jobs.facts import Facts
from paceline.jobs.in_words import paragraph
from paceline.jobs.why import AskedWhy, Reason
from tests.unit.failslow.test_slow_section import ADVISED, FOUND, SLOWED, WELL, script


def answer(facts: Facts) -> Reason:
    found: list[Reason] = []
    reasons(AskedWhy("demo-1", facts, None), found.append)
    (reason,) = found
    return reason


def test_a_slow_script_is_told_with_the_culprit_and_what_was_done() -> None:
    told = answer(script(SLOWED, FOUND, ADVISED, WELL))
    assert told.sentence == (
        "Slow from 0:19 to 0:40: worker-1 computes 2.28 times as long; done about it: a restart "
        "without it is advised."
    )
    assert told.more.startswith("paceline failslow ")


def test_a_script_that_was_never_slow_says_how_much_was_looked_at() -> None:
    told = answer(script())
    assert told.sentence.startswith("Nothing was slow, nothing was done: 1,500 steps")
    assert not told.is_found


def test_what_was_not_watched_is_not_known() -> None:
    facts = script()
    off = structs.replace(facts, spec=structs.replace(facts.spec, watch=False))
    assert "not known" in answer(off).sentence
    assert "nothing is known" in answer(script(timed=False)).sentence


def test_the_last_paragraph_does_not_say_it_twice() -> None:
    assert paragraph(script(SLOWED, FOUND, WELL)).count("worker-1 computes") == 1
