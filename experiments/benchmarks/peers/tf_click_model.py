"""The click model of `ps_throughput.py` under TensorFlow's ParameterServerStrategy, 1 + 1.

Run by a Python that has TensorFlow. Like for like: Adagrad everywhere with repeated ids merged, in
TensorFlow's own compiled optimizer steps on the server; batches made beforehand, in the worker. The
coordinator keeps two steps in flight, so the worker never waits for it.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections import deque
from itertools import pairwise

import numpy as np
import tensorflow as tf
from rounds import Rounds

NUM_FIELDS, DIM = 26, 16
NUM_BATCHES = 16
RATE, EPSILON = 0.01, 1e-10
IN_FLIGHT = 2


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Trained:
    """A variable on the server and Adagrad's sum beside it."""

    def __init__(self, shape: list[int], scale: float) -> None:
        self.value = tf.Variable(tf.random.normal(shape, stddev=scale))
        self.total = tf.Variable(tf.zeros(shape))

    def step(self, grad: tf.Tensor | tf.IndexedSlices) -> None:
        """Do one step of Adagrad."""
        shared = {
            "var": self.value.handle,
            "accum": self.total.handle,
            "lr": RATE,
            "epsilon": EPSILON,
        }
        if isinstance(grad, tf.IndexedSlices):
            distinct, places = tf.unique(tf.reshape(grad.indices, [-1]))
            values = tf.reshape(grad.values, [-1, DIM])
            summed = tf.math.unsorted_segment_sum(values, places, tf.size(distinct))
            tf.raw_ops.ResourceSparseApplyAdagradV2(grad=summed, indices=distinct, **shared)
        else:
            tf.raw_ops.ResourceApplyAdagradV2(grad=grad, **shared)


class Model:
    """Tables and a perceptron."""

    def __init__(self, options: argparse.Namespace) -> None:
        rows = options.rows // options.tables
        self.tables = [Trained([rows, DIM], 1.0) for _ in range(options.tables)]
        sizes = [NUM_FIELDS * DIM, *options.hidden, 1]
        self.layers = [
            (Trained([size, wider], size**-0.5), Trained([wider], 0.0))
            for size, wider in pairwise(sizes)
        ]

    @property
    def trained(self) -> list[Trained]:
        """All variables."""
        return [*self.tables, *(one for layer in self.layers for one in layer)]

    def logits(self, ids: tf.Tensor) -> tf.Tensor:
        """Compute the logits of ids ``[n, NUM_FIELDS]``."""
        if len(self.tables) == 1:
            found = tf.gather(self.tables[0].value, ids)
            signal = tf.reshape(found, [-1, NUM_FIELDS * DIM])
        else:
            found = [tf.gather(table.value, ids[:, i]) for i, table in enumerate(self.tables)]
            signal = tf.concat(found, 1)
        for number, (weight, bias) in enumerate(self.layers):
            signal = tf.matmul(signal, weight.value) + bias.value
            if number + 1 < len(self.layers):
                signal = tf.nn.relu(signal)
        return tf.squeeze(signal, 1)


def train(options: argparse.Namespace, rounds: Rounds) -> None:
    """The coordinator."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Model(options)

    def samples() -> tf.data.Dataset:
        rng = np.random.default_rng(1)
        rows = options.rows // NUM_FIELDS
        ids = rng.integers(0, rows, (NUM_BATCHES, options.batch_size, NUM_FIELDS))
        if options.tables == 1:
            ids += np.arange(NUM_FIELDS) * rows
        labels = rng.integers(0, 2, ids.shape[:2]).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices((ids, labels)).repeat().prefetch(2)

    @tf.function
    def step(batches: tf.data.Iterator) -> tf.Tensor:
        ids, labels = next(batches)
        with tf.GradientTape() as tape:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, model.logits(ids))
            loss = tf.reduce_mean(losses)
        grads = tape.gradient(loss, [one.value for one in model.trained])
        for one, grad in zip(model.trained, grads, strict=True):
            one.step(grad)
        return loss

    batches = iter(coordinator.create_per_worker_dataset(samples))
    flying: deque[tf.distribute.experimental.coordinator.RemoteValue] = deque()
    while rounds.turn():
        flying.append(coordinator.schedule(step, args=(batches,)))
        if len(flying) > IN_FLIGHT:
            flying.popleft().fetch()


def main() -> None:
    """Start worker and server, and coordinate them until the benchmark has had enough."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket")
    parser.add_argument("--name")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--tables", type=int)
    parser.add_argument("--hidden", type=int, nargs="+")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--serve", action="store_true", help="be the worker or the server")
    options = parser.parse_args()
    if options.serve:
        cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        tf.distribute.Server(
            cluster.cluster_spec(), cluster.task_type, cluster.task_id, protocol="grpc"
        ).join()
        return
    places = {role: [f"127.0.0.1:{free_port()}"] for role in ("chief", "worker", "ps")}
    children = []
    for role in ("worker", "ps"):
        config = json.dumps({"cluster": places, "task": {"type": role, "index": 0}})
        command = [sys.executable, __file__, "--serve"]
        children.append(subprocess.Popen(command, env={**os.environ, "TF_CONFIG": config}))
    task = {"type": "chief", "index": 0}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": places, "task": task})
    try:
        train(options, Rounds(options.socket, options.name))
    finally:
        for child in children:
            child.kill()
        # The coordinator's threads wait for processes that are gone now.
        os._exit(0)


if __name__ == "__main__":
    main()
