"""Time and peak anonymous memory of `position` on one layer as the text grows, on planted states.

    python -m benchmarks.position_scaling                  # 250,000 to a million tokens of 384 neurons, 3 GB of disk

Sentences have the lengths of the built-in corpus, states are a helix of positions among contexts and noise. The states
are on disk, as those of a model are; what is measured is the survey alone, in a process of its own for every size.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.corpora import sentences
from probing.activations.store import ActivationStore, StorePlan, divide, shard_tokens
from probing.studies.position.survey import PositionSample, survey_position
from probing.text.tokens import Tokens

D_MODEL, MOST_TOKENS = 384, 200


def write(folder: Path, n_tokens: int) -> None:
    """Write a store of one layer of about `n_tokens` tokens."""
    own = np.array([min(len(sentence.split()) * 4 // 3 + 2, MOST_TOKENS) for sentence in sentences(None)])
    lengths = np.tile(own, n_tokens // own.sum() + 1)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), n_tokens)) + 1].astype(np.int32)
    words = np.concatenate([np.arange(length) for length in lengths]).astype(np.int16)
    tokens = Tokens(lengths, np.zeros(len(words), dtype=np.int32), words)
    shards = divide(lengths, shard_tokens(6, D_MODEL, 4))
    store = ActivationStore.create(
        folder, StorePlan({"planted": n_tokens}, 0, D_MODEL, "float32", 1024, shards), tokens, {}
    )
    generator = torch.Generator().manual_seed(0)
    code, axes = torch.arange(MOST_TOKENS) / 5, torch.randn(2, D_MODEL, generator=generator)
    part = torch.stack([code.sin(), code.cos()], 1) @ axes
    positions = torch.from_numpy(tokens.positions)
    for shard in shards:
        rows = shard.rows(store.tokens)
        states = torch.randn(rows.stop - rows.start, D_MODEL, generator=generator)
        store.write(0, shard.index, states + part[positions[rows].long()])


def survey(folder: Path) -> None:
    """Print the number of tokens, the seconds and the peak anonymous memory of a survey of a store."""
    store = ActivationStore(folder)
    done, sizes = threading.Event(), [_anonymous()]

    def watch() -> None:
        while not done.wait(0.02):
            sizes.append(_anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started, used = time.perf_counter(), time.process_time()
    survey_position(PositionSample(store, "exclude", 0), [0], {})
    took, used = time.perf_counter() - started, time.process_time() - used
    done.set()
    watcher.join()
    print(f"{store.tokens.n_tokens:>9,} tokens: {took:6.1f} s, {used:6.1f} s of processor time, {max(sizes):5.0f} MB")


def _anonymous() -> float:
    """Return the anonymous memory of this process in MB: without files that are mapped."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def main() -> int:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="250000,500000,1000000", help="numbers of tokens")
    parser.add_argument("--of", type=Path, help="survey this store alone")
    given = parser.parse_args()
    if given.of is not None:
        survey(given.of)
        return 0
    for n_tokens in map(int, given.tokens.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "store", n_tokens)
            again = [sys.executable, "-m", "benchmarks.position_scaling", "--of", str(Path(folder) / "store")]
            subprocess.run(again, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
