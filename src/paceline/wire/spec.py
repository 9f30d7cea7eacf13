"""The job spec: everything a user may ask of one job, checked and with all defaults filled in.

The CLI builds it once from defaults, a YAML file and flags (``paceline.jobs.spec_file``) and saves
it as ``job.json`` in the job directory, where supervisor, master and agents read it. YAML keys are
the encoded names of the fields here (``memory`` for ``memory_bytes``). Field names carry the unit:
the CLI reads ``*_bytes`` as sizes (``512MiB``) and ``*_s`` as durations (``30s``).
"""

import math
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from paceline.base.backends import DEFAULT as DEFAULT_BACKEND
from paceline.base.errors import PermanentError
from paceline.base.jobdir import number_of, role_of
from paceline.wire.strategies import STRATEGIES, Mode, Strategy, Traits
from paceline.wire.surroundings import Surroundings

Samples = Literal["exactly-once", "at-least-once", "at-most-once"]
ShareClass = Literal["guaranteed", "opportunistic", "auto"]
Transport = Literal["auto", "shm", "ipc", "tcp"]
Encryption = Literal["off", "curve"]
ControlEncryption = Literal["off", "tls"]

MAX_NODES = 10_000
REPORTS_PER_S = 650
"""Most nodes of one role."""

Count = Annotated[int, Meta(ge=1, le=MAX_NODES, examples=[2])]
Positive = Annotated[int, Meta(ge=1, le=2**62)]
Cores = Annotated[float, Meta(gt=0)]
Seed = Annotated[int, Meta(ge=0, le=2**62)]
# A year: longer waits overflow the timers of the operating system.
PositiveSeconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]

LOOPBACK = "127.0.0.1"
SHORT_STEPS = ("backup_workers", "partial")
"""Solutions after which steps lack late samples."""
STEP_BEFORE_MEASURED_S = 1.0
"""Stands for the step time until the first step was measured: slow for a click model, so that
the timeouts derived from it err on the side of patience."""


class NodeSize(Struct, frozen=True, kw_only=True):
    """Resources that one node may use; None: no limit."""

    cpu: float | None = None
    memory_bytes: int | None = None


class NodeSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many nodes of one role, and what each of them may use."""

    count: Count = 1
    """Nodes of this role. Default 1. ``workers: 4`` is short for ``workers: {count: 4}``."""
    cpu: Annotated[tuple[Cores, ...], Meta(min_length=1, examples=[[1.0]])] | None = None
    """Cores, as a quota; several: node by node, in turn (``2, 2, 0.5, 0.5``). Default none: as much
    as the machine gives."""
    memory_bytes: Annotated[int, Meta(le=2**60, examples=["2GiB"])] | None = field(
        default=None, name="memory"
    )
    """Limit on memory; a node above it is killed and counted as OOM. Default none."""

    max_memory_bytes: Annotated[int, Meta(le=2**60, examples=["8GiB"])] | None = field(
        default=None, name="max_memory"
    )
    """Up to so much the limit is raised while the job runs: before tables that grow reach it, and
    to twice as much when a node ran out of memory. Default none: the limit stays."""

    gpus: Annotated[float, Meta(ge=0, le=1024)] = 0.0
    """Backend ray: GPUs of each node. Default 0: it sees none. On the local backend all nodes see
    the GPUs of the machine."""

    def cpu_of(self, number: int) -> float | None:
        """The quota of node ``number`` of the role; None: none."""
        return None if self.cpu is None else self.cpu[number % len(self.cpu)]

    def size_of(self, number: int) -> NodeSize:
        """Return what node ``number`` of the role may use."""
        return NodeSize(cpu=self.cpu_of(number), memory_bytes=self.memory_bytes)

    def sized(self, size: NodeSize) -> "NodeSpec":
        """Return the same, where each node may use so much."""
        cpu = None if size.cpu is None else (size.cpu,)
        return msgspec.structs.replace(self, cpu=cpu, memory_bytes=size.memory_bytes)


class DataSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the samples of the job are dealt out."""

    shard_size: Annotated[Positive, Meta(examples=[10_000])] | None = None
    """Samples per shard. Default none: chosen so that a lease is 2-10 s of its owner's work."""
    shuffle: bool = True
    """Whether each epoch is dealt in a new seeded order. Default true; false: in file order."""
    seed: Annotated[Seed, Meta(examples=[0])] | None = None
    """Seed of the sample order. Default none: the job's ``seed``; read ``JobSpec.data_seed``."""


class CheckpointSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When cuts (model and ledger at one step) are made, and where they go."""

    every_s: Annotated[PositiveSeconds, Meta(examples=["30s"])] | None = None
    """Seconds between cuts. Default none: the time that costs least by Young and Daly, from the
    measured cost of a cut and how often the job goes back to one (once in 3 h is expected)."""
    every_steps: Annotated[Positive, Meta(examples=[1000])] | None = None
    """Steps between cuts (mode bsp only). Default none; if ``every_s`` is set as well, the first of
    both counts."""
    share: Annotated[float, Meta(gt=0, le=1)] = 0.02
    """Part of the job's time that cuts may take. If they cost more, there are fewer of them, also
    than ``every_s`` or ``every_steps`` say; one event says so. Default 0.02, so that a model that
    is slow to write does not eat the job."""
    keep: Annotated[int, Meta(ge=1, le=1_000)] = 2
    """Verified cuts kept on disk. Default 2: if the newest is damaged there is another."""
    dir: Annotated[str, Meta(examples=["checkpoints"])] | None = None
    """Folder for cuts, or a URL to which cuts are copied in addition, of any scheme that fsspec
    knows (``s3://bucket/prefix``). Default none: ``cuts`` in the job directory."""
    in_memory: bool = True
    """Whether a cut counts as soon as two nodes hold it in memory. Default true, which takes twice
    a server's state in ``/dev/shm``. If false, or without room there, it counts when on disk."""

    @property
    def url(self) -> str | None:
        """Where cuts are copied to; None: nowhere."""
        return self.dir if self.dir and "://" in self.dir else None

    @property
    def folder(self) -> str | None:
        """Where cuts are written; None: in the job directory."""
        return None if self.url else self.dir


class RestartSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often and how soon a dead node is started again."""

    budget: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    """Restarts of the whole job within ``window_s`` before it is given up. Default 10; 0: the
    first loss ends it."""
    window_s: Annotated[PositiveSeconds, Meta(examples=["1h"])] | None = 3600.0
    """How long a restart counts. Default 1 h: rare failures do not end a long job. The next master
    begins to count again. None: for good, as with ``--max-restarts``."""
    backoff_s: Seconds = 0.5
    """Wait before the second restart of a node in a row (the first is at once); doubles each
    time. Default 0.5."""
    backoff_max_s: Seconds = 30.0
    """The longest such wait. Default 30."""
    repeat: bool = False
    """Whether a node starts again even after the same error twice in a row. Default false: a third
    life would end alike. ``--max-restarts`` sets it: then only the budget decides."""


class TimeoutSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long paceline waits; a timeout that is None follows the measured step time."""

    heartbeat_s: PositiveSeconds = 0.5
    """Seconds between an agent's reports. Default 0.5: cheap, and a loss is found soon. With more
    than 325 nodes longer: the master takes 650 reports a second."""
    lost_after_s: Annotated[PositiveSeconds, Meta(examples=["30s"])] | None = None
    """Silence after which a node counts as unreachable. Default none: the longer of 10 heartbeats
    and 10 steps."""
    stop_s: Annotated[PositiveSeconds, Meta(examples=["30s"])] | None = None
    """Time for an orderly stop (finish the step, commit) before a process is killed. Default none:
    the longer of 5 s and 5 steps."""

    disk_s: PositiveSeconds = 3600.0
    """How long the master waits for its journal, and nodes wait for their cuts, if a disk is full,
    read-only or broken. The model stays in memory meanwhile. Default 1 h; then the job fails."""
    places_s: PositiveSeconds = 300.0
    """How long the platform may refuse nodes without which the job cannot train (a quota, an image)
    before the job fails. They are asked for again meanwhile. With several ``machines`` also how
    long the job waits for them to join. Default 5 min."""
    hang_s: Annotated[PositiveSeconds, Meta(examples=["30s"])] | None = None
    """Time after which a process is treated as hung, and replaced. Strategies allreduce and fsdp:
    time in its part of a step while all others wait. Every strategy but script: time in which it
    neither speaks nor works. Default none: the longer of 10 s and 20 steps; 120 s before the first
    step; with servers 60 s at least. A member that speaks is then only named as slow, and has 10
    min, or twice what it has needed before."""

    def derived(self, step_s: float | None) -> "TimeoutSpec":
        """Fill in what follows the step time (seconds; None: not measured yet)."""
        hang_s = 120.0 if step_s is None else max(10.0, 20 * step_s)
        step_s = STEP_BEFORE_MEASURED_S if step_s is None else step_s
        return msgspec.structs.replace(
            self,
            lost_after_s=self.lost_after_s or max(10 * self.heartbeat_s, 10 * step_s),
            stop_s=self.stop_s or max(5.0, 5 * step_s),
            hang_s=self.hang_s or hang_s,
        )


DeviceBytes = Annotated[int, Meta(ge=1 << 20, le=2**60, examples=["4GiB"])]


class ShareSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the job shares a device of its machine with other jobs, and how."""

    kind: ShareClass = field(default="auto", name="class")
    """guaranteed: its steps take as long as if it were alone. opportunistic: it lives on what is
    left. Default auto: guaranteed if no other job of the device is, else opportunistic."""
    device: Annotated[str, Meta(examples=["cpu:0"])] | None = None
    """The device: cores of this machine, like ``cpu:0`` or ``cpu:0-3``, to which the job is bound,
    or a GPU, like ``cuda:0``. Default none: the job shares nothing."""
    devices: Annotated[tuple[str, ...], Meta(examples=[["cpu:0", "cpu:1"]])] = ()
    """Instead of it, a device for each worker, by the worker's number. `paceline cluster` grants
    them. With fewer devices than workers the first one is next after the last. Default none."""
    device_memory_bytes: DeviceBytes | None = field(default=None, name="device_memory")
    """Memory of the device for the tensors of all jobs that share it; all must say the same.
    Default none: on cores, memory is not shared."""
    minimum_memory_bytes: DeviceBytes | None = field(default=None, name="minimum_memory")
    """So much of it each worker of an opportunistic job always has. Default none: what lives across
    its steps."""

    @property
    def every(self) -> tuple[str, ...]:
        """All devices of the job; none: it shares nothing."""
        return self.devices or (() if self.device is None else (self.device,))

    def of(self, node: str) -> tuple[str, ...]:
        """The devices to which a node is bound: one for a worker, all for any other node."""
        found = self.every
        if found and role_of(node) == "worker":
            return (found[number_of(node) % len(found)],)
        return found


class ControlPlaneSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the messages of the master and the agents travel."""

    encryption: ControlEncryption = "tls"
    """Encryption at the port for other machines; on one host there is no port. Default tls;
    ``off``: anyone who can read the network can read all but the secret."""


class DataPlaneSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tensors travel between workers and servers."""

    transport: Transport = "auto"
    """``shm`` and ``ipc`` stay on one host, ``tcp`` reaches any. Default auto: shared memory on
    one host, tcp between hosts."""
    encryption: Encryption = "curve"
    """Encryption of tcp traffic; on one host a 0700 directory protects the rest. Default curve;
    ``off`` is about 4 times faster and keeps only a signed hello."""


class WindowSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the past a solution sees; each window ends at its first limit."""

    short_steps: Annotated[int, Meta(ge=1, le=1_000_000)] | None = 100
    """Iterations of a worker in the short window (L_trans). Default 100; none: no limit."""
    short_s: PositiveSeconds | None = 300.0
    """Its seconds. Default 300, as in AntDT; none: not counted."""
    long_steps: Annotated[int, Meta(ge=1, le=1_000_000)] | None = 200
    """Iterations of a worker in the long window (L_per). Default 200; none: no limit."""
    long_s: PositiveSeconds | None = 600.0
    """Its seconds. Default 600, as in AntDT; none: not counted."""


class ResourcesSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job finds its own size, and what it may have."""

    policy: Annotated[str, Meta(description="the name of a resource policy")] = "none"
    """Policy that chooses the numbers of workers and servers and the cores of each, while the job
    trains. Default none: they stay as the spec says. ``--auto`` is short for rm, that of
    DLRover-RM."""
    cores: Cores | None = None
    """Most cores of all nodes together. Default none: the cores of this machine."""
    memory_bytes: Annotated[int, Meta(ge=1, le=2**60, examples=["16GiB"])] | None = field(
        default=None, name="memory"
    )
    """Most memory of all nodes together. Default none: no bound."""
    node_memory_bytes: Annotated[int, Meta(ge=1, le=2**60, examples=["4GiB"])] | None = field(
        default=None, name="node_memory"
    )
    """Most memory of one node; what needs more is divided among more servers. Default none: the
    memory of this machine."""
    workers: Count | None = None
    """Most workers. Default none: ``max_workers``, or as many as the cores allow."""
    servers: Count | None = None
    """Most servers. Default none: as many as the cores allow."""
    cost: Annotated[float, Meta(gt=0)] | None = None
    """Most that an hour may cost; a core costs 1 and a GiB 0.1. Default none: no bound."""
    window_s: PositiveSeconds = 5.0
    """Seconds of a window over which samples are counted. Default 5."""
    settle_s: PositiveSeconds = 10.0
    """Seconds after a change that do not count. Default 10, or as long as the change took."""
    between_s: PositiveSeconds = 60.0
    """Seconds between two changes, at least. Default 60, as in DLRover."""
    patience_s: PositiveSeconds = 120.0
    """Seconds for which a node that does not come is waited for; then the change is given up.
    Default 120."""


class JobSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job, as asked for."""

    script: Annotated[str, Meta(examples=["train.py"])]
    """Python file with the training loop; absolute once resolved. In a file: relative to it."""
    args: Annotated[tuple[str, ...], Meta(examples=[["--lr", "0.1"]])] = ()
    """Arguments of the script. Default none."""
    run_as: Literal["file", "module", "program"] = "file"
    """What ``script`` names. Default file: a Python file. module: a module, as for ``python -m``.
    program: anything that can be executed (strategy script)."""
    cwd: Annotated[str, Meta(examples=["/data"])] | None = None
    """Folder that the script runs in. Default: where ``paceline run`` was called. Jobs that it did
    not start have none, and run in ``/``."""
    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z",
            description="at most 63 letters, digits, '.', '_' and '-', a letter or digit first",
        ),
    ] = "job"
    """What people call the job. Default: the script's name without ``.py``."""
    seed: Seed = 0
    """Seed of everything random in the job. Default 0: every run can be repeated."""

    strategy: Strategy = "ps"
    """The holder of the model. Default: allreduce; ps where the spec says servers or mode, or where
    the script makes sparse tables. ps: parameter servers, each a part. allreduce: every worker
    holds all of it; there are no servers, and steps are those of mode bsp. fsdp: every worker holds
    a shard, as torch's ``fully_shard`` divides it; after a failure all restart together. script:
    the script holds it, as under torchrun; workers start, and after a failure restart, together."""
    mode: Mode = "bsp"
    """Default bsp: every step is one exact global batch, however divided. asp: no worker waits.
    ssp: the fastest worker is at most ``staleness`` steps ahead of the slowest."""
    staleness: Annotated[int, Meta(ge=0, le=1_000_000)] = 3
    """Steps, in mode ssp only (elsewhere setting it is an error). Default 3."""
    samples: Samples = "exactly-once"
    """How often each sample counts, whatever dies. Default exactly-once, the only one in bsp."""
    solution: Annotated[str, Meta(description="the name of a solution")] = "auto"
    """Policy against stragglers. Default auto: paceline's own. none: no action, and equal runs of
    mode bsp sum in equal order."""
    solution_args: dict[str, str] = {}
    """Its parameters, by name. Default none: its own defaults."""
    decide_every_s: PositiveSeconds | None = None
    """Seconds between decisions. Default none: what the solution asks for."""
    windows: WindowSpec = WindowSpec()
    """How much of the past the solution sees."""

    workers: NodeSpec = NodeSpec()
    """Nodes that run the script. Default 1."""
    machines: Count = 1
    """Strategies script and fsdp, local backend: machines on which the workers run, as many on
    each. All but the first join by ``paceline agent --join``, and no worker begins before all are
    there. Default 1."""
    min_workers: Count = 1
    """Strategy allreduce: with fewer workers, none trains. Default 1."""
    max_workers: Count | None = None
    """The most workers that a job is scaled to, or that join; not with strategy script. Default
    none; with ``deterministic`` it is ``blocks`` at most: more would have nothing to do."""
    servers: NodeSpec = NodeSpec()
    """Nodes that hold the model, with strategy ps. Default 1."""
    resources: ResourcesSpec = ResourcesSpec()
    """How the job finds its own size."""
    resources_args: dict[str, str] = {}
    """Parameters of the resource policy, by name. Default none: its own defaults."""
    deterministic: bool = False
    """Strategy allreduce: whether the model is the same bit for bit, whichever workers die or join
    and however steps are divided. On servers in mode bsp: whether it is the same up to the last
    bits of sums, also with dropout and augmentation. Default false: sums, and what is drawn for a
    sample, depend on the workers that take part."""
    blocks: Count = 16
    """Parts of each step with ``deterministic``, each a batch of its own. No more workers than that
    have something to do. Default 16; another number gives other results."""
    torch_threads: Annotated[int, Meta(ge=1, le=1_024)] | None = None
    """Threads of torch in each worker. Default none: all workers share the machine's cores, and
    none has more than its quota; with ``deterministic`` 1, since the bits of sums depend on it."""
    env: dict[str, str] = {}
    """Environment variables added for the training process. Default none."""
    script_state: Literal["found", "declared"] = "found"
    """Strategies allreduce and fsdp: whether the script's variables that are equal in all workers
    go to workers that join, and into cuts. Default found; with declared only ``job.state`` does."""

    data: DataSpec = DataSpec()
    """How the samples are dealt out."""
    batch_size: Annotated[Positive, Meta(examples=[4096])] | None = None
    """Samples in a global batch. Default none: what the script passes to ``job.batches``."""
    epochs: Annotated[Positive, Meta(examples=[3])] | None = None
    """Passes over the data. Default none: what the script passes to ``job.batches``."""

    backend: str = DEFAULT_BACKEND
    """Where nodes run. Default local: processes on this machine. ray: a Ray cluster. A package may
    bring others; ``paceline features`` lists them."""
    ray_address: Annotated[str, Meta(examples=["10.0.0.5:6379"])] | None = None
    """Backend ray: ``HOST:PORT`` of the cluster's head. Default none: ``RAY_ADDRESS``, or else the
    cluster that this machine belongs to."""
    pending_s: Seconds = 0.0
    """Local backend: each launch waits so long, as on a busy cluster. Default 0."""
    pending_trace: (
        Annotated[tuple[tuple[Seconds, Seconds], ...], Meta(examples=["0s 5s, 10m 0s"])] | None
    ) = None
    """The same, but changing: ``0s 5s, 10m 0s`` is 5 s in the job's first ten minutes, then
    nothing. Before the first time named, ``pending_s`` holds. Default none."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When cuts are made and where they go."""
    restart: RestartSpec = RestartSpec()
    """How often a dead node is started again."""
    timeouts: TimeoutSpec = TimeoutSpec()
    """How long paceline waits."""
    listen: Annotated[str, Meta(examples=["127.0.0.1"])] = LOOPBACK
    """IPv4 address of this machine at which the master and, with ``data_plane.transport: tcp``, the
    servers listen. Default: the master listens at a unix socket alone, and servers at 127.0.0.1."""
    advertise: Annotated[str, Meta(examples=["job-a.example.org:4711"])] | None = None
    """Name or address, and port, at which other machines reach the master: ``HOST:PORT``. It
    listens at this port of ``listen``, and at no other. Default: ``listen``, at any free port."""
    share: ShareSpec = ShareSpec()
    """How it shares a device with other jobs."""
    control_plane: ControlPlaneSpec = ControlPlaneSpec()
    """How messages travel."""
    data_plane: DataPlaneSpec = DataPlaneSpec()
    """How tensors travel."""
    preflight: bool = True
    """Whether each worker's node is measured before its first step, half a second: matrix product,
    memory, links (strategy allreduce: to other workers; ps: to servers over tcp). Default true.
    Strategy script: not before its first step; false: nor later, when its ranks would meet."""
    watch: bool = True
    """Strategy script: whether its steps and collective calls are watched for slow ranks and links.
    Default true."""
    metrics_port: Annotated[int, Meta(ge=0, le=65_535, examples=[9464])] | None = None
    """Port on 127.0.0.1 where the master answers Prometheus. The bearer token for it is in
    ``metrics.token`` of the job directory. 0: any free port, written to ``metrics.address`` there.
    Default none: no port."""

    log_to: dict[str, str] = {}
    """Where the curves of `job.log` go in addition to the job's own file, by sink: ``tensorboard:
    runs`` writes TensorBoard's files into a folder of the job's id there. Default none."""

    history: Annotated[str, Meta(examples=["postgresql+psycopg://db.example/paceline"])] | None = (
        None
    )
    """Database that keeps what jobs were like once they have ended, and that later ones learn from:
    ``sqlite:////folder/file``, ``postgresql+psycopg://host/name``, or ``off``. Default none: what
    ``PACELINE_HISTORY`` says, else ``history.sqlite`` in ``PACELINE_HOME``."""

    log_bytes: Annotated[int, Meta(ge=1 << 20, le=2**60, examples=["256MiB"])] = field(
        default=256 << 20, name="log"
    )
    """How large the log of a node may become; then its end goes to a second file, and the rest is
    dropped. Default 256 MiB; less on a small disk: all logs take a quarter of it at most."""

    sources: dict[str, str] = {}
    """Where each value that is not a default was set: dotted key -> ``job.yaml:7`` or
    ``--workers``. Not a key of the YAML file; later errors about a value can name its place."""
    surroundings: Surroundings = Surroundings()
    """Environment that the run keeps (`paceline.jobs.surroundings`). Not a key of the YAML file."""

    @property
    def traits(self) -> Traits:
        """The row of the job's strategy."""
        return STRATEGIES[self.strategy]

    def place_of(self, key: str) -> str:
        """Return where a key was set, for an error: ``--workers``, ``job.yaml:7: workers``."""
        place = self.sources.get(key, key)
        return place if place.startswith("--") or place == key else f"{place}: {key}"

    def of_role(self, role: str) -> NodeSpec:
        """Return what the spec says of the nodes of a role."""
        return self.servers if role == "server" else self.workers

    @property
    def num_servers(self) -> int:
        """Nodes that hold the model."""
        return self.servers.count if self.traits.has_servers else 0

    @property
    def report_s(self) -> float:
        """Seconds between two reports of a node's agent.

        Of many nodes the master takes no more than `REPORTS_PER_S`. An agent is
        lost after several that did not come.
        """
        lost_after_s = self.timeouts.derived(0.0).lost_after_s or 0.0
        many_s = (self.workers.count + self.num_servers) / REPORTS_PER_S
        return max(self.timeouts.heartbeat_s, min(many_s, lost_after_s / 3))

    @property
    def is_on_one_machine(self) -> bool:
        """Whether the backend starts nodes on the master's machine only."""
        return self.backend == DEFAULT_BACKEND

    @property
    def spans_machines(self) -> bool:
        """Whether processes of other machines may come: the master listens at a port, too."""
        asked = "listen" in self.sources or self.data_plane.transport == "tcp"
        several = self.machines > 1 or not self.is_on_one_machine
        return asked or several or self.listen != LOOPBACK

    @property
    def workers_of_machine(self) -> int:
        """Workers of each machine, of a job of so many machines."""
        return self.workers.count // self.machines

    @property
    def unmovable(self) -> str:
        """Why buckets cannot move to another server, with the remedy; empty: they can."""
        if self.samples == "exactly-once":
            return ""
        return (
            f"samples is {self.samples}: its servers keep no common order, without which "
            "buckets cannot move; use `paceline kill`, which costs what came since the last cut"
        )

    @property
    def most_workers(self) -> int:
        """The most workers that the job trains with."""
        most = self.max_workers or MAX_NODES
        return min(most, self.blocks) if self.deterministic else most

    def threads(self, cores: int, quota: float | None = None) -> int:
        """Threads of torch in each worker, on a machine with so many cores.

        Those of the machine that the job was started on count, if they are known: a run keeps its
        number of threads on other machines. No more than the quota has cores: threads that wait
        for each other would use it up.
        """
        if not self.share.devices:
            cores = self.surroundings.cores or cores
        beside = 1 if self.deterministic or self.share.devices else self.workers_of_machine
        shared = 1 if self.deterministic else max(1, cores // beside)
        if quota is not None:
            shared = min(shared, math.ceil(quota))
        return self.torch_threads or shared

    @property
    def data_seed(self) -> int:
        """The seed of the sample order."""
        return self.seed if self.data.seed is None else self.data.seed

    def pending_at(self, t_s: float) -> float:
        """Seconds that a launch is held back, ``t_s`` after the job's start."""
        begun = [wait_s for from_s, wait_s in self.pending_trace or () if from_s <= t_s]
        return begun[-1] if begun else self.pending_s

    @property
    def longest_pending_s(self) -> float:
        """The longest that a launch can be held back."""
        return max([self.pending_s, *(wait_s for _, wait_s in self.pending_trace or ())])


def save(spec: JobSpec, path: Path) -> None:
    """Write ``spec`` as JSON, for its owner only; a reader sees the old file or the new one."""
    text = msgspec.json.format(msgspec.json.encode(spec), indent=2)
    temporary = path.with_name(path.name + ".tmp")
    # The environment of the job may hold secrets, hence 0600.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(text + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load(path: Path) -> JobSpec:
    """Read what ``save`` wrote.

    Raises:
        PermanentError: the file is damaged or of another version.
        OSError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=JobSpec)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(
            f"{path}: got a file that is no job spec of this version of paceline ({error}), "
            "expected what `paceline run` wrote; start the job again from its script or spec"
        ) from error
