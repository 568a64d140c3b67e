"""Compare answers, in the environment that can read all of them.

    python -m benchmarks.contestants.answers states MODEL CORPUS ENTRY FILE...   hidden states, sentence by sentence
    python -m benchmarks.contestants.answers probes FOLDER L2 FILE...            probes on exported examples

Prints the differences as one JSON line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch


def states(model: str, corpus: str, entry: str, *files: str) -> dict[str, Any]:
    """Return for each file the largest difference from the cached hidden states, over all layers and tokens."""
    from transformers import AutoTokenizer

    from probing.activations import ActivationStore

    texts = Path(corpus).read_text(encoding="utf-8").splitlines()
    tokenizer, store = AutoTokenizer.from_pretrained(model), ActivationStore(Path(entry))
    layers = store.layers()
    cached = [torch.cat([store.read(k, s.index) for s in store.plan.shards]) for k in layers]
    assert len(texts) == store.tokens.n_sentences
    found = {}
    for file in files:
        if file.endswith(".pt"):
            theirs: Any = torch.load(file)
        else:
            import h5py

            parts = [file] if Path(file).exists() else [f"{file[:-5]}-layer{k}.hdf5" for k in layers]
            stored = [h5py.File(part) for part in parts]
            theirs = (np.concatenate([part[str(i)][:] for part in stored]) for i in range(len(texts)))
        words_only = Path(file).stem.startswith("neurox")
        worst = 0.0
        for i, (text, other) in enumerate(zip(texts, theirs, strict=True)):
            rows = store.tokens.of_sentences(i, 1)
            ours = torch.stack([states[rows] for states in cached]).float()
            if words_only:
                ours = ours[:, _last_pieces(tokenizer, text)]
            worst = max(worst, _difference(ours, torch.as_tensor(np.asarray(other))))
        found[Path(file).stem] = worst
    return found


def _last_pieces(tokenizer: Any, text: str) -> list[int]:
    """Return the last token of each word of a sentence, where words are separated by blanks."""
    encoding = tokenizer(text, truncation=True, return_offsets_mapping=True, return_special_tokens_mask=True)
    last = {}
    for i, ((_, end), special) in enumerate(
        zip(encoding["offset_mapping"], encoding["special_tokens_mask"], strict=True)
    ):
        if not special:
            last[text.count(" ", 0, end)] = i
    return list(last.values())


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max()) if ours.shape == theirs.shape else float("inf")


def probes(folder: str, l2: str, *files: str) -> dict[str, Any]:
    """Return each probe's cross-entropy on training and test tokens and its objective, all by one function."""
    loaded = {name: np.load(Path(folder) / f"{name}.npy") for name in ("X_train", "y_train", "X_test", "y_test")}
    data = {name: torch.from_numpy(array) for name, array in loaded.items()}
    scale = torch.from_numpy(np.load(Path(folder) / "scale.npy")).double()
    found = {}
    for file in files:
        stored = np.load(file)
        weight = torch.from_numpy(stored["weight"])
        bias = torch.from_numpy(stored["bias"]) if "bias" in stored else torch.zeros(len(weight))
        name = Path(file).stem
        for side in ("train", "test"):
            logits = data[f"X_{side}"] @ weight.T + bias
            loss = torch.nn.functional.cross_entropy(logits.double(), data[f"y_{side}"])
            found[f"{name}.{side}_cross_entropy"] = float(loss)
        penalty = float(l2) * float(((weight.double() * scale) ** 2).sum())
        found[f"{name}.objective"] = found[f"{name}.train_cross_entropy"] + penalty
    return found


if __name__ == "__main__":
    action, *rest = sys.argv[1:]
    print(json.dumps({"states": states, "probes": probes}[action](*rest)))
