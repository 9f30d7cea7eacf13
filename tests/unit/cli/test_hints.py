"""Words that are no command say which command they mean."""

import pytest
from typer.testing import CliRunner

from paceline.base.features import installed
from paceline.cli.main import app


def told(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    return done.stderr


OF_FORMATS = [
    (words, remedy)
    for words, remedy in (
        ("export mnist-1", "`paceline checkpoint export mnist-1 OUT`"),
        ("export mnist-1 m.pt", "`paceline checkpoint export mnist-1 m.pt`"),
    )
    if "formats" in {one.name for one in installed()}
]


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("resume", "`paceline run --resume JOB`"),
        ("resume mnist-1", "`paceline run --resume mnist-1`"),
        *OF_FORMATS,
        ("list", "`paceline ps`"),
        ("ls", "`paceline ps`"),
        ("start train.py --workers 2", "`paceline run train.py --workers 2`"),
        ("torchrun --nproc_per_node 2 t.py", "`paceline run --nproc_per_node 2 t.py`"),
        ("accelerate launch t.py", "`paceline run t.py`"),
        ("train.py --workers 2", "`paceline run train.py --workers 2`"),
        ("job.yaml", "`paceline run job.yaml`"),
        ("top", "`paceline attach JOB`"),
        ("wait mnist-1", "`paceline attach mnist-1`"),
        ("restart mnist-1", "`paceline replace mnist-1 --worker 0` for a node"),
        ("delete mnist-1 mnist-2", "`paceline rm mnist-1 mnist-2`"),
        ("delete --all", "`paceline rm JOB`"),
        ("cancel mnist-1", "`paceline stop mnist-1`"),
        ("pause", "`paceline stop JOB`, and later `paceline run --resume JOB`"),
        ("tail mnist-1", "`paceline logs mnist-1 --follow`"),
        ("help", "`paceline --help`"),
        ("help run", "`paceline run --help`"),
        ("version", "`paceline --version`"),
    ],
)
def test_a_word_that_is_no_command_names_the_one_that_is(words: str, remedy: str) -> None:
    assert f"{words.split()[0]}: no such command; write " in told(*words.split())
    assert remedy in told(*words.split())


def test_a_typo_gets_the_nearest_command() -> None:
    assert "Did you mean 'status'" in told("statsu")
