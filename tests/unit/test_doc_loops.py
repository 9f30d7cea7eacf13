"""The loops of the documentation run: each as in a script that is started alone, on small data.

Each page in ``docs/loops`` has a script; the pages of the everyday path have loops without the
rest of their scripts. A loop that trains is a cell of the map of promises
(``docs/reference/promises.py``). A job runs the scripts, too: `tests/integration/test_doc_jobs.py`.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.pages import ROOT, Block, blocks_of

DOCS = ROOT / "docs"
FORMS = {
    "epochs": "epochs",
    "early-stopping": "early",
    "accumulation": "accumulation",
    "skipped-steps": "skipped",
    "thawed-layers": "thawed",
    "folds": "folds",
    "two-optimizers": "turns",
    "some-batches": "some",
    "closures": "lbfgs",
    "compiled": "compiled",
    "evaluation": "evaluation",
    "best-weights": "best",
    "exchange": "gather",
    "logging": "logging",
    "variables": "variables",
}
"""What the map of promises calls the loop of a page in ``docs/loops``."""
COMPILES = {"compiled"}
"""Pages whose script takes long, since it calls a compiler."""

AROUND = """
import paceline as pl
from torch.utils.data import DataLoader

job = pl.init()
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train, held_out = dataset, dataset

def errors_of(batch):
    return (model(batch[0]) - batch[1]).square()[:, 0]
"""
"""What a loop of the everyday path needs around it."""
LEFT_OUT = "optimizer.zero_grad(); errors_of(batch).mean().backward(); optimizer.step()"
"""What a reader puts in for ``...``."""


class Row(NamedTuple):
    """A record, or a batch of them."""

    x: Tensor
    y: Tensor


def scripts() -> dict[str, Block]:
    """Find the script of each page in ``docs/loops``."""
    found = {}
    for page in sorted((DOCS / "loops").glob("*.md")):
        if page.stem != "index":
            (found[page.stem],) = [block for block in blocks_of(page) if block.title]
    return found


def marked_script(name: str, block: Block) -> Any:
    marks = [pytest.mark.proves(form=FORMS[name], strategy="alone", ends="runs")]
    if name in COMPILES:
        # torch's own compiler imports what torch itself has deprecated.
        jit = "ignore:`torch.jit.script_method`:DeprecationWarning"
        marks += [pytest.mark.soak, pytest.mark.filterwarnings(jit)]
    return pytest.param(block, id=name, marks=marks)


@pytest.mark.parametrize("block", [marked_script(*one) for one in scripts().items()])
def test_the_script_of_a_page_on_loops_trains(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block.body, block.place, "exec"), names)
    assert names["job"].step > 0


def test_each_page_on_loops_has_a_form() -> None:
    assert scripts().keys() == FORMS.keys()


def loops_of_the_everyday_path() -> list[Block]:
    pages = [DOCS / "howto" / f"{name}.md" for name in ("cuts", "data", "loops")]
    return [b for page in pages for b in blocks_of(page) if b.language == "python"]


def form_of(block: Block) -> str:
    """Name the form of a loop in the map of promises."""
    return next((form for form in ("epochs", "loader") if form in block.body), "batches")


def marked_loop(block: Block) -> Any:
    mark = pytest.mark.proves(form=form_of(block), strategy="alone", ends="runs")
    return pytest.param(block, id=block.place, marks=mark)


@pytest.mark.parametrize("block", [marked_loop(one) for one in loops_of_the_everyday_path()])
def test_a_loop_of_the_everyday_path_trains(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    rows = [Row(*row) for row in zip(x, x.sum(1, keepdim=True), strict=True)]
    names: dict[str, Any] = {"torch": torch, "dataset": rows}
    exec(AROUND, names)
    exec(compile(script_of(block.body), block.place, "exec"), names)
    assert names["job"].step > 0


def script_of(body: str) -> str:
    """Complete a loop to a script."""
    body = re.sub(r"batch_size=\d+", "batch_size=16", body).replace("...", LEFT_OUT)
    if "for " not in body:
        body = f"for batch in job.batches(dataset, batch_size=16):\n    {LEFT_OUT}\n    {body}"
    if "in loader" in body and "DataLoader" not in body:
        body = f"loader = DataLoader(dataset, batch_size=16)\n{body}"
    return body if "job.prepare" in body else f"job.prepare(model, optimizer)\n{body}"
