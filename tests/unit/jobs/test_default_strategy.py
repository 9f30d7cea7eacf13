"""Which strategy a job has that names none: all-reduce, unless it needs servers; and why."""

from pathlib import Path

import pytest

from paceline.jobs.spec_file import resolve


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def chosen(text: str, flags: dict[str, str] | None = None) -> tuple[str, str]:
    Path("train.py").write_text(text)
    spec = resolve("train.py", flags or {})
    return spec.strategy, spec.sources["strategy"]


@pytest.mark.parametrize(
    "text",
    [
        "import torch.nn as nn\nmodel = nn.Embedding(9, 2)\n",
        "model = nn.Embedding(9, 2, sparse=False)\n",
        "# nn.Embedding(9, 2, sparse=True)\ntext = 'pl.Embedding'\n",
        "from torch.nn import Embedding\nEmbedding(9, 2)\n",
        "encode = OneHotEncoder(sparse=not dense)\n",
        "def broken(:\n",
        "",
    ],
)
def test_a_script_without_sparse_tables_trains_with_all_reduce(text: str) -> None:
    assert chosen(text) == ("allreduce", "since train.py has no sparse tables")


@pytest.mark.parametrize(
    "line",
    [
        "model = nn.Embedding(9, 2, sparse=True)",
        "model = EmbeddingBag(9, 2, sparse=args.sparse)",
        "model = nn.EmbeddingBag.from_pretrained(rows, sparse=True)",
        "model = Tower(options, sparse=True)",
        "model = nn.Embedding(9, 2, **dict(sparse=True))",
        "optimizer = torch.optim.SparseAdam(model.parameters())",
        "from torch.optim import SparseAdam; optimizer = SparseAdam(model.parameters())",
    ],
)
def test_sparse_tables_need_servers(line: str) -> None:
    assert chosen(f"import torch\n{line}\n") == ("ps", "since train.py:2 makes a sparse table")


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("import paceline as pl", "user = pl.Embedding('user', dim=4)"),
        ("import paceline", "user = paceline.Embedding('user', dim=4)"),
    ],
)
def test_so_do_tables_without_a_vocabulary(head: str, line: str) -> None:
    assert chosen(f"{head}\n{line}\n") == ("ps", "since train.py:2 makes a sparse table")
    assert chosen("from paceline import Embedding, init\n")[0] == "ps"


def test_a_table_of_a_module_in_the_folder_is_found() -> None:
    Path("models").mkdir()
    Path("models/__init__.py").touch()
    Path("models/wide.py").write_text("\nuser = nn.Embedding(9, 2, sparse=True)\n")
    text = "from models.wide import Wide\n"
    assert chosen(text) == ("ps", "since wide.py:2 makes a sparse table")
    Path("models/__main__.py").write_text("from .wide import Wide\n")
    assert resolve("models", {"run_as": "module"}).strategy == "ps"
    Path("models/wide.py").write_text("")
    assert resolve("models", {"run_as": "module"}).strategy == "allreduce"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"servers": "1"}, "since --servers is given"),
        ({"servers.memory": "2GiB"}, "since servers.memory is given"),
        ({"mode": "bsp"}, "since mode bsp is given"),
        ({"mode": "ssp", "staleness": "2"}, "since mode ssp is given"),
    ],
)
def test_settings_of_servers_ask_for_servers(flags: dict[str, str], why: str) -> None:
    assert chosen("", flags) == ("ps", why)


@pytest.mark.parametrize("strategy", ["ps", "allreduce", "fsdp", "script"])
def test_a_strategy_that_is_named_stays(strategy: str) -> None:
    table = "model = nn.Embedding(9, 2, sparse=True)\n"
    assert chosen(table, {"strategy": strategy}) == (strategy, "--strategy")
    Path("job.yaml").write_text("script: train.py\nservers: {count: 2, cpu: 1}\n")
    spec = resolve("job.yaml", {})
    assert (spec.strategy, spec.sources["strategy"]) == ("ps", "since servers.count is given")
