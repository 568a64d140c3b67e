"""Two processes as one job, however they are started: what they make, and how they end when one of them is killed."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from pathlib import Path
from socket import socket
from typing import Any

import pytest

from conftest import BARE_ARGS, ROOT
from fault_loop import in_two_ranks
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.cli.options import ProbeOptions
from probing.errors import UserError
from probing.runtime.processes import launched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads Linux's /proc"),
]

# Long enough for a busy machine; nothing waits so long unless something is wrong.
PATIENCE_S = 600
SEVERAL = pytest.mark.several
# Within which a job whose rank was killed has ended: the launcher looks every 5 seconds.
BOUND_S = 90

# `python -m probing` with small shards. It notes what each process reads and writes, and takes its time to write in
# `extract`.
PROGRAM = f"""
import gc, os, sys, time
gc.disable()  # imports create none
sys.path.append({str(ROOT / "tests")!r})
from rendering import without_rendering
without_rendering()
from probing.__main__ import main
from probing.activations import store
from probing.heads import accumulation
store.SHARD_BYTES, store.MIN_SHARD_TOKENS, accumulation.SHARD_TOKENS = 0, 600, 600
write, read = store.ActivationStore.write, store.ActivationStore.read
write_tensors = store.CacheEntry.write_tensors
rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", os.environ.get("SLURM_PROCID", "0")))
def write_slowly(self, *args):
    time.sleep(0.2 if sys.argv[1] == "extract" else 0)
    write(self, *args)
def read_and_note(self, layer, shard):
    callers = sys._getframe(1), sys._getframe(2)
    # One rank compares a few sentences of all shards with the plain model.
    if "cached" not in [frame.f_code.co_name for frame in callers]:
        with open("read.txt", "a") as file:
            file.write(self.folder.name + " " + str(shard) + " " + rank + "\\n")
    return read(self, layer, shard)
def write_and_note(self, layer, shard, tensors):
    with open("written.txt", "a") as file:
        file.write(self.folder.name + " " + str(layer) + " " + str(shard) + " " + rank + "\\n")
    write_tensors(self, layer, shard, tensors)
store.ActivationStore.write, store.ActivationStore.read = write_slowly, read_and_note
store.CacheEntry.write_tensors = write_and_note
gc.enable()
if __name__ == "__main__":
    sys.exit(main())
"""
# The same small shards for a command that runs in this process.
SHARDS = {"probing.activations.store.SHARD_BYTES": 0, "probing.activations.store.MIN_SHARD_TOKENS": 600}
DDP = ["--trainer.strategy", "ddp", "--trainer.devices", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
# The same on each of two hosts, which meet at an address of the first one.
TORCHRUN_BY_HOST = [
    sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1", "--rdzv_backend", "c10d",
]  # fmt: skip
# What srun sets, as Lightning reads it: on one host, and on two.
SLURM = {
    "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0",
    "SLURM_NODELIST": "localhost", "SLURM_JOB_NAME": "probe", "SLURM_JOB_ID": "71",
}  # fmt: skip
SLURM_BY_HOST = SLURM | {"SLURM_NTASKS_PER_NODE": "1", "SLURM_NNODES": "2", "SLURM_NODELIST": "localhost,second"}


@dataclass
class Job:
    """A command in a folder of its own, started in one of several ways."""

    folder: Path
    args: list[str]
    wandb: str = "offline"
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, command: list[str] | None = None, **variables: str) -> None:
        """Start a process of the job."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        environment = {**own, "OMP_NUM_THREADS": "1", "WANDB_MODE": self.wandb, "PROBING_TEST": self.mark, **variables}
        self.started.append(
            subprocess.Popen(
                [*(command or [sys.executable]), "program.py", *self.args], cwd=self.folder, env=environment,
                encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
            )
        )  # fmt: skip

    def end(self, within_s: float = PATIENCE_S) -> tuple[list[int], str, str]:
        """Wait, and return exit statuses and all that was printed."""
        ends = [(*process.communicate(timeout=within_s), process.returncode) for process in self.started]
        outs, errors, codes = zip(*ends, strict=True)
        return list(codes), "".join(outs), "".join(errors)

    def processes(self) -> dict[int, dict[str, str]]:
        """Return the environment of each process of the job that is alive, those of W&B left out."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                pairs = (path / "environ").read_bytes().decode(errors="replace").split("\0")
                variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
                is_own = variables.get("PROBING_TEST") == self.mark
                if is_own and b"program.py" in (path / "cmdline").read_bytes():
                    found[int(path.name)] = variables
        return found


@pytest.fixture
def job(tmp_path: Path, checkpoints: dict[str, Path], corpus_file: Path) -> Iterator[Callable[..., Job]]:
    """Make a job: `job("fit", "--layer", "2")`; what is left of it at the end is killed."""
    made = []

    def make(command: str, *args: str, name: str = "job") -> Job:
        (folder := tmp_path / name).mkdir(exist_ok=True)
        made.append(make_job(folder, checkpoints["bert"], corpus_file, command, *args))
        return made[-1]

    yield make
    for one in made:
        for pid in one.processes():
            os.kill(pid, signal.SIGKILL)
        for process in one.started:
            process.wait(10)


@pytest.fixture(scope="module")
def alone(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Path, str]]:
    """Return where this process ran a command, and what it printed; once for each command."""

    @cache
    def run_once(*args: str) -> tuple[Path, str]:
        one = make_job(tmp_path_factory.mktemp("alone"), checkpoints["bert"], corpus_file, *args)
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
            patch.chdir(one.folder)
            patch.setenv("WANDB_MODE", one.wandb)
            for name, value in SHARDS.items():
                patch.setattr(name, value)
            assert run(COMMANDS, one.args) == 0
        return one.folder, said.getvalue()

    return run_once


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    """A treebank in which the first word depends on the third one, as its subject in every other sentence."""
    lines = []
    for number, sentence in enumerate(sentences):
        for i, word in enumerate(sentence.split(), 1):
            first = "dep" if number % 2 else "nsubj"
            head, relation = {1: (3, first), 2: (3, "dep"), 3: (0, "root")}.get(i, (i - 1, "dep"))
            lines.append(f"{i}\t{word}\t_\tX\t_\t_\t{head}\t{relation}\t_\t_")
        lines.append("")
    path = tmp_path_factory.mktemp("bank") / "bank.conllu"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def make_job(folder: Path, model: Path, corpus: Path, command: str, *args: str) -> Job:
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    fixed = ["--model", str(model), "--corpus", str(corpus), "--cache", "cache", "--trainer.accelerator", "cpu"]
    return Job(folder, [command, *fixed, *args])


def type_here(folder: Path, wandb: str, args: list[str]) -> int:
    """Type the program's command in this process."""
    os.chdir(folder)
    os.environ |= {"OMP_NUM_THREADS": "1", "WANDB_MODE": wandb}
    sys.argv = ["program.py", *args]
    exec(PROGRAM, {"__name__": "program"})  # changes what it reads and writes by
    return run(COMMANDS, args)


def run_in_two(one: Job, how: str) -> tuple[list[int], str, str]:
    """Run a job to its end in two processes; return exit statuses and all that was printed."""
    if how == "forked":
        ranks = in_two_ranks(type_here, one.folder, one.wandb, one.args)
        return (
            [rank.found for rank in ranks],
            "".join(rank.out for rank in ranks),
            "".join(rank.error for rank in ranks),
        )
    start_in_two(one, how)
    ended = one.end()
    assert one.processes() == {}
    return ended


def start_in_two(one: Job, how: str) -> None:
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    if how == "ddp":
        one.args += DDP
        one.start()
    elif how == "torchrun":
        one.start(TORCHRUN)
    elif how == "torchrun by host":
        for _ in range(2):
            one.start([*TORCHRUN_BY_HOST, "--rdzv_endpoint", f"localhost:{port}", "--rdzv_id", one.mark])
    else:
        for rank in "01":
            own = SLURM_BY_HOST | {"SLURM_NODEID": rank, "SLURM_LOCALID": "0"}
            variables = SLURM | {"SLURM_LOCALID": rank} if how == "slurm" else own
            one.start(None, **variables, SLURM_PROCID=rank, MASTER_PORT=port)


def shards(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("cache/*/layer_*/*.safetensors"))}


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    (path,) = folder.glob(f"runs/*/{name}")
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def assert_same_tables(one: Path, two: Path) -> None:
    for name in ("accuracy.csv", "neurons.csv", "class_scores.csv", "contexts.csv", "profiles.csv"):
        rows, others = table(one, name), table(two, name)
        assert len(rows) == len(others) > 0
        for row, other in zip(rows, others, strict=True):
            assert row.keys() == other.keys()
            for column, value in row.items():
                if value != other[column]:  # the same float64 sums in another order
                    assert float(other[column]) == pytest.approx(float(value), rel=2e-3, abs=_nearly(row, column)), (
                        column
                    )


def _nearly(row: dict[str, Any], column: str) -> float:
    """Return how far apart two numbers may be: after which pass a probe is near enough hangs on rounding."""
    if column == "optimality_gap":
        return ProbeOptions().tolerance
    if column.startswith("cross_entropy_without"):  # both are solved to a twentieth of half its interval
        return 0.1 * (float(row["cross_entropy_without_high"]) - float(row["cross_entropy_without_low"]))
    if column.endswith("spearman"):  # of 16 neurons, two neighbours in the order may have changed places
        return 12 / (16 * (16**2 - 1)) * 2
    if column in ("rank_low", "rank_high"):  # of probes that are that near
        return 1
    if column in ("removed_p", "removed_q"):  # of losses that are that near
        return 0.25 * float(row[column] or 1)
    return 1e-6


# --- what two processes make ---

MORE = ["--layer", "2", "--replicates", "2", "--controls", "shuffled", "--probe.l2", "0.01"]
LESS = ["--layer", "2", *BARE_ARGS, "--probe.l2", "0.01"]


def _without_numbers(said: str) -> list[str]:
    return [re.sub(r"[0-9.e+-]+", "#", line)[:40] for line in said.splitlines()[:-1]]


def assert_each_stage_is_said_once(errors: str, ended: bool = True) -> None:
    found = re.findall(r"^\[(\d)/(\d)\] ", errors, re.MULTILINE)
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
    assert found
    assert (len(found) == int(found[0][1])) == ended


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "args"),
    [
        ("forked", [*LESS, "--trainer.logger", "csv"]),
        pytest.param("torchrun", LESS, marks=SEVERAL),
        pytest.param("torchrun by host", LESS, marks=SEVERAL),
        pytest.param("slurm", LESS, marks=SEVERAL),
        pytest.param("slurm by host", LESS, marks=SEVERAL),
        pytest.param("ddp", MORE, marks=SEVERAL),
    ],
)
def test_two_processes_make_what_one_makes_each_half_of_it(
    job: Callable[..., Job], alone: Callable[..., tuple[Path, str]], how: str, args: list[str]
) -> None:
    one, said = alone("fit", *args)
    codes, said_by_two, errors = run_in_two(two := job("fit", *args), how)
    assert set(codes) == {0}, errors
    assert shards(two.folder) == shards(one)
    (manifest,) = two.folder.glob("cache/*/manifest.jsonl")
    assert len(manifest.read_text(encoding="utf-8").splitlines()) == 1 + len(
        shards(two.folder)
    )  # each was computed once
    assert_same_tables(one, two.folder)
    assert len(list(two.folder.glob("runs/*"))) == 1
    assert len(list(two.folder.glob("runs/*/wandb/offline-run-*"))) == 1
    if "csv" in args:  # the first rank alone logs
        curves = [
            [row for row in table(folder, "csv/metrics.csv") if row["train/layer_02/objective"]]
            for folder in (one, two.folder)
        ]
        assert [row["step"] for row in curves[0]] == [str(step) for step in range(len(curves[0]))]
        assert [row["step"] for row in curves[1]] == [str(step) for step in range(len(curves[1]))]
    # The first rank alone speaks. The numbers are those of the tables, up to rounding; names of runs differ.
    assert _without_numbers(said_by_two) == _without_numbers(said)
    lines = [line for line in errors.splitlines() if "OMP_NUM_THREADS" not in line]
    assert len(lines) == len(set(lines))
    # So it does of the stages, each of which has one line.
    assert_each_stage_is_said_once(errors)
    # Each shard is read by one rank alone, all through the training and the evidence.
    readers: dict[str, set[str]] = {}
    for line in (two.folder / "read.txt").read_text(encoding="utf-8").splitlines():
        shard, rank = line.rsplit(" ", 1)
        readers.setdefault(shard, set()).add(rank)
    assert all(len(ranks) == 1 for ranks in readers.values())
    assert set().union(*readers.values()) == {"0", "1"}


@pytest.mark.several
def test_more_processes_than_shards_are_no_more_than_idle(
    job: Callable[..., Job], alone: Callable[..., tuple[Path, str]]
) -> None:
    one, _ = alone("fit", *LESS)
    two = job("fit", *LESS)
    two.wandb = "disabled"
    (two.folder / "program.py").write_text(PROGRAM.replace("= 0, 600", "= 0, 10**9"), encoding="utf-8")
    start_in_two(two, "ddp")
    codes, _, errors = two.end()
    assert codes == [0], errors
    assert len(shards(two.folder)) == 1
    assert_same_tables(one, two.folder)


def test_two_processes_survey_heads_as_one_does_each_half_of_the_corpus(
    job: Callable[..., Job], checkpoints: dict[str, Path], bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    # The corpus and its role links are read in a pass each.
    parts = ["--corpus", str(bank), "--parts", "classes,profile,words,similarity,roles"]
    (alone := tmp_path / "alone").mkdir()
    monkeypatch.chdir(alone)
    monkeypatch.setattr("probing.heads.accumulation.SHARD_TOKENS", 600)
    args = ["--model", str(checkpoints["bert"]), "--cache", "cache", "--wandb.mode", "disabled", *parts]
    assert run(COMMANDS, ["attention", "--trainer.accelerator", "cpu", *args]) == 0
    said = capsys.readouterr().out
    two = job("attention", *parts)
    two.wandb = "disabled"
    codes, said_by_two, errors = run_in_two(two, "forked")
    assert codes == [0, 0], errors
    assert len(shards(alone)) > 10
    assert shards(two.folder) == shards(alone)
    (one_run,), (other_run,) = alone.glob("runs/*"), two.folder.glob("runs/*")
    tables = {path.name: path.read_bytes() for path in one_run.glob("*.csv")}
    assert set(tables) == {
        f"{name}.csv" for name in ("attention_classes", "attention_layers", "heads", "roles", "similarity")
    }
    assert {path.name: path.read_bytes() for path in other_run.glob("*.csv")} == tables
    # The first rank alone speaks; names of runs differ.
    assert said_by_two.splitlines()[:-1] == said.splitlines()[:-1]
    lines = [line for line in errors.splitlines() if "OMP_NUM_THREADS" not in line]
    assert len(lines) == len(set(lines))
    written = (two.folder / "written.txt").read_text(encoding="utf-8").splitlines()
    assert len(written) == len({line.rsplit(" ", 1)[0] for line in written}) == len(shards(alone))  # each was read once
    assert {line.rsplit(" ", 1)[1] for line in written} == {"0", "1"}


# --- how they end ---


def kill(one: Job, rank: str) -> None:
    """Kill the process of a rank, the first having none where Lightning started the others."""
    (pid,) = (
        pid for pid, variables in one.processes().items()
        if variables.get("SLURM_PROCID", variables.get("RANK", variables.get("LOCAL_RANK", "0"))) == rank
    )  # fmt: skip
    os.kill(pid, signal.SIGKILL)


def wait_for(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def is_gone(one: Job) -> Callable[[], bool]:
    return lambda: not one.processes()


@pytest.mark.several
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_killed_in_extraction_ends_the_job_and_the_next_goes_on(
    job: Callable[..., Job], alone: Callable[..., tuple[Path, str]], rank: str
) -> None:
    one = job("extract")
    start_in_two(one, "ddp")
    wait_for(lambda: len(shards(one.folder)) >= 6)
    kill(one, rank)
    codes, said, errors = one.end(BOUND_S)
    wait_for(is_gone(one))
    assert codes[0] != 0
    assert said == ""
    assert "of this job was killed by signal 9" in errors if rank == "1" else "ended unexpectedly" in errors
    assert "run the same command again" in errors
    assert "Traceback" not in errors
    kept = {path: path.stat().st_ino for path in one.folder.glob("cache/*/layer_*/*.safetensors")}
    (manifest,) = one.folder.glob("cache/*/manifest.jsonl")
    recorded = len(manifest.read_text(encoding="utf-8").splitlines()) - 1
    assert recorded >= 6
    again = job("extract")
    again.start()
    codes, _, errors = again.end()
    assert codes == [0], errors
    assert shards(again.folder) == shards(alone("extract")[0])
    assert sum(path.stat().st_ino == inode for path, inode in kept.items()) >= recorded  # and were not made again


@pytest.mark.parametrize(
    "how",
    ["ddp", *(pytest.param(how, marks=SEVERAL) for how in ("torchrun by host", "slurm", "slurm by host"))],
)
def test_a_rank_killed_in_training_ends_the_job(job: Callable[..., Job], how: str) -> None:
    one = job("fit", *LESS, "--probe.tolerance", "1e-30")  # it would train for a thousand passes
    one.wandb = "disabled"
    start_in_two(one, how)
    training = one.folder / "read.txt"
    wait_for(lambda: training.exists() and training.read_text(encoding="utf-8").count("\n") > 100)
    kill(one, "1")
    codes, said, errors = one.end(BOUND_S)
    wait_for(is_gone(one))
    assert codes[0] != 0
    assert said == ""
    # Either the sum that waits for the killed process fails first, or the launcher sees first that it is gone.
    assert "another process of this job ended before its work was done" in errors or (
        how == "ddp" and "process 1 of this job was killed by signal 9" in errors
    )
    assert "run the same command again" in errors
    assert 'program.py", line' not in errors
    assert "Traceback" not in errors or how == "torchrun by host"  # which reports of itself
    assert_each_stage_is_said_once(errors, ended=False)
    (partial,) = one.folder.glob("runs/*")
    assert partial.name.endswith(".partial")


@pytest.mark.several
def test_what_one_rank_alone_cannot_do_it_says_and_the_job_ends(job: Callable[..., Job]) -> None:
    one = job("extract")
    one.args[one.args.index("--corpus") + 1] = "-"
    one.args += DDP
    text = Path(job("extract").args[4]).read_text(encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PROBING_TEST": one.mark}
    done = subprocess.run(
        [sys.executable, "program.py", *one.args], cwd=one.folder, env=environment, input=text, capture_output=True,
        encoding="utf-8", timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    wait_for(is_gone(one))
    assert done.returncode != 0
    assert "only one of several processes has standard input; give the text as a file" in done.stderr
    assert "Traceback" not in done.stderr


# --- which processes are one job ---


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({}, {}),
        ({"LOCAL_RANK": "1"}, {}),  # Lightning's launcher, whose processes have its options
        (
            {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            {"devices": 2, "num_nodes": 2, "strategy": "ddp"},
        ),
        ({"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, {}),
        (SLURM, {"devices": 2, "num_nodes": 1, "strategy": "ddp"}),
        (SLURM_BY_HOST, {"devices": 1, "num_nodes": 2, "strategy": "ddp"}),
        ({**SLURM, "SLURM_JOB_NAME": "interactive"}, {}),
        ({"SLURM_NTASKS": "1"}, {}),
    ],
)
def test_processes_that_were_started_together_are_joined(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], options: dict[str, Any]
) -> None:
    set_only(monkeypatch, variables)
    assert launched() == options


def test_srun_must_say_how_many_processes_are_on_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    set_only(monkeypatch, {"SLURM_NTASKS": "2"})
    with pytest.raises(UserError, match="srun started 2 processes without `--ntasks-per-node`"):
        launched()


@pytest.mark.parametrize("args", [["rank", "a"], ["compare", "a", "b"]])
def test_commands_for_one_process_are_refused_in_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str]
) -> None:
    set_only(monkeypatch, {**SLURM, "SLURM_PROCID": "0"})
    assert run(COMMANDS, args) == 2
    assert f"`{args[0]}` runs in one process, and torchrun or srun started several" in capsys.readouterr().err


def set_only(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TORCHELASTIC_")) or name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
