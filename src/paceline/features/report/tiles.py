"""The row of figures that a report's page begins with."""

from html import escape
from typing import NamedTuple

from paceline.jobs.facts import Facts
from paceline.jobs.wording import counted, percent, seconds


class Tile(NamedTuple):
    """One figure: its name, the number, and what the number is made of."""

    name: str
    value: str
    note: str


def tiles(facts: Facts) -> list[Tile]:
    """The figures of a job, the most asked for first."""
    outcome, spec = facts.outcome, facts.spec
    if outcome:
        found = [Tile("completion time", seconds(outcome.jct_s), "from launch to end")]
    else:
        so_far = seconds(facts.ended_s - facts.started_s)
        found = [Tile("time so far", so_far, "since the launch")]
    if spec.traits.trains:
        total = outcome.total if outcome else None
        share = f"{percent(facts.committed, total)} of {total:,}" if total else "in the model"
        trained = f"mean over {seconds(facts.training_s)} of training"
        found += [
            Tile("samples", f"{facts.committed:,}", share),
            Tile("samples per second", f"{facts.samples_per_s:,.0f}", trained),
        ]
    relaunches = "relaunch" if facts.num_relaunches == 1 else "relaunches"
    counts = f"{facts.num_relaunches} {relaunches}"
    if spec.traits.trains:
        counts += f", {counted(facts.num_restores, 'restore')}"
        again = f"{facts.undone:,} samples again" if facts.undone else "no sample again"
        # Samples are counted once per second, and not while no master is there.
        most = f"≤ {seconds(facts.stalled_s)}" if facts.troubles else "none"
        standing = f"without a new sample; {again}" if facts.troubles else again
        lost = Tile("cost of incidents", most, standing)
    incidents = Tile("incidents", f"{len(facts.troubles):,}", counts)
    cpu = sum(worker.cpu_s for worker in facts.workers)
    of_workers = f"of {counted(len(facts.workers), 'worker')}"
    found += [incidents, *([lost] if spec.traits.trains else [])]
    return [*found, Tile("processor time", seconds(cpu), of_workers)]


def tiles_as_html(facts: Facts) -> str:
    """The figures as a row that wraps where the page is narrow."""
    cells = (
        f"<div><dt>{escape(one.name)}</dt><dd>{escape(one.value)}</dd>"
        f'<dd class="faint">{escape(one.note)}</dd></div>'
        for one in tiles(facts)
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'
