"""What a resource policy is shown of a job's size."""

from types import SimpleNamespace
from typing import cast

import pytest

from paceline.master.node_sizes import NodeSizes
from paceline.master.size_seen import ordered_size
from paceline.wire.spec import NodeSpec


@pytest.mark.parametrize(
    ("granted", "usual"),
    [
        ((0.05, 1.0, 1.0), 1.0),
        ((1.0, 1.8, 1.0), 1.0),
        ((1.8, 1.0), 1.0),
        ((0.05, 1.0), 0.05),
    ],
)
def test_one_node_with_another_quota_does_not_count_for_its_peers(
    granted: tuple[float, ...], usual: float
) -> None:
    nodes = NodeSpec(count=len(granted), cpu=granted)
    sizes = cast(NodeSizes, SimpleNamespace(of=lambda _role: nodes))
    servers = [f"server-{number}" for number in range(len(granted))]

    assert ordered_size(sizes, ["worker-0"], servers).server_cpu == usual
