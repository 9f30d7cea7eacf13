"""Decisions about cures are lines of a log, from which they are made again."""

import msgspec

from paceline.features.failslow.policy.planned import CurePlanned
from paceline.policy.cures import (
    PlannerRules,
)
from tests.unit.policy.test_cures import LINK, SLOW, Job


def test_decisions_are_replayed_from_their_lines() -> None:
    job = Job()
    job.run(4, 1.5, SLOW)
    job.run(1000, 1.2, SLOW, LINK)
    job.run(10, 1.0)
    job.run(100, 1.5, SLOW)
    assert len(job.log) >= 4
    for no, (before, facts, acts) in enumerate(job.log):
        line = CurePlanned(no=no, before=before, facts=facts, rules=job.rules, acts=acts)
        encoded = msgspec.json.encode(line)
        again = msgspec.json.decode(encoded, type=CurePlanned)
        assert again == line
        assert again.acts_now() == again.acts
        changed = msgspec.structs.replace(again, rules=PlannerRules(), acts=())
        assert changed.acts_now() != changed.acts
