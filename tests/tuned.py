"""Copies of tiny checkpoints in which something is changed, as fine-tuning would change it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import make_sentences
from families import untouched
from probing.cache import Request
from probing.corpus import from_sentences
from probing.models import resolve_model

# The block whose queries `other_queries` changes, from 1.
CHANGED = 2


def tuned(folder: Path, change: Callable[[Any], None]) -> Path:
    """Save a copy of a checkpoint beside it, after a function has changed its model in place."""
    import torch

    other = folder.with_name(f"{folder.name}-tuned")
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    model = untouched(folder)
    with torch.no_grad():
        change(model)
    model.save_pretrained(other)
    return other


def other_queries(model: Any) -> None:
    """Draw the query matrix of one block of BERT anew."""
    import torch

    query = model.encoder.layer[CHANGED - 1].attention.self.query.weight
    query.copy_(torch.randn(query.shape, generator=torch.Generator().manual_seed(0)))


def other_padding(model: Any) -> None:
    """Draw the embedding of BERT's padding token anew, which changes the rows of padding alone."""
    import torch

    row = model.embeddings.word_embeddings.weight[0]
    row.copy_(torch.randn(row.shape, generator=torch.Generator().manual_seed(0)))


def other_second_sentences(model: Any) -> None:
    """Draw the embedding of BERT's second token type anew, which changes pairs of sentences alone."""
    import torch

    row = model.embeddings.token_type_embeddings.weight[1]
    row.copy_(torch.randn(row.shape, generator=torch.Generator().manual_seed(0)))


def asked(folder: Path, n: int = 30, longest: int = 8) -> Request:
    """Return what is asked of a checkpoint: all its layers over a few sentences."""
    corpus = from_sentences("made up", make_sentences(n, longest=longest))
    return Request(resolve_model(str(folder)), corpus, (0, 1, 2, 3), batch_tokens=150)
