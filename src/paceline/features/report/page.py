"""The report as one HTML file: no scripts, nothing loaded from anywhere, good on paper, too."""

import fcntl
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from paceline.base.files import write_file
from paceline.base.jobdir import JobDir
from paceline.features.report import size_curve, text
from paceline.features.report.tiles import tiles_as_html
from paceline.jobs.facts import Facts
from paceline.jobs.history import MetricsPoint
from paceline.jobs.in_words import headline, paragraph
from paceline.jobs.sections import Section, sections_of

STYLE = """
:root { color-scheme: light dark;
  --ink: #1b1f24; --paper: #ffffff; --faint: #667080; --line: #d8dde3; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e6ea; --paper: #15181c; --faint: #98a2ae; --line: #333a42; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 1.75rem 0 .4rem; }
p { margin: .3rem 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem;
  margin: .9rem 0 0; }
.tiles div { border: 1px solid var(--line); border-radius: .3rem; padding: .45rem .7rem;
  break-inside: avoid; }
.tiles dt { font-size: .87rem; }
.tiles dd { margin: 0; }
.tiles dt + dd { font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.faint, figcaption { color: var(--faint); font-size: .87rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .25rem .9rem .25rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { font-weight: 600; }
.facts th { font-weight: 400; color: var(--faint); width: 15rem; }
.incidents td:nth-child(-n+2), .story td:first-child { white-space: nowrap; }
.story { margin-top: .6rem; }
.numbers td:not(:first-child), .numbers th:not(:first-child) { text-align: right; }
.matrix { width: auto; margin-top: .8rem; }
.matrix td { border: 1px solid var(--line); padding: .15rem .4rem; print-color-adjust: exact; }
.matrix td, .matrix th { white-space: nowrap; }
.matrix th[scope=col] { text-align: right; vertical-align: bottom; }
.matrix .green { background: #3a9d5d2e; } .matrix .yellow { background: #d9a82b70; }
.matrix .red { background: #c0504d99; }
figure { margin: 0; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: system-ui, sans-serif !important; }
pre { overflow-x: auto; border: 1px solid var(--line); padding: .6rem; font-size: .82rem; }
.key::before { content: ""; display: inline-block; width: .7em; height: .7em;
  margin: 0 .35em 0 .6em; background: var(--key); print-color-adjust: exact; }
@media screen and (max-width: 42rem) {
  body { padding: .9rem; font-size: 14px; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tiles dt + dd { font-size: 1.1rem; }
  .facts tr, .facts th, .facts td { display: block; width: auto; }
  .facts th { border: 0; padding-bottom: 0; }
  .scroll > table:not(.facts), .scroll > svg { min-width: 36rem; }
}
@page { margin: 14mm; }
@media print {
  :root { --ink: #000; --paper: #fff; --faint: #444; --line: #bbb; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  figure, tr, pre { break-inside: avoid; }
  .scroll { overflow: visible; }
  h2 { break-after: avoid; }
  pre { white-space: pre-wrap; }
}
"""

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<h1>$title</h1>
<p>$state</p>
$body
<p class="faint">$path</p>
</body>
</html>
""")

UNDRAWN = Template(
    "<h2>Drawings</h2><p>There are none so far; after a job's end a process of its own adds them. "
    "<code>paceline report $job</code> makes them at any time, or says why it cannot.</p>"
)
GREY = "grey: nothing was measured"
COST_NOTE = (
    "Times of events are exact to milliseconds. Samples are counted once per second, so that "
    "&ldquo;within&rdquo; may be up to a second too long: until the worker&rsquo;s own count, "
    "and the number of samples in the model, grew again. Numbers mark the plots."
)


def write_page(facts: Facts, path: Path) -> None:
    """Write the report of a job as one HTML file to a place that a person has named.

    Raises:
        OSError: the page cannot be written.
    """
    write_file(path, render(facts).encode())


def write_report(facts: Facts, job: JobDir, *, drawn: bool = True, instead_of: str = "") -> str:
    """Write the job's own page, at once whole.

    Args:
        facts: what became of the job.
        job: the job.
        drawn: with drawings, for which Matplotlib takes its time.
        instead_of: the mark of the page that this one must replace; if another page, or none, is
            there when this one is drawn, nothing is written. Empty: write in any case.

    Returns:
        The mark of the page that is there now.

    Raises:
        OSError: the page cannot be written.
    """
    page = render(facts, drawn=drawn).encode()
    # A drawing process makes none: in the folder of a job that is being removed it would stay.
    flags = os.O_RDWR | os.O_CLOEXEC | (0 if instead_of else os.O_CREAT)
    lock = os.open(job.path / "report.lock", flags, 0o600)
    try:
        # Another command, or a process that draws, may be about to write the same page.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not instead_of or _mark_of(job.report) == instead_of:
            write_file(job.report, page)
        return _mark_of(job.report)
    finally:
        os.close(lock)


def _mark_of(path: Path) -> str:
    """Return what tells one page at a path from the next; empty: there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ""
    return f"{found.st_ino}-{found.st_mtime_ns}"


def render(facts: Facts, *, drawn: bool = True) -> str:
    """The page as text."""
    sections = sections_of(facts)
    undrawn = [UNDRAWN.substitute(job=escape(facts.job_id))]
    parts = [
        tiles_as_html(facts),
        _traceback(facts),
        *(_section(facts, one, drawn=drawn) for one in sections if one.leads),
        *(_drawings(facts) if drawn else undrawn),
        _story(facts),
        _incidents(facts),
        _stacks(facts),
        *(_section(facts, one, drawn=drawn) for one in sections if not one.leads and not one.ends),
        _workers(facts),
        _facts_table(facts),
        *(_section(facts, one, drawn=drawn) for one in sections if one.ends),
    ]
    return PAGE.substitute(
        title=escape(facts.job_id),
        style=STYLE,
        state=escape(headline(facts)),
        body="\n".join(parts),
        path=escape(facts.path),
    )


def _traceback(facts: Facts) -> str:
    if not facts.outcome or not facts.outcome.traceback:
        return ""
    return f"<h2>Traceback</h2><pre>{escape(facts.outcome.traceback)}</pre>"


def _story(facts: Facts) -> str:
    return f"<h2>In words</h2><p>{escape(paragraph(facts))}</p>"


def _facts_table(facts: Facts) -> str:
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in text.figures(facts)
    )
    return f'<h2>The job</h2><div class="scroll"><table class="facts">{rows}</table></div>'


def _incidents(facts: Facts) -> str:
    head = "<h2>What went wrong, what was done about it, what it cost</h2>"
    if not facts.incidents:
        failed = facts.outcome is not None and facts.outcome.state == "failed"
        return f"{head}<p>{'No process was lost.' if failed else 'Nothing went wrong.'}</p>"
    rows = [(str(n), *row) for n, row in enumerate(text.incident_rows(facts), start=1)]
    table = _table(("", *text.INCIDENT_COLUMNS), rows, "incidents")
    return f'{head}{table}<p class="faint">{COST_NOTE}</p>'


def _stacks(facts: Facts) -> str:
    return "".join(
        f"<h2>What the threads of {escape(node)} did when it hung</h2><pre>{escape(stacks)}</pre>"
        for node, stacks in facts.stacks
    )


def _section(facts: Facts, section: Section, *, drawn: bool) -> str:
    """Write what a feature tells of the job; one without a heading is not on the page."""
    if not section.title:
        return ""
    line = f"<p>{escape(section.line)}</p>" if section.line else ""
    picture = ""
    if drawn and section.plot is not None:
        from paceline.features.report import figures as drawings  # with Matplotlib

        caption = f"{section.plot.caption}; {GREY}"
        picture = figure_as_html(drawings.plot(facts, section.plot), caption)
    table = _table(section.columns, section.rows, "story") if section.rows else ""
    note = f'<p class="faint">{escape(section.note)}</p>' if section.note else ""
    return f"<h2>{escape(section.title)}</h2>{line}{picture}{table}{section.html}{note}"


def _drawings(facts: Facts) -> list[str]:
    from paceline.features.report import figures as drawings  # with Matplotlib

    if not facts.points:
        return ["<p>The job was never measured.</p>"]
    keys = drawings.legend_of_ends([life.how for life in facts.lives])
    caption = f"one bar per life, numbered by incarnation; its end: {keys}"
    drawn = [*_of_training(facts), _drawing("Lives of the nodes", drawings.lives(facts), caption)]
    if len(facts.workers) > drawings.MAX_NODES:
        drawn.append(f'<p class="faint">Drawn: the first {drawings.MAX_NODES} nodes.</p>')
    return drawn


def _of_training(facts: Facts) -> list[str]:
    """The drawings of samples and batches, which a script does not tell of."""
    from paceline.features.report import figures as drawings  # with Matplotlib

    if not facts.spec.traits.trains:
        return []
    if not any(_counts_samples(point) for point in facts.points):
        return ["<p>No worker got a sample.</p>", *_of_curves(facts)]
    timed = any(one.bpt_s > 0 for point in facts.points for one in point.nodes.values())
    changed = bool(facts.points) and size_curve.has_changed(facts)
    told = f"samples into the model{'; below: the size of the job' if changed else ''}; {GREY}"
    return [
        _drawing("Throughput", drawings.throughput(facts), told),
        _drawing(
            "Batch processing time",
            drawings.batch_times(facts),
            f"mean of the newest steps; log scale; {GREY}",
        )
        if timed
        else "<p>No batch was timed.</p>",
        _drawing("Samples per worker", drawings.samples(facts), f"handed to the loop; {GREY}"),
        *_of_curves(facts),
    ]


def _counts_samples(point: MetricsPoint) -> bool:
    return bool(point.committed or any(node.samples for node in point.nodes.values()))


def _of_curves(facts: Facts) -> list[str]:
    """Draw what the script has logged."""
    from paceline.features.report import figures as drawings  # with Matplotlib

    names = [name for name, points in facts.curves.items() if points]
    if not names:
        return []
    caption = (
        "the mean over the workers, by samples in the model; a cross: not a finite number; a line "
        "is broken where much less was logged than else"
    )
    left = len(names) - drawings.MAX_CURVES
    caption += f"; {left} more are in curves.jsonl" if left > 0 else ""
    return [_drawing("What the script logged", drawings.curves(facts), caption)]


def _drawing(title: str, svg: str, caption: str) -> str:
    return f"<h2>{title}</h2>{figure_as_html(svg, caption)}"


def figure_as_html(drawn: str, caption: str) -> str:
    """Put a drawing, which may be wider than the page, above its caption."""
    scrolls = f'<div class="scroll">{drawn}</div>'
    return f"<figure>{scrolls}<figcaption>{caption}</figcaption></figure>"


def _workers(facts: Facts) -> str:
    note = '<p class="faint">Samples and cpu time as of the last heartbeat of each life.</p>'
    table = _table(text.WORKER_COLUMNS, text.worker_rows(facts), "numbers")
    return f"<h2>Workers</h2>{table}{note}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in columns)
    lines = (f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    body = "".join(lines)
    return f'<div class="scroll"><table class="{kind}"><tr>{head}</tr>{body}</table></div>'
