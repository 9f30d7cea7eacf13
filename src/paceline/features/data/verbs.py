"""``paceline data``: make a click log with a known answer, or convert public data sets.

Owns flags and what is shown; the work is in `make_ctr` and `convert`, imported when a command
runs because pyarrow takes longer to load than the rest of the command line.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.base.errors import ConfigError
from paceline.terminal.groups import EXPERTS

if TYPE_CHECKING:
    from paceline.features.data.tables import Meta

app = typer.Typer(no_args_is_help=True, help="Make or convert data sets for click models.")

Out = Annotated[Path, typer.Option("--out", help="Directory to create; must not hold anything.")]
From = Annotated[
    Path,
    typer.Option("--from", envvar="PACELINE_DATA", help="Folder that holds the public files."),
]


class DataFormat(StrEnum):
    """File formats of generated data."""

    PARQUET = "parquet"
    TSV = "tsv"


@app.command("make-ctr")
def make_ctr_command(
    rows: Annotated[int, typer.Option(help="Rows in all, train and test.")],
    out: Out,
    seed: Annotated[int, typer.Option(help="Same seed, same rows, on any machine.")] = 0,
    file_format: Annotated[
        DataFormat, typer.Option("--format", help="TSV is the layout of Criteo's own files.")
    ] = DataFormat.PARQUET,
    vocab: Annotated[
        str, typer.Option(help="Ids per field: one number for all 26, or 26 with commas.")
    ] = "",
    skew: Annotated[float, typer.Option(help="Zipf exponent of the ids.")] = 1.3,
    positive_rate: Annotated[float, typer.Option(help="Fraction of clicks.")] = 0.23,
    hold_out: Annotated[float, typer.Option(help="Fraction of the rows that goes to test/.")] = 0.1,
) -> None:
    """Make a Criteo-like click log whose best possible AUC is known."""
    from paceline.features.data.ctr import CRITEO_LIKE, CtrSettings
    from paceline.features.data.make_ctr import make_ctr

    settings = CtrSettings(
        seed=seed,
        vocab=parse_vocab(vocab) if vocab else CRITEO_LIKE,
        skew=skew,
        positive_rate=positive_rate,
    )
    with _progress() as progress:
        task = progress.add_task("rows", total=rows)
        meta = make_ctr(
            out,
            rows,
            settings,
            hold_out=hold_out,
            file_format=file_format.value,
            on_rows=lambda count: progress.advance(task, count),
        )
    _show(out, meta)


@app.command("adult")
def adult_command(source: From, out: Out) -> None:
    """Convert UCI Adult (adult.data, adult.test; plain or .gz)."""
    from paceline.features.data import convert

    _show(out, convert.adult(source, out))


@app.command("movielens")
def movielens_command(source: From, out: Out) -> None:
    """Convert MovieLens (ratings.csv, movies.csv; plain or .gz).

    4 stars and more are liked. The file movies.csv may be missing.
    """
    from paceline.features.data import convert

    _show(out, convert.movielens(source, out))


@app.command("criteo")
def criteo_command(
    source: From,
    out: Out,
    buckets: Annotated[int, typer.Option(help="Ids per field; rarer ones share.")] = 100_000,
) -> None:
    """Convert Criteo's labelled train.txt (plain or .gz)."""
    from paceline.features.data import convert

    with _progress() as progress:
        task = progress.add_task("rows", total=None)
        meta = convert.criteo(source, out, buckets, lambda count: progress.advance(task, count))
    _show(out, meta)


def parse_vocab(text: str) -> tuple[int, ...]:
    """Read ``--vocab``: one number for all 26 fields, or 26 of them.

    Raises:
        ConfigError: not whole numbers, or neither 1 nor 26 of them.
    """
    from paceline.features.data.ctr import NUM_CATEGORICAL

    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--vocab: got {text!r}, expected whole numbers with commas") from error
    if len(sizes) not in (1, NUM_CATEGORICAL):
        raise ConfigError(f"--vocab: got {len(sizes)} numbers, expected 1 or {NUM_CATEGORICAL}")
    return sizes * NUM_CATEGORICAL if len(sizes) == 1 else sizes


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)


def _show(out: Path, meta: "Meta") -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{out}: {meta.source}")
    for name, split in meta.splits.items():
        share = split.positives / split.rows if split.rows else 0.0
        console.print(f"  {name:5} {split.rows:>12,} rows, {share:.1%} positive")
    ids = f"{len(meta.categorical)} categorical ({sum(meta.categorical.values()):,} ids)"
    console.print(f"  {len(meta.numeric)} numeric, {ids}")
    if meta.bayes_auc is not None:
        console.print(f"  best possible AUC on test: {meta.bayes_auc:.4f} (Bayes)")


def add_to(root: typer.Typer) -> None:
    """Add the commands ``data ...``."""
    root.add_typer(app, name="data", rich_help_panel=EXPERTS)
