"""What a browser is sent of a page: only what it does not have, and nothing for nobody."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec import structs

from paceline.base.errors import PacelineError
from paceline.features.report import pushing
from paceline.features.report.charts import Chart, Series
from paceline.features.report.content import Page, PageBlock
from paceline.features.report.pushing import Watched, message_between

FIRST = Chart(
    name="x",
    title="X",
    caption="",
    unit="u",
    series=(Series(name="s", colour="#000000"),),
    until=2.0,
    columns=([1.0, 2.0], [5.0, 6.0]),
)
PAGE = Page(
    title="job",
    state="training",
    blocks=(PageBlock(name="a", html="<p>1</p>"), PageBlock(name="b", html="<p>2</p>")),
    charts=(FIRST,),
)


def between(before: Page | None, after: Page) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message_between(before, after))
    return found


def test_a_browser_that_has_nothing_gets_all() -> None:
    found = between(None, PAGE)
    assert found["blocks"] == {"a": "<p>1</p>", "b": "<p>2</p>"}
    assert found["order"] == [["a", True], ["b", True]]
    assert found["charts"]["x"]["chart"]["columns"] == [[1.0, 2.0], [5.0, 6.0]]
    assert (found["title"], found["state"]) == ("job", "training")


def test_of_a_longer_chart_only_the_new_points_are_sent() -> None:
    longer = structs.replace(FIRST, columns=([1.0, 2.0, 3.0], [5.0, 6.5, 7.0]), until=3.0)
    later = structs.replace(PAGE, charts=(longer,), blocks=PAGE.blocks[1:])
    assert between(PAGE, later) == {
        "order": [["b", True]],
        "blocks": {},
        "charts": {"x": {"from": 1, "columns": [[2.0, 3.0], [6.5, 7.0]], "until": 3.0}},
        "gone": [],
    }
    assert between(later, later)["charts"] == {}


def test_a_chart_that_is_marked_is_sent_whole_and_one_that_is_gone_is_named() -> None:
    other = structs.replace(PAGE, charts=(structs.replace(FIRST, caption="new"),))
    assert "chart" in between(PAGE, other)["charts"]["x"]
    assert between(PAGE, structs.replace(PAGE, charts=()))["gone"] == ["x"]


def test_a_page_is_made_while_somebody_has_it_open_and_once_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pushing, "REST_S", 0.01)
    made: list[Page] = []

    def look() -> Page:
        made.append(structs.replace(PAGE, state=str(len(made))))
        return made[-1]

    async def follow(found: AsyncGenerator[bytes]) -> list[str]:
        return [json.loads(await anext(found))["state"] for _ in range(3)]

    async def both() -> int:
        watched = Watched(look, over=lambda: "")
        first, second = watched.messages(), watched.messages()
        assert not watched.was_left
        told = await asyncio.gather(follow(first), follow(second))
        assert told[0] == told[1] == ["0", "1", "2"]
        await first.aclose()
        assert not watched.was_left
        await second.aclose()
        assert watched.was_left
        await asyncio.sleep(0.1)
        number = len(made)
        await asyncio.sleep(0.2)
        assert len(made) == number, "nobody looks on"
        return number

    assert asyncio.run(both()) >= 3


def test_the_last_page_and_an_error_end_the_messages() -> None:
    async def all_of(watched: Watched) -> list[dict[str, Any]]:
        return [json.loads(one) async for one in watched.messages()]

    ended = asyncio.run(all_of(Watched(lambda: PAGE, over=lambda: "it has ended")))
    assert [one.get("over") for one in ended] == [None, "it has ended"]

    def removed() -> Page:
        raise PacelineError("there is no such job")

    assert asyncio.run(all_of(Watched(removed, over=lambda: ""))) == [
        {"over": "there is no such job"}
    ]


def test_a_job_that_ends_during_a_look_is_looked_at_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pushing, "REST_S", 0.01)
    told: list[str] = []

    def look() -> Page:
        page = structs.replace(PAGE, state="ended" if told else "training")
        told.append("the job has ended")
        return page

    async def all_of(watched: Watched) -> list[dict[str, Any]]:
        return [json.loads(one) async for one in watched.messages()]

    found = asyncio.run(all_of(Watched(look, over=lambda: told[0] if told else "")))
    assert [one.get("state") for one in found] == ["training", "ended", None]


def test_a_page_that_cannot_be_made_says_so() -> None:
    def fails() -> Page:
        raise KeyError("worker-7")

    async def first(watched: Watched) -> dict[str, Any]:
        async with asyncio.timeout(5.0):
            message: dict[str, Any] = json.loads(await anext(watched.messages()))
        return message

    assert "worker-7" in asyncio.run(first(Watched(fails, over=lambda: "")))["over"]
