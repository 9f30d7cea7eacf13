"""``paceline checkpoint export``: a cut becomes a file that others read."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import SGD, Adam

from paceline.base.errors import ConfigError, PermanentError
from paceline.features.formats.process.export import export
from paceline.runtime.holding.servers.model import Model
from paceline.runtime.state import layout
from paceline.runtime.state.replica import Replica
from paceline.wire.schema import ModelSchema
from tests.integration.running import install
from tests.unit.cli.test_cli_checkpoint import (
    DAMAGE,
    KEYS,
    Clicks,
    assert_same,
    cut_in_memory,
    damage,
    new_job,
    paceline,
    replica_cut,
    served,
    trained,
    write_cut,
)
from tests.unit.cli.test_cli_removal import completed


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    return tmp_path


def test_a_cut_in_memory_is_exported(tmp_path: Path) -> None:
    with cut_in_memory(tmp_path) as model:
        assert paceline("export", tmp_path / "a.pt").exit_code == 0
    assert_same(torch.load(tmp_path / "a.pt", weights_only=True), dict(model.state_dict()))


def test_a_job_without_a_cut_is_said_to_have_none() -> None:
    new_job()
    result = paceline("export", "a.pt")
    assert result.exit_code == 2
    assert "has no cut" in result.stderr


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_cut_is_not_exported(how: str, tmp_path: Path) -> None:
    _, saves, schema = served()
    damaged = write_cut(new_job().cuts, 3, saves, schema)
    damage(damaged, how)
    with pytest.raises(PermanentError, match=r"server-1-1\.safetensors|manifest\.json"):
        export(tmp_path / "model.safetensors", damaged, file_format="safetensors")
    assert not list(tmp_path.glob("*model*"))


@pytest.mark.parametrize("file_format", ["safetensors", "torch"])
def test_servers_shares_become_the_state_dict_of_the_model(
    file_format: str, tmp_path: Path
) -> None:
    expected, saves, schema = served()
    out = tmp_path / "model"
    export(out, write_cut(tmp_path, 3, saves, schema), file_format=file_format)
    found = load_file(out) if file_format == "safetensors" else torch.load(out, weights_only=True)
    assert_same(found, expected)
    assert found["people.keys"].tolist() == sorted(KEYS.tolist())


def test_the_cut_a_model_begins_with_is_exported_too(tmp_path: Path) -> None:
    model = Clicks()
    bound = Model([model], [SGD(model.parameters(), lr=0.1)], seed=3)
    start = layout.initial_arrays(bound.schema, *bound.initial())
    cut = write_cut(tmp_path, 0, {"initial.safetensors": start}, bound.schema)
    export(tmp_path / "a", cut, file_format="torch")
    found = torch.load(tmp_path / "a", weights_only=True)
    assert torch.equal(found["wide"], model.wide)
    assert found["people.rows"].shape == (0, 2)


def test_a_share_that_is_not_there_is_said(tmp_path: Path) -> None:
    _, saves, schema = served()
    cut = write_cut(tmp_path, 3, dict([saves.popitem()]), schema)
    with pytest.raises(PermanentError, match="lacks buckets"):
        export(tmp_path / "a", cut, file_format="torch")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_members_replica_becomes_the_state_dict_buffers_included(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    cut, model = replica_cut(tmp_path, dtype=dtype)
    export(tmp_path / "a", cut, file_format="safetensors")
    assert_same(load_file(tmp_path / "a"), dict(model.state_dict()))


def test_several_models_are_told_apart_by_their_number(tmp_path: Path) -> None:
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    saved = Replica(models, [], []).save()
    cut = write_cut(tmp_path, 1, {"worker-0-1.safetensors": saved}, ModelSchema())
    export(tmp_path / "a", cut, file_format="torch")
    expected = {f"{k}.{n}": v for k, m in enumerate(models) for n, v in m.state_dict().items()}
    assert_same(torch.load(tmp_path / "a", weights_only=True), expected)

    bound = Model(models, [SGD([*models[0].parameters(), *models[1].parameters()], lr=1)], seed=0)
    start = layout.initial_arrays(bound.schema, *bound.initial())
    cut = write_cut(tmp_path, 2, {"initial.safetensors": start}, bound.schema)
    export(tmp_path / "b", cut, file_format="torch")
    assert_same(torch.load(tmp_path / "b", weights_only=True), expected)


def test_with_the_optimizer_training_can_go_on_elsewhere(tmp_path: Path) -> None:
    cut, model = replica_cut(tmp_path)
    export(tmp_path / "a", cut, file_format="torch", optimizer=True)
    found = torch.load(tmp_path / "a", weights_only=True)
    assert_same(found["model"], dict(model.state_dict()))
    _, optimizer, scheduler = trained()
    fresh = Adam(model.parameters())
    fresh.load_state_dict(found["optimizers"][0])
    assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    moments, expected = ([s["exp_avg"] for s in o.state.values()] for o in (fresh, optimizer))
    assert len(moments) == len(expected) == len(list(model.parameters()))
    assert all(map(torch.equal, moments, expected))
    assert found["schedulers"][0]["last_epoch"] == scheduler.last_epoch


def test_optimizer_state_of_servers_is_not_to_be_had(tmp_path: Path) -> None:
    _, saves, schema = served()
    cut = write_cut(tmp_path, 3, saves, schema)
    with pytest.raises(ConfigError, match="parameter servers"):
        export(tmp_path / "a", cut, file_format="torch", optimizer=True)
    assert not (tmp_path / "a").exists()


def test_a_file_is_replaced_only_by_force_and_wholly(tmp_path: Path) -> None:
    cut, model = replica_cut(tmp_path)
    out = tmp_path / "a.pt"
    out.write_text("precious")
    with pytest.raises(ConfigError, match="--force"):
        export(out, cut, file_format="torch")
    damage(cut, "flipped")
    with pytest.raises(PermanentError):
        export(out, cut, file_format="torch", force=True)
    assert out.read_text() == "precious"
    cut, model = replica_cut(tmp_path)
    export(out, cut, file_format="torch", force=True)
    assert_same(torch.load(out, weights_only=True), dict(model.state_dict()))
    assert {path.name for path in tmp_path.iterdir()} == {"000004", "a.pt"}


def test_the_command_writes_by_the_suffix_and_passes_on_what_is_wrong(tmp_path: Path) -> None:
    job = new_job()
    cut, model = replica_cut(job.cuts)
    out = tmp_path / "model.safetensors"
    done = paceline("export", job.job_id, out)
    assert done.exit_code == 0, done.stderr
    assert f"{out}: 9 tensors of cut 4, step 7 of job {job.job_id}" in done.stdout
    assert_same(load_file(out), dict(model.state_dict()))
    damage(cut, "truncated")
    failed = paceline("export", tmp_path / "b.pt")
    assert failed.exit_code == 2
    assert "worker-0-1.safetensors: checksum differs" in failed.stderr
    assert not (tmp_path / "b.pt").exists()


NAMES = """
from paceline.features.formats.formats import Format

FORMAT = Format((".names",), "names:write", only_tensors=True)

def write(content, path, about):
    path.write_text(" ".join([about["cut"], *sorted(content)]))
"""


def test_a_package_brings_a_format_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = install(tmp_path / "site", "names", NAMES, "paceline.formats", "names = names:FORMAT")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    _, model = replica_cut(new_job().cuts)
    assert paceline("export", tmp_path / "a.names").exit_code == 0
    assert (tmp_path / "a.names").read_text().split() == ["4", *sorted(model.state_dict())]
    refused = paceline("export", "--format", "names", "--optimizer", tmp_path / "b")
    assert "got format names, which holds tensors only" in refused.stderr
    (site / "names.py").write_text("FORMAT = 3")
    monkeypatch.delitem(sys.modules, "names")
    assert "names:FORMAT is 3; declare a paceline.features" in paceline("export", "a.pt").stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("export", "a.pt", "--format", "onnx"), "expected one of safetensors, torch"),
        (("export", "a.bin"), "a.bin ends in none of .safetensors, .pt, .pth"),
        (("export", "a.safetensors", "--optimizer"), "got format safetensors"),
        (("export", "no/where.pt"), "there is no folder"),
        (("export", "jobs", "--format", "torch"), "is a folder"),
        (("export", "there.pt"), "is there already"),
        (("export", "x", "y", "a.pt"), "expected [JOB] OUT"),
        (("export", "a.pt", "--cut", "9"), "has no cut 9; it has 4"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    args: tuple[str, ...], message: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    replica_cut(new_job().cuts)
    (home / "there.pt").touch()
    result = paceline(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_shell_completes_ids_of_jobs_and_files() -> None:
    job = new_job("one")
    assert completed("paceline checkpoint export o") == [job.job_id]
    assert completed("paceline checkpoint export one o") == []
