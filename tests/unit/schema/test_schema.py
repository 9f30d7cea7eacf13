"""The JSON Schema of a job spec refuses the values that the loader refuses, and no others."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from typer.testing import CliRunner

from paceline.base.errors import ConfigError
from paceline.cli.main import app
from paceline.features.schema.making import json_schema
from paceline.jobs.spec_draft import SpecDraft
from paceline.jobs.spec_file import _read_file, resolve
from paceline.jobs.spec_values import FREE_SECTIONS, LEAVES
from tests.unit.jobs.test_spec_mistakes import WRONG_FILES

VALIDATOR = Draft7Validator(json_schema())


class Yaml12(yaml.SafeLoader):
    """Reads YAML 1.2 as editors do: only ``true`` and ``false`` are no text, and no times are."""


CORE = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
        "-+.0123456789",
    ),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
}
Yaml12.yaml_implicit_resolvers = {}
for name, (pattern, first) in CORE.items():
    found = re.compile(rf"^(?:{pattern})$")
    Yaml12.add_implicit_resolver(f"tag:yaml.org,2002:{name}", found, list(first))
Yaml12.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))
Yaml12.add_constructor("tag:yaml.org,2002:float", lambda loader, node: as_float(node.value))


def as_float(text: str) -> float:
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def faults(text: str) -> list[str]:
    """What an editor marks in this file."""
    content = yaml.load(text, Yaml12)
    return [f"{list(one.absolute_path)}: {one.message}" for one in VALIDATOR.iter_errors(content)]


def refused_values(path: Path, text: str) -> list[str]:
    """What the loader says of the values and keys of the file, each by itself."""
    path.write_text(text)
    draft = SpecDraft()
    _read_file(draft, path)
    return draft.complaints


GOOD = [
    "script: train.py",
    "script: train.py\nworkers: 4\nservers: 2\nmode: asp\n",
    "script: train.py\nworkers: {count: 4, cpu: 0.5, memory: 2GiB, max_memory: 4 gib}\n",
    "script: train.py\nworkers:\n  cpu: 2, 0.5\nservers: {cpu: [2, 1]}\n",
    "script: train.py\nargs: [--lr, 0.1, on, 3, '7']\nenv: {A: 1, B: yes, C: text}\n",
    "script: train.py\ndata: {shuffle: off, seed: null, shard_size: 1_000_000}\n",
    "script: train.py\ncheckpoint: {every_s: 30s, share: 1, dir: s3://bucket/prefix}\n",
    "script: train.py\ntimeouts: {stop_s: 1.5, hang_s: 5m, disk_s: 200 ms}\n",
    "script: train.py\nwindows: {short_steps: null, long_s: 1h}\n",
    "script: train.py\npending_trace: 0s 5s, 10m 0s\n",
    "script: train.py\nstrategy: script\nworkers: 2\nwatch: no\n",
    "script: train.py\nshare: opportunistic\n",
    "script: train.py\nshare: {class: guaranteed, device: 'cpu:0', device_memory: 1GiB}\n",
    "script: train.py\nlog_to: {tensorboard: runs}\nmetrics_port: 0\nlog: 512MiB\n",
    "script: train.py\nname: 123\nepochs: 3\nbatch_size: 4096\n",
    "script: train.py\nstrategy: ps\nsolution: lb_bsp\nsolution_args: {window: 3}\n",
    "script: train.py\nresources: {policy: rm, cores: 3.5, cost: 2, workers: 8}\n",
    "script: train.py\nrestart: {budget: 0, window_s: null, backoff_s: 0, repeat: true}\n",
    "script: train.py\ndata_plane: {transport: tcp, encryption: off}\n",
]

UNSEEN = {
    "workers: 3\n": "a key twice, which editors mark on their own",
    "2.0": "JSON has one kind of number",
    ".nan": "JSON has no such number, so it is no value to compare",
    "1e999": "the range of floats",
    "999999999999TB": "the range of a size that is written as text",
    "s3://bucket/train.py": "what a path is",
    "\\0": "what a file name can hold",
}
"""What marks a wrong value that a schema cannot see, and why."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    (tmp_path / "train.py").touch()


@pytest.mark.parametrize("text", GOOD)
def test_a_spec_that_the_loader_takes_has_no_fault(text: str, tmp_path: Path) -> None:
    assert refused_values(tmp_path / "job.yaml", text) == []
    assert faults(text) == []


def parsed(text: object) -> bool:
    """Whether an editor has values to look at: mistakes of YAML itself are marked by its parser."""
    if not isinstance(text, str):
        return False
    try:
        return isinstance(yaml.load(text, Yaml12), dict)
    except (yaml.YAMLError, RecursionError, ValueError):
        return False


WRONG = [text for text, *_ in WRONG_FILES if parsed(text)]


def test_both_say_the_same_of_each_mistake_in_a_value(tmp_path: Path) -> None:
    """A mistake that only compares values, or needs this machine, is the loader's alone."""
    differ = {}
    both = 0
    for text in map(str, WRONG):
        ours, theirs = bool(refused_values(tmp_path / "job.yaml", text)), bool(faults(text))
        missing = "script:" not in text  # the loader looks for it among the flags, too
        both += ours and theirs
        if ours != theirs and not missing:
            differ[text] = (ours, faults(text))
    assert both >= 25
    for text, (ours, said) in differ.items():
        assert ours and not said, f"the schema alone refuses {text!r}: {said}"
    unexplained = [text for text in differ if not any(mark in text for mark in UNSEEN)]
    assert unexplained == []
    unused = [mark for mark in UNSEEN if not any(mark in text for text in differ)]
    assert unused == []


BAD = [
    ("script: train.py\nworkers: 0\n", "workers"),
    ("script: train.py\nwrokers: 2\n", "wrokers"),
    ("script: train.py\ndata: {shufle: true}\n", "shufle"),
    ("script: train.py\ncheckpoint: {share: 2}\n", "share"),
    ("script: train.py\nmode: bps\n", "mode"),
    ("script: train.py\nworkers: {memory: 2GX}\n", "workers"),
    ("script: train.py\nname: -x\n", "name"),
    ("workers: 2\n", "script"),
]


@pytest.mark.parametrize(("text", "named"), BAD)
def test_a_mistake_is_marked_where_it_is_and_refused_by_the_loader(
    text: str, named: str, tmp_path: Path
) -> None:
    assert any(named in one for one in faults(text))
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ConfigError):
        resolve("job.yaml", {})


def properties(schema: dict[str, Any], prefix: str = "") -> list[str]:
    """All keys of a schema, dotted."""
    found = []
    for name, one in schema["properties"].items():
        section = next((way for way in one.get("anyOf", [one]) if "properties" in way), None)
        assert one["description"], name
        found += properties(section, f"{prefix}{name}.") if section else [prefix + name]
    return found


def test_each_key_of_the_loader_is_described() -> None:
    Draft7Validator.check_schema(json_schema())
    assert sorted(properties(json_schema())) == sorted([*LEAVES, *FREE_SECTIONS])


def test_each_default_is_a_value_that_both_take() -> None:
    def check(schema: dict[str, Any]) -> None:
        for one in schema["properties"].values():
            for way in one.get("anyOf", [one]):
                if "properties" in way:
                    check(way)
            if "default" in one:
                assert Draft7Validator(one).is_valid(one["default"]), one

    check(json_schema())


def test_the_command_prints_it() -> None:
    printed = CliRunner().invoke(app, ["schema"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == json.loads(json.dumps(json_schema()))
