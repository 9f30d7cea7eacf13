"""The same measurement on dlrover 0.6.1's local master; run by the Python that has dlrover.

    PYTHON benchmarks/peers/dispatch_dlrover.py [--seconds 5]    (or: dispatch.py --dlrover PYTHON)

One local master over gRPC, four client processes, table splitter of 10^5 shards, a pair is
``get_task`` + ``report_task_result``. Needs beside dlrover: grpcio, protobuf, numpy, tornado,
kubernetes. Prints JSON.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

NUM_CLIENTS = 4
NUM_SHARDS = 100_000
WARM_UP_S = 0.5
MASTER_START_S = 60.0


def make_client(port: int, index: int):
    from dlrover.python.elastic_agent.master_client import build_master_client

    os.environ.update({"WORKER_ID": str(index), "NODE_ID": str(index), "NODE_TYPE": "worker"})
    client = build_master_client(f"127.0.0.1:{port}")
    client.report_dataset_shard_params(
        batch_size=64,
        num_epochs=1,
        dataset_size=NUM_SHARDS * 64,
        num_minibatches_per_shard=1,
        dataset_name="bench",
        task_type=0,
        storage_type="table",
    )
    return client


def run_client(port: int, index: int, seconds: float) -> None:
    client = make_client(port, index)
    waits_s, num_pairs = [], 0
    begin_s = time.monotonic() + WARM_UP_S
    while (start_s := time.monotonic()) < begin_s + seconds:
        _, task = client.get_task("bench")
        got_s = time.monotonic()
        if task.task_id < 0:
            raise SystemExit("dlrover: no task left")
        client.report_task_result("bench", task.task_id, "")
        if start_s >= begin_s:
            waits_s.append(got_s - start_s)
            num_pairs += 1
    print(json.dumps({"pairs": num_pairs, "waits_s": waits_s}))


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def measure(seconds: float) -> dict:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    module = "dlrover.python.master.main"
    master = subprocess.Popen(
        [
            *(sys.executable, "-m", module, "--job_name", "bench", "--platform", "local"),
            *("--port", str(port), "--node_num", str(NUM_CLIENTS)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port)
        clients = [
            start(__file__, "--client", str(i), "--port", str(port), "--seconds", str(seconds))
            for i in range(NUM_CLIENTS)
        ]
        results = [json.loads(c.communicate()[0].splitlines()[-1]) for c in clients]
    finally:
        master.kill()
        master.wait()
    waits = sorted(wait for result in results for wait in result["waits_s"])
    return {
        "pairs_per_s": round(sum(result["pairs"] for result in results) / seconds),
        "get_p50_ms": round(1e3 * statistics.median(waits), 3),
        "get_p99_ms": round(1e3 * waits[int(0.99 * len(waits))], 3),
    }


def wait_for(port: int) -> None:
    deadline_s = time.monotonic() + MASTER_START_S
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"dlrover's master did not come up on port {port} in {MASTER_START_S} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--client", type=int)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.client is not None:
        run_client(options.port, options.client, options.seconds)
    else:
        print(json.dumps(measure(options.seconds)))


if __name__ == "__main__":
    main()
