"""Content of a job's page, block by block: pure. The live page and the file have the same."""

from collections.abc import Iterator, Sequence
from html import escape

from msgspec import Struct

from paceline.features.report import text
from paceline.features.report.charts import MOST_NODES, Chart, charts_of
from paceline.features.report.lives import lives_as_html
from paceline.features.report.tiles import tiles_as_html
from paceline.jobs.facts import Facts
from paceline.jobs.in_words import headline, paragraph
from paceline.jobs.sections import Section, sections_of
from paceline.jobs.why import why_of
from paceline.jobs.wording import mib, milliseconds, progress
from paceline.wire.client import JobStatus, NodeStatus

MAX_CURVES = 24
"""Most curves that have a chart."""
COST_NOTE = (
    "Times of events are exact to milliseconds. Samples are counted once per second, so that "
    "&ldquo;within&rdquo; may be up to a second too long: until the worker&rsquo;s own count, "
    "and the number of samples in the model, grew again. Numbers mark the charts."
)
WORKERS_NOTE = "Samples and cpu time as of the last heartbeat of each life."
BATCH_PARTS = (
    ("compute_s", "own work", "#3a9d5d"),
    ("server_s", "servers", "#3b82c4"),
    ("message_s", "way there and back", "#b565b0"),
    ("data_s", "data", "#d9a82b"),
)
"""Parts of a batch's time, what they are, and their colours."""


class PageBlock(Struct, frozen=True, kw_only=True):
    """A part of the page: HTML, or a chart."""

    name: str
    """Name that no other block of the page has."""
    html: str
    wide: bool = True
    """False: two charts have room beside each other."""


class Page(Struct, frozen=True, kw_only=True):
    """Content of the page of one job, at one moment."""

    title: str
    state: str
    blocks: tuple[PageBlock, ...]
    charts: tuple[Chart, ...] = ()


class LogTail(Struct, frozen=True, kw_only=True):
    """The newest lines of a node's log."""

    node: str
    lines: tuple[str, ...]


def page_of(facts: Facts, status: JobStatus | None = None, logs: Sequence[LogTail] = ()) -> Page:
    """Put the page of a job together.

    Args:
        facts: what became of the job so far.
        status: what its master says; None: nobody answers, or the job has ended.
        logs: newest lines of its nodes.
    """
    sections = sections_of(facts)
    charts = charts_of(facts, sections)
    curves = [one for one in charts if one.over == "samples"]
    drawn = [*curves[:MAX_CURVES], *(one for one in charts if one.over != "samples")]
    blocks = [*_blocks(facts, status, logs, sections, drawn, len(curves) - MAX_CURVES)]
    return Page(
        title=facts.job_id,
        state=_state(facts, status),
        blocks=tuple(one for one in blocks if one.html),
        charts=tuple(drawn),
    )


def _state(facts: Facts, status: JobStatus | None) -> str:
    if status is None:
        return headline(facts)
    return status.state + (f" ({status.waits_for})" if status.waits_for else "")


def _blocks(
    facts: Facts,
    status: JobStatus | None,
    logs: Sequence[LogTail],
    sections: Sequence[Section],
    charts: Sequence[Chart],
    num_left: int,
) -> Iterator[PageBlock]:
    yield PageBlock(name="done", html=_progress(facts, status))
    yield PageBlock(name="tiles", html=tiles_as_html(facts, _total(facts, status)))
    yield PageBlock(name="traceback", html=_traceback(facts))
    yield PageBlock(name="words", html=_words(facts, status))
    yield from _of_sections([one for one in sections if one.leads], charts)
    yield PageBlock(name="unmeasured", html=_unmeasured(facts, charts))
    named = {one.name: one for one in charts}
    logged = [one for one in charts if one.over == "samples"]
    if logged:
        yield PageBlock(name="logged", html=_logged(num_left))
        yield from map(figure, logged)
    for name in ("throughput", "size-nodes", "size-cores"):
        if name in named:
            yield figure(named[name])
    yield PageBlock(name="lives", html=_titled("Lives of the nodes", lives_as_html(facts)))
    yield PageBlock(name="incidents", html=_incidents(facts))
    yield PageBlock(name="stacks", html=_stacks(facts))
    rest = [one for one in sections if not one.leads and not one.ends]
    yield from _of_sections(rest, charts)
    yield PageBlock(name="nodes", html=_nodes(status))
    yield PageBlock(name="workers", html=_workers(facts))
    for name in ("batch-times", "samples"):
        if name in named:
            yield figure(named[name])
    yield PageBlock(name="facts", html=_facts_table(facts))
    yield PageBlock(name="logs", html=_logs(logs))
    yield from _of_sections([one for one in sections if one.ends], charts)


def _unmeasured(facts: Facts, charts: Sequence[Chart]) -> str:
    """Say why there are no charts over time; empty: there are."""
    if not facts.points:
        return "<p>The job was never measured.</p>"
    if facts.spec.traits.trains and not any(one.name == "throughput" for one in charts):
        return "<p>No worker got a sample.</p>"
    return ""


def _titled(title: str, html: str) -> str:
    return f"<h2>{escape(title)}</h2>{html}" if html else ""


def _total(facts: Facts, status: JobStatus | None) -> int | None:
    """Return how many samples the job will train; None: not known so far."""
    if status is not None:
        return status.total
    return facts.outcome.total if facts.outcome else None


def _progress(facts: Facts, status: JobStatus | None) -> str:
    """How much of the job is done, as a bar; empty: that is not known, or it has ended well."""
    total = _total(facts, status)
    done = status.committed if status else facts.committed
    if not total or done >= total:
        return ""
    told = progress(done, total)
    return (
        f'<div class="bar" role="progressbar" aria-valuemin="0" aria-valuemax="{total}" '
        f'aria-valuenow="{done}" aria-label="{told}">'
        f'<i style="width:{100 * done / total:.1f}%"></i></div>'
    )


def _traceback(facts: Facts) -> str:
    if not facts.outcome or not facts.outcome.traceback:
        return ""
    return f"<h2>Traceback</h2><pre>{escape(facts.outcome.traceback)}</pre>"


def _words(facts: Facts, status: JobStatus | None) -> str:
    """Why it is as it is, in three sentences; then what became of it."""
    why = "".join(f"<li>{escape(one)}</li>" for one in why_of(facts, status))
    return f'<ul class="why">{why}</ul><p>{escape(paragraph(facts))}</p>'


def _facts_table(facts: Facts) -> str:
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in text.figures(facts)
    )
    return f'<h2>The job</h2><div class="scroll"><table class="facts">{rows}</table></div>'


def _incidents(facts: Facts) -> str:
    head = "<h2>What happened, what was done about it, what it cost</h2>"
    if not facts.incidents:
        failed = facts.outcome is not None and facts.outcome.state == "failed"
        return f"{head}<p>{'No process was lost.' if failed else 'Nothing went wrong.'}</p>"
    rows = [(str(n), *row) for n, row in enumerate(text.incident_rows(facts), start=1)]
    table = table_as_html(("", *text.INCIDENT_COLUMNS), rows, "incidents")
    return f'{head}{table}<p class="faint">{COST_NOTE}</p>'


def _stacks(facts: Facts) -> str:
    return "".join(
        f"<h2>What the threads of {escape(node)} did when it hung</h2><pre>{escape(stacks)}</pre>"
        for node, stacks in facts.stacks
    )


def _of_sections(sections: Sequence[Section], charts: Sequence[Chart]) -> Iterator[PageBlock]:
    """Yield what features tell of the job; a section without a heading is not on the page."""
    named = {one.name: one for one in charts}
    for one in sections:
        if not one.title:
            continue
        line = f"<p>{escape(one.line)}</p>" if one.line else ""
        yield PageBlock(name=f"section-{one.name}", html=f"<h2>{escape(one.title)}</h2>{line}")
        if one.plot is not None:
            yield figure(named[f"section-{one.plot.name}"])
        table = table_as_html(one.columns, one.rows, "story") if one.rows else ""
        note = f'<p class="faint">{escape(one.note)}</p>' if one.note else ""
        yield PageBlock(name=f"section-{one.name}-rest", html=f"{table}{one.html}{note}")


def _logged(num_left: int) -> str:
    note = "Mean over the workers, by samples in the model; a cross: not a finite number."
    if num_left > 0:
        note += f" {num_left} more are in curves.jsonl."
    return f'<h2>What the script logged</h2><p class="faint">{note}</p>'


def figure(chart: Chart) -> PageBlock:
    """A place that a chart is drawn into."""
    title = f"<h3>{escape(chart.title)}</h3>" if chart.title else ""
    caption = f"<figcaption>{escape(chart.caption)}</figcaption>" if chart.caption else ""
    small = ' class="small"' if chart.small else ""
    name = escape(chart.name)
    html = (
        f'<figure data-chart="{name}"{small}>{title}<div class="plot" tabindex="0" role="img">'
        f"</div><p class=sr aria-live=polite></p>{caption}"
        "<details><summary>As a table</summary><div class=scroll></div></details></figure>"
    )
    return PageBlock(name=f"chart-{chart.name}", html=html, wide=not chart.small)


def _nodes(status: JobStatus | None) -> str:
    """The nodes as their master sees them now."""
    if status is None or not status.nodes:
        return ""
    longest_s = max(node.bpt_s for node in status.nodes)
    shown = status.nodes[:MOST_NODES]
    rows = "".join(_node_row(node, longest_s) for node in shown)
    head = "".join(
        f"<th scope=col>{name}</th>"
        for name in ("node", "state", "batch", "", "samples", "restarts", "memory", "note")
    )
    keys = " ".join(
        f'<span class="key" style="--key:{colour}">{about}</span>'
        for _, about, colour in BATCH_PARTS
    )
    more = f" First {MOST_NODES} of {len(status.nodes)}." if len(status.nodes) > MOST_NODES else ""
    return (
        f'<h2>Nodes now</h2><div class="scroll"><table class="nodes"><tr>{head}</tr>{rows}</table>'
        f'</div><p class="faint">A batch&rsquo;s time: {keys}.{more}</p>'
    )


def _node_row(node: NodeStatus, longest_s: float) -> str:
    """One node; the bar of the node whose batches take longest fills its place."""
    parts = "".join(
        f'<i style="--key:{colour};width:{100 * getattr(node, name) / longest_s:.1f}%"></i>'
        for name, _, colour in BATCH_PARTS
        if longest_s > 0
    )
    cells = (
        escape(node.node),
        escape(node.state),
        milliseconds(node.bpt_s),
        f'<span class="parts">{parts}</span>',
        f"{node.samples:,}",
        str(node.restarts),
        mib(node.rss_bytes),
        escape(node.note),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _workers(facts: Facts) -> str:
    table = table_as_html(text.WORKER_COLUMNS, text.worker_rows(facts), "numbers")
    return f'<h2>Workers</h2>{table}<p class="faint">{WORKERS_NOTE}</p>'


def _logs(logs: Sequence[LogTail]) -> str:
    """The newest lines of nodes, one of them open."""
    told = [one for one in logs if one.lines]
    parts = (
        f'<details id="log-{escape(one.node)}"{" open" if number == 0 else ""}>'
        f"<summary>{escape(one.node)}</summary>"
        f'<pre tabindex="0" data-tail>{escape(chr(10).join(one.lines))}</pre></details>'
        for number, one in enumerate(told)
    )
    return f"<h2>Newest lines of the logs</h2>{''.join(parts)}" if told else ""


def table_as_html(columns: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Write a table, which may be wider than the page; on a phone its cells have their names."""
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in columns)
    lines = (
        "<tr>"
        + "".join(
            f'<td data-name="{escape(name)}">{escape(cell)}</td>'
            for name, cell in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"{''.join(lines)}</table></div>"
    )
