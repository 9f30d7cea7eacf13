"""Which jobs have keepers of their journal, and what is said where there are none."""

import pytest

from paceline.master.keeping import why_alone
from paceline.wire.spec import JobSpec, NodeSpec


def spec(**fields: object) -> JobSpec:
    return JobSpec(script="train.py", **fields)  # type: ignore[arg-type]


def test_a_job_of_replicas_has_keepers() -> None:
    assert why_alone(spec(strategy="allreduce")) == ""


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"strategy": "ps", "servers": NodeSpec(count=1)}, "strategy ps"),
        ({"strategy": "fsdp"}, "strategy fsdp"),
        ({"strategy": "script"}, "strategy script"),
        ({"strategy": "allreduce", "backend": "ray"}, "the backend ray"),
    ],
)
def test_where_nobody_else_holds_the_model_it_has_none(fields: dict[str, object], why: str) -> None:
    assert why in why_alone(spec(**fields))
