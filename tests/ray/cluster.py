"""``python -m tests.ray.cluster COMMAND...`` runs a command beside a Ray cluster of real raylets.

A head without cores and three nodes of two each. To be run in a network namespace: Ray takes the
host's address in place of 127.0.0.1 where there is one, and would listen there.
"""

import os
import subprocess
import sys
import tempfile

STORE_BYTES = 80 << 20


def main() -> int:
    """Entry point; the command finds the cluster in ``RAY_ADDRESS``."""
    from ray.cluster_utils import Cluster

    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    home = tempfile.TemporaryDirectory(prefix="paceline-ray-")
    # The home of raylets and agents; the tests find it in the second variable.
    os.environ["PACELINE_HOME"] = os.environ["PACELINE_TEST_RAY"] = home.name
    os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    common = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
    try:
        for _ in range(3):
            cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, wait=False)
        cluster.wait_for_nodes()
        os.environ["RAY_ADDRESS"] = cluster.address
        return subprocess.run(sys.argv[1:], check=False).returncode
    finally:
        cluster.shutdown()
        home.cleanup()


if __name__ == "__main__":
    sys.exit(main())
