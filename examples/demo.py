"""What ``make demo`` runs: a click model trained while a worker is killed and another one slowed.

Unattended. It says what will happen, generates the data, starts the job as ``paceline run`` does,
does the harm while it shows the job, and says what that cost. It ends with the AUC beside the best
possible one, and the proof that every sample's gradient is in the model exactly once.
"""

import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import kill
from pathlib import Path
from signal import SIGCONT, SIGSTOP

from rich.console import Console

from paceline.base.cgroups import find_node_group
from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.cli.run import start, watch
from paceline.cli.watch import Look
from paceline.cuts.manifest import CutManifest
from paceline.features.data.ctr import CtrSettings
from paceline.features.data.make_ctr import make_ctr
from paceline.features.data.tables import read_meta
from paceline.features.report.text import INCIDENT_COLUMNS, incident_rows
from paceline.jobs.facts import Facts, read_facts
from paceline.jobs.launch import ask
from paceline.jobs.spec_file import resolve
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.server.store import Store
from paceline.wire.client import Kill, NodeStatus
from paceline.wire.schema import NUM_BUCKETS

ROWS = 500_000
FOLDER = Path("build/demo")
SCRIPT = Path(__file__).with_name("05_every_sample_once.py")
KILLED, KILLED_AT = "worker-1", 0.3
SLOWED, SLOWED_FROM, SLOWED_TO = "worker-2", 0.45, 0.9
CORES_LEFT = 0.1
"""Of a core, for the slowed worker."""
DUTY_S = (0.18, 0.02)
"""Stopped and running, in turns: the same share where control groups are not permitted."""
GOAL_GAP = 0.01

BEFORE = """\
paceline trains a click model with 3 workers and 2 servers that hold the model, kills one worker
and slows another meanwhile, and lets the job go on. At the end it counts in the model itself that
each sample is there exactly once."""
MARKS = """\
Lines that begin with a time are what `paceline run` prints into a file or a pipe.
Lines that begin with "demo |" are the harm that this demo does to the job."""
PHASES = (
    "data",
    "training, with a worker killed and another one slowed",
    "what went wrong, and what it cost",
    "proof",
)


class Trouble:
    """Watches the job and does harm when its time has come."""

    def __init__(self, job: JobDir, console: Console) -> None:
        self._job, self._console = job, console
        self._killed = False
        self.slowed_s: tuple[float, float] | None = None
        """From when to when a worker was slow, in Unix time."""
        self._cured = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, look: Look) -> None:
        """Harm or heal, as far as the job has come."""
        status = look.status
        if status is None or status.state != "training" or not status.total:
            return
        share = status.committed / status.total
        nodes = {node.node: node for node in status.nodes}
        if not self._killed and share >= KILLED_AT:
            self._killed = self._kill()
        if not self.slowed_s and share >= SLOWED_FROM and nodes[SLOWED].pid:
            self.slowed_s = (look.now_s, look.now_s)
            self._slow(nodes[SLOWED])
        if self.slowed_s and not self._cured.is_set():
            self.slowed_s = (self.slowed_s[0], look.now_s)
            if share >= SLOWED_TO:
                self._cure()

    def say(self, text: str) -> None:
        """Nothing: others speak."""

    def close(self) -> None:
        """Leave no stopped process behind."""
        if self.slowed_s and not self._cured.is_set():
            self._cure()

    def _tell(self, text: str) -> None:
        self._console.print(f"  demo | {text}", highlight=False, soft_wrap=True)

    def _kill(self) -> bool:
        try:
            ask(self._job, Kill(node=KILLED))
        except PacelineError:
            return False  # the master is busy: at the next look
        self._tell(f"kills {KILLED} (SIGKILL); it will be started again, and the others go on")
        return True

    def _slow(self, node: NodeStatus) -> None:
        try:
            find_node_group(self._job.job_id, SLOWED).set_cpu(CORES_LEFT)
        except OSError:
            self._thread = threading.Thread(target=self._stutter, args=(node.pid,))
            self._thread.start()
            how = f"stops {SLOWED} {DUTY_S[0] / sum(DUTY_S):.0%} of the time"
        else:
            how = f"gives {SLOWED} {CORES_LEFT} of a core (cgroup cpu quota)"
        self._tell(f"{how}; the others will take over its samples")

    def _stutter(self, pid: int) -> None:
        try:
            while not self._cured.is_set():
                kill(pid, SIGSTOP)
                self._cured.wait(DUTY_S[0])
                kill(pid, SIGCONT)
                self._cured.wait(DUTY_S[1])
        except ProcessLookupError:
            return  # it has ended by itself

    def _cure(self) -> None:
        self._cured.set()
        if self._thread:
            self._thread.join()
        else:
            try:
                find_node_group(self._job.job_id, SLOWED).set_cpu(None)
            except OSError:
                return  # the node has left, and its group with it
        self._tell(f"lets {SLOWED} run as before")


@contextmanager
def phase(name: str, took: dict[str, float]) -> Iterator[None]:
    """Announce a phase and note how long it took."""
    print(f"\n== {PHASES.index(name) + 1} of {len(PHASES)}: {name}", flush=True)
    start_s = time.monotonic()
    yield
    took[name] = time.monotonic() - start_s


def generate() -> Path:
    """The click log; one that is there from an earlier demo is used again."""
    out = FOLDER / f"ctr-{ROWS}"
    if out.exists():
        print(f"  a click log is there already: {out}")
        return out
    partial = FOLDER / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    meta = make_ctr(partial, ROWS, CtrSettings())
    partial.rename(out)
    print(f"  a click log of {ROWS:,} rows: {out}")
    print(f"  its clicks are drawn, so the best possible AUC is known: {meta.bayes_auc:.4f}")
    return out


def train(data: Path) -> tuple[JobDir, Trouble]:
    """Run the job and do harm to it."""
    flags = {"workers": "3", "servers": "2", "mode": "asp", "name": "demo"}
    console = Console()
    job = start(resolve(SCRIPT, flags, ["--data", str(data.absolute())]), console)
    trouble = Trouble(job, console)
    code = watch(job, console, others=(trouble,))
    if code:
        sys.exit(code)
    return job, trouble


def share_of(node: str, facts: Facts, start_s: float, stop_s: float) -> float:
    """Part of the samples of a time that went to a worker, by heartbeats."""
    seen = [point.nodes for point in facts.points if start_s <= point.t <= stop_s]
    if len(seen) < 2:
        return float("nan")
    first = seen[0]
    grown = {
        name: point.samples - (first[name].samples if name in first else 0)
        for name, point in seen[-1].items()
    }
    return grown.get(node, 0) / max(1, sum(grown.values()))


def tell_troubles(facts: Facts, slowed_s: tuple[float, float] | None) -> None:
    """What went wrong, what was done about it, what it cost."""
    if slowed_s:
        before = share_of(SLOWED, facts, facts.started_s, slowed_s[0])
        slow = share_of(SLOWED, facts, *slowed_s)
        print(
            f"  slowed: {SLOWED} had {CORES_LEFT} of a core for {slowed_s[1] - slowed_s[0]:.1f} s\n"
            f"    it did {slow:.0%} of the samples then ({before:.0%} before), the others the rest"
        )
    for row in incident_rows(facts):
        print("\n  incident:")
        for name, cell in zip(INCIDENT_COLUMNS, row, strict=True):
            print(f"    {name + ':':17} {cell}")
    print("\n  who computed the samples:")
    whole = max(1, sum(worker.samples for worker in facts.workers))
    for worker in facts.workers:
        lives = f" (its {worker.lives} processes, one after the other)" if worker.lives > 1 else ""
        print(f"    {worker.node}: {worker.samples / whole:.0%}{lives}")


def find_auc(job: JobDir) -> tuple[float, float]:
    """What the chief printed: AUC and the best possible one."""
    log = (job.logs / "worker-0.log").read_text()
    found = re.search(r"test AUC ([\d.]+) \(best possible ([\d.]+)\)", log)
    if found is None:
        raise SystemExit(f"the script printed no AUC; see {job.logs}")
    return float(found[1]), float(found[2])


def newest_cut(job: JobDir) -> Path:
    """The final cut of the job."""
    return max(path.parent for path in job.cuts.glob("*/manifest.json"))


def read_tally(directory: Path) -> tuple[CutManifest, list[tuple[float, int]]]:
    """The manifest of a cut, and how many rows of its tally hold which value."""
    manifest, files = cutfile.read_cut(directory)
    store = Store(manifest.schema, [0] * NUM_BUCKETS, 0)
    store.load(files.values())
    names = [table.name for table in manifest.schema.tables]
    _, rows = store.export(next(i for i, name in enumerate(names) if "counts" in name))
    values = sorted(set(rows[:, 0].tolist()))
    return manifest, [(value, int((rows[:, 0] == value).sum())) for value in values]


def _spoken(spans: list[tuple[int, int]]) -> str:
    return ", ".join(f"{start:,} to {stop - 1:,}" for start, stop in spans)


def _word(right: bool) -> str:
    return "as it should be" if right else "WRONG"


def prove(job: JobDir, num_samples: int) -> bool:
    """Check both accounts of the final cut (one epoch), and say what they show."""
    manifest, tally = read_tally(newest_cut(job))
    spans = [(span.start, span.stop) for span in manifest.committed]
    ledger = spans == [(0, num_samples)]
    counted = tally == [(1.0, num_samples)]
    found = ", ".join(f"{number:,} rows are {value:g}" for value, number in tally)
    print("  what the job says: the record beside the final model has the samples")
    print(f"    {_spoken(spans)}: {_word(ledger)}")
    print("  what the model says: it has a row per sample, to which its gradient adds 1")
    print(f"    {found}: {_word(counted)}")
    print(
        f"\n  So each of the {num_samples:,} samples is in the model exactly once."
        if ledger and counted
        else "\n  THE COUNT IS WRONG"
    )
    return ledger and counted


def main() -> None:
    """Run all phases."""
    took: dict[str, float] = {}
    print(f"\n{BEFORE}")
    with phase(PHASES[0], took):
        data = generate()
    with phase(PHASES[1], took):
        print(f"{MARKS}\n", flush=True)
        job, trouble = train(data)
    facts = read_facts(job)
    with phase(PHASES[2], took):
        tell_troubles(facts, trouble.slowed_s)
    with phase(PHASES[3], took):
        auc, ceiling = find_auc(job)
        near = ceiling - auc <= GOAL_GAP
        once = prove(job, read_meta(data).splits["train"].rows)
        print(
            f"  Its test AUC is {auc:.4f}; the best possible one is {ceiling:.4f}: {_word(near)}."
        )
    spent = ", ".join(f"{name.partition(',')[0]} {value:.1f} s" for name, value in took.items())
    print(f"\ntime: {spent} (of it {facts.training_s:.1f} s training proper)")
    print(f"the same with charts: {job.report}")
    print("your own script: docs/tutorial/index.md")
    sys.exit(0 if near and once else 1)


if __name__ == "__main__":
    main()
