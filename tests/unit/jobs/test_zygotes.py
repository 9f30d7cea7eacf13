"""Which nodes of a job have a template, and which environment their zygotes must have."""

from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir
from paceline.jobs.zygotes import (
    environment_digest,
    has_template,
    import_arguments,
    process_environment,
)
from paceline.wire.spec import JobSpec, NodeSpec, ShareSpec

JOB = JobDir(Path("job"))
SCRIPT = JobSpec(script="/train.py")


def digest(node: str, spec: JobSpec) -> str:
    return environment_digest(process_environment(JOB, node, spec))


def test_nodes_of_a_role_have_equal_environments_but_for_their_names() -> None:
    assert digest("worker-0", SCRIPT) == digest("worker-1", SCRIPT)
    assert digest("worker-0", SCRIPT) != digest("server-0", SCRIPT)


@pytest.mark.parametrize(
    "other",
    [
        JobSpec(script="/train.py", torch_threads=7),
        JobSpec(script="/train.py", env={"A": "1"}),
        JobSpec(script="/train.py", strategy="allreduce", deterministic=True),
    ],
    ids=["threads", "env", "deterministic"],
)
def test_what_libraries_read_when_they_are_imported_is_compared(other: JobSpec) -> None:
    base = JobSpec(script="/train.py", torch_threads=1)
    assert digest("worker-0", base) != digest("worker-0", other)


@pytest.mark.parametrize(
    ("spec", "node", "has"),
    [
        (SCRIPT, "worker-0", True),
        (SCRIPT, "server-0", True),
        (JobSpec(script="/train.py", workers=NodeSpec(memory_bytes=1 << 30)), "worker-0", False),
        (JobSpec(script="/train.py", workers=NodeSpec(memory_bytes=1 << 30)), "server-0", True),
        (JobSpec(script="/train.py", share=ShareSpec(device="cpu:0")), "worker-0", False),
        (JobSpec(script="/train.py", share=ShareSpec(device="cuda:0")), "worker-0", True),
        (JobSpec(script="/train", strategy="script", run_as="program"), "worker-0", False),
        (JobSpec(script="/train.py", strategy="script"), "worker-0", True),
    ],
)
def test_a_node_whose_limits_or_cores_count_its_imports_has_none(
    spec: JobSpec, node: str, has: bool
) -> None:
    assert has_template(node, spec) == has


def test_a_template_imports_what_its_zygotes_would() -> None:
    assert import_arguments("server-0", SCRIPT) == ["--for", "server"]
    script = JobSpec(script="/train.py", strategy="script")
    assert import_arguments("worker-0", script)[:2] == ["--for", "script"]
