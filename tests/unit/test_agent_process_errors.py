"""What a user sees of an error in the script, and how it is judged."""

import runpy
import traceback
from pathlib import Path

import pytest

from paceline.runtime.process import exit_code, kind_of, raised_in_user_code, user_traceback


class CustomError(Exception):
    pass


def raised(script: str, path: Path) -> BaseException:
    """What running the script raises, as `run_script` catches it."""
    path.write_text(script)
    with pytest.raises(BaseException) as caught:
        runpy.run_path(str(path), run_name="__main__")
    return caught.value


def launched(error: BaseException) -> str:
    """The traceback as `run_script` would print it: this test's own frame is the launcher's."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    trace = user_traceback(error.with_traceback(trace))
    return "".join(traceback.format_exception(type(error), error, trace))


def test_the_traceback_begins_with_the_users_frame(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = launched(raised("def f():\n    1 / 0\nf()\n", script))
    assert text.splitlines()[1] == f'  File "{script}", line 3, in <module>'
    assert "runpy" not in text


def test_an_error_of_the_user_inside_a_library_is_the_users(tmp_path: Path) -> None:
    error = raised("import json\njson.loads('{')\n", tmp_path / "train.py")
    assert raised_in_user_code(user_traceback(error))
    assert kind_of(error) == "json.decoder.JSONDecodeError"


def test_an_error_in_paceline_is_not_the_users(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path\n"
        "from paceline.base.jobdir import JobDir\n"
        "JobDir(Path('/nonexistent')).secret()\n"
    )
    error = raised(script, tmp_path / "train.py")
    assert not raised_in_user_code(error.__traceback__)


def test_a_callback_of_the_user_under_paceline_is_the_users(tmp_path: Path) -> None:
    script = (
        "from paceline.base.samples import SampleSet\n"
        "class Mine:\n"
        "    def __iter__(self):\n"
        "        raise RuntimeError('mine')\n"
        "SampleSet(Mine())\n"
    )
    error = raised(script, tmp_path / "train.py")
    assert kind_of(error) == "RuntimeError"
    assert raised_in_user_code(error.__traceback__)


def test_a_script_that_does_not_compile_is_the_users_error(tmp_path: Path) -> None:
    error = raised("def f(:\n", tmp_path / "train.py")
    assert user_traceback(error.with_traceback(None)) is None
    assert raised_in_user_code(None)
    assert "train.py" in launched(error)


@pytest.mark.parametrize(
    ("argument", "code"), [(None, 0), (0, 0), (7, 7), ("a text is printed", 1)]
)
def test_exit_codes_are_mapped_as_python_maps_them(argument: object, code: int) -> None:
    assert exit_code(SystemExit(argument)) == code


def test_errors_are_named_by_their_qualified_class() -> None:
    assert kind_of(KeyError()) == "KeyError"
    assert kind_of(CustomError()).endswith("test_agent_process_errors.CustomError")
