"""A machine that joined is killed, or loses its power: when is the next step in the model?

    python benchmarks/machine_recovery.py [--quick] [--trials 20] [--per-round 5]
        [--parts killed power] [--arms paceline torchrun]

Three machines made of namespaces of one kernel (`paceline_experiments.machines`), one worker on
each. Steps of 50 ms of emulated compute (a sleep), 1 MB of gradients, gloo between the machines,
the same loop (`jobs/stepping.py`). Two arms, which take turns:

* *paceline*: ``strategy: allreduce``; the second and third machine have joined by ``agent --join``;
* *torchrun*: elastic, as its documents have it: ``--nnodes 2:3 --rdzv-backend c10d`` on each
  machine, with its defaults; the meeting is on the first machine, which is never killed. It
  restarts all workers, whose script keeps no checkpoint: it loses every step.

*killed*: all processes of one of the other machines are. *power*: its cable is pulled first, so
that no connection is closed. The machine comes back when the others have done a step, or after
180 s (counted as *never*), and the next kill follows when all three have done 20 steps together.
torchrun is asked about *killed* alone: of a machine without power its gloo hears nothing for half
an hour. *seconds*: from the kill to the next step in the model of anybody; *lost*: steps that were
in the model before and are not in the one after it. Floor: killed <= 0.3 s, power <= 1.5 s. Needs
root, unshare, nsenter, ip.
"""

import contextlib
import functools
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import allreduce_recovery as recovery
from allreduce_recovery import Kill
from paceline_experiments import harness
from paceline_experiments.machines import Machine, in_own_network, machines, paceline

PARTS = {"killed": 0.3, "power": 1.5}
NUM_MACHINES = 3
START_S, PATIENCE_S = 240.0, 180.0
PORT = 29411
MEETING = f"10.98.0.1:{PORT}"


Back = Callable[[Machine], None]
"""Have a machine take part again, which has nothing of before."""


@contextlib.contextmanager
def by_paceline(hosts: Sequence[Machine], out: Path, log: Path) -> Iterator[Back]:
    first = hosts[0]
    settings = {
        "listen": first.address,
        "data_plane.transport": "tcp",
        "restart.budget": 1000,
        "restart.backoff_s": 0,
        "solution": "none",
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    script = [recovery.SCRIPT, "--strategy", "allreduce", *sets, "--", "--out", out]
    run = first.start(paceline("run", *script), log / "run.log")
    ticket = log / "ticket"
    try:
        if not harness.until(lambda: run.poll() is not None or recovery.lively(out), START_S):
            raise harness.failure("paceline", "it does not train", log.glob("*.log"))
        (found,) = first.home.glob("jobs/*/ticket")
        ticket.write_bytes(found.read_bytes())

        def back(host: Machine) -> None:
            host.start(paceline("agent", "--join", ticket), log / f"{host.name}.log")

        for host in hosts[1:]:
            back(host)
        yield back
    finally:
        for host in hosts:
            host.kill_all()


@contextlib.contextmanager
def by_torchrun(hosts: Sequence[Machine], out: Path, log: Path) -> Iterator[Back]:
    flags = ["--nnodes=2:3", "--nproc-per-node=1", "--max-restarts=1000"]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={MEETING}", f"--rdzv-id={out.name}"]

    def back(host: Machine) -> None:
        run = [sys.executable, "-m", "torch.distributed.run", *flags, *meeting]
        script = [str(recovery.SCRIPT), "--out", str(out)]
        env = {"GLOO_SOCKET_IFNAME": "port", "OMP_NUM_THREADS": "1"}
        host.start([*run, *script], log / f"{host.name}.log", **env)

    try:
        for host in hosts:
            back(host)
        yield back
    finally:
        for host in hosts:
            host.kill_all()


ARMS = {"paceline": by_paceline, "torchrun": by_torchrun}


def kill_one(
    what: str, back: Back, hosts: Sequence[Machine], out: Path, rng: random.Random
) -> Kill:
    """Kill one of the other machines, and bring it back."""
    victims: dict[int, Machine] = {}

    def found_any() -> bool:
        living = recovery.lively(out)
        victims.update({pid: host for host in hosts[1:] for pid in host.pids() if pid in living})
        return bool(victims)

    harness.until(found_any, PATIENCE_S)
    victim, host = rng.choice(sorted(victims.items()))
    time.sleep(rng.random() * 0.05)
    at_s = time.monotonic()
    host.lose_power() if what == "power" else host.kill_all()
    time.sleep(recovery.LATE_S)

    def follows() -> bool:
        return recovery.outcome(recovery.recorded(out), victim, at_s).seconds is not None

    harness.until(follows, PATIENCE_S)
    found = recovery.outcome(recovery.recorded(out), victim, at_s)
    host.plug(in_=True)
    back(host)
    return found


def measured(name: str, what: str, kills: int, seed: int, folder: Path) -> list[Kill]:
    """Run one job, and so many kills."""
    rng, found = random.Random(seed), list[Kill]()
    out, log = folder / "out", folder / "log"
    for each in (out, log):
        each.mkdir(parents=True)
    since_s = 0.0
    with machines(NUM_MACHINES, folder / "machines") as hosts, ARMS[name](hosts, out, log) as back:
        for _ in range(kills):
            whole = functools.partial(recovery.steady, out, NUM_MACHINES, since_s)
            if not harness.until(whole, START_S):
                if not found:
                    raise harness.failure(name, "it does not train", log.glob("*.log"))
                # Survivors went on, but never all of them together again.
                return found
            found.append(kill_one(what, back, hosts, out, rng))
            print(f"{name}, {what}: {found[-1]}", file=sys.stderr, flush=True)
            since_s = time.monotonic()
    return found


def main() -> int | None:
    parser = harness.parser(__doc__, "one kill of each, no figures")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--per-round", type=int, default=5, help="kills of one job")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS])
    options = parser.parse_args()
    try:
        subprocess.run(["unshare", "--net", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        harness.skipped("machine_recovery", "it needs root and unshare")
        return None
    if (status := in_own_network(str(Path(__file__).absolute()), sys.argv[1:])) is not None:
        return status
    trials, per_round = (1, 1) if options.quick else (options.trials, options.per_round)
    report: dict[str, object] = {}
    with harness.scratch() as scratch:
        for what in options.parts:
            arms = [arm for arm in options.arms if arm == "paceline" or what == "killed"]
            kills: dict[str, list[Kill]] = {arm: [] for arm in arms}
            turn = 0
            while open_ := [arm for arm in arms if len(kills[arm]) < trials]:
                for arm in open_[turn % len(open_) :] + open_[: turn % len(open_)]:
                    number = min(per_round, trials - len(kills[arm]))
                    folder = scratch / f"{what}-{arm}-{turn}"
                    kills[arm] += measured(arm, what, number, turn, folder)
                turn += 1
            for arm, found in kills.items():
                report[f"{what}, {arm}"] = recovery.row_of(found)
                print(f"{what}, {arm}: {json.dumps(report[f'{what}, {arm}'])}", flush=True)
    harness.report("machine_recovery", report, file=options.json)
    return None


if __name__ == "__main__":
    harness.run(main)
