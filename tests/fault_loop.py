"""Kill, damage and race `fit` again and again; nothing may be lost, and no wrong table may be written.

    python tests/fault_loop.py --faults 200 --seed 0

After each fault the same command is run once more, and must end with the tables and the cached bytes of a run that
nothing happened to, without having written again what was whole. Prints its figures; the exit status is 1 if anything
was lost or wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from socket import socket
from typing import Any
from unittest.mock import patch

# Longest a process may take before it counts as hanging.
PATIENCE_S = 300.0
MANIFEST = "manifest.jsonl"
TABLES = ("accuracy.csv", "neurons.csv", "probe.safetensors", "contributions.safetensors")
LAYERS = [0, 1, 3]


def processes() -> ForkServerContext:
    """Return a context that starts processes in milliseconds, from a server that has only imported the libraries."""
    # multiprocessing reads `__spec__` of the main module, which may be missing under a test runner.
    vars(sys.modules["__main__"]).setdefault("__spec__", None)
    context = multiprocessing.get_context("forkserver")
    rooms = (
        "studies.fit.command", "cache.extraction", "probes.training", "studies.pretrain.experiment", "runs.results",
        "studies.finetune.experiment", "evidence.table",
    )  # fmt: skip
    probing = [f"probing.{name}" for name in rooms]
    models = ["transformers.models.bert.modeling_bert"]
    libraries = ["pytorch_lightning", "transformers", "matplotlib.pyplot"]
    context.set_forkserver_preload([*libraries, *models, *probing, "no_garbage_before"])
    # The server silently skips modules that it does not find, and it does not know the import paths of this process.
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path)):
        ensure_running()
    return context


@dataclass(frozen=True)
class Rank:
    """What a function returned in one process of a job, and what it printed."""

    found: Any
    out: str
    error: str


def in_two_ranks(target: Callable[..., Any], *args: Any) -> list[Rank]:
    """Call a function in two processes of one job, with the environment variables that torchrun sets."""
    context = processes()
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    both = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    both |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}
    results = [context.Queue() for _ in range(2)]
    ranks = [
        context.Process(target=_as_rank, args=(result, {**both, "RANK": rank, "LOCAL_RANK": rank}, target, args))
        for rank, result in zip("01", results, strict=True)
    ]
    for rank in ranks:
        rank.start()
    found = [result.get(timeout=PATIENCE_S) for result in results]
    for rank in ranks:
        rank.join(PATIENCE_S)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    return found


def _as_rank(result: Any, variables: dict[str, str], target: Callable[..., Any], args: Sequence[Any]) -> None:
    os.environ.update(variables)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        found = target(*args)
    result.put(Rank(found, out.getvalue(), error.getvalue()))
    from torch import distributed  # gloo's threads may outlive the interpreter, and then abort it

    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def small_shards(shard_tokens: int) -> None:
    """Divide a corpus into shards of so many tokens, in this process."""
    from probing.activations import store

    store.SHARD_BYTES, store.MIN_SHARD_TOKENS = 0, shard_tokens


def extract_with_small_shards(
    model: str,
    sentences: list[str],
    layers: list[int],
    cache: Path,
    shard_tokens: int,
    say: Callable[[str], None] = lambda message: None,
    callbacks: list[Any] | None = None,
) -> None:
    """Ask the cache for activations, with so many tokens to a shard."""
    from probing.activations import Request, activations
    from probing.models import resolve_model
    from probing.runtime import quiet_libraries
    from probing.text import from_sentences

    small_shards(shard_tokens)
    with quiet_libraries():
        request = Request(resolve_model(model), from_sentences("made up", sentences), layers, batch_tokens=256)
        activations(request, cache, {"accelerator": "cpu"}, say, callbacks or [])


def contents(cache: Path) -> dict[str, bytes]:
    """Return what an entry is made of: everything but locks, the manifest's order, and what a killed writer left."""
    found = {}
    for path in sorted(cache.glob("*/**/*")):
        if path.is_file() and path.suffix != ".lock" and ".partial-" not in str(path):
            content = path.read_bytes()
            if path.name == MANIFEST:  # a line that a kill cut short stays there; only whole records are compared
                header, *lines = content.split(b"\n")
                content = b"\n".join([header, *sorted({line for line in lines if is_record(line)})])
            found[str(path.relative_to(cache))] = content
    return found


def is_record(line: bytes) -> bool:
    """Whether a line of the manifest is as it was written."""
    from probing.activations.store import _parse

    try:
        return bool(_parse(line.decode()))
    except ValueError:
        return False


# --- one command in a process of its own ---


def type_fit(status: Any, args: list[str], shard_tokens: int) -> None:
    """Type `probing fit` in this process and send its exit status."""
    from probing.__main__ import COMMANDS
    from probing.cli.commandline import run
    from rendering import without_rendering

    without_rendering()
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  for the life of the process
    small_shards(shard_tokens)
    status.value = run(COMMANDS, ["fit", *args])


class Command:
    """`probing fit` in a process of its own."""

    def __init__(self, context: ForkServerContext, args: list[str], shard_tokens: int) -> None:
        self.status = context.Value("i", -1)
        self.process: BaseProcess = context.Process(target=type_fit, args=(self.status, args, shard_tokens))
        self.process.start()

    def kill_after(self, delay_s: float) -> None:
        """Let it run for a while, then send SIGKILL; do nothing where it has ended by then."""
        self.process.join(delay_s)
        if self.process.exitcode is None:
            assert self.process.pid
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def end(self) -> int:
        """Wait for it and return its exit status, -1 where it was killed."""
        self.process.join(PATIENCE_S)
        if self.process.exitcode is None:
            self.process.kill()
            raise SystemExit(f"a command did not end in {PATIENCE_S:.0f} s")
        return int(self.status.value)


# --- faults ---


class Loop:
    """A folder of runs to which faults happen.

    Args:
        folder: Where everything is made.
        seed: Seed of every random draw.
        shard_tokens: Size of a shard.
    """

    def __init__(self, folder: Path, seed: int, shard_tokens: int) -> None:
        from conftest import BARE_ARGS, make_sentences
        from families import make_checkpoint

        self.random, self.context, self.shard_tokens = random.Random(seed), processes(), shard_tokens
        sentences = make_sentences(120)
        (folder / "sentences.txt").write_text("\n".join(sentences), encoding="utf-8")
        model = make_checkpoint(folder / "tiny-bert", "bert", sentences)
        self.args = [
            "--model", str(model), "--corpus", str(folder / "sentences.txt"), "--layer", ",".join(map(str, LAYERS)),
            "--wandb.mode", "disabled", "--trainer.accelerator", "cpu", "--batch_tokens", "256", "--quiet",
            *BARE_ARGS,
        ]  # fmt: skip
        self.runs, self.n_named = folder / "runs", 0
        self.wrong: list[str] = []
        assert self.command("whole", folder / "reference").end() == 0
        began = time.monotonic()
        assert self.command("cached", folder / "reference").end() == 0
        self.cached_s = time.monotonic() - began
        reference = folder / "reference"
        self.tables = self.tables_of(reference / "whole")
        self.bytes = contents(reference / "cache")
        self.start = reference / "cache"

    def command(self, name: str, runs: Path | None = None) -> Command:
        """Start a fit."""
        args = [*self.args, "--runs", str(runs or self.runs), "--name", name]
        return Command(self.context, args, self.shard_tokens)

    def name(self) -> str:
        """Return a name that no run has."""
        self.n_named += 1
        return f"run-{self.n_named}"

    @staticmethod
    def tables_of(run: Path) -> dict[str, bytes]:
        """Return a run's tables, and the numbers of its tensors: the library writes their names in any order."""
        found = {name: (run / name).read_bytes() for name in TABLES if (run / name).exists()}
        return {
            name: content[8 + int.from_bytes(content[:8], "little") :] if name.endswith(".safetensors") else content
            for name, content in found.items()
        }

    def cache(self) -> Path:
        """Return the cache; if it has no entry, copy the complete one first."""
        cache = self.runs / "cache"
        if not any(cache.glob(f"*/{MANIFEST}")):
            shutil.copytree(self.start, cache, dirs_exist_ok=True)
        return cache

    # Each of these methods makes one fault and returns what it did or left behind, which `main` counts.

    def kill(self) -> str:
        """Kill a run at any moment, most of the time one that has everything to extract."""
        if self.random.random() < 0.7:
            shutil.rmtree(self.runs / "cache", ignore_errors=True)
        self.command(self.name()).kill_after(self.random.uniform(0, 1.5 * self.cached_s))
        return self.left()

    def damage(self) -> str:
        """Change, cut, empty, remove or exchange a file of the entry."""
        files = [path for path in self.cache().glob("*/**/*") if path.is_file() and path.suffix != ".lock"]
        path = self.random.choice(files)
        if self.random.random() < 0.3:  # most files are shards
            path = self.random.choice([path for path in files if "layer_" not in str(path)])
        content, how = bytearray(path.read_bytes()), self.random.choice(["flip", "cut", "empty", "remove", "exchange"])
        if how == "flip":
            content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
        elif how == "cut":
            del content[self.random.randrange(len(content)) :]
        elif how == "empty":
            content.clear()
        elif how == "exchange":
            content = bytearray(self.random.choice(files).read_bytes())
        path.unlink()
        if how != "remove":
            path.write_bytes(content)
        kind = "a shard" if "layer_" in str(path) else f"the {path.stem}"
        return f"{kind}, {how}"

    def race(self) -> str:
        """Start two to four runs at once, some of them killed, on a cache that is empty, whole or being pruned."""
        if state := self.random.choice(["empty", "pruned", ""]):
            shutil.rmtree(self.runs / "cache", ignore_errors=True)
        n = self.random.randint(2, 4)
        commands = [self.command(self.name()) for _ in range(n)]
        killed = self.random.sample(commands, self.random.randint(0, n - 1))
        for command in killed:
            command.kill_after(self.random.uniform(0, self.cached_s))
        if state == "pruned":
            from probing.commands import prune

            with contextlib.redirect_stdout(io.StringIO()):
                prune(cache=str(self.runs / "cache"), unused_days=0, yes=True)
        for command in commands:
            status = command.end()
            if command not in killed and status:
                self.wrong.append(f"a run in a race ended with {status}")
        return f"{n} runs, {len(killed)} killed" + (", pruned" if state == "pruned" else "")

    def left(self) -> str:
        """Return what a kill left behind."""
        if any(self.runs.glob("*.partial")):
            return "a partial run"
        if not any(self.runs.glob(f"cache/*/{MANIFEST}")):
            return "no entry yet"
        return "a half-written file" if any(self.runs.glob("cache/**/*.partial-*")) else "whole files"

    def recover(self) -> None:
        """Run the command once more, and record every difference from a run without faults."""
        whole = {
            path: path.stat().st_ino
            for path in self.runs.glob("cache/*/layer_*/*.safetensors")
            if path.read_bytes() == self.bytes.get(str(path.relative_to(self.runs / "cache")))
            and self.is_recorded(path)
        }
        name = self.name()
        if (status := self.command(name).end()) != 0:
            self.wrong.append(f"the run after the fault ended with {status}")
        for path in self.runs.iterdir():
            if path.name != "cache" and not path.name.endswith(".partial") and self.tables_of(path) != self.tables:
                self.wrong.append(f"{path.name} has other tables")
        if contents(self.runs / "cache") != self.bytes:
            self.wrong.append("the cache has other bytes")
        self.wrong += [f"{path} was written again" for path, inode in whole.items() if path.stat().st_ino != inode]
        for path in self.runs.iterdir():
            if path.name != "cache":
                shutil.rmtree(path)

    def is_recorded(self, shard: Path) -> bool:
        """Whether the manifest knows of a shard, so that nobody has a reason to write it again."""
        manifest = shard.parent.parent / MANIFEST
        layer, index = int(shard.parent.name.removeprefix("layer_")), int(shard.stem)
        lines = manifest.read_bytes().splitlines()[1:] if manifest.exists() else []
        records = [json.loads(line)["record"] for line in lines if is_record(line)]
        return any((record.get("layer"), record.get("shard")) == (layer, index) for record in records)


def main(typed: Sequence[str] | None = None) -> int:
    """Run the loop and return the exit status; without arguments it takes those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200, help="how many faults are injected")
    parser.add_argument("--seed", type=int, default=0, help="of what happens, where and when")
    parser.add_argument("--shard_tokens", type=int, default=256)
    options = parser.parse_args(typed)
    began = time.monotonic()
    counts: dict[str, Counter[str]] = {"kill": Counter(), "damage": Counter(), "race": Counter()}
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(Path(folder), options.seed, options.shard_tokens)
        print(f"seed {options.seed}; an entry has {len(loop.bytes)} files, a run with it takes {loop.cached_s:.2f} s")
        for _ in range(options.faults):
            kind = loop.random.choice(list(counts))
            before = len(loop.wrong)
            counts[kind][what := getattr(loop, kind)()] += 1
            loop.recover()
            for wrong in loop.wrong[before:]:
                print(f"after {kind} ({what}): {wrong}", flush=True)
    for kind, found in counts.items():
        print(f"{found.total()} times {kind}: " + "; ".join(f"{n} {what}" for what, n in found.most_common()))
    print(f"{options.faults} faults in {time.monotonic() - began:.0f} s: {len(loop.wrong)} things lost or wrong")
    return 1 if loop.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
