"""A busy machine and cables that lose packets: is any node given up that lives?

    python benchmarks/false_losses.py [--quick] [--minutes 60] [--busy 50] [--delay-s 0.02]
        [--loss 0.01]

Three machines made of namespaces of one kernel (`paceline_experiments.machines`), each on a cable
that carries a frame ``--delay-s`` later and loses a part of them, both each way. One worker is on
the first, with the master, and two on each of the others have joined; all-reduce by gloo, with the
loop of `jobs/stepping.py`. Meanwhile ``--busy`` processes compute. Nothing is killed: *lost* are
the nodes that were given up, *restarts* the lives that were begun again. Floor: none. Needs root,
unshare, nsenter, ip, /dev/net/tun.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import allreduce_recovery as recovery
from paceline_experiments import harness
from paceline_experiments.machines import in_own_network, machines, paceline

WORKERS, START_S, LOOK_S = 5, 300.0, 5.0
SPIN = "while True: sum(range(10000))"


@contextlib.contextmanager
def busy(number: int) -> Iterator[None]:
    """Have so many processes compute."""
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(number)]
    try:
        yield
    finally:
        for one in spinners:
            one.kill()
        for one in spinners:
            one.wait()


def told(job: Path, name: str) -> list[dict[str, object]]:
    """All events of this name."""
    lines = (json.loads(line) for line in (job / "events.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == name]


def measured(
    folder: Path, minutes: float, num_busy: int, cable: tuple[float, float]
) -> dict[str, object]:
    """Run the job so long; its figures."""
    out, log = folder / "out", folder / "log"
    for each in (out, log):
        each.mkdir()
    with machines(3, folder / "machines", cable) as hosts:
        first = hosts[0]
        settings = {"listen": first.address, "data_plane.transport": "tcp", "solution": "none"}
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        script = [recovery.SCRIPT, "--strategy", "allreduce", *sets, "--", "--out", out]
        first.start(paceline("run", *script), log / "run.log")
        if not harness.until(lambda: bool(recovery.lively(out)), START_S):
            raise harness.failure("paceline", "it does not train", log.glob("*.log"))
        (job,) = first.home.glob("jobs/*")
        (log / "ticket").write_bytes((job / "ticket").read_bytes())
        for host in hosts[1:] * 2:
            host.start(paceline("agent", "--join", log / "ticket"), log / f"{host.name}.log")
        if not harness.until(lambda: len(recovery.lively(out)) == WORKERS, START_S):
            raise harness.failure("paceline", "not all train", log.glob("*.log"))
        before = {name: len(told(job, name)) for name in ("node_lost", "relaunch")}
        steps = max(rows[-1, 1] for rows in recovery.recorded(out).values())
        loads, end_s = [], time.monotonic() + 60 * minutes
        with busy(num_busy):
            while time.monotonic() < end_s:
                time.sleep(LOOK_S)
                loads.append(os.getloadavg()[0])
                if (job / "outcome.json").exists():
                    raise harness.failure("paceline", "the job ended", log.glob("*.log"))
        rows = recovery.recorded(out)
        times = sorted(at_s for one in rows.values() for at_s in one[:, 0])
        pauses = [late - early for early, late in itertools.pairwise(times)]
        return {
            "minutes": minutes,
            "load": round(max(loads), 1),
            "lost": len(told(job, "node_lost")) - before["node_lost"],
            "restarts": len(told(job, "relaunch")) - before["relaunch"],
            "steps": round(max(one[-1, 1] for one in rows.values()) - steps),
            "longest_pause_s": round(max(pauses), 2),
        }


def main() -> int | None:
    parser = harness.parser(__doc__, "20 s, ten busy processes")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--busy", type=int, default=50)
    parser.add_argument("--delay-s", type=float, default=0.02)
    parser.add_argument("--loss", type=float, default=0.01)
    options = parser.parse_args()
    tun = Path("/dev/net/tun")
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    if probe.returncode or not tun.exists():
        harness.skipped("false_losses", f"it needs root, unshare and {tun}")
        return None
    if (status := in_own_network(str(Path(__file__).absolute()), sys.argv[1:])) is not None:
        return status
    minutes, num_busy = (0.33, 10) if options.quick else (options.minutes, options.busy)
    with harness.scratch() as scratch:
        found = measured(scratch, minutes, num_busy, (options.delay_s, options.loss))
    harness.report("false_losses", {"paceline": found}, file=options.json)
    return 0 if options.quick or not (found["lost"] or found["restarts"]) else 1


if __name__ == "__main__":
    harness.run(main)
