"""Scripts that hold the job's API wrongly: what the user is told, word for word.

(Of ids that are out of range, weights used directly and errors of the user's own code, see
test_job_misuse.py.)
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.script.step_frame import BY_HAND

INSTEAD = (
    "A script with sparse tables (sparse=True, pl.Embedding) trains so alone, too; without them it "
    "trains as torch does, without `paceline run` or with --strategy allreduce"
)
DATA = TensorRows(x=torch.arange(40.0).reshape(10, 4), y=torch.arange(10.0))


class Script:
    """A script as it should be, up to its loop."""

    def __init__(self) -> None:
        self.job = pl.init()
        self.model = nn.Linear(4, 1)
        self.optimizer: Optimizer = SGD(self.model.parameters(), lr=0.1)
        self.job.prepare(self.model, self.optimizer)

    def batches(self, **changed: Any) -> Any:
        return self.job.batches(**({"dataset": DATA, "batch_size": 4} | changed))

    def backward(self, batch: Any) -> None:
        F.mse_loss(self.model(batch.x).squeeze(1), batch.y).backward()


def batch_without_step() -> None:
    script = Script()
    batches = script.batches()
    script.backward(next(batches))
    next(batches)


def second_step() -> None:
    script = Script()
    script.backward(next(_batches := script.batches()))
    script.optimizer.step()
    script.optimizer.step()


def step_without_backward() -> None:
    script = Script()
    next(_batches := script.batches())
    script.optimizer.step()


def step_after_the_loop() -> None:
    script = Script()
    for batch in script.batches():
        script.backward(batch)
        script.optimizer.step()
    script.optimizer.step()


def nested_loops() -> None:
    script = Script()
    next(_outer := script.batches())
    script.batches()


def two_loops_at_once() -> None:
    script = Script()
    outer, inner = script.batches(), script.batches()
    next(outer)
    next(inner)


def prepare_twice() -> None:
    table, job = nn.Embedding(10, 4, sparse=True), pl.init()
    job.prepare(table, sgd(table))
    job.prepare(table, sgd(table))


def load_after_prepare() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    pl.init().prepare(table, sgd(table))
    table.load_state_dict(nn.Embedding(10, 4).state_dict())


def evaluate(fn: Callable[[Any], Any]) -> None:
    Script().job.evaluate(fn, DATA, 4)


def evaluate_inside_a_step() -> None:
    script = Script()
    next(_batches := script.batches())
    script.job.evaluate(lambda batch: {"y": batch.y}, DATA)


def prepare(choose: Callable[[Any], tuple[Any, ...]]) -> None:
    """Prepare what is chosen, given a model with one sparse table and one dense layer."""
    model = nn.Module()
    model.table = nn.Embedding(10, 4, sparse=True)
    model.dense = nn.Linear(4, 1)
    pl.init().prepare(*choose(model))


def with_table(model: nn.Module, **tables: nn.Module) -> tuple[nn.Module]:
    for name, table in tables.items():
        model.add_module(name, table)
    return (model,)


def tied(model: Any) -> tuple[nn.Module]:
    model.out = nn.Linear(4, 10)
    model.out.weight = model.table.weight
    return (model,)


def sgd(model: nn.Module, **options: Any) -> Optimizer:
    return SGD(model.parameters(), **({"lr": 0.1} | options))


def embedding(**changed: Any) -> None:
    table = pl.Embedding(**({"name": "user", "dim": 4} | changed))
    pl.init().prepare(table, sgd(table))


def table_outside_of_a_loop() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    pl.init().prepare(table, sgd(table))
    table(torch.arange(3))


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: pl.init().batches(DATA, 4),
        (
            "job.batches was called before job.prepare; call model, optimizer = "
            "job.prepare(model, optimizer) first"
        ),
    ),
    (
        lambda: pl.init().evaluate(dict, DATA),
        (
            "job.evaluate was called before job.prepare; call model, optimizer = "
            "job.prepare(model, optimizer) first"
        ),
    ),
    (
        lambda: pl.Embedding("user", 4)(torch.arange(3)),
        (
            "pl.Embedding 'user' was used on (3,) keys before job.prepare(model, optimizer), "
            "which gives it its table"
        ),
    ),
    (
        batch_without_step,
        (
            "a batch went by without optimizer.step() (1 of 1 prepared optimizers did not step), "
            "so its samples would never count; call it once per batch, and use job.evaluate for "
            "batches that are not trained on"
        ),
    ),
    (
        second_step,
        (
            "optimizer.step() was called twice for one batch; a batch counts once: call it once, "
            "after all of loss.backward()"
        ),
    ),
    (
        step_without_backward,
        (
            "optimizer.step() was called, but no parameter has a gradient; call loss.backward() "
            "before it, and optimizer.zero_grad() after it"
        ),
    ),
    (
        step_after_the_loop,
        (
            "optimizer.step() was called outside of a loop over job.batches; only batches of the "
            "job can be trained on: loop over job.batches(dataset or loader, ...), or, with the model "
            "in training mode, over a DataLoader that job.prepare has returned"
        ),
    ),
    (
        nested_loops,
        (
            "job.batches was called inside the loop of another job.batches; finish that loop "
            "first, and use job.evaluate for held-out data"
        ),
    ),
    (
        two_loops_at_once,
        ("two loops over job.batches run at once; finish one, then the other"),
    ),
    (
        prepare_twice,
        (
            "job.prepare was called twice; give it everything in one call, and train another model "
            "in another job, or with --strategy allreduce"
        ),
    ),
    (
        load_after_prepare,
        (
            "load_state_dict was called on a prepared model, whose values the worker does not "
            "hold; call it before job.prepare"
        ),
    ),
    (
        table_outside_of_a_loop,
        (
            "table 'embedding' was used outside of job.batches and job.evaluate; its rows are "
            "there only for the batch in hand; compute on held-out data with "
            'job.evaluate(lambda batch: {"score": model(batch)}, dataset)'
        ),
    ),
    (
        lambda: Script().batches(batch_size=0),
        ("job.batches: batch_size is 0; give a whole number of at least 1"),
    ),
    (
        lambda: Script().batches(batch_size=2.5),
        ("job.batches: batch_size is 2.5; give a whole number of at least 1"),
    ),
    (
        lambda: Script().batches(batch_size=None),
        (
            "job.batches: batch_size is given neither by the script nor by the job's spec; write "
            "batch_size=..."
        ),
    ),
    (
        lambda: Script().batches(epochs=0),
        "job.batches: epochs is 0; give a whole number of at least 1",
    ),
    (
        lambda: Script().batches(dataset=[]),
        ("job.batches: the dataset is empty; it must have at least one record"),
    ),
    (
        lambda: Script().batches(dataset=iter(())),
        (
            "job.batches: a tuple_iterator has no length or no index; give a dataset with "
            "__len__ and __getitem__, or a DataLoader of one"
        ),
    ),
    (
        lambda: Script().batches(dataset=torch.utils.data.DataLoader(DATA)),
        (
            "job.batches: batch_size=4 was given with a DataLoader, which says how it is read "
            "(batch_size: 1); leave batch_size out, or give its dataset"
        ),
    ),  # type: ignore[arg-type]
    (
        lambda: prepare(lambda _: ()),
        ("job.prepare got no model; call job.prepare(model, optimizer)"),
    ),
    (
        lambda: prepare(lambda m: (m, LBFGS(m.parameters()))),
        (
            "LBFGS cannot be run on parameter servers; use one of torch.optim.Adagrad, "
            "torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD, "
            "torch.optim.SparseAdam. " + INSTEAD
        ),
    ),
    (
        lambda: prepare(lambda m: (m, Adam(m.parameters(), amsgrad=True))),
        (
            "optimizer 'adam': amsgrad=1.0 is not supported for embedding tables (sparse "
            "gradients) on servers; leave it out or set it to 0. Supported: sgd (lr); adagrad "
            "(lr, eps, initial_accumulator_value, lr_decay); rowwise_adagrad (lr, eps, "
            "initial_accumulator_value); adam (lr, beta1, beta2, eps); ftrl (lr, beta, l1, l2); "
            "sparse_adam (lr, beta1, beta2, eps). " + INSTEAD
        ),
    ),
    (
        lambda: prepare(lambda m: (m, sgd(m, momentum=0.9))),
        (
            "optimizer 'sgd': momentum=0.9 is not supported for embedding tables (sparse "
            "gradients) on servers; leave it out or set it to 0. Supported: sgd (lr); adagrad "
            "(lr, eps, initial_accumulator_value, lr_decay); rowwise_adagrad (lr, eps, "
            "initial_accumulator_value); adam (lr, beta1, beta2, eps); ftrl (lr, beta, l1, l2); "
            "sparse_adam (lr, beta1, beta2, eps). " + INSTEAD
        ),
    ),
    (
        lambda: prepare(lambda m: (m, AdamW(m.parameters()))),
        (
            "optimizer 'adamw' cannot update embedding tables (sparse gradients) on servers; "
            "supported: sgd (lr); adagrad (lr, eps, initial_accumulator_value, lr_decay); "
            "rowwise_adagrad (lr, eps, initial_accumulator_value); adam (lr, beta1, beta2, eps); "
            "ftrl (lr, beta, l1, l2); sparse_adam (lr, beta1, beta2, eps). " + INSTEAD
        ),
    ),
    (
        lambda: prepare(lambda m: (m, sgd(m), sgd(m))),
        (
            "a parameter of shape (10, 4) is given to optimizer 0 and to optimizer 1; give each "
            "parameter to one"
        ),
    ),
    (
        lambda: prepare(lambda m: (m, sgd(nn.Linear(3, 5)))),
        (
            "job.prepare: optimizer 0 (SGD) trains no parameter of the models that were given; make "
            "it of the parameters of the model that is prepared, as it is then, and pass all models "
            "and their optimizers in one call"
        ),
    ),
    (
        lambda: prepare(lambda m: (m, StepLR(sgd(m), 1))),
        ("job.prepare got a StepLR whose optimizer was not given; pass both in one call"),
    ),
    (
        lambda: prepare(lambda m: (m.half(), sgd(m))),
        (
            "table 'table' is torch.float16; servers hold float32 and float64: convert the model "
            "with .float(), and use torch.autocast for faster arithmetic. " + INSTEAD
        ),
    ),
    (
        lambda: prepare(lambda m: (m, DATA)),
        (
            "job.prepare got a TensorRows; it takes nn.Modules, torch optimizers, learning rate "
            "schedulers, GradScalers and DataLoaders (and lists of them)"
        ),
    ),
    (
        lambda: prepare(lambda m: (m, sgd(m), torch.amp.GradScaler("cpu"))),
        (
            "job.prepare got a GradScaler, which parameter servers cannot follow: it looks at "
            "gradients that no worker sees; take bfloat16, which needs no scaler. " + INSTEAD
        ),
    ),
    (
        lambda: prepare(lambda m: with_table(m, t=nn.Embedding(9, 4, sparse=True, max_norm=1.0))),
        (
            "table 't': max_norm=1.0 cannot be done for rows on servers; leave it out, or use "
            "sparse=False to keep the whole embedding in the worker"
        ),
    ),
    (
        lambda: prepare(lambda m: with_table(m, t=nn.EmbeddingBag(9, 4, sparse=True, mode="max"))),
        "table 't': mode='max'; expected sum or mean",
    ),
    (
        lambda: prepare(lambda m: with_table(m, a=pl.Embedding("u", 4), b=pl.Embedding("u", 4))),
        ("two tables are called 'u'; give each pl.Embedding a name of its own"),
    ),
    (
        lambda: prepare(tied),
        (
            "out.weight is also the weight of an embedding with sparse=True; a weight that is "
            "shared with another kind of layer stays in the worker: use sparse=False"
        ),
    ),
    (lambda: embedding(name=""), "pl.Embedding: name is ''; give the table a name of its own"),
    (
        lambda: embedding(dim=0),
        ("pl.Embedding 'user': dim is 0; give a whole number of at least 1"),
    ),
    (
        lambda: embedding(admit=0),
        ("pl.Embedding 'user': admit is 0; give a whole number of at least 1"),
    ),
    (
        lambda: embedding(optimizer="lion"),
        (
            "pl.Embedding 'user': optimizer='lion'; expected one of sgd, adagrad, "
            "rowwise_adagrad, adam, ftrl"
        ),
    ),
    (
        lambda: embedding(optimizer="ftrl", optimizer_args={"alpha": 0.0}),
        (
            "pl.Embedding 'user': optimizer_args has alpha=0.0; ftrl takes beta, l1, l2 (the "
            "learning rate is that of the optimizer of the table's weight)"
        ),
    ),
    (
        lambda: embedding(optimizer_args={"eps": 1e-8}),
        (
            "pl.Embedding 'user': optimizer_args has eps=1e-08; sgd takes none (the learning rate "
            "is that of the optimizer of the table's weight)"
        ),
    ),
    (
        lambda: embedding(optimizer="ftrl", optimizer_args={"l1": -1}),
        "pl.Embedding 'user': optimizer_args has l1=-1; give a number of at least 0",
    ),
    (
        lambda: evaluate(lambda batch: batch.y.mean()),
        ("job.evaluate: fn returned a Tensor; return a dict of tensors with one entry per sample"),
    ),
    (
        lambda: evaluate(lambda batch: {"loss": batch.y.mean()}),
        (
            "job.evaluate: fn returned a tensor of shape () as 'loss' for 4 samples; return one "
            "entry per sample (4, ...) and average the result of evaluate, since batches differ "
            "in size"
        ),
    ),
    (
        lambda: evaluate(lambda _: {"loss": 1.0}),
        (
            "job.evaluate: fn returned a float as 'loss' for 4 samples; return one entry per "
            "sample (4, ...) and average the result of evaluate, since batches differ in size"
        ),
    ),
    (
        lambda: evaluate(lambda batch: {"p": batch.y[1:]}),
        (
            "job.evaluate: fn returned a tensor of shape (3,) as 'p' for 4 samples; return one "
            "entry per sample (4, ...) and average the result of evaluate, since batches differ "
            "in size"
        ),
    ),
    (
        evaluate_inside_a_step,
        ("job.evaluate was called between a batch and its optimizer.step(); call it after"),
    ),
]


@pytest.mark.usefixtures("held_both_ways")
@pytest.mark.parametrize(("script", "message"), MISTAKES)
def test_a_script_that_cannot_train_is_refused_in_these_words(
    script: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        script()
    # What else a script may do differs: see the tests of accumulation.
    assert str(refused.value).replace(BY_HAND, "") == message
