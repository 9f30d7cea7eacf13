"""What to write instead of a target that ``paceline run`` cannot run, or a script that is missing.

A target is a script, a job spec, or a program; people also name folders, notebooks and jobs.
"""

import difflib
from pathlib import Path

from paceline.base.jobdir import JobDir

SPECS = (".yaml", ".yml")
_LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun")


def target_fault(target: str) -> str:
    """Say what a target is that is neither a script nor a job spec, and what to write instead."""
    path = Path(target)
    if target in _LAUNCHERS:
        got, remedy = "a launcher", "leave it out: write e.g. paceline run train.py"
    elif "://" in target:
        got, remedy = "a URL", f"of a job's cuts: write paceline run --resume {target}"
    elif path.is_dir():
        got, remedy = "a folder", _in_folder(path)
    elif path.suffix == ".ipynb":
        remedy = f"jupyter nbconvert --to script {target} makes {path.stem}.py of it"
        got = "a notebook"
    elif path.suffix == ".json":
        got, remedy = "a file of JSON", f"JSON is YAML: rename it to {path.stem}.yaml"
    elif path.is_file():
        got = "a file that is neither"
        remedy = f"of a program, write paceline run --no-python {target}"
    elif target in {job.job_id for job in JobDir.all()}:
        got, remedy = "a job", f"write paceline run --resume {target}"
    else:
        got, remedy = "no file of this name", _near_file(path) or "check the path"
    return (
        f"{target}: got {got}, expected a script or a job spec, a name that ends in .py, .yaml "
        f"or .yml; {remedy}"
    )


def _in_folder(folder: Path) -> str:
    if (folder / "__main__.py").is_file():
        return f"write paceline run -m {folder.name}"
    found = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
    return f"write e.g. paceline run {found[0]}" if found else "name the script in it"


def _near_file(path: Path) -> str:
    """Name the file that is meant, if one beside it has such a name; empty: none has."""
    near = near_script(path)
    return f"did you mean {near}?" if near else ""


def near_script(path: Path) -> str:
    """Find the script or spec whose name is most like that of a missing one; empty: none is."""
    try:
        names = [one.name for one in path.parent.iterdir() if one.suffix in (".py", *SPECS)]
    except OSError:
        return ""
    stems = [name for name in names if Path(name).stem == path.name]
    close = stems or difflib.get_close_matches(path.name, names, 1, 0.7)
    return str(path.parent / close[0]) if close else ""
