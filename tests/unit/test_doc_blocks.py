"""Each block of the documentation holds: Python compiles, commands parse, specs and projects load."""

import ast
import builtins
import inspect
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import paceline
from paceline.cli.main import app
from paceline.jobs.spec_file import resolve
from paceline.runtime.script.job import Job
from tests.pages import PAGES, ROOT, Block, blocks_of

IDS = [str(page.relative_to(ROOT)) for page in PAGES]
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
LANGUAGES = {"python", "sh", "text", "diff", "yaml", "toml", "ini"}
PROGRAMS = {
    ".",
    "cd",
    "cp",
    "curl",
    "docker",
    "mlflow",
    "pip",
    "python",
    "python3",
    "ray",
    "scp",
    "tensorboard",
    "torchrun",
    "wandb",
}
"""Of others: whether they have such flags is not ours to test."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def of(language: str) -> list[Any]:
    """The blocks of a language that are checked, as parameters."""
    found = [block for block in BLOCKS if block.language == language and not block.not_run]
    assert found, language
    return [pytest.param(block, id=block.place) for block in found]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_block_says_what_it_is(page: Path) -> None:
    blocks = blocks_of(page)
    assert len(re.findall(r"^ *```", page.read_text(), re.MULTILINE)) == 2 * len(blocks)
    assert [block.place for block in blocks if block.language not in LANGUAGES] == []


# --------------------------------------------------------------------------- Python


@pytest.mark.parametrize("block", of("python"))
def test_python_compiles_and_names_what_the_package_has(block: Block) -> None:
    tree = ast.parse(block.body, block.place)
    for call in ast.walk(tree):
        if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name):
            owner = {"job": Job, "pl": paceline}.get(call.value.id)
            assert owner is None or hasattr(owner, call.attr), f"{block.place}: {ast.unparse(call)}"
        if isinstance(call, ast.Call):
            check_keywords(call, block.place)


def check_keywords(call: ast.Call, place: str) -> None:
    """Assert that a method of the job, or a function of the package, takes what it is given."""
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
        return
    owner = {"job": Job, "pl": paceline}.get(call.func.value.id)
    if owner is None:
        return
    params = inspect.signature(getattr(owner, call.func.attr)).parameters
    if not any(param.kind is param.VAR_KEYWORD for param in params.values()):
        given = {keyword.arg for keyword in call.keywords if keyword.arg}
        assert given <= set(params), f"{place}: {ast.unparse(call)}"


def is_complete(tree: ast.Module) -> bool:
    """Whether a block binds all names that it uses, so that it can run as it stands."""
    bound = set(dir(builtins))
    used = set()
    for one in ast.walk(tree):
        match one:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                bound.add(name)
            case ast.ClassDef(name=name):
                bound.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                bound |= {alias.asname or alias.name.partition(".")[0] for alias in names}
            case _:
                pass
    return used <= bound


def test_complete_python_runs() -> None:
    """Scripts with a title are run as jobs in another test: `tests/integration/test_tutorial.py`."""
    ran = 0
    for block in BLOCKS:
        if block.language == "python" and not block.title and not block.not_run:
            tree = ast.parse(block.body, block.place)
            if is_complete(tree):
                exec(compile(tree, block.place, "exec"), {"__name__": "page"})
                ran += 1
    assert ran >= 1


# --------------------------------------------------------------------------- commands


def parse(words: list[str]) -> Any:
    """Read the words after ``paceline`` as the command line does, and run nothing."""
    command: Any = typer.main.get_command(app)
    name, parent = "paceline", None
    while True:
        parent = context = command.make_context(name, list(words), parent=parent)
        if not hasattr(command, "commands"):
            return context
        left = [*context._protected_args, *context.args]
        if not left:
            return context
        name, command, words = command.resolve_command(context, left)


def check_command(words: list[str]) -> None:
    match words:
        case ["paceline", "submit", *rest]:
            context = parse(["submit", *rest])
            parse(["run", *context.args])  # it passes them on
        case ["paceline", *rest]:
            parse(rest)
        case ["make", *targets]:
            made = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert {word for word in targets if "=" not in word} <= set(made)
        case ["pip", "install", target]:
            extras = re.findall(r"paceline\[([\w,]+)\]", target)
            for extra in ",".join(extras).split(",") if extras else ():
                assert extra in PROJECT["optional-dependencies"]
        case [program, *_]:
            assert program in PROGRAMS


@pytest.mark.parametrize("block", of("sh"))
def test_commands_parse(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    commands = list(block.commands())
    assert commands
    for words in commands:
        try:
            check_command(words)
        except BaseException as error:
            raise AssertionError(f"{block.place}: {' '.join(words)}: {error!r}") from error
    assert capsys.readouterr().err == ""


def test_a_command_that_is_not_there_does_not_parse() -> None:
    for words in (["walk"], ["run", "--wrokers", "2", "train.py"], ["scale", "--workers", "two"]):
        with pytest.raises(Exception, match=r"walk|wrokers|two"):
            parse(words)


# --------------------------------------------------------------------------- specs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    yield tmp_path
    assert os.getcwd() == str(tmp_path)


@pytest.mark.parametrize("block", of("yaml"))
def test_a_spec_resolves(block: Block, folder: Path) -> None:
    script = "" if re.search("^script:", block.body, re.MULTILINE) else "script: train.py\n"
    (folder / "job.yaml").write_text(script + block.body)
    assert resolve(folder / "job.yaml", {}).script == str(folder / "train.py")


@pytest.mark.parametrize("block", [*of("toml"), *of("ini")])
def test_a_part_of_a_project_loads(block: Block) -> None:
    assert tomllib.loads(block.body)
