"""Examples of torch's own are watched as they are.

None of them is kept here. ``PACELINE_TORCH_EXAMPLES`` names a checkout of torch's examples; without
it the newest ones are fetched. Most of them ask for several GPUs. On a machine without any their
files are run by ``jobs/without_gpus.py``, unchanged.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from paceline.base.jobdir import JobDir
from paceline.features.failslow.events import DiagnosedEvent, read
from paceline.jobs.history import read_events
from tests.integration.test_torchrun import Run

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
NAMED_BY = "PACELINE_TORCH_EXAMPLES"
URL = "https://github.com/pytorch/examples"
WITHOUT_GPUS = str(Path(__file__).with_name("jobs") / "without_gpus.py")


@dataclass(frozen=True)
class Example:
    """A script of torch's, with arguments of its own."""

    script: str
    args: tuple[str, ...] = ()
    ranks: int = 2

    def words(self, examples: Path) -> tuple[str, ...]:
        """What follows `paceline run`."""
        has_gpus = torch.cuda.device_count() >= self.ranks
        stand_in = () if has_gpus else (WITHOUT_GPUS,)
        script = str(examples / self.script)
        return ("--nproc-per-node", str(self.ranks), *stand_in, script, *self.args)


EXAMPLES = (
    Example("distributed/ddp/example.py"),
    Example("distributed/FSDP2/example.py"),
    Example("distributed/FSDP2/example.py", ("--explicit-prefetching", "--dcp-api")),
    Example("distributed/tensor_parallelism/tensor_parallel_example.py"),
    Example("distributed/tensor_parallelism/sequence_parallel_example.py"),
)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with torch's examples."""
    if named := os.environ.get(NAMED_BY):
        return Path(named).resolve()
    folder = tmp_path_factory.mktemp("torch") / "examples"
    command = ["git", "clone", "--quiet", "--depth", "1", URL, str(folder)]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if fetched.returncode:
        pytest.skip(f"torch's examples cannot be fetched; {NAMED_BY} may name a folder of them")
    return folder


def blamed(job: JobDir) -> list[tuple[str, ...]]:
    """Who the job says is to blame, in order."""
    told = [event for event in read(read_events(job.events)) if isinstance(event, DiagnosedEvent)]
    return [event.nodes for event in told if event.culprit != "nothing"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: Path(one.script).stem)
def test_an_example_ends_as_without_us_and_nobody_is_blamed(
    example: Example, examples: Path, tmp_path: Path
) -> None:
    run = Run(tmp_path, *example.words(examples))
    code, out, _ = run.end()
    assert code == 0, out
    assert "Unable to locate" not in out
    assert blamed(run.job()) == []
