"""Each mistake in a job spec gets its exact message, before anything is started."""

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.base.errors import ConfigError
from paceline.jobs.spec_file import resolve
from paceline.jobs.spec_values import LEAVES
from paceline.wire.spec import save


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a script in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "folder").mkdir()
    return tmp_path


def mistakes(text: str | bytes, flags: dict[str, str]) -> str:
    """What a user sees for this job.yaml and these flags."""
    data = text if isinstance(text, bytes) else text.encode()
    Path("job.yaml").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        resolve("job.yaml", flags)
    return str(caught.value)


KEYS_OF_DATA = "shard_size, shuffle, seed"

WRONG_FILES = [
    # YAML itself
    ("", "job.yaml: got an empty file, expected keys and values; write e.g. script: train.py"),
    (
        "# only a comment\n",
        "job.yaml: got an empty file, expected keys and values; write e.g. script: train.py",
    ),
    (
        "- script\n- train.py\n",
        "job.yaml:1: got a list, expected keys and values; write e.g. script: train.py",
    ),
    (
        "train.py",
        "job.yaml:1: got 'train.py', expected keys and values; write e.g. script: train.py",
    ),
    (
        "script: train.py\nworkers: {count: 4\n",
        (
            "job.yaml:3: got broken YAML at column 1 (expected ',' or '}', but got '<stream end>'), "
            "expected key: value lines; check indent and quotes"
        ),
    ),
    (
        "script: train.py\nworkers:\n\tcount: 4\n",
        (
            "job.yaml:3: got broken YAML at column 1 (found character '\\t' that cannot start any "
            "token), expected key: value lines; check indent and quotes"
        ),
    ),
    (
        "script: train.py\n---\nscript: train.py\n",
        (
            "job.yaml:2: got broken YAML at column 1 (but found another document), "
            "expected key: value lines; check indent and quotes"
        ),
    ),
    (
        "script: *train\n",
        (
            "job.yaml:1: got broken YAML at column 9 (found undefined alias 'train'), "
            "expected key: value lines; check indent and quotes"
        ),
    ),
    (
        b"script: train.py\nname: caf\xe9\n",
        "job.yaml:2: got bytes that are no UTF-8, expected text; save it as UTF-8",
    ),
    (
        "[" * 1_000,
        (
            "job.yaml: got brackets nested without end, expected keys and values; "
            "write e.g. script: train.py"
        ),
    ),
    (
        "script: train.py\nname: !!python/object/apply:os.system [exit]\n",
        (
            "job.yaml:2: name: got a list, expected at most 63 letters, digits, '.', '_' and '-', "
            "a letter or digit first; write e.g. name: job"
        ),
    ),
    (
        "script: train.py\nname: !!python/name:os.system x\n",
        (
            "job.yaml:2: name: got a value with the tag python/name:os.system, "
            "expected a plain value; write e.g. name: job"
        ),
    ),
    # keys
    (
        "script: train.py\nworkers: 2\nseed: 1\nworkers: 3\n",
        (
            "job.yaml:4: workers: got this key again (first on line 2), expected it once; "
            "remove one of the lines"
        ),
    ),
    (
        "script: train.py\nwrokers: 2\n",
        "job.yaml:2: wrokers: got an unknown key; did you mean workers?",
    ),
    (
        "script: train.py\nbatch-size: 2\n",
        "job.yaml:2: batch-size: got an unknown key; did you mean batch_size?",
    ),
    (
        "script: train.py\nmemory: 2GiB\n",
        "job.yaml:2: memory: got an unknown key; did you mean workers.memory or "
        "servers.memory or resources.memory?",
    ),
    (
        "script: train.py\ndata:\n  shufle: true\n",
        "job.yaml:3: data.shufle: got an unknown key; did you mean data.shuffle?",
    ),
    (
        "script: train.py\ndata: {zzz: 1}\n",
        f"job.yaml:2: data.zzz: got an unknown key, expected one of {KEYS_OF_DATA}; remove it",
    ),
    (
        "script: train.py\nworkers.count: 2\n",
        (
            "job.yaml:2: workers.count: got a dotted key, expected a single name; "
            "write each part on its own level"
        ),
    ),
    (
        "script: train.py\ndata: 5\n",
        (
            f"job.yaml:2: data: got '5', expected a mapping of {KEYS_OF_DATA}; "
            "indent its keys under it"
        ),
    ),
    (
        "script: train.py\ndata:\n",
        (
            f"job.yaml:2: data: got nothing, expected a mapping of {KEYS_OF_DATA}; "
            "indent its keys under it"
        ),
    ),
    (
        "script: train.py\nworkers: [1, 2]\n",
        (
            "job.yaml:2: workers: got a list, expected a mapping of count, cpu, memory, max_memory, gpus; "
            "indent its keys under it"
        ),
    ),
    # the script
    (
        "workers: 2\n",
        (
            "command line: script: got nothing, expected the Python file to run; "
            "write e.g. script: train.py"
        ),
    ),
    (
        "script:\n",
        "job.yaml:1: script: got nothing, expected text; write e.g. script: train.py",
    ),
    (
        "script: trian.py\n",
        (
            "job.yaml:1: script: got '{here}/trian.py', no such file, expected a Python file; "
            "did you mean train.py?"
        ),
    ),
    (
        "script: folder\n",
        (
            "job.yaml:1: script: got the directory {here}/folder, expected a Python file; "
            "name the file in it"
        ),
    ),
    (
        "script: s3://bucket/train.py\n",
        (
            "job.yaml:1: script: got 's3://bucket/train.py', expected a path on this machine; "
            "write e.g. script: train.py"
        ),
    ),
    (
        "script: train.py\nargs: --lr 0.1\n",
        "job.yaml:2: args: got '--lr 0.1', expected a list of words; write e.g. args: [--lr, 0.1]",
    ),
    # numbers
    (
        "script: train.py\nworkers: 0\n",
        "job.yaml:2: workers: got '0', expected an integer from 1 to 10000; write e.g. workers: 2",
    ),
    (
        "script: train.py\nservers: 0\n",
        "job.yaml:2: servers: got '0', expected an integer from 1 to 10000; write e.g. servers: 2",
    ),
    (
        "script: train.py\nworkers: {count: -1}\n",
        (
            "job.yaml:2: workers.count: got '-1', expected an integer from 1 to 10000; "
            "write e.g. count: 2"
        ),
    ),
    (
        "script: train.py\nworkers: true\n",
        (
            "job.yaml:2: workers: got 'true', expected an integer from 1 to 10000; "
            "write e.g. workers: 2"
        ),
    ),
    (
        "script: train.py\nworkers: 2.0\n",
        (
            "job.yaml:2: workers: got '2.0', expected an integer from 1 to 10000; "
            "write e.g. workers: 2"
        ),
    ),
    (
        'script: train.py\nworkers: "2"\n',
        (
            "job.yaml:2: workers: got '2' in quotes, expected an integer from 1 to 10000; "
            "write e.g. workers: 2"
        ),
    ),
    (
        "script: train.py\nseed: 0x10\n",
        "job.yaml:2: seed: got '0x10', expected an integer of at least 0; write e.g. seed: 0",
    ),
    (
        "script: train.py\nepochs: 99999999999999999999\n",
        (
            "job.yaml:2: epochs: got '99999999999999999999', expected an integer of at least 1; "
            "write e.g. epochs: 3"
        ),
    ),
    (
        "script: train.py\nbatch_size: four\n",
        (
            "job.yaml:2: batch_size: got 'four', expected an integer of at least 1; "
            "write e.g. batch_size: 4096"
        ),
    ),
    (
        "script: train.py\nworkers: {cpu: .nan}\n",
        (
            "job.yaml:2: workers.cpu: got '.nan', expected a number above 0, or one for each node "
            "in turn; write e.g. cpu: 1"
        ),
    ),
    (
        "script: train.py\nworkers: {cpu: 1e999}\n",
        (
            "job.yaml:2: workers.cpu: got '1e999', expected a number above 0, or one for each node "
            "in turn; write e.g. cpu: 1"
        ),
    ),
    (
        "script: train.py\nworkers: {cpu: [2, 0]}\n",
        (
            "job.yaml:2: workers.cpu: got a list, expected a number above 0, or one for each node "
            "in turn; write e.g. cpu: 1"
        ),
    ),
    (
        "script: train.py\ncheckpoint: {share: 2}\n",
        (
            "job.yaml:2: checkpoint.share: got '2', expected a number above 0 and at most 1; "
            "write e.g. share: 0.02"
        ),
    ),
    (
        "script: train.py\ndata: {shuffle: maybe}\n",
        "job.yaml:2: data.shuffle: got 'maybe', expected true or false; write e.g. shuffle: true",
    ),
    # sizes and durations
    (
        "script: train.py\n\n\n\n\nworkers:\n  memory: 2GX\n",
        (
            "job.yaml:7: workers.memory: got '2GX', expected a size like 512MiB; "
            "write e.g. memory: 2GiB"
        ),
    ),
    (
        "script: train.py\nservers: {memory: 999999999999TB}\n",
        (
            "job.yaml:2: servers.memory: got '999999999999TB', expected a size like 512MiB; "
            "write e.g. memory: 2GiB"
        ),
    ),
    (
        "script: train.py\nworkers: {memory: 64MiB}\n",
        (
            "job.yaml:2: workers.memory: got 64MiB, expected at least 256MiB, which it needs to "
            "start; write e.g. memory: 2GiB"
        ),
    ),
    (
        "script: train.py\nservers: {memory: 0}\n",
        (
            "job.yaml:2: servers.memory: got 0B, expected at least 128MiB, which it needs to "
            "start; write e.g. memory: 2GiB"
        ),
    ),
    (
        "script: train.py\nservers: {memory: 2GiB, max_memory: 1GiB}\n",
        (
            "job.yaml:2: servers.max_memory: got 1GiB with servers.memory 2GiB, expected a limit "
            "servers.memory from which it can be raised; change one of them"
        ),
    ),
    (
        "script: train.py\nworkers: {max_memory: 1GiB}\n",
        (
            "job.yaml:2: workers.max_memory: got 1GiB with workers.memory none, expected a limit "
            "workers.memory from which it can be raised; change one of them"
        ),
    ),
    (
        "script: train.py\npending_s: -1\n",
        (
            "job.yaml:2: pending_s: got '-1', expected a duration like 30s or 5m of at least 0; "
            "write e.g. pending_s: 0s"
        ),
    ),
    (
        "script: train.py\ncheckpoint: {every_s: 0}\n",
        (
            "job.yaml:2: checkpoint.every_s: got '0', expected a duration like 30s or 5m above 0; "
            "write e.g. every_s: 30s"
        ),
    ),
    (
        "script: train.py\nmode: asp\ncheckpoint: {every_steps: 10}\n",
        (
            "job.yaml:3: checkpoint.every_steps: got 10 in mode asp, where there is no common step, "
            "expected it in mode bsp only; write every_s: 30s"
        ),
    ),
    # words
    (
        "script: train.py\nstrategy: allreduce\nservers: 2\n",
        (
            "job.yaml:3: servers.count: got 2 with strategy allreduce, where workers hold the "
            "model, expected it with strategy ps only; remove it"
        ),
    ),
    (
        "script: train.py\nstrategy: fsdp\nservers: 2\n",
        (
            "job.yaml:3: servers.count: got 2 with strategy fsdp, where workers hold the "
            "model, expected it with strategy ps only; remove it"
        ),
    ),
    (
        "script: train.py\nstrategy: fsdp\nsolution: lb_bsp\n",
        (
            "job.yaml:3: solution: got 'lb_bsp' with strategy fsdp, whose workers compute equal "
            "shares, expected none; remove it or set strategy to allreduce"
        ),
    ),
    (
        "script: train.py\nstrategy: fsdp\nworkers: 4\nmin_workers: 2\n",
        (
            "job.yaml:4: min_workers: got 2 with strategy fsdp, which needs all workers, expected "
            "it with strategy allreduce only; remove it"
        ),
    ),
    (
        "script: train.py\nstrategy: allreduce\nmode: asp\n",
        (
            "job.yaml:3: mode: got 'asp' with strategy allreduce, expected bsp (all workers take "
            "part in each step); remove it or set strategy to ps"
        ),
    ),
    (
        "script: train.py\nstrategy: allreduce\nworkers: 2\nmin_workers: 3\n",
        (
            "job.yaml:4: min_workers: got 3, expected at most workers.count, which is 2; write "
            "min_workers: 2"
        ),
    ),
    (
        "script: train.py\nmode: asp\ndeterministic: true\n",
        (
            "job.yaml:3: deterministic: got true in mode asp, whose updates come in any order, "
            "expected mode bsp; remove it or set mode to bsp"
        ),
    ),
    (
        "script: train.py\nstrategy: script\ndeterministic: true\n",
        (
            "job.yaml:3: deterministic: got true with strategy script, expected it with strategy "
            "allreduce, or on servers in mode bsp; remove it or set strategy to allreduce"
        ),
    ),
    (
        "script: train.py\ncheckpoint: {dir: 's3:/bucket'}\n",
        (
            "job.yaml:2: checkpoint.dir: got 's3:/bucket', expected a URL like s3://bucket/prefix "
            "or file:///folder"
        ),
    ),
    (
        "script: train.py\ncheckpoint: {dir: 'nowhere://bucket'}\n",
        (
            "job.yaml:2: checkpoint.dir: got 'nowhere://bucket', whose scheme nowhere cannot be "
            "used (Protocol not known: nowhere); install its package where the job runs, or name "
            "another"
        ),
    ),
    (
        "script: train.py\nworkers: 3\nmax_workers: 2\n",
        (
            "job.yaml:3: max_workers: got 2, expected at least workers.count, which is 3; write "
            "max_workers: 3"
        ),
    ),
    (
        "script: train.py\nstrategy: script\nmax_workers: 2\n",
        (
            "job.yaml:3: max_workers: got 2 with strategy script, which trains on its own, expected "
            "it with strategy ps, allreduce or fsdp only; remove it"
        ),
    ),
    (
        "script: train.py\nstrategy: allreduce\nwatch: no\n",
        (
            "job.yaml:3: watch: got false with strategy allreduce, expected it with strategy script "
            "only; remove it"
        ),
    ),
    (
        "script: train.py\nstrategy: allreduce\nblocks: 8\n",
        (
            "job.yaml:3: blocks: got 8 without deterministic, where it has no effect, expected it "
            "with deterministic: true only; remove it"
        ),
    ),
    (
        "script: train.py\nstrategy: allreduce\ndeterministic: true\nworkers: 4\nblocks: 3\n",
        (
            "job.yaml:5: blocks: got 3, expected at least workers.count, which is 4 (else some "
            "have nothing to do); write blocks: 4"
        ),
    ),
    (
        "script: train.py\nservers: 1\nmin_workers: 2\n",
        (
            "job.yaml:3: min_workers: got 2 with strategy ps, whose workers need not be many, "
            "expected it with strategy allreduce only; remove it"
        ),
    ),
    (
        "script: train.py\nmode: async\n",
        "job.yaml:2: mode: got 'async', expected asp or bsp or ssp; write mode: asp",
    ),
    (
        "script: train.py\nmode: {bsp: true}\n",
        "job.yaml:2: mode: got a mapping, expected asp or bsp or ssp; write e.g. mode: bsp",
    ),
    (
        "script: train.py\nname: my job\n",
        (
            "job.yaml:2: name: got 'my job', expected at most 63 letters, digits, '.', '_' and '-', "
            "a letter or digit first; write e.g. name: job"
        ),
    ),
    # values that do not go together
    (
        "script: train.py\nmode: asp\nstaleness: 4\n",
        (
            "job.yaml:3: staleness: got 4 in mode asp, where it has no effect, "
            "expected it with mode ssp only; remove it or set mode to ssp"
        ),
    ),
    (
        "script: train.py\nsamples: at-least-once\n",
        (
            "job.yaml:2: samples: got 'at-least-once' in mode bsp, expected exactly-once (a step of "
            "bsp is the exact mean of its whole batch); remove it or set mode to asp or ssp"
        ),
    ),
    (
        "script: train.py\nrestart: {backoff_s: 1m}\n",
        (
            "job.yaml:2: restart.backoff_s: got restart.backoff_s 60s and restart.backoff_max_s 30s, "
            "expected restart.backoff_max_s to be at least 1 x restart.backoff_s; change one of them"
        ),
    ),
    (
        "script: train.py\ntimeouts: {heartbeat_s: 2, lost_after_s: 3}\n",
        (
            "job.yaml:2: timeouts.lost_after_s: got timeouts.heartbeat_s 2s and "
            "timeouts.lost_after_s 3s, expected timeouts.lost_after_s to be at least 2 x "
            "timeouts.heartbeat_s; change one of them"
        ),
    ),
    (
        "script: train.py\ndata_plane: {transport: shm, encryption: curve}\n",
        (
            "job.yaml:2: data_plane.encryption: got 'curve' with transport shm, which never leaves "
            "the host, expected it with tcp or auto only; remove it"
        ),
    ),
    (
        "script: train.py\nlisten: 0.0.0.0\n",
        (
            "job.yaml:2: listen: got '0.0.0.0', expected an IPv4 address of this machine for others "
            "to connect to; `hostname -I` lists them"
        ),
    ),
    (
        "script: train.py\nlisten: 10.0.0.5\nadvertise: job-a\n",
        (
            "job.yaml:3: advertise: got 'job-a', expected HOST:PORT, a name or an IPv4 address and a "
            "port from 1 to 65535; e.g. job-a.example.org:4711"
        ),
    ),
    (
        "script: train.py\nadvertise: job-a:4711\n",
        (
            "job.yaml:2: advertise: got job-a:4711 with listen 127.0.0.1, where no other machine "
            "reaches it, expected it with `listen`; write --set listen=ADDRESS, too"
        ),
    ),
    (
        "script: train.py\nlisten: big-host\n",
        (
            "job.yaml:2: listen: got 'big-host', expected an IPv4 address of this machine for others "
            "to connect to; `hostname -I` lists them"
        ),
    ),
    (
        "script: train.py\ncheckpoint: {dir: train.py}\n",
        "job.yaml:2: checkpoint.dir: got the file {here}/train.py, expected a folder; name another",
    ),
    (
        "script: train.py\nenv: {OMP_NUM_THREADS: 4}\n",
        (
            "job.yaml:2: env.OMP_NUM_THREADS: got '4' under env, expected it under torch_threads; "
            "write torch_threads: 4"
        ),
    ),
    (
        "script: train.py\nenv:\n  RANK: 1\n",
        "job.yaml:3: env.RANK: got the name 'RANK', expected none that paceline sets; remove it",
    ),
    (
        "script: train.py\nenv: {MY-VAR: 1}\n",
        (
            "job.yaml:2: env.MY-VAR: got the name 'MY-VAR', expected letters, digits and _ in the "
            "name; rename it"
        ),
    ),
    (
        "script: train.py\nenv: {A: [1]}\n",
        'job.yaml:2: env.A: got a list, expected text; write e.g. A: "1"',
    ),
    (
        'script: train.py\nenv: {A: "x\\0y"}\n',
        "job.yaml:2: env.A: got 'x\\x00y', expected valid Unicode without NUL; write e.g. A: \"1\"",
    ),
]

WRONG_FLAGS = [
    (
        {"workers": "many"},
        "--workers: got 'many', expected an integer from 1 to 10000; write e.g. --workers 2",
    ),
    (
        {"servers.memory": "2GX"},
        (
            "--set servers.memory: got '2GX', expected a size like 512MiB; "
            "write e.g. --set servers.memory=2GiB"
        ),
    ),
    (
        {"batch_size": "1.5"},
        "--batch-size: got '1.5', expected an integer of at least 1; write e.g. --batch-size 4096",
    ),
    (
        {"servers.memroy": "2GiB"},
        "--set servers.memroy: got an unknown key; did you mean servers.memory?",
    ),
    (
        {"train.workers": "2"},
        "--set train.workers: got an unknown key; did you mean workers?",
    ),
    (
        {"data": "5"},
        "--set data: got '5', expected one key of it; write e.g. --set data.shard_size=...",
    ),
    (
        {"script": "b.py"},
        (
            "--set script: got 'b.py', expected no such flag; "
            "write e.g. paceline run train.py -- --lr 0.1"
        ),
    ),
    (
        {"mode": "asp", "staleness": "2"},
        (
            "--staleness: got 2 in mode asp, where it has no effect, expected it with mode ssp only; "
            "remove it or set mode to ssp"
        ),
    ),
    (
        {"strategy": "allreduce", "solution": "partial", "deterministic": "true"},
        (
            "--solution: got partial with deterministic, where every step waits for all, "
            "expected another one; remove it, or deterministic"
        ),
    ),
    (
        {"windows.short_s": "null", "windows.short_steps": "null"},
        (
            "--set windows.short_steps: got none, as for windows.short_s, expected a window that "
            "ends; give one of the two"
        ),
    ),
    (
        {"pending_trace": "10s 5s, 2s 0s"},
        (
            "--set pending_trace: got '10s 5s, 2s 0s', expected pairs of durations in order, like "
            "0s 5s, 10m 0s; write e.g. --set pending_trace=0s 5s, 10m 0s"
        ),
    ),
    (
        {"pending_s": ""},
        (
            "--pending: got nothing, expected a duration like 30s or 5m of at least 0; "
            "write e.g. --pending 0s"
        ),
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG_FILES)
def test_a_wrong_spec_file_gets_exactly_this_message(
    text: str | bytes, message: str, here: Path
) -> None:
    assert mistakes(text, {}) == message.replace("{here}", str(here))


@pytest.mark.parametrize(("flags", "message"), WRONG_FLAGS)
def test_a_wrong_flag_gets_exactly_this_message(flags: dict[str, str], message: str) -> None:
    assert mistakes("script: train.py\n", flags) == message


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("none.yaml", "none.yaml: got no such file, expected a job spec; check the path"),
        (
            "train.txt",
            (
                "train.txt: got no file of this name, expected a script or a job spec, a name that "
                "ends in .py, .yaml or .yml; did you mean train.py?"
            ),
        ),
        (
            "none.py",
            (
                "command line: script: got '{here}/none.py', no such file, expected a Python file; "
                "check the path"
            ),
        ),
    ],
)
def test_a_wrong_target_gets_exactly_this_message(target: str, message: str, here: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(target, {})
    assert str(caught.value) == message.replace("{here}", str(here))


def test_arguments_that_are_no_unicode_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("train.py", {}, args=["--x", "\udcff"])
    assert str(caught.value) == (
        "command line: args: got '\\udcff', expected valid Unicode without NUL; "
        "write e.g. args: [--lr, 0.1]"
    )


def test_all_mistakes_are_reported_at_once_with_their_lines() -> None:
    text = "script: none.py\nworkers: {cpu: 0, memory: x}\nmode: asp\nstaleness: 2\nsed: 1\n"
    places = [line.partition(": got")[0] for line in mistakes(text, {"epochs": "0"}).splitlines()]
    assert places == [
        "job.yaml:2: workers.cpu",
        "job.yaml:2: workers.memory",
        "job.yaml:5: sed",
        "--epochs",
        "job.yaml:1: script",
        "job.yaml:4: staleness",
    ]


def test_values_are_not_compared_with_one_that_was_refused() -> None:
    assert "staleness" not in mistakes("script: train.py\nmode: sspp\nstaleness: 2\n", {})


words = st.one_of(st.text(max_size=8), st.sampled_from(["train.py", "asp", "2GiB", "5m", "-1"]))
scalars = st.one_of(words, st.integers(), st.floats(), st.booleans(), st.none())
keys = st.one_of(st.sampled_from(sorted({k for key in LEAVES for k in key.split(".")})), words)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=12,
)
fuzzed = settings(
    derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def accept_or_refuse(data: bytes, flags: dict[str, str]) -> None:
    """Anything but a spec or a ``ConfigError`` is an error of ours."""
    Path("job.yaml").write_bytes(data)
    try:
        save(resolve("job.yaml", flags), Path("job.json"))
    except ConfigError as error:
        assert str(error)  # noqa: PT017 - either outcome is right


@fuzzed
@given(st.binary(max_size=80), st.dictionaries(keys, words, max_size=3))
def test_random_bytes_never_crash_the_reader(data: bytes, flags: dict[str, str]) -> None:
    accept_or_refuse(data, flags)


@fuzzed
@given(trees.map(lambda tree: {"script": "train.py", **tree} if isinstance(tree, dict) else tree))
def test_random_yaml_never_crashes_the_reader(tree: object) -> None:
    accept_or_refuse(yaml.safe_dump(tree).encode(), {})


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "pending_s: 5s\n",
            "job.yaml:2: pending_s: got it with backend ray, which does not read it, expected it "
            "with another backend; remove it",
        ),
        (
            "strategy: fsdp\nworkers: 4\nmachines: 2\n",
            "job.yaml:4: machines: got 2 with backend ray, which chooses machines itself, expected "
            "it with backend local only; remove it",
        ),
        (
            "data_plane: {transport: shm}\n",
            "job.yaml:2: data_plane.transport: got 'shm' with backend ray, whose nodes are on "
            "several machines, expected 'auto' or 'tcp'; remove it",
        ),
    ],
)
def test_what_ray_has_no_use_for_is_refused(lines: str, expected: str) -> None:
    Path("job.yaml").write_text(f"script: train.py\n{lines}backend: ray\n")
    with pytest.raises(ConfigError) as caught:
        resolve("job.yaml", {})
    assert str(caught.value) == expected


def test_gpus_are_refused_where_all_nodes_see_them() -> None:
    Path("job.yaml").write_text("script: train.py\nworkers: {gpus: 1}\n")
    with pytest.raises(ConfigError, match=r"workers\.gpus: got it with backend local"):
        resolve("job.yaml", {})
