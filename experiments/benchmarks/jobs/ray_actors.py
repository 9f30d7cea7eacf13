"""Three plain actors of Ray, placed as the nodes of a job are: connect, reserve, start, call."""

import argparse
import time

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


class Plain:
    def node(self) -> str:
        """Return the node where it is."""
        return str(ray.get_runtime_context().get_node_id())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--cpus", type=int, required=True, help="of each")
    options = parser.parse_args()
    ray.init(log_to_driver=False)
    group = placement_group([{"CPU": options.cpus}] * options.workers, strategy="PACK")
    actors = [
        ray.remote(Plain)
        .options(
            num_cpus=options.cpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=number
            ),
        )
        .remote()
        for number in range(options.workers)
    ]
    ray.get([actor.node.remote() for actor in actors])
    print(time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
