"""The command ``paceline sim failslow``: what it runs, prints and keeps."""

from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.files import write_file
from paceline_experiments.failslow.scores import SuiteRow, markdown_rows
from paceline_experiments.failslow.suites import SUITES, markdown_goals, run_suite
from paceline_experiments.failslow.tcpd import TcpdRow, markdown_tcpd, run_tcpd


class SuiteResults(msgspec.Struct, kw_only=True):
    """All rows of a run, as they are written to JSON."""

    seeds: tuple[int, ...]
    quick: bool
    rows: list[SuiteRow] = []
    tcpd: list[TcpdRow] = []


def run_suites(
    suite: str, seeds: range, *, data: Path | None, quick: bool, json: Path | None
) -> None:
    """Run a suite, or all; print Markdown tables, and write JSON where that is wanted.

    Raises:
        ConfigError: there is no such suite, or it needs a directory that was not named.
    """
    if suite not in (*SUITES, "tcpd", "all"):
        known = ", ".join((*SUITES, "tcpd", "all"))
        raise ConfigError(f"there is no suite {suite}; there are {known}")
    if suite == "tcpd" and data is None:
        raise ConfigError("suite tcpd needs --data DIR, the Turing Change Point Dataset's files")
    results = SuiteResults(seeds=tuple(seeds), quick=quick)
    for name in SUITES:
        if suite in (name, "all"):
            results.rows += run_suite(name, seeds, quick=quick)
    if results.rows:
        print(markdown_rows(results.rows), markdown_goals(results.rows), sep="\n\n", end="\n\n")
    if suite in ("tcpd", "all") and data is not None:
        results.tcpd = run_tcpd(data)
        print(markdown_tcpd(results.tcpd))
    elif suite == "all":
        print("Suite tcpd: not measured, since --data names no directory.")
    if json is not None:
        write_file(json, msgspec.json.format(msgspec.json.encode(results)))
