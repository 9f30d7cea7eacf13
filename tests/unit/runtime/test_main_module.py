"""A script as ``__main__``: where it finds modules, and what Python does at its end."""

import gzip
import os
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from paceline.runtime.process import main_module

RUN = """
import os, sys
from paceline.runtime.process import main_module
sys.argv = sys.argv[1:]
try:
    main_module.run_file(sys.argv[0])
finally:
    main_module.finish()
    os._exit(0)
"""
SCRIPT = """
import atexit, gc, gzip, helper, logging, os, pickle, threading, time, zipfile

class Late:
    def __del__(self):
        os.write(1, b"finalized ")

class Plain:
    pass

def end():
    assert type(pickle.loads(pickle.dumps(Plain()))) is Plain
    print("exit handler", end=" ", flush=True)

atexit.register(end)
late = Late()
text = open("text", "w")
text.write("kept")
helper.packed = gzip.open("packed", "wt")
helper.packed.write("kept")
helper.raw = open("raw", "wb")
helper.raw.write(b"kept")
archive = zipfile.ZipFile("archive", "w")
archive.writestr("name", "kept")
logging.basicConfig(filename="log", format="%(message)s")
logging.getLogger().warning("kept")
gc.freeze()
thread = threading.Thread(target=lambda: (time.sleep(0.05), print("thread", end=" ", flush=True)))
thread.start()
print(__name__, __file__, end=" ", flush=True)
"""


def test_a_script_ends_as_one_of_python_s_own(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").write_text(SCRIPT)
    (tmp_path / "real" / "helper.py").touch()
    link = tmp_path / "train.py"  # modules are looked for where the real one is
    link.symlink_to("real/train.py")
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN, str(link)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == f"__main__ {link} thread exit handler finalized "
    for name in ("text", "raw"):
        assert (tmp_path / name).read_text() == "kept"
    assert (tmp_path / "log").read_text() == "kept\n"
    assert gzip.decompress((tmp_path / "packed").read_bytes()) == b"kept"
    assert zipfile.ZipFile(tmp_path / "archive").read("name") == b"kept"


MODULE = """
import sys
from . import helper
from .deep import helper as deeper
print(__name__, __package__, __spec__.name, sys.argv, sys.path[0], helper.ARGV)
"""
ROUTE = """
import os, sys
from paceline.runtime.process import main_module
sys.path.pop(0)
sys.argv = [sys.argv[1], *sys.argv[2:]]
main_module.run_module(sys.argv[0])
"""


def test_a_module_of_a_package_runs_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "pkg" / "deep").mkdir(parents=True)
    for place in ("pkg", "pkg/deep"):
        (tmp_path / place / "__init__.py").touch()
        (tmp_path / place / "helper.py").write_text("import sys; ARGV = sys.argv[:]")
    (tmp_path / "pkg" / "__init__.py").write_text("import sys; assert sys.argv[0] == '-m'")
    (tmp_path / "pkg" / "train.py").write_text(MODULE)

    def said(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words, "pkg.train", "--lr", "1"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout

    expected = said("-m")
    assert f"__main__ pkg pkg.train ['{tmp_path / 'pkg' / 'train.py'}', '--lr', '1']" in expected
    assert said("-c", ROUTE) == expected


def test_a_file_of_a_package_that_is_run_by_its_path_gets_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from .model import Model")
    code = "from paceline.runtime.process import main_module; main_module.run_file('train.py')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "no known parent package" in done.stderr
    assert "paceline run -m pkg.train" in done.stderr


FULL = """
import ctypes, helper, io
from paceline.runtime.process.output import replace_streams

class Broken(io.RawIOBase):
    def writable(self):
        return True

    def close(self):
        if not self.closed:
            super().close()
            raise RuntimeError("a class of the script's")

replace_streams()  # as in a process of a job
helper.broken = Broken()
helper.full = open("/dev/full", "w")
helper.full.write("lost")
helper.more = open("/dev/full", "wb")
helper.more.write(b"lost")
helper.kept = open("kept", "wb")
helper.kept.write(b"kept")
ctypes.CDLL(None).printf(b"from C")
"""


def test_a_file_that_cannot_be_flushed_keeps_no_other_from_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FULL)
    (tmp_path / "helper.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", RUN, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.stderr.count("could not be flushed: [Errno 28]") >= 2
    assert "could not be flushed: a class of the script's" in done.stderr
    assert (tmp_path / "kept").read_text() == "kept"
    assert done.stdout == "from C"


def test_who_is_waited_for_at_the_end_is_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "PATIENCE_S", 0.0)
    before = set(threading.enumerate())  # pools that other tests have left here
    alive = threading.enumerate
    monkeypatch.setattr(threading, "enumerate", lambda: [t for t in alive() if t not in before])
    over = threading.Event()
    waited = threading.Thread(target=over.wait, name="upload")
    waited.start()
    main_module._say_what_is_waited_for(threading.Event())
    over.set()
    waited.join()
    assert "Python waits for its threads upload" in capfd.readouterr().err
    main_module._say_what_is_waited_for(threading.Event())
    assert "its exit handlers (atexit)" in capfd.readouterr().err


@pytest.mark.parametrize("flag", ["", "1"])
def test_modules_are_found_beside_the_script_unless_python_is_told_not_to(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", flag)
    monkeypatch.setattr(sys, "path", ["before"])
    main_module._find_modules_in("/folder")
    assert sys.path == (["before"] if flag else ["/folder", "before"])


def test_an_interrupt_of_a_program_that_the_script_starts_ends_it() -> None:
    from paceline.runtime.process.process import ignore_interrupt

    before = signal.signal(signal.SIGINT, ignore_interrupt)
    try:
        sleeper = subprocess.Popen(["sleep", "60"])
        os.kill(os.getpid(), signal.SIGINT)  # ignored here
        sleeper.send_signal(signal.SIGINT)
        assert sleeper.wait(10) == -signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)
