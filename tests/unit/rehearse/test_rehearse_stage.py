"""A stage is a copy of the script's folder: small files copied, the rest linked, nothing of it the user's."""

import os
from pathlib import Path

import pytest

from paceline.base.errors import ConfigError
from paceline.features.rehearse import stage
from paceline.features.rehearse.plan import Leaves, PlainLeaf
from paceline.features.rehearse.stage import set_stage
from paceline.features.rehearse.written import read_written, without_run


def test_small_files_are_copied_large_ones_linked_and_what_is_written_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "SMALL_BYTES", 100)
    monkeypatch.setattr(stage, "FOLDER_BYTES", 100)
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "data").mkdir()
    (project / ".git").mkdir()
    (project / "src" / "train.py").write_text("x = 1\n" * 100)  # copied, though it is large
    (project / "data" / "rows").write_bytes(bytes(200))
    (project / "big.bin").write_bytes(bytes(200))
    (project / "note.txt").write_text("as it was")
    monkeypatch.chdir(project)
    made = set_stage(Path("src/train.py"), tmp_path / "copy")
    assert made.script == tmp_path / "copy" / "src" / "train.py"
    assert not made.script.is_symlink()
    assert set(made.links) == {"big.bin", "data"}
    assert not (made.root / ".git").exists()
    assert made.written() == []
    (made.root / "note.txt").write_text("changed by the act")
    (made.root / "new.txt").write_text("new")
    assert made.written() == ["new.txt", "note.txt"]
    assert (project / "note.txt").read_text() == "as it was"


def test_a_script_elsewhere_brings_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "there" / "train.py").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    made = set_stage(tmp_path / "there" / "train.py", tmp_path / "copy")
    assert made.script == tmp_path / "copy" / "train.py"


def test_a_copy_within_the_folder_does_not_copy_itself_and_a_socket_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "note.txt").write_text("")
    os.mkfifo(tmp_path / "run" / "pipe")
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path)
    made = set_stage(Path("train.py"), tmp_path / "scratch" / "copy")
    assert not (made.root / "scratch").exists()
    assert [path.name for path in (made.root / "run").iterdir()] == ["note.txt"]
    assert made.links == ("run (copied in part)",)


def test_no_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a script of Python"):
        set_stage(tmp_path / "none.py", tmp_path / "copy")


def test_files_with_the_time_of_a_run_in_their_names_are_not_compared(tmp_path: Path) -> None:
    names = [
        "logs/1795898961.56615/hparams.yml",
        "events.out.tfevents.1795898961.vm.25271.0",
        "out/20261128-203026-vit/args.yaml",
        "step_1000000/model.txt",
        "epoch-12.txt",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    assert [*read_written({tmp_path: names})[tmp_path]] == names[3:]


def test_a_folder_that_is_named_by_the_run_is_the_same_in_all_runs() -> None:
    def saved(root: str, folder: str) -> dict[str, Leaves]:
        best = PlainLeaf(text=f"'{root}/logs/{folder}/a.ckpt'")
        return {f"logs/{folder}/a.ckpt": {"['best']": best}}

    job = "train-1129-082058-b580"
    alone = without_run(saved("/alone", "version_0"), Path("/alone"), "")
    assert alone == without_run(saved("/two", job), Path("/two"), job)
    assert alone["logs/RUN/a.ckpt"]["['best']"].text == "'./logs/RUN/a.ckpt'"
