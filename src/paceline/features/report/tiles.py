"""The row of figures that a report's page begins with."""

from html import escape
from typing import NamedTuple

from paceline.jobs.facts import Facts
from paceline.jobs.wording import counted, percent, seconds, speed


class Tile(NamedTuple):
    """One figure: its name, the number, and what the number is made of."""

    name: str
    value: str
    note: str


def tiles(facts: Facts, total: int | None = None) -> list[Tile]:
    """Return the figures of a job, the most asked for first.

    ``total``: samples that it will train, while it runs; None: not known.
    """
    outcome, spec = facts.outcome, facts.spec
    stopped = f", {seconds(facts.stopped_s)} of it stopped" if facts.stopped_s else ""
    if outcome:
        found = [Tile("time taken", seconds(outcome.jct_s), f"from launch to end{stopped}")]
    else:
        so_far = seconds(facts.ended_s - facts.started_s)
        found = [Tile("time so far", so_far, f"since the launch{stopped}")]
    if spec.traits.trains:
        total = outcome.total if outcome else total
        share = f"{percent(facts.committed, total)} of {total:,}" if total else "so far"
        trained = f"mean over {seconds(facts.training_s)} of training"
        found += [
            Tile("samples trained", f"{facts.committed:,}", share),
            Tile("speed", speed(facts.samples_per_s), trained),
        ]
    found.append(Tile("failures and kills", f"{len(facts.troubles):,}", _done_about(facts)))
    if spec.traits.trains:
        found.append(_time_lost(facts))
    cpu = sum(worker.cpu_s for worker in facts.workers)
    used = f"used by {counted(len(facts.workers), 'worker')}"
    return [*found, Tile("processor time", seconds(cpu), used)]


def _done_about(facts: Facts) -> str:
    """Say how often processes were started again, and how often the model went back."""
    told = "1 process" if facts.num_relaunches == 1 else f"{facts.num_relaunches:,} processes"
    told += " started again"
    if facts.num_restores:
        told += f", {counted(facts.num_restores, 'return')} to a saved model"
    return told


def _time_lost(facts: Facts) -> Tile:
    again = f"{facts.undone:,} samples trained twice" if facts.undone else "no sample trained twice"
    if not facts.stalled_s:
        return Tile("time lost", "none", again)
    # Samples are counted once per second, and not while no master is there.
    return Tile("time lost", f"≤ {seconds(facts.stalled_s)}", f"without progress; {again}")


def tiles_as_html(facts: Facts, total: int | None = None) -> str:
    """The figures as a row that wraps where the page is narrow; ``total`` as in `tiles`."""
    cells = (
        f"<div><dt>{escape(one.name)}</dt><dd>{escape(one.value)}</dd>"
        f'<dd class="faint">{escape(one.note)}</dd></div>'
        for one in tiles(facts, total)
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'
