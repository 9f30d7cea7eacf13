"""``python -m tests.ray.cluster [--nodes N] COMMAND...`` runs a command with a Ray cluster.

Its raylets are real: a head without cores, and three nodes of two each. To be run in a network
namespace, where the cluster is at an address of its own: `HOST`, behind a cable to no machine yet.
"""

import argparse
import os
import subprocess
import sys
import tempfile

HOST = "10.99.1.1"
STORE_BYTES = 80 << 20
NETWORK = (
    "ip link set lo up; ip link add host type veth peer name port; "
    f"ip addr add {HOST}/24 dev host; ip link set host up"
)


def main() -> int:
    """Entry point; the command finds the cluster in ``RAY_ADDRESS``."""
    from ray.cluster_utils import Cluster

    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    subprocess.run(["sh", "-ec", NETWORK], check=True)
    home = tempfile.TemporaryDirectory(prefix="paceline-ray-")
    # The home of raylets and agents; the tests find it in the second variable.
    os.environ["PACELINE_HOME"] = os.environ["PACELINE_TEST_RAY"] = home.name
    os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    common = {"node_ip_address": HOST, "object_store_memory": STORE_BYTES}
    head = {"num_cpus": 0, "include_dashboard": False, **common}
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
