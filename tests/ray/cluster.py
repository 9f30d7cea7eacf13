"""``python -m tests.ray.cluster [--nodes N] COMMAND...`` runs a command with a Ray cluster.

Its raylets are real: a head (by default without cores), and three nodes of two cores each. To be run after `APART`, in
a network where the cluster is at an address of its own: `HOST`, behind a cable to no machine yet.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HOST = "10.99.1.1"
DASHBOARD_PORT = 8265
DASHBOARD = f"http://{HOST}:{DASHBOARD_PORT}"
APART = (
    *("unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"),
    *("sh", "-c", '"$@"; exit $?', "sh"),
)
"""What comes before a command that has a network and processes of its own: neither sees another
cluster, nor outlives the command. The shell takes the orphans in."""
STORE_BYTES = 80 << 20
NETWORK = (
    "ip link set lo up; ip link add host type veth peer name port; "
    f"ip addr add {HOST}/24 dev host; ip link set host up"
)


def main() -> int:
    """Entry point; the command finds the cluster in ``RAY_ADDRESS``."""
    # A loaded machine needs more than 30 s; Ray reads it when it is imported.
    os.environ.update(RAY_raylet_start_wait_time_s="90", RAY_agent_register_timeout_ms="80000")
    from ray.cluster_utils import Cluster

    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--head-cores", type=int, default=0)
    parser.add_argument("--dashboard", action="store_true", help="which takes jobs")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    subprocess.run(["sh", "-ec", NETWORK], check=True)
    home = tempfile.TemporaryDirectory(prefix="paceline-ray-")
    # The home of raylets and agents; the tests find it in the second variable.
    os.environ["PACELINE_HOME"] = os.environ["PACELINE_TEST_RAY"] = home.name
    os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # The command of a job of Ray's is found there.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    common = {"node_ip_address": HOST, "object_store_memory": STORE_BYTES}
    head = {"num_cpus": options.head_cores, "include_dashboard": options.dashboard, **common}
    head |= {"dashboard_host": HOST, "dashboard_port": DASHBOARD_PORT} if options.dashboard else {}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(options.nodes):
            cluster.add_node(num_cpus=2, wait=False, **common)
        cluster.wait_for_nodes()
        os.environ["RAY_ADDRESS"] = cluster.address
        return subprocess.run(options.command, check=False).returncode
    finally:
        cluster.shutdown()
        home.cleanup()


if __name__ == "__main__":
    sys.exit(main())
