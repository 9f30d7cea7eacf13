"""The Grafana dashboard asks for metrics that exist, by labels that they have."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from paceline.features.exporter.exporter import JobCollector
from tests.unit.exporter.test_exporter import FIGURES, exposed, slow_part

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "examples" / "grafana"
DASHBOARD = json.loads((GRAFANA / "paceline.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
LOOKUPS = [one["query"]["query"] for one in DASHBOARD["templating"]["list"][1:]]


def samples() -> Iterator[tuple[str, frozenset[str]]]:
    """Each sample that a job shows, by name and labels, as a real parser of OpenMetrics reads it."""
    collector = JobCollector()
    full = exposed()
    figures = (*full.figures, *FIGURES)
    slow = (slow_part("computation", "worker-2"),)
    collector.exposed = msgspec.structs.replace(full, slow=slow, figures=figures)
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, frozenset(sample.labels)


SHOWN = dict(samples())


def test_what_the_endpoint_shows_is_openmetrics() -> None:
    assert len(SHOWN) >= 20
    assert "job_id" in SHOWN["paceline_job_info"]


def test_figures_of_features_have_the_names_that_this_test_gives_them() -> None:
    sources = (ROOT / "src/paceline/features").glob("*/master.py")
    named = {name for path in sources for name in re.findall(r'name="(job_\w+)"', path.read_text())}
    given = {one.name for one in (*exposed().figures, *FIGURES)}
    assert given <= named


@pytest.mark.parametrize("query", [*QUERIES, *LOOKUPS])
def test_each_query_names_a_metric_and_labels_that_it_has(query: str) -> None:
    names = re.findall(r"\bpaceline_\w+", query)
    assert names
    for name in names:
        assert name in SHOWN
    for name, chosen in re.findall(r"(paceline_\w+)\{([^}]*)\}", query):
        labels = set(re.findall(r"(\w+)\s*=", chosen)) - {"instance"}
        assert labels <= SHOWN[name]
    for label in re.findall(r"by \((\w+)\)", query):
        assert label in SHOWN[names[0]]


def test_each_panel_has_a_legend_of_labels_that_its_metric_has_and_says_what_it_shows() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["description"].endswith(".")
        for target in panel["targets"]:
            (name,) = re.findall(r"paceline_\w+", target["expr"])
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= SHOWN[name]
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells), "panels that overlap"


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool; Debian's prometheus has it")
def test_prometheus_can_read_each_query_and_the_configuration(tmp_path: Path) -> None:
    exprs = [query.replace("$instance", "host:1") for query in QUERIES]
    rules = [{"record": f"q{n}", "expr": expr} for n, expr in enumerate(exprs)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    subprocess.run(["promtool", "check", "rules", file], check=True, capture_output=True)
    config = ["promtool", "check", "config", "--syntax-only", GRAFANA / "prometheus.yml"]
    subprocess.run(config, check=True, capture_output=True)
