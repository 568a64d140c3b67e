"""Hidden states by plain `transformers` loops: one sentence at a time, or in padded batches in the order of the text.

python -m benchmarks.contestants.loops sentences|batches MODEL CORPUS FILE
python -m benchmarks.contestants.loops load FILE LAYER    LAYER or all
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from benchmarks.contestants.files import forget, size

BATCH = 32


def sentences(model: Any, tokenizer: Any, texts: Sequence[str]) -> Iterator[Tensor]:
    """Yield the hidden states of each sentence, shape (n_layers + 1, n_tokens, d_model)."""
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", truncation=True)
        yield torch.cat(model(**inputs, output_hidden_states=True).hidden_states)


def batches(model: Any, tokenizer: Any, texts: Sequence[str]) -> Iterator[Tensor]:
    """Yield the same from padded batches, with the padding removed."""
    for first in range(0, len(texts), BATCH):
        inputs = tokenizer(texts[first : first + BATCH], return_tensors="pt", truncation=True, padding=True)
        states = torch.stack(model(**inputs, output_hidden_states=True).hidden_states)
        for i, mask in enumerate(inputs["attention_mask"].bool()):
            yield states[:, i, mask]


def extract(how: str, folder: str, corpus: str, file: str) -> dict[str, Any]:
    """Extract all layers: one sentence at a time into a single torch file, or in batches into HDF5."""
    start = time.perf_counter()
    texts = Path(corpus).read_text(encoding="utf-8").splitlines()
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        if how == "sentences":
            torch.save(list(sentences(model, tokenizer, texts)), file)
        else:
            import h5py

            with h5py.File(file, "w") as out:
                for i, states in enumerate(batches(model, tokenizer, texts)):
                    out.create_dataset(str(i), data=states.numpy())
    return {"seconds": time.perf_counter() - start, "bytes": size(Path(file))}


def load(file: str, layer: str) -> dict[str, Any]:
    """Read one layer or all layers."""
    forget(Path(file))
    start, total, rows = time.perf_counter(), 0.0, 0
    wanted = slice(None) if layer == "all" else slice(int(layer), int(layer) + 1)
    if file.endswith(".pt"):
        for states in torch.load(file):
            total, rows = total + float(states[wanted].sum()), rows + states.shape[1]
    else:
        import h5py

        with h5py.File(file) as stored:
            for i in range(len(stored)):
                states = torch.from_numpy(stored[str(i)][wanted])
                total, rows = total + float(states.sum()), rows + states.shape[1]
    return {"seconds": time.perf_counter() - start, "sum": total, "rows": rows}


if __name__ == "__main__":
    action, *rest = sys.argv[1:]
    print(json.dumps(load(*rest) if action == "load" else extract(action, *rest)))
