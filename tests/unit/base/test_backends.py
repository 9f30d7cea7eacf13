"""Backends that packages declare: what is taken, and what is said of the others."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import typer

from paceline.base import backends
from paceline.base.errors import ConfigError
from paceline.cli.features import add_verbs
from tests.integration.running import install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_cloud", raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    backends._loaded.cache_clear()
    yield
    backends._loaded.cache_clear()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("KIND = 3", "odd_cloud:KIND is 3, and no BackendKind"),
    ],
)
def test_one_that_cannot_be_loaded_is_named_with_the_reason(
    site: Path, code: str, why: str
) -> None:
    install(site, "odd_cloud", code, backends.GROUP, "odd = odd_cloud:KIND")
    with pytest.raises(ConfigError, match="cannot be loaded") as refused:
        backends.backend_kind("odd")
    assert why in str(refused.value)
    assert "odd" not in backends.installed()
    assert backends.backend_kind("local").name == "local"


def test_one_that_nobody_declares_is_answered_with_those_that_are_there() -> None:
    with pytest.raises(ConfigError, match=r"expected local .* install its package"):
        backends.backend_kind("moon")


LEFT_OUT = "paceline: what backend odd adds to the commands is left out"
KIND = """
from paceline.base.backends import BackendKind
KIND = BackendKind("odd", "clouds", opened="odd_cloud:opened", verbs="odd_cloud:add_to")
def add_to(app):
    @app.command()
    def {verb}() -> None:
        print("it rains")
{more}
"""


@pytest.mark.parametrize(
    ("verb", "more", "said"),
    [
        ("rain", "", ""),
        ("status", "", f"{LEFT_OUT}: paceline has a command status already"),
        ("submit", "", f"{LEFT_OUT}: paceline has a command submit already"),
        ("rain", "    raise OSError('no sky')", f"{LEFT_OUT}: no sky"),
    ],
)
def test_one_may_have_commands_and_does_no_harm_to_others(
    site: Path, capsys: pytest.CaptureFixture[str], verb: str, more: str, said: str
) -> None:
    code = KIND.format(verb=verb, more=more)
    install(site, "odd_cloud", code, backends.GROUP, "odd = odd_cloud:KIND")
    app = typer.Typer()
    app.command(name="status")(lambda: None)
    backends.call_verbs(partial(add_verbs, app))
    told = capsys.readouterr().err.strip()
    assert told == said
    names = [one.name or one.callback.__name__ for one in app.registered_commands if one.callback]
    assert sorted(names) == sorted(["status", "submit", *([verb] if not said else [])])
