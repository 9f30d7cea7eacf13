"""Wrong calls, as users of other launchers make them: each message has a remedy, and it runs."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from paceline.base.features import installed
from paceline.base.jobdir import JobDir
from paceline.cli.main import app
from paceline.wire import spec as specs
from paceline.wire.spec import JobSpec

FILES = {
    "train.py": 'p.add_argument("--lr"); p.add_argument("--num_threads")',
    "pkg/__main__.py": "",
    "pkg/__init__.py": "",
    "parts/main.py": "",
    "nb.ipynb": "{}",
    "job.json": "{}",
    "job.yaml": "script: train.py",
    "typo.yaml": "script: train.py\nworker: 3",
    "deep.yaml": "script: train.py\nworkers:\n  cuont: 3",
    "run.sh": "#!/bin/sh",
}
OF_RUN = """
train.py --worker 2                        | write paceline run train.py --workers 2, or
train.py --worker=2                        | write paceline run train.py --workers 2, or
train.py --num-workers 2                   | write paceline run train.py --workers 2, or
train.py --num_threads 2                   | write paceline run train.py -- --num_threads 2
--num_processes 2 train.py                 | write paceline run --nproc-per-node 2 train.py, or
--num_processes 2 train.py --lr 1          | write paceline run --nproc-per-node 2 train.py -- --lr 1, or
train.py --num-processes 2                 | write paceline run train.py --nproc-per-node 2, or
-np 2 train.py                             | write paceline run --workers 2 train.py, or
-np 2 python train.py                      | write paceline run --workers 2 train.py, or
-H localhost:2 train.py                    | nodes run on this one, or with --backend ray
--hostfile hosts train.py                  | leave it out
--num_gpus 2 train.py                      | write paceline run --nproc-per-node 2 train.py, or
--gpu_ids 0,1 train.py                     | write paceline run --set env.CUDA_VISIBLE_DEVICES=0,1 train.py, or
--min-np 2 --np 4 train.py                 | write paceline run --set min_workers=2 --workers 4 train.py, or
--use_fsdp train.py                        | write paceline run --strategy fsdp train.py, or
--main_process_port 29501 train.py         | write paceline run --master-port 29501 train.py, or
--nproc-per-nod 2 train.py --lr 1          | write paceline run --nproc-per-node 2 train.py -- --lr 1, or
--nproc_per_node 2 --what train.py --epochs 3 | write paceline run --nproc_per_node 2 train.py -- --what --epochs 3
--nproc_per_node train.py                  | write e.g. --nproc-per-node 2
--nproc_per_node 0 train.py                | write e.g. --nproc-per-node 2
--nproc_per_node 2 --workers 2 train.py    | leave --workers out
--nnodes 2 train.py                         | write --set listen=ADDRESS, or --master-addr ADDRESS
--rdzv_backend etcd train.py               | leave the flag out
--lr 0.1 train.py                          | write paceline run train.py -- --lr 0.1
train.py --lr 0.1                          | write paceline run train.py -- --lr 0.1
train.py --lr -1 --worker 2 x.csv          | write paceline run train.py --workers 2 -- --lr -1 x.csv, or
--worker 2 -m pkg --lr 1                   | write paceline run --workers 2 -m pkg -- --lr 1, or
-c job.yaml                                | write paceline run job.yaml, or
train.py --max-workers 8                   | write paceline run train.py --set max_workers=8, or
train.py --ckpt-dir x                      | write paceline run train.py --set checkpoint.dir=x, or
train.py --background                      | write paceline run train.py --detach, or
train.py --strategy ddp                    | write --strategy allreduce
train.py --strategy DDP                    | write --strategy allreduce
train.py --strategy horovod                | write --strategy allreduce
train.py --strategy zero3                  | write --strategy fsdp
train.py --strategy fsdp2                  | write --strategy fsdp
train.py --strategy parameter_server       | write --strategy ps
train.py --strategy torchrun               | write --strategy script
train.py --mode async                      | write --mode asp
train.py --mode SYNC                       | write --mode bsp
train.py --samples at-most                 | write --samples at-most-once
train.py --backend nccl                    | leave it out
train.py --backend k8s                     | comes in a later version
train.py --auto --strategy fsdp            | --auto: got it with strategy fsdp | sizes
train.py --auto --strategy fsdp            | leave --auto out | sizes
train.py --mode asp --strategy allreduce   | remove it or set strategy to ps
train.py --strategy script --mode asp      | with strategy ps only; remove it
train.py --strategy fsdp --servers 2       | with strategy ps only; remove it
train.py --solution fastest                | write e.g. --solution auto | stragglers
train.py --set lr=0.1                      | paceline run SCRIPT -- --lr VALUE
train.py --set worker=2                    | did you mean workers?
typo.yaml                                  | typo.yaml:2: worker: got an unknown key; did you mean workers?
deep.yaml                                  | deep.yaml:3: workers.cuont: got an unknown key; did you mean workers.count?
jib.yaml                                   | did you mean job.yaml?
trian.py                                   | did you mean
train                                      | did you mean train.py?
pkg                                        | write paceline run -m pkg
parts                                      | write e.g. paceline run parts/main.py
nb.ipynb                                   | jupyter nbconvert --to script nb.ipynb makes nb.py
job.json                                   | rename it to job.yaml
run.sh                                     | write paceline run --no-python run.sh
-m train.py                                | leave -m out, or write -m train
--no-python train.py                       | leave --no-python out
python train.py                            | leave it out: write e.g. paceline run train.py
s3://bucket/cuts                           | write paceline run --resume s3://bucket/cuts
mnist-1                                    | write paceline run --resume mnist-1
--resume train.py                          | paceline run train.py -- --resume
--resume other                             | (known: mnist-1, mnist-2); see `paceline ps`
--resume mnist                             | 2 jobs: mnist-1, mnist-2; write more of it
"""
OF_VERBS = """
status other                | see `paceline ps`
logs mnist                  | is the beginning of 2 jobs: mnist-1, mnist-2; write more of it
kill mnist-1                | write e.g. `paceline kill mnist-1 --worker 0`
replace mnist-1             | write e.g. `paceline replace JOB --worker 0`
scale 4                     | write e.g. `paceline scale JOB --workers 4`
prune                       | write e.g. `paceline prune --older-than 7d --dry-run`
prune --older-than 7        | write e.g. 7d
logs --worker 1 --server 0  | expected one of --node, --worker and --server
ps --last x                 | write e.g. --last 1
run                         | write e.g. paceline run train.py --workers 2
"""


def rows(table: str) -> list[tuple[str, str]]:
    """The call and the remedy of each row; a third column names the feature that gives it."""
    found = [[one.strip() for one in line.split(" | ")] for line in table.strip().splitlines()]
    there = {one.name for one in installed()}
    return [(call, remedy) for call, remedy, *of in found if there.issuperset(of)]


@pytest.fixture(autouse=True)
def _in_a_folder_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "run.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for name in ("mnist-1", "mnist-2"):
        job = JobDir.make(name)
        job.run_dir.rmdir()
        specs.save(JobSpec(script="/home/me/train.py"), job.spec)


def paceline(*words: str) -> Result:
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize(("call", "remedy"), rows(OF_RUN))
def test_a_wrong_run_is_told_what_to_write_which_runs(call: str, remedy: str) -> None:
    done = paceline("run", *shlex.split(call))
    assert done.exit_code == 2, done.output
    assert remedy in done.stderr
    (told,) = re.findall(r"write (?:e\.g\. )?paceline run (.+?)(?:, or if|\n|$)", done.stderr) or [
        ""
    ]
    if told and "SCRIPT" not in told and "--resume" not in told:
        again = paceline("run", "--dry-run", *shlex.split(told))
        assert again.exit_code == 0, again.stderr


@pytest.mark.parametrize(
    ("flag", "value"),
    [m.groups() for m in re.finditer(r"write (--\w+) (\S+)$", OF_RUN, re.MULTILINE)],
)
def test_a_value_that_is_named_instead_is_taken(flag: str, value: str) -> None:
    done = paceline(
        "run",
        "--dry-run",
        "train.py",
        *(["--mode", "asp"] if flag == "--samples" else []),
        flag,
        value,
    )
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(("call", "remedy"), rows(OF_VERBS))
def test_a_wrong_call_is_told_what_to_write(call: str, remedy: str) -> None:
    done = paceline(*shlex.split(call))
    assert done.exit_code == 2, done.output
    assert remedy in done.stderr


def test_a_command_about_a_job_says_how_to_begin_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "empty"))
    begin = f"there is no job yet in {tmp_path}/empty/jobs; start one with `paceline run SCRIPT`"
    assert paceline("stop").stderr == f"paceline: {begin}\n"
    assert paceline("stop", "x").stderr == f"paceline: no job matches 'x': {begin}\n"
