"""The page of a job in Chromium, at three sizes, in the dark, on paper, and by keyboard."""

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed; `make browser` does")
from playwright.sync_api import Browser, Page, sync_playwright

from tests.integration.running import running, until

CHROMIUM = shutil.which("chromium")
ARGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
SIZES = [(1280, 900), (820, 1100), (390, 800)]
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield found
        found.close()


@pytest.fixture
def faults() -> list[str]:
    return []


@contextlib.contextmanager
def ending(server: "subprocess.Popen[str]") -> Iterator[None]:
    """End a server, whatever becomes of the test."""
    try:
        yield
    finally:
        server.send_signal(signal.SIGINT)


def opened(browser: Browser, address: str, faults: list[str], **context: Any) -> Page:
    page = browser.new_context(**context).new_page()
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(address)
    return page


def painted(page: Page, chart: str) -> int:
    """How many points of a chart's picture are not of its paper."""
    found: int = page.evaluate(
        """name => {
          const canvas = document.querySelector(`figure[data-chart="${name}"] canvas`);
          const seen = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          let count = 0;
          for (let at = 3; at < seen.length; at += 4) count += seen[at] > 40;
          return count;
        }""",
        chart,
    )
    return found


def overflow(page: Page) -> int:
    """Pixels by which the page is wider than the screen."""
    wide: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return wide


def test_a_job_is_seen_steered_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser, faults: list[str]
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    words = [sys.executable, "-m", "paceline", "ui", "--port", "0"]
    with (
        running(tmp_path, "--num-samples", "200000", mode="bsp") as job,
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server,
        ending(server),
    ):
        assert server.stdout is not None
        place, _, token = server.stdout.readline().strip().partition("/#")
        name = job.job.job_id
        job.until_committed(256)

        # From the page of all jobs to that of the job, with the token.
        page = opened(browser, f"{place}/#{token}", faults, viewport={"width": 1280, "height": 900})
        assert token not in page.url
        page.get_by_role("link", name=name).click()
        page.wait_for_selector('figure[data-chart="throughput"] canvas')
        before = painted(page, "throughput")
        assert before > 100

        # A kill by button, after a question; then it is in the table, and in the charts.
        page.get_by_role("textbox", name="Node").fill("worker-1")
        page.get_by_role("button", name="Kill").click()
        page.get_by_role("button", name="Yes").click()
        page.wait_for_selector("table.incidents >> text=worker-1", timeout=60_000)
        assert "is killed" in page.locator("#said").inner_text()

        # By keyboard, and for ears.
        plot = page.locator('figure[data-chart="throughput"] .plot')
        plot.focus()
        page.keyboard.press("ArrowRight")
        told = page.locator('figure[data-chart="throughput"] [aria-live]')
        until(lambda: "each second" in (told.text_content() or ""), "what is at a point")
        assert "lowest" in (plot.get_attribute("aria-label") or "")

        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_timeout(300)
            assert overflow(page) <= 0, f"at {width} pixels"
            assert painted(page, "throughput") > 100

        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Yes").click()
        page.get_by_text("the job has ended").wait_for(timeout=60_000)
        assert not page.get_by_role("button", name="Stop").is_visible()
        assert page.get_by_role("button", name="Save as a file").is_visible()
        until(job.job.outcome.exists, "the end of the job")
    assert faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_file_has_it_all_without_a_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    browser: Browser,
    faults: list[str],
    scheme: str,
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    with running(tmp_path, "--num-samples", "4096", mode="bsp") as job:
        until(job.job.outcome.exists, "the end of the job")
        where = tmp_path / "page.html"
        words = [sys.executable, "-m", "paceline", "report", job.job.path, "--html", where]
        subprocess.run([*map(str, words)], check=True, capture_output=True)
    page = opened(
        browser, where.as_uri(), faults, viewport={"width": 390, "height": 800}, color_scheme=scheme
    )
    requests: list[str] = []
    page.on("request", lambda one: requests.append(one.url))
    page.reload()
    assert requests == [where.as_uri()]
    assert painted(page, "throughput") > 100
    assert overflow(page) <= 0
    page.get_by_text("As a table").first.click()
    assert page.locator("details table.numbers tr").count() > 2
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert faults == []
