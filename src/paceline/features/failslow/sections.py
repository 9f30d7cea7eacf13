"""Sections of a job's report: what was slow in a script, its cures, the check of the nodes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from math import inf
from pathlib import Path
from statistics import median

from paceline.base.jobdir import JobDir, number_of
from paceline.features.failslow import check_table
from paceline.features.failslow.cures import cures_of, name_of, seen_of
from paceline.features.failslow.events import (
    ComparedPart,
    DiagnosedEvent,
    RelievedEvent,
    RestartAdvisedEvent,
    SlowedEvent,
    read,
)
from paceline.features.failslow.slowness import (
    FailSlowEvent,
    Slowness,
    colour_of,
    slownesses,
)
from paceline.jobs.facts import Facts
from paceline.jobs.sections import Plot, PlotMarks, PlotSpan, Section
from paceline.jobs.slowness import named
from paceline.jobs.wording import clock, milliseconds
from paceline.wire.events.base import Event

COLUMNS = ("at", "what was slow")
CURE_COLUMNS = ("at", "decided against stragglers", "why", "what came of it")
MAX_PARTS = 40
"""Ranks that can still be read in one picture."""
HEALTHY, SLOW = "#3a9d5d", "#c0504d"
MARKS: dict[type[Event], tuple[str, str, str]] = {
    SlowedEvent: ("slow", "v", SLOW),
    DiagnosedEvent: ("verdict", "D", "#b565b0"),
    RestartAdvisedEvent: ("restart advised", "s", "#d9822b"),
    RelievedEvent: ("faster again", "^", HEALTHY),
}
"""Events that are marked in the times of steps: label, marker, colour."""
CHECK_NOTE = (
    "Before the first step. Rates are per second that the threads ran; \u201cran\u201d: which part "
    "of the time that was. Slow: to the median of the job."
)
MAX_ROWS, MAX_MATRICES = 40, 3
"""Most rows and matrices shown of a job: its newest."""
OWN = {"computing": "computing", "product": "matrix product"}
"""Columns of a rank's own parts."""


def tell(facts: Facts, add: Callable[[Section], None]) -> None:
    """Add the sections that a job has something for."""
    if cured := cure_rows(facts):
        add(Section("decisions", "Decisions", columns=CURE_COLUMNS, rows=cured))
    if was_watched(facts):
        all_well = well(facts)
        add(
            Section(
                "slow",
                "What was slow",
                line=all_well,
                columns=COLUMNS,
                rows=rows(facts),
                plot=plot(facts),
                html="" if all_well else matrices(facts),
                sentence=sentence(facts),
                leads=True,
            )
        )
    if checked := check_table.rows(facts.events):
        columns = check_table.COLUMNS
        add(
            Section(
                "checks",
                "Check of the nodes",
                columns=columns,
                rows=checked,
                note=CHECK_NOTE,
                ends=True,
            )
        )


def cure_rows(facts: Facts) -> list[tuple[str, ...]]:
    """Say of each act of the planner when, what and why; what came of it nobody has seen."""
    return [
        (
            clock(line.t - facts.started_s),
            name_of(act),
            f"{seen_of(line)}; planner: {act.reason}",
            "-",
        )
        for line in (cures_of(JobDir(Path(facts.path))) if was_watched(facts) else ())
        for act in line.acts
    ]


def was_watched(facts: Facts) -> bool:
    """Whether the pace of the job's steps was followed."""
    return not facts.spec.traits.trains


def rows(facts: Facts) -> list[tuple[str, ...]]:
    """One per event, as `COLUMNS` has it; empty: nothing was slow."""
    told = [event for event in read(facts.events) if isinstance(event, FailSlowEvent)]
    return [(clock(each.t - facts.started_s), each.sentence()) for each in told[-MAX_ROWS:]]


def well(facts: Facts) -> str:
    """Say in one line that nothing was slow; empty: something was, or nobody looked."""
    if not was_watched(facts) or rows(facts):
        return ""
    steps = max(
        (one.step for point in facts.points[-1:] for one in point.nodes.values()), default=0
    )
    times = [time_s for _, time_s in step_times(facts)]
    if not times or not steps:
        return "No step was seen, so nothing is known."
    return (
        f"Nothing was slow: {steps:,} steps without a change of their pace, "
        f"{milliseconds(median(times))} a step (median)."
    )


def sentence(facts: Facts) -> str:
    """Say for the paragraph at the end of a run what was slow, and when."""
    found = slownesses(facts.events) if was_watched(facts) else []
    told = [clause_of(each, facts.started_s) for each in found[-MAX_MATRICES:]]
    more = f" ({len(found) - len(told)} more before)" if len(found) > len(told) else ""
    return f"Slow {'; '.join(told)}{more}." if told else ""


def clause_of(one: Slowness, started_s: float) -> str:
    """Say when a script was slow, and what was."""
    since = clock(one.since_s - started_s)
    when = f"since {since}"
    if one.until_s is not None:
        when = f"from {since} to {clock(one.until_s - started_s)}"
        if one.unseen_end:
            when += f", when {one.unseen_end}"
    return f"{when}: {named(one.parts)}"


def step_times(facts: Facts) -> list[tuple[float, float]]:
    """Seconds since the start, and what a step took then: the median of the ranks."""
    timed = (
        (point.t, [one.bpt_s for one in point.nodes.values() if one.bpt_s > 0.0])
        for point in facts.points
    )
    return [(t - facts.started_s, median(times)) for t, times in timed if times]


def plot(facts: Facts) -> Plot | None:
    """Draw the time of a step, with what was found out about it; None: no step was timed."""
    timed = dict(step_times(facts))
    if not timed:
        return None
    found = slownesses(facts.events)
    spans = [
        PlotSpan(
            one.since_s - facts.started_s,
            (facts.ended_s if one.until_s is None else one.until_s) - facts.started_s,
            None if one.healthy_s is None else one.healthy_s * 1e3,
        )
        for one in found
    ]
    # The first step takes a hundred times as long.
    top_s = max([2.0 * median(timed.values()), *(1.3 * one.slow_s for one in found)])
    told = read(facts.events)
    marks = [
        PlotMarks(*look, [one.t - facts.started_s for one in told if isinstance(one, kind)])
        for kind, look in MARKS.items()
    ]
    return Plot(
        "steps",
        "a step (ms)",
        {t: time_s * 1e3 for t, time_s in timed.items()},
        1e3 * top_s,
        "time of a step: median of the ranks; what rises above is cut off",
        spans=spans,
        usual_label="healthy",
        marks=marks,
    )


# --------------------------------------------------------------------------- matrices


def matrices(facts: Facts) -> str:
    """Draw what each diagnosis has measured of ranks and links, as HTML."""
    diagnosed = [each.diagnosed[-1] for each in slownesses(facts.events) if each.diagnosed]
    with_parts = [each for each in diagnosed if each.parts]
    return "".join(_matrix(each, facts.started_s) for each in with_parts[-MAX_MATRICES:])


def _matrix(diagnosed: DiagnosedEvent, started_s: float) -> str:
    parts, ratios = diagnosed.parts, _ratios(diagnosed.parts)
    names = _names(ratios)
    links = {frozenset(part.nodes): part for part in parts if part.what == "link"}
    own: dict[tuple[str, str], ComparedPart] = {
        (part.what, part.nodes[0]): part for part in parts if part.what != "link"
    }
    shown = [what for what in OWN if any(what == key for key, _ in own)]
    others = [name for name in names if any(name in ends for ends in links)]
    lines = []
    for name in names:
        found = [own.get((what, name)) for what in shown]
        found += [links.get(frozenset((name, other))) for other in others]
        cells = "".join(_cell(part, ratios) for part in found)
        lines.append(f"<tr><th scope=row>{escape(name)}</th>{cells}</tr>")
    caption = (
        f"At {clock(diagnosed.t - started_s)}: how many times as long as at the job&rsquo;s start; "
        "computing also as the time in a step."
    )
    if any(part.start_s is None and part in ratios for part in parts):
        caption += " *: not measured then, compared with the median."
    return (
        f'<figure class="scroll"><table class="numbers matrix">{_heads(shown, others)}'
        f"{''.join(lines)}</table><figcaption>{caption}</figcaption></figure>"
    )


def _heads(shown: Sequence[str], others: Sequence[str]) -> str:
    """The columns: a rank's own parts, then its links to other ranks, by their numbers."""
    own = "".join(f"<th scope=col rowspan=2>{OWN[what]}</th>" for what in shown)
    links = f"<th colspan={len(others)}>link to worker</th>" if others else ""
    numbers = "".join(f"<th scope=col>{number_of(other)}</th>" for other in others)
    return f"<tr><th rowspan=2></th>{own}{links}</tr><tr>{numbers}</tr>"


def _ratios(parts: Sequence[ComparedPart]) -> dict[ComparedPart, float]:
    """Hold each part against the job's start, else against the median of its kind.

    Ranks compute unlike parts of a model, so that computing has no such median.
    """
    kinds = ("product", "link")
    medians = {
        what: median(found)
        for what in kinds
        if (found := [part.now_s for part in parts if part.what == what])
    }
    held = ((part, part.ratio or part.now_s / medians.get(part.what, inf)) for part in parts)
    return {part: ratio for part, ratio in held if ratio}


def _names(ratios: Mapping[ComparedPart, float]) -> list[str]:
    """The nodes in the order of their numbers; of many those that stand out most."""
    worst: dict[str, float] = {}
    for part, ratio in ratios.items():
        for name in part.nodes:
            worst[name] = max(worst.get(name, 0.0), ratio)
    kept: Iterable[str] = sorted(worst, key=lambda name: -worst[name])[:MAX_PARTS]
    return sorted(kept, key=number_of)


def _cell(part: ComparedPart | None, ratios: Mapping[ComparedPart, float]) -> str:
    if part is None:
        return "<td></td>"
    took = f" ({part.now_s * 1e3:.3g} ms)" if part.what == "computing" else ""
    ratio = ratios.get(part)
    if ratio is None:
        return f"<td>-{took}</td>"
    mark = "" if part.start_s else "*"
    return f'<td class="{colour_of(ratio)}">{ratio:.2f}{mark}{took}</td>'
