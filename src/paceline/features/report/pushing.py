"""Sending a page to browsers: its newest state, and only what they do not have yet.

One task looks at a job while anybody watches it, however many do. It rests for at least
`REST_RATIO` times as long as a look took, so that a page costs a job no more than a small share of
one core. A browser that lags gets the newest state later, and nobody waits for it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from paceline.base.errors import PacelineError
from paceline.features.report.charts import Chart, changes
from paceline.features.report.content import Page

REST_S = 1.0
REST_RATIO = 5.0
_encode = msgspec.json.Encoder().encode


class Watched:
    """Page that is made again and again while anybody has it open."""

    def __init__(self, look: Callable[[], Page], *, over: Callable[[], str]) -> None:
        """Begin nothing yet.

        Args:
            look: makes the page as of now, in a thread.
            over: says why nothing more will come after the next look; empty: more will.
        """
        self._look, self._over = look, over
        self._page: Page | None = None
        self._last = ""
        self._fresh = asyncio.Condition()
        self._num_watching = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def was_left(self) -> bool:
        """Whether the page was open, and nobody has it open any more."""
        return self._task is not None and self._num_watching == 0

    async def messages(self) -> AsyncGenerator[bytes]:
        """Yield what brings a browser from nothing to the newest page, and from page to page."""
        self._num_watching += 1
        if self._task is None or self._task.done():
            self._last = ""
            self._task = asyncio.create_task(self._make_pages())
        sent: Page | None = None
        try:
            while True:
                page, last = await self._other_than(sent)
                if page is not None and page is not sent:
                    yield message_between(sent, page)
                    sent = page
                if last:
                    yield _encode({"over": last})
                    return
        finally:
            self._num_watching -= 1

    async def _other_than(self, sent: Page | None) -> tuple[Page | None, str]:
        """Wait for a page that a browser does not have, or for the end."""
        async with self._fresh:
            await self._fresh.wait_for(lambda: self._page is not sent or self._last)
            return self._page, self._last

    async def _make_pages(self) -> None:
        while self._num_watching and not self._last:
            begun_s = time.monotonic()
            page, last = self._page, ""
            try:
                # Asked before the look: a job that ends during it is looked at once more.
                last = self._over()
                page = await asyncio.to_thread(self._look)
            except (PacelineError, OSError) as error:
                last = str(error)
            except Exception as error:  # noqa: BLE001 - browsers would wait for ever, as if it ran
                last = f"the page cannot be made: {error!r}; reload it to try again"
            async with self._fresh:
                self._page, self._last = page, last
                self._fresh.notify_all()
            took_s = time.monotonic() - begun_s
            await asyncio.sleep(max(REST_S, REST_RATIO * took_s))


def message_between(before: Page | None, after: Page) -> bytes:
    """Write what a browser with one page needs for another; None: it has none yet."""
    known = {one.name: one for one in before.blocks} if before else {}
    charts = {one.name: one for one in before.charts} if before else {}
    there = {one.name for one in after.charts}
    message: dict[str, Any] = {
        "order": [(one.name, one.wide) for one in after.blocks],
        "blocks": {one.name: one.html for one in after.blocks if known.get(one.name) != one},
        "charts": {
            one.name: change
            for one in after.charts
            if (change := _change(charts.get(one.name), one)) is not None
        },
        "gone": [name for name in charts if name not in there],
    }
    if before is None or before.state != after.state:
        message |= {"title": after.title, "state": after.state}
    return _encode(message)


def _change(before: Chart | None, after: Chart) -> dict[str, Any] | None:
    """Say what of a chart is new; None: nothing is."""
    if before == after:
        return None
    same = changes(before, after) if before is not None else None
    if same is None:
        return {"chart": after}
    added = [column[same:] for column in after.columns]
    return {"from": same, "columns": added, "until": after.until}
