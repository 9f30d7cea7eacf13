"""A policy is asked in a thread, one question at a time, and what it raises or misses is told."""

import threading

from paceline.master.asking import Answered, PolicyAnswer, PolicyRaised, ask_in_thread
from paceline.policy.decisions.question import Question


def test_an_answer_in_time_counts_once() -> None:
    question = Question[str](5.0)
    question.ask(1, "now?", 10.0)
    assert question.is_open and question.missed(14.9) is None
    assert question.take(2) is None and question.is_open, "it answers another question"
    assert question.take(1) == "now?"
    assert question.take(1) is None and not question.is_open


def test_a_late_answer_is_missed_once_and_ends_the_question() -> None:
    question = Question[str](5.0)
    question.ask(1, "now?", 10.0)
    assert question.missed(15.0) == 1
    assert question.missed(99.0) is None and question.is_open
    assert question.take(1) is None and not question.is_open
    question.ask(2, "and now?", 100.0)
    assert question.take(2) == "and now?"


def ask(decide: object) -> PolicyAnswer[object] | PolicyRaised:
    """What comes back of a question that is answered in a thread."""
    posted, facts, taken = threading.Event(), list[Answered](), list[object]()

    def post(fact: Answered) -> None:
        facts.append(fact)
        posted.set()

    ask_in_thread("a test", decide, lambda *one: taken.append(one), post)  # type: ignore[arg-type]
    assert posted.wait(10.0) and not taken
    facts[0].take(7.0)
    ((answer, now_s),) = taken  # type: ignore[misc]
    assert now_s == 7.0
    return answer  # type: ignore[no-any-return]


def test_an_answer_comes_back_as_a_fact_and_so_does_what_is_raised() -> None:
    answer = ask(threading.current_thread)
    assert isinstance(answer, PolicyAnswer) and answer.took_s >= 0.0
    assert answer.value is not threading.current_thread()

    def leave() -> None:
        raise SystemExit(3)

    raised = ask(leave)
    assert isinstance(raised, PolicyRaised)
    assert raised.kind == "SystemExit" and "leave" in raised.traceback
