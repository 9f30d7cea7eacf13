"""Why a script is slow: since when, what is to blame, and what was done."""

from collections.abc import Callable

from paceline.features.failslow.sections import clause_of, was_watched, well
from paceline.features.failslow.slowness import slownesses
from paceline.jobs.why import AskedWhy, Reason, WhyQuestion

MAX_TOLD = 2


def reasons(asked: AskedWhy, add: Callable[[Reason], None]) -> None:
    """Say when a script was slow, and what was to blame, in one sentence."""
    facts = asked.facts
    if facts is None or not was_watched(facts):
        return
    found = slownesses(facts.events)
    if found:
        told = [clause_of(one, facts.started_s) for one in found[-MAX_TOLD:]]
        more = f" ({len(found) - len(told)} more before)" if len(found) > len(told) else ""
        done = list(dict.fromkeys(part.done for part in found[-1].parts if part.nodes))
        words = f"; done about it: {', '.join(done)}" if done else ""
        told_ = f"Slow {'; '.join(told)}{more}{words}."
        add(Reason(WhyQuestion.SLOW, told_, f"paceline failslow {facts.job_id}"))
    elif not facts.spec.watch:
        told_ = "Whether it was slow is not known: nobody looked (watch is off in its spec)."
        add(Reason(WhyQuestion.SLOW, told_, is_found=False))
    else:
        well_ = well(facts).replace("Nothing was slow:", "Nothing was slow, nothing was done:")
        add(Reason(WhyQuestion.SLOW, well_, is_found=False))
