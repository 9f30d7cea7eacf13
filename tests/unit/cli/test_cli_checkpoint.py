"""``paceline checkpoint`` on cuts as jobs write them: what it lists, finds wrong, and exports."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR
from typer.testing import CliRunner, Result

import paceline as pl
from paceline.base.jobdir import JobDir
from paceline.base.samples import Span
from paceline.cli.main import app
from paceline.jobs.outcome import Outcome, write_outcome
from paceline.master.cut_folders import CutFolders
from paceline.protocol.records import CutValid
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.holding.servers.model import Model
from paceline.runtime.holding.servers.partition import Partition
from paceline.runtime.server.store import Gradients, Store
from paceline.runtime.state import layout
from paceline.runtime.state.replica import Replica
from paceline.wire import spec as specs
from paceline.wire.messages.base import CutRef, Server, ServerMap
from paceline.wire.messages.node import Copied
from paceline.wire.schema import NUM_BUCKETS, ModelSchema
from paceline.wire.spec import CheckpointSpec, JobSpec

DONE = (Span(0, 0, 96), Span(1, 0, 10), Span(1, 20, 26))
KEYS = np.array([5, -1, 2**63 - 1, 0, -(2**63)], np.int64)
OWNERS = tuple(bucket % 2 for bucket in range(NUM_BUCKETS))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    return tmp_path


def paceline(*args: object) -> Result:
    return CliRunner().invoke(app, ["checkpoint", *map(str, args)])


def new_job(name: str = "trained", **spec: Any) -> JobDir:
    job = JobDir.create(name)
    job.run_dir.rmdir()
    specs.save(JobSpec(script="/home/me/train.py", **spec), job.spec)
    write_outcome(Outcome(state="finished", exit_code=0, committed=112, total=224), job.outcome)
    return job


def write_cut(
    root: Path, number: int, saves: dict[str, dict[str, Any]], schema: ModelSchema
) -> Path:
    """As servers or a member write a cut, and the master seals it."""
    folders = CutFolders(root, root / "memory")
    place, folder = CutRef(cut_no=number), folders.disk.folder(number)
    copies = []
    for inc, (file, arrays) in enumerate(saves.items()):
        checksum, num_bytes = cutfile.write_save(folder, file, arrays)
        copies.append(
            Copied(
                epoch_no=1,
                inc=inc,
                cut_no=number,
                position=7,
                step=7,
                committed=DONE,
                sharers=tuple(range(len(saves))),
                file=file,
                checksum=checksum,
                num_bytes=num_bytes,
            )
        )
    valid = CutValid(cut=place, epoch_no=1, step=7, committed=DONE)
    folders.seal(valid, copies, schema, b"")
    return folder


# ---------------------------------------------------------------------------- models


class Clicks(nn.Module):
    """Tied and frozen weights, a table that two modules read, and one that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(requires_grad=False)
        self.items = nn.Embedding(150, 3, sparse=True)
        self.bag = nn.EmbeddingBag(150, 3, sparse=True)
        self.bag.weight = self.items.weight
        self.people = pl.Embedding("users", dim=2, optimizer="adagrad")
        self.wide = nn.Parameter(torch.arange(500, dtype=torch.float64))


def served() -> tuple[dict[str, Tensor], dict[str, dict[str, Any]], ModelSchema]:
    """A model on two servers after an update of one table: its state dict, and their saves."""
    torch.manual_seed(1)
    model = Clicks()
    expected = {name: one.clone() for name, one in model.state_dict().items()}
    bound = Model([model], [SGD(model.parameters(), lr=0.1)], seed=3)
    schema = bound.schema
    stores = [Store(schema, OWNERS, me) for me in range(2)]
    for store in stores:
        store.load([layout.initial_arrays(schema, *bound.initial())])
    users = next(k for k, table in enumerate(schema.tables) if table.num_rows is None)
    servers = tuple(Server(me, f"server-{me}", "") for me in range(2))
    partition = Partition(schema, ServerMap(version=0, servers=servers, owners=OWNERS))
    split = partition.split({users: KEYS})
    rows = {}
    for me, store in enumerate(stores):
        keys = split.ids_of(me)[0]
        dense = {dtype: np.zeros_like(flat) for dtype, flat in store.dense().items()}
        grads = np.ones((keys.size, 2), "f4")
        rates = (0.1,) * len(schema.groups)
        store.apply([Gradients(dense, {users: (keys, grads)}, 1.0, rates)])
        rows |= dict(zip(keys.tolist(), store.rows(users, keys), strict=True))
    del expected["people.weight"]
    expected["people.keys"] = torch.tensor(sorted(rows))
    expected["people.rows"] = torch.from_numpy(np.stack([rows[key] for key in sorted(rows)]))
    saves = {f"server-{me}-1.safetensors": store.save() for me, store in enumerate(stores)}
    return expected, saves, schema


def trained(*, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Adam, StepLR]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to(dtype)
    optimizer = Adam(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.5)
    for _ in range(3):
        model(torch.randn(8, 3, dtype=dtype)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return model, optimizer, scheduler


def replica_cut(root: Path, number: int = 4, **options: Any) -> tuple[Path, nn.Module]:
    model, optimizer, scheduler = trained(**options)
    saved = Replica([model], [optimizer], [scheduler]).save()
    return write_cut(root, number, {"worker-0-1.safetensors": saved}, ModelSchema()), model


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


# ---------------------------------------------------------------------------- ls


def test_cuts_are_listed_newest_first_with_what_is_in_them() -> None:
    job = new_job()
    _, saves, schema = served()
    write_cut(job.cuts, 3, saves, schema)
    whole = write_cut(job.cuts, 4, saves, schema)
    size = sum(path.stat().st_size for path in whole.glob("*.safetensors"))
    (job.cuts / "000005").mkdir()
    (job.cuts / "000006").mkdir()
    (job.cuts / "000006" / "manifest.json").write_text("{")
    _, sixth, fifth, fourth, third = paceline("ls").stdout.splitlines()
    assert sixth.split()[0] == "6"
    assert "damaged" in sixth
    assert fifth.split()[0] == "5"
    assert "unfinished" in fifth
    cells = fourth.split()
    assert cells[:3] == ["4", "7", "1"]
    assert "112 of 224" in fourth
    assert f"{size / 1024:.1f} KiB" in fourth
    assert cells[-3:] == ["2", "disk", "readable"]
    assert third.split()[0] == "3"


def test_a_job_without_a_cut_is_said_to_have_none() -> None:
    job = new_job()
    listed = paceline("ls")
    assert listed.exit_code == 0
    assert f"job {job.job_id} has no cut yet" in listed.stdout
    for command in (("show",), ("verify",)):
        result = paceline(*command)
        assert result.exit_code == 2
        assert "has no cut" in result.stderr


def test_cuts_are_found_by_job_by_folder_and_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    job = new_job(checkpoint=CheckpointSpec(dir=str(own)))
    cut, _ = replica_cut(own)
    shutil.copytree(cut, tmp_path / "best")
    monkeypatch.chdir(tmp_path)
    names = (job.job_id, job.job_id[:9], job.path, own, cut, tmp_path / "best", "best", "./best")
    for name in names:
        assert paceline("ls", name).stdout.splitlines()[1].split()[:2] == ["4", "7"], name
        assert "cut 4: ok" in paceline("verify", name).stdout, name


@pytest.mark.parametrize("name", ["nothing", "./nothing", "./jobs"])
def test_what_is_neither_job_nor_cut_is_refused(name: str, monkeypatch: Any, home: Path) -> None:
    new_job()
    monkeypatch.chdir(home)
    result = paceline("ls", name)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


@contextlib.contextmanager
def cut_in_memory(tmp_path: Path) -> Iterator[nn.Module]:
    """A job whose cut is not on the disk; the model that is in it."""
    job = new_job()
    cut, model = replica_cut(tmp_path / "elsewhere", 9)
    held = job.memory / "000009" / "worker-0"
    held.mkdir(parents=True)
    try:
        shutil.copy(cut / "worker-0-1.safetensors", held)
        shutil.copy(cut / "manifest.json", held.parent)
        (job.cuts / "000009").mkdir()
        yield model
    finally:
        shutil.rmtree(job.run_dir)


def test_a_cut_in_memory_is_as_good(tmp_path: Path) -> None:
    with cut_in_memory(tmp_path):
        assert " memory " in paceline("ls").stdout
        assert "cut 9: ok" in paceline("verify").stdout


# ---------------------------------------------------------------------------- show


def test_a_cut_of_servers_shows_tensors_tables_and_optimizer_state() -> None:
    job = new_job()
    _, saves, schema = served()
    write_cut(job.cuts, 3, saves, schema)
    shown = paceline("show").stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert f"cut 3 of job {job.job_id}" in lines
    assert "strategy ps, step 7, epoch no. 1" in lines
    assert "line 1: 16 samples in 2 ranges (0 to 10, 20 to 26)" in lines
    assert "second.weight float32 3x3 36 B" in lines
    assert "items items.weight, bag.weight float32 150 3 sgd 1.8 KiB" in lines
    assert "users people.keys, people.rows float32 5 (grows) 2 adagrad 40 B" in lines
    assert "table users sum 2 40 B" in lines


def test_a_cut_of_a_member_shows_tensors_and_optimizer_state() -> None:
    job = new_job()
    replica_cut(job.cuts, dtype=torch.bfloat16)
    lines = [" ".join(line.split()) for line in paceline("show", "--cut", 4).stdout.splitlines()]
    assert "strategy allreduce, step 7, epoch no. 1" in lines
    assert "0.weight bfloat16 4x3 24 B" in lines
    assert "1.num_batches_tracked int64 - 8 B" in lines
    assert "optimizer 0 exp_avg 6 58 B" in lines
    assert "and 1 scheduler" in lines


# ---------------------------------------------------------------------------- verify


def damage(cut: Path, how: str) -> None:
    path = max(cut.glob("*.safetensors"))
    image = bytearray(path.read_bytes())
    match how:
        case "flipped":
            image[-1] ^= 1
            path.write_bytes(image)
        case "truncated":
            path.write_bytes(image[:-1])
        case "header":
            path.write_bytes(image[:20])
        case "missing":
            path.unlink()
        case "no manifest":
            (cut / "manifest.json").unlink()
        case _:
            text = (cut / "manifest.json").read_text()
            (cut / "manifest.json").write_text(text.replace('"step": 7', '"step": 8'))


DAMAGE = {
    "flipped": "server-1-1.safetensors: checksum differs from the manifest's",
    "truncated": "server-1-1.safetensors: truncated (",
    "header": "server-1-1.safetensors: truncated or damaged in its header (20 bytes)",
    "missing": "server-1-1.safetensors: missing",
    "no manifest": "000003: never finished, or lost",
    "manifest": "the manifest is damaged",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_cut_is_found_and_named(how: str) -> None:
    job = new_job()
    _, saves, schema = served()
    damaged = write_cut(job.cuts, 3, saves, schema)
    assert paceline("verify").exit_code == 0
    damage(damaged, how)
    result = paceline("verify", "--cut", 3)
    assert result.exit_code == 1
    assert "cut 3: bad" in result.stdout
    assert DAMAGE[how] in result.stdout

    write_cut(job.cuts, 2, saves, schema)
    both = paceline("verify", "--all")
    assert both.exit_code == 1
    assert "cut 2: ok (2 files" in both.stdout
    assert "cut 3: bad" in both.stdout


def test_by_default_the_newest_cut_that_was_whole_is_meant() -> None:
    job = new_job()
    replica_cut(job.cuts)
    (job.cuts / "000005").mkdir()
    assert paceline("verify").stdout.startswith("cut 4: ok")
    assert paceline("verify", "--all").exit_code == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("show", "--cut", "9"), "has no cut 9; it has 4"),
        (("verify", "--cut", "4", "--all"), "give one of them"),
        (("verify", "else"), "no job matches 'else'"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(args: tuple[str, ...], message: str) -> None:
    replica_cut(new_job().cuts)
    result = paceline(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
