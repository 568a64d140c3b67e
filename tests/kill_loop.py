"""Kill an extraction again and again, resume it, and compare every byte with an uninterrupted one.

    python tests/kill_loop.py --kills 20 --seed 0

Prints its figures; the exit status is 1 if a file differs, is missing, or does not match its checksum.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# One kill in this many strikes at any moment since the process began; the others, while shards are written.
ANY_MOMENT = 5
# Longest a process may take before it counts as hanging.
PATIENCE_S = 300.0
MANIFEST = "manifest.jsonl"


def processes() -> ForkServerContext:
    """Return what starts processes, from one that has imported the libraries but computed nothing: in milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytorch_lightning", "transformers", "probing.cache.extraction"])
    return context


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
    from probing.cache import Request, activations, plan
    from probing.corpus import from_sentences
    from probing.models import resolve_model
    from probing.terminal import quiet_libraries

    plan.SHARD_BYTES, plan.MIN_SHARD_TOKENS = 0, shard_tokens
    with quiet_libraries():
        request = Request(resolve_model(model), from_sentences("made up", sentences), layers, batch_tokens=256)
        activations(request, cache, {"accelerator": "cpu"}, say, callbacks or [])


def victim(extracting: Any, *arguments: Any) -> None:
    """Extract, and report when the first shard is about to be computed."""
    import pytorch_lightning as pl

    class Report(pl.Callback):
        def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            extracting.set()

    extract_with_small_shards(*arguments, callbacks=[Report()])


def start(context: ForkServerContext, *arguments: Any) -> tuple[BaseProcess, Any]:
    """Start an extraction; return its process and the event of its first shard."""
    extracting = context.Event()
    process = context.Process(target=victim, args=(extracting, *arguments))
    process.start()
    return process, extracting


def wait_for_shards(process: BaseProcess, extracting: Any) -> None:
    """Wait until a process computes its first shard, or finds nothing to compute and ends."""
    end = time.monotonic() + PATIENCE_S
    while not extracting.wait(0.01) and process.is_alive():
        if time.monotonic() > end:
            process.kill()
            raise SystemExit(f"an extraction did not begin in {PATIENCE_S:.0f} s")


def finish(process: BaseProcess) -> None:
    """Wait for a process that nobody kills."""
    process.join(PATIENCE_S)
    if process.exitcode != 0:
        process.kill()
        raise SystemExit(f"an extraction that nobody killed ended with {process.exitcode}")


def contents(cache: Path) -> dict[str, bytes]:
    """Return what an entry is made of: everything but locks, the manifest's order, and what a killed writer left."""
    found = {}
    for path in sorted(cache.glob("*/**/*")):
        if path.is_file() and path.suffix != ".lock" and ".partial-" not in str(path):
            content = path.read_bytes()
            if path.name == MANIFEST:  # a torn line stays where it was torn; the records count
                header, *lines = content.split(b"\n")
                content = b"\n".join([header, *sorted({line for line in lines if is_record(line)})])
            found[str(path.relative_to(cache))] = content
    return found


def is_record(line: bytes) -> bool:
    """Whether a line of the manifest is whole."""
    try:
        return "record" in json.loads(line)
    except ValueError:
        return False


def state(cache: Path) -> str:
    """Return what a kill left behind."""
    if not any(path for path in cache.glob(f"*/{MANIFEST}") if ".partial-" not in str(path)):
        return "no entry yet"
    half_written = list(cache.rglob("*.partial-*"))
    recorded = sum(manifest.read_bytes().count(b"\n") - 1 for manifest in cache.glob(f"*/{MANIFEST}"))
    shards = len(list(cache.glob("*/layer_*/*.safetensors")))
    if half_written:
        return "a half-written shard"
    return "a shard without its record" if shards > recorded else "whole shards"


def main() -> int:
    """Run the loop and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="how many processes are killed")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--model", help="alias or folder; minilm where its package is installed, else a tiny BERT")
    parser.add_argument("--sentences", type=int, default=300, help="of the built-in corpus")
    parser.add_argument("--shard_tokens", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> int:
    """Kill `options.kills` extractions below `folder`; return 0 if no byte differs."""
    from probing.cache.store import ActivationStore
    from probing.corpus.builtin import builtin_sentences
    from probing.models import BUILTIN_PACKAGE

    generator, context = random.Random(options.seed), processes()
    sentences = builtin_sentences()[: options.sentences]
    model = options.model or ("minilm" if find_spec(BUILTIN_PACKAGE) else tiny_model(folder / "tiny-bert", sentences))
    arguments = [model, sentences, [0, 1, 2], folder / "whole", options.shard_tokens]

    process, extracting = start(context, *arguments)
    wait_for_shards(process, extracting)
    began = time.monotonic()
    finish(process)
    duration_s = time.monotonic() - began
    whole = contents(folder / "whole")
    n_shards = sum(name.endswith(".safetensors") and "layer_" in name for name in whole)
    print(f"{model}: {n_shards} shard files, extracted without interruption in {duration_s:.2f} s")

    arguments[3] = cache = folder / "killed"
    left: Counter[str] = Counter()
    in_lap, laps, most, differences = 0, 0, 0, []

    def complete() -> None:
        nonlocal in_lap, laps, most
        found = contents(cache)
        differences.extend(name for name in whole.keys() | found.keys() if whole.get(name) != found.get(name))
        for entry in cache.glob("*/"):
            differences.extend(str(at) for at in ActivationStore(entry).damaged([0, 1, 2]))
        in_lap, laps, most = 0, laps + 1, max(most, in_lap)
        shutil.rmtree(cache)

    while sum(left.values()) < options.kills:
        process, extracting = start(context, *arguments)
        if generator.randrange(ANY_MOMENT):
            wait_for_shards(process, extracting)
            delay_s = generator.uniform(0, duration_s / 4)
        else:
            delay_s = generator.uniform(0, 1.0)
        process.join(delay_s)
        if process.exitcode is None:
            assert process.pid
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        if process.exitcode == -signal.SIGKILL:
            left[state(cache)] += 1
            in_lap += 1
        else:  # it was faster
            finish(process)
            complete()
    process, _ = start(context, *arguments)
    finish(process)
    complete()

    print(f"{options.kills} kills left: " + ", ".join(f"{what} {n} times" for what, n in left.most_common()))
    print(f"{laps} extractions completed in spite of up to {most} kills each; {len(differences)} files differ")
    for name in sorted(set(differences)):
        print(f"differs: {name}")
    return 1 if differences else 0


def tiny_model(folder: Path, sentences: list[str]) -> str:
    """Build a tiny BERT."""
    from families import make_checkpoint

    return str(make_checkpoint(folder, "bert", sentences))


if __name__ == "__main__":
    sys.exit(main())
