"""The page of a job as one HTML file: nothing is loaded from anywhere, good on paper, too."""

import fcntl
import os
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import msgspec

from paceline.base.files import write_file
from paceline.base.jobdir import JobDir
from paceline.features.report.content import LogTail, Page, page_of
from paceline.jobs.facts import Facts

FILE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
<h1>$title</h1>
<p id="state">$state</p>
<div id="page" class="charts">
$blocks
</div>
<noscript><p>Charts are drawn by the script of this page; its tables need none.</p></noscript>
<p class="faint">$path</p>
</main>
<script type="application/json" id="charts">$charts</script>
<script>$script</script>
</body>
</html>
""")


@cache
def asset(name: str) -> str:
    """Read a file that pages use."""
    return files("paceline.features.report").joinpath("assets", name).read_text()


def write_page(facts: Facts, path: Path, logs: tuple[LogTail, ...] = ()) -> None:
    """Write the report of a job as one HTML file to a place that a person has named.

    Raises:
        OSError: the page cannot be written.
    """
    write_file(path, render(facts, logs).encode())


def write_report(facts: Facts, job: JobDir, logs: tuple[LogTail, ...] = ()) -> None:
    """Write the job's own page, at once whole.

    Raises:
        OSError: the page cannot be written.
    """
    page = render(facts, logs).encode()
    lock = os.open(job.path / "report.lock", os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another command may be about to write the same page
        write_file(job.report, page)
    finally:
        os.close(lock)


def render(facts: Facts, logs: tuple[LogTail, ...] = ()) -> str:
    """Write the page of a job as text."""
    return rendered(page_of(facts, logs=logs), facts.path)


def rendered(page: Page, path: str = "") -> str:
    """Write a page as text, with its styles and scripts.

    Args:
        page: what it has.
        path: of the job's folder.
    """
    script = asset("uPlot.iife.min.js") + asset("page.js")
    return FILE.substitute(
        policy=_policy(script),
        title=escape(page.title),
        style=asset("uPlot.min.css") + asset("page.css"),
        state=escape(page.state),
        blocks="\n".join(block_as_html(one.name, one.html, wide=one.wide) for one in page.blocks),
        path=escape(path),
        charts=_in_a_script(msgspec.json.encode(page.charts).decode()),
        script=script,
    )


def _policy(script: str) -> str:
    """The page runs no script but its own, and loads nothing, whatever a job has written."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'"


def block_as_html(name: str, html: str, *, wide: bool) -> str:
    """Put a block into its place on the page."""
    kind = "wide" if wide else "small"
    return f'<section id="b-{escape(name)}" class="{kind}">{html}</section>'


def _in_a_script(json: str) -> str:
    """JSON that ends no script element, whatever is in it."""
    return json.replace("<", "\\u003c")
