"""``job.state``: what a script keeps with its model goes with the model."""

import copy
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.group.strategy import Together
from paceline.runtime.state.replica import Replica
from paceline.runtime.state.script_state import ScriptState
from tests.parity.test_state import WAYS, Load


def ema_of(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def holder(state: ScriptState) -> Replica:
    model = nn.Linear(2, 2)
    return Replica([model], [SGD(model.parameters(), lr=0.1)], [], script=state)


def assert_same(found: nn.Module, expected: nn.Module) -> None:
    ours, theirs = found.state_dict(), expected.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


@WAYS
def test_objects_and_data_are_handed_over(load: Load, tmp_path: Path) -> None:
    theirs, ours = ScriptState(), ScriptState()
    average, other = ema_of(nn.Linear(2, 2)), ema_of(nn.Linear(2, 2))
    average.update_parameters(nn.Linear(2, 2))
    theirs["ema"], theirs["best"] = average, {"loss": 0.25, "at": torch.tensor(3)}
    ours["ema"], ours["best"] = other, None
    load(holder(theirs), holder(ours), tmp_path)
    assert ours["ema"] is other
    assert_same(other, average)
    assert ours["best"] == {"loss": 0.25, "at": torch.tensor(3)}


@WAYS
def test_what_is_set_after_it_was_taken_over_becomes_that(load: Load, tmp_path: Path) -> None:
    theirs, ours = ScriptState(), ScriptState()
    theirs["count"], theirs["ema"] = 7, ema_of(nn.Linear(2, 2))
    load(holder(theirs), holder(ours), tmp_path)
    assert ours.state_of().keys() == theirs.state_of().keys(), "for a peer that copies from us"
    assert not ours
    ours["count"] = 0
    assert ours["count"] == 7
    ours["count"] = 8
    assert ours["count"] == 8


@WAYS
def test_data_that_the_script_holds_changes_in_place(load: Load, tmp_path: Path) -> None:
    theirs, ours = ScriptState(), ScriptState()
    theirs["stats"] = {"n": 7, "by": {"a": [1, 2]}, "sum": torch.tensor([3.0, 4.0])}
    own = {"n": 0, "by": {"a": [0]}, "sum": torch.zeros(2), "more": 1}
    by, total = own["by"], own["sum"]
    ours["stats"] = own
    load(holder(theirs), holder(ours), tmp_path)
    assert ours["stats"] is own
    assert own == {"n": 7, "by": {"a": [1, 2]}, "sum": total}
    assert own["by"] is by
    assert total.tolist() == [3.0, 4.0]


def test_what_the_script_has_deleted_does_not_come_back() -> None:
    ours = ScriptState()
    ours["old"], ours["kept"] = 1, 2
    del ours["old"]
    ours.become({"old": 5, "kept": 6})
    assert ours.state_of() == {"kept": 6}
    ours["old"] = 7
    assert ours["old"] == 7
    ours.become({"old": 5})
    assert ours["old"] == 5


def test_what_cannot_be_kept_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"job.state\['f'\] is a function"):
        ScriptState()["f"] = lambda: None
    with pytest.raises(ConfigError, match="names are strings, got 3"):
        ScriptState()[3] = 1  # type: ignore[index]


class Stepper(Together):
    """A member, as far as averages need it."""

    num_steps: Any = None
    _loop: Any = None

    def __init__(self) -> None:
        self.script_state = ScriptState()
        self.script_state.on_set = self._keep


@pytest.mark.parametrize("given", ["prepare", "state"])
def test_an_average_is_updated_once_for_each_step(given: str) -> None:
    member, model = Stepper(), nn.Linear(2, 2)
    average = ema_of(model)
    if given == "prepare":
        member._average_once_per_step([model, average])
    else:
        member.script_state["ema"] = average
        member.script_state["ema"] = average
    counts = []
    for member.num_steps in (1, 2, 2, 2, 3):  # a step that broke, and one of several batches
        average.update_parameters(model)
        counts.append(int(average.n_averaged))
    assert counts == [1, 2, 2, 2, 3]


def test_a_batch_that_changes_no_weights_changes_no_average() -> None:
    member, model = Stepper(), nn.Linear(2, 2)
    average = ema_of(model)
    member.script_state["ema"] = average
    member.num_steps = 30  # a life that has just taken over this step
    step, asked = SimpleNamespace(stepped={0}, changes=False), list[AveragedModel]()
    # An optimizer that has not stepped may yet: the step is not closed.
    member._loop = SimpleNamespace(step=step, average_within=lambda one: asked.append(one) or 0)
    average.update_parameters(model)
    assert int(average.n_averaged) == 0
    assert asked == [average]
    member.num_steps, member._loop.step.changes = 31, True
    average.update_parameters(model)
    assert int(average.n_averaged) == 1


@pytest.mark.parametrize("copied", [False, True])
def test_a_copy_of_an_average_is_an_ordinary_average(copied: bool) -> None:
    member, model = Stepper(), nn.Linear(2, 2)
    average = AveragedModel(model)
    member._average_once_per_step([average])
    member.script_state["ema"] = average
    member.num_steps = 1
    average.update_parameters(model)
    if copied:
        found = copy.deepcopy(average)
    else:
        file = io.BytesIO()
        torch.save(average, file)
        file.seek(0)
        found = torch.load(file, weights_only=False)
    assert type(found) is AveragedModel and isinstance(average, AveragedModel)
    assert_same(found, average)
    for _ in range(2):
        found.update_parameters(nn.Linear(2, 2))
    assert (int(found.n_averaged), int(average.n_averaged)) == (3, 1)
    assert not torch.equal(found.module.weight, average.module.weight)
    member.num_steps = 2
    average.update_parameters(model)
    assert int(average.n_averaged) == 2


def test_alone_it_is_a_mapping() -> None:
    job = pl.init()
    job.state["n"] = 1
    assert dict(job.state) == {"n": 1}
    del job.state["n"]
    assert not job.state
