"""Words for what became of a job: one line, and the paragraph at the end of a run."""

from collections.abc import Sequence

from paceline.jobs.facts import Facts
from paceline.jobs.incidents import costs, describe
from paceline.jobs.outcome import End
from paceline.jobs.sections import sections_of
from paceline.jobs.why import found_about
from paceline.jobs.wording import clock, counted, progress, seconds, speed

MAX_TOLD = 5


def headline(facts: Facts) -> str:
    """Say how the job ended."""
    outcome = facts.outcome
    if outcome is None:
        if facts.runs:
            return "running"
        return f"interrupted: all its processes died; `paceline run --resume {facts.job_id}`"
    return f"{outcome.how}: {outcome.error}" if outcome.error else str(outcome.how)


def paragraph(facts: Facts) -> str:
    """Tell the result of a job in a few sentences, with those of its report's sections."""
    told = [one.sentence for one in sections_of(facts) if one.sentence]
    is_well = not told
    told += _whys(facts, told)
    return " ".join(
        filter(
            None,
            (
                _result(facts),
                _not_kept(facts),
                _pauses(facts),
                *told,
                _troubles(facts, is_well=is_well),
            ),
        )
    )


def _whys(facts: Facts, told: Sequence[str]) -> list[str]:
    """Say what features found out about slowness and size, but for what was said."""
    found = found_about(facts)
    return [one for one in found if not any(said.rstrip(".") in one for said in told)]


_ENDED = {
    None: "Not ended",
    End.FINISHED: "Finished",
    End.NOT_TRAINED: "Nothing was trained",
    End.STOPPED_EARLY: "Stopped early by the script",
    End.STOPPED: "Stopped by `paceline stop`",
    End.INTERRUPTED: "Stopped by Ctrl-C",
    End.TERMINATED: "Stopped by SIGTERM",
    End.WARNED: "Stopped by SIGUSR1",
    End.SCRIPT_FAILED: "Failed by an error of the script",
    End.FAILED: "Failed",
}


def _result(facts: Facts) -> str:
    """Say how the job ended, what it has trained, and what that took."""
    outcome = facts.outcome
    total = outcome.total if outcome else None
    took_s = outcome.jct_s if outcome and outcome.jct_s else facts.ended_s - facts.started_s
    how = outcome.how if outcome else None
    ended, took = _ENDED[how], seconds(took_s)
    if not facts.spec.traits.trains:
        return f"{ended} after {took}."
    if outcome is not None and how is End.NOT_TRAINED:
        loop = "ran no loop over job.batches" if outcome.joined else "never called pl.init()"
        return f"{ended}: the script {loop}; it returned after {took}."
    trained, rate = progress(facts.committed, total), speed(facts.samples_per_s)
    training = f"{seconds(facts.training_s)} of it training ({rate})"
    if facts.stopped_s:
        training = f"{seconds(facts.stopped_s)} of it stopped and {training}"
    if how in (None, End.FINISHED):
        return f"{ended}: {trained} in the model after {took}, {training}."
    if not facts.committed:
        return f"{ended} after {took}, with {trained} in the model."
    return f"{ended} after {trained}, in {took}, {training}."


def _not_kept(facts: Facts) -> str:
    """Say what of the model is lost with the job's processes."""
    outcome = facts.outcome
    if outcome is None or outcome.kept is None or outcome.kept >= outcome.committed:
        return ""
    return f"No cut on disk holds the last {outcome.committed - outcome.kept:,} of them."


def _pauses(facts: Facts) -> str:
    """Say when the job was resumed, and from what."""
    told = [
        ", ".join([f"at {clock(one.t - facts.started_s)} it {one.done}", *costs(one)])
        for one in facts.incidents
        if one.kind == "resume"
    ]
    told[MAX_TOLD:] = [f"{len(told) - MAX_TOLD} more times"] if len(told) > MAX_TOLD else []
    return f"Resumed: {'; '.join(told)}." if told else ""


def _troubles(facts: Facts, *, is_well: bool) -> str:
    if not facts.troubles:
        finished = facts.outcome is not None and facts.outcome.how is End.FINISHED
        return "Nothing went wrong." if finished and is_well else ""
    told = [describe(incident, facts.started_s) for incident in facts.troubles[:MAX_TOLD]]
    more = len(facts.troubles) - MAX_TOLD
    told += [f"{more} more in the report"] if more > 0 else []
    counts = counted(facts.num_relaunches, "restart")
    if facts.spec.traits.trains:
        counts += f", {counted(facts.num_restores, 'restore')}"
    return f"{counts}: {'; '.join(told)}."
