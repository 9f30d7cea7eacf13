"""The loops of the documentation run: each as in a script that is started alone, on small data.

A loop that trains is a cell of the map of promises (``docs/reference/promises.py``).
"""

import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.pages import ROOT, Block, blocks_of

BLOCKS = [
    block
    for name in ("cuts", "loops")
    for block in blocks_of(ROOT / "docs" / "howto" / f"{name}.md")
    if block.language == "python" and not block.not_run
]

FORMS = {
    "Epochs, with something between them": "epochs",
    "Early stopping, decided once for all": "early",
    "Gradient accumulation by hand": "accumulation",
    "A step that the script skips": "skipped",
    "Layers that begin to train later": "thawed",
    "One model after the other": "folds",
    "Two optimizers in turn": "turns",
    "An optimizer that steps on some batches only": "some",
    "A closure": "lbfgs",
    "Evaluation in mid-epoch": "evaluation",
    "The best weights at the end": "best",
    "What workers tell each other in mid-epoch": "gather",
    "Logging that continues": "logging",
    "What follows by itself": "variables",
}
"""What the map of promises calls the loop under a heading."""

ONE_MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.body(self.stem(x))))

def loss_of(model, batch):
    return (model(batch[0]) - batch[1]).square()[:, 0]

def validate(model, fold=0):
    return loss_of(model, everything).mean().item()

def without_stem(model):
    model.body.requires_grad_(False)
    return [*model.body.parameters(), *model.head.parameters()]

def train_rows(fold):
    return [row for row in range(64) if row % 5 != fold]

model, loss_fn, held_out, scores, measure = Net(), nn.MSELoss(), dataset, [], validate
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
"""
TWO_MODELS = """
judge, maker, loss, real, made = nn.Linear(4, 1), nn.Linear(1, 4), nn.MSELoss(), ones, 0 * ones
of_judge, of_maker = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (judge, maker))
"""
LEFT_OUT = {
    "batch": "optimizer.zero_grad(); loss_of(model, batch).mean().backward(); optimizer.step()",
    "judge": "of_judge.zero_grad(); loss(judge(x), real).backward()",
    "maker": "of_maker.zero_grad(); loss(judge(maker(z)), real).backward(); of_judge.zero_grad()",
}
"""What a reader puts in for ``...``."""


class Row(NamedTuple):
    """A record, or a batch of them."""

    x: Tensor
    y: Tensor


def script_of(block: Block) -> str:
    """The block with what it needs around it."""
    body = re.sub(r"batch_size=\d+", "batch_size=16", block.body)
    body = body.replace("% 1000", "% 2").replace(
        "evaluate(...)", 'evaluate(lambda b: {"loss": loss_of(model, b)}, dataset)'
    )
    fills = iter(["judge", "maker"] if "of_judge" in body else ["batch"])
    body = re.sub(
        r"^( *)\.\.\.$", lambda dots: dots[1] + LEFT_OUT[next(fills)], body, flags=re.MULTILINE
    )
    if "for " not in body:
        loop = "for batch in job.batches(dataset, batch_size=16):\n"
        inside = f"loss = loss_of(model, batch).mean()\n{{0}}{LEFT_OUT['batch']}\n{{1}}"
        is_guard = "continue" in body
        loop += textwrap.indent(inside.format(*((body, "") if is_guard else ("", body))), "    ")
        body = loop
    if "of_judge" in body:
        return f"{TWO_MODELS}job.prepare(judge, maker, of_judge, of_maker)\n{body}"
    names = ONE_MODEL
    if "closure" in body:
        names = names.replace("SGD", "LBFGS")
    if "requires_grad_(True)" in body:
        names = names.replace("model.parameters(), lr", "without_stem(model), lr")
    prepared = "" if "job.prepare" in body else "job.prepare(model, optimizer, scheduler)\n"
    return names + prepared + body


def form_of(block: Block) -> str:
    """Name a block's form of a loop in the map of promises; empty: the map has none."""
    above = "\n".join(block.page.read_text().splitlines()[: block.line])
    heading = re.findall(r"^#+ (.*)$", above, re.MULTILINE)[-1]
    if heading != "The three forms":
        return FORMS.get(heading, "")
    return next((form for form in ("epochs", "loader") if form in block.body), "batches")


def marked(block: Block) -> Any:
    form = form_of(block)
    mark = pytest.mark.proves(form=form, strategy="alone", ends="runs")
    return pytest.param(block, id=block.place, marks=[mark] * bool(form))


@pytest.mark.parametrize("block", [*map(marked, BLOCKS)])
def test_a_loop_of_the_documentation_trains(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    everything = Row(x, x.sum(1, keepdim=True))
    names: dict[str, Any] = {
        "torch": torch,
        "nn": nn,
        "everything": everything,
        "dataset": [Row(*row) for row in zip(*everything, strict=True)],
        "ones": torch.ones(16, 1),
    }
    exec(
        "import paceline as pl\nfrom torch.utils.data import DataLoader, Subset\njob = pl.init()",
        names,
    )
    exec(compile(script_of(block), block.place, "exec"), names)
    assert names["job"].step > 0
