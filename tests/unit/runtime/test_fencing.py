"""A script that must not go on is ended where it goes on, by what a generator finds at its end."""

from typing import Any

import pytest

from paceline.runtime.process.process import Fenced, fence_soon

LOOP = """
def batches():
    try:
        yield from range(3)
    finally:
        fence_soon()
        ended.append(len([]))
"""


@pytest.fixture
def loop() -> Any:
    """A generator that is no function of the script."""
    names: dict[str, Any] = {"fence_soon": fence_soon, "ended": []}
    exec(compile(LOOP, "<frozen loop>", "exec"), names)
    yield names["batches"]
    assert names["ended"] == [0], "what else it does at its end is done"


def test_a_script_that_leaves_its_loop_does_not_go_on(loop: Any) -> None:
    seen = []

    def epoch() -> None:
        for number in loop():
            seen.append(number)
            break
        seen.append(9)

    with pytest.raises(Fenced):
        epoch()
    assert seen == [0]


def test_nor_does_one_whose_function_returns_there(loop: Any) -> None:
    def epoch() -> int:
        for number in loop():
            return int(number)
        return 9

    with pytest.raises(Fenced):
        epoch()
