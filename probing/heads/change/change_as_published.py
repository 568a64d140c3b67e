"""How attention differs between two checkpoints as Kovaleva et al. (2019) computed it: with the rows of padding.

The code published with the paper pads each sentence to 200 tokens and compares maps of 200 x 200 without cropping them
to the sentence. Most rows of such a map are rows of padding, so figure 5 of the paper may show the attention of
padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probing.cache import tokens_of
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.errors import UserError
from probing.heads.change.checkpoints import Checkpoint
from probing.heads.change.maps import OTHER_HEADS, SAME, change_row, head_rows, map_cosines, other_head_cosines
from probing.heads.measures import Accumulator, Kept
from probing.heads.reading import Attention, Batch
from probing.heads.rows import Rows
from probing.heads.sums import SumsStore
from probing.models import length_limits

# Number of tokens to which each sentence is padded, and maximum number of sentences that are compared.
PUBLISHED_LENGTH, PUBLISHED_SENTENCES = 200, 1000
# Most bytes of one checkpoint's maps that are held.
_HELD_BYTES = 2**26
COSINE, PADDING = "cosine_as_published", "padding_as_published"


def check_padding(model: Checkpoint) -> None:
    """Raise a UserError if the model takes too few tokens, or if its padding attends to nothing.

    Args:
        model: A checkpoint.
    """
    name, limit = model.request.source.name, length_limits(model.request.source, model.tokenizer)[1]
    if limit < PUBLISHED_LENGTH:
        raise UserError(
            f"`--as_published` pads sentences to {PUBLISHED_LENGTH} tokens, and {name} takes at most {limit}; leave "
            "the option out."
        )
    mask = torch.arange(PUBLISHED_LENGTH)[None] < 3
    with torch.inference_mode():
        maps = model.maps({"input_ids": torch.where(mask, 1, model.pad_token_id), "attention_mask": mask.long()})
    if not all(bool(torch.isfinite(one).all()) for one in maps.values()):
        raise UserError(
            f"`--as_published` compares the rows of padding, and in {name} they attend to no token, because its "
            "attention is local; leave the option out."
        )


@dataclass(frozen=True)
class PublishedChange:
    """The measure: each map, padded and not cropped, compared with that of another checkpoint.

    Args:
        model: A checkpoint.
        against: The other one, on the same sentences.
    """

    model: Checkpoint
    against: Checkpoint
    name: str = "change_as_published"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything other than model and corpus that changes the sums."""
        return {
            "version": 1, "against": self.against.request.key(),
            "length": PUBLISHED_LENGTH, "n_sentences": PUBLISHED_SENTENCES,
        }  # fmt: skip

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Load both checkpoints, cut sentences at the length, and return what makes an accumulator for each batch."""
        both = self.model.prepared(), self.against.prepared()
        request = self.model.request
        length = min(request.max_length or PUBLISHED_LENGTH, PUBLISHED_LENGTH)
        cut = tokens_of(replace(request, max_length=length), self.model.tokenizer)
        return lambda batch: _Compared(*both, cut, batch)


class _Compared:
    def __init__(self, model: Checkpoint, against: Checkpoint, cut: Tokens, batch: Batch) -> None:
        self.model, self.against, self.cut, self.batch = model, against, cut, batch

    def add(self, attention: Attention) -> None:
        """Padded maps are read by forward passes of their own."""

    @torch.inference_mode()
    def kept(self) -> Kept:
        sentences, heads = self.batch.sentences, self.model.heads
        cosines = torch.zeros(len(sentences), 2, heads.n_layers, heads.n_heads, dtype=torch.float64)
        padding = torch.zeros(len(sentences), dtype=torch.float64)
        compared = sentences.cpu() < PUBLISHED_SENTENCES
        held = heads.n_layers * heads.n_heads * PUBLISHED_LENGTH**2 * 4
        chosen = compared.nonzero()[:, 0]
        for some in chosen.split(max(_HELD_BYTES // held, 1)) if len(chosen) else ():
            inputs = {name: one.to(sentences.device) for name, one in self._padded(sentences[some].tolist()).items()}
            ours, theirs = (one.maps(inputs) for one in (self.model, self.against))
            for layer, maps in ours.items():
                found = (compare(maps, theirs[layer]) for compare in (map_cosines, other_head_cosines))
                cosines[some, :, layer - 1] = torch.stack(tuple(found), 1).cpu()
            padding[some] = 1 - inputs["attention_mask"].double().mean(1).cpu()
        return Kept({"cosine": cosines, "padding": padding, "compared": compared})

    def _padded(self, sentences: list[int]) -> dict[str, Tensor]:
        """Return what the models are given for sentences, each of shape (n, `PUBLISHED_LENGTH`)."""
        cut, shape = self.cut, (len(sentences), PUBLISHED_LENGTH)
        ids = torch.full(shape, self.model.pad_token_id)
        mask, types = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
        for i, sentence in enumerate(sentences):
            rows = cut.of_sentences(sentence, 1)
            n = rows.stop - rows.start
            ids[i, :n], mask[i, :n] = torch.from_numpy(cut.input_ids[rows].astype(np.int64)), 1
            if cut.token_types is not None:
                types[i, :n] = torch.from_numpy(cut.token_types[rows].astype(np.int64))
        found = {"input_ids": ids, "attention_mask": mask}
        return found if self.batch.token_types is None else {**found, "token_type_ids": types}


def published_rows(store: SumsStore, layers: list[int]) -> Rows:
    """Return the rows of cosines as published, with the share of padding in the rows of the maps.

    Args:
        store: The sums of `PublishedChange`.
        layers: The layers to report.
    """
    compared = store.by_sentence("compared").numpy()
    cosines, padding = (store.by_sentence(name).numpy()[compared] for name in ("cosine", "padding"))
    n = np.ones(len(cosines), dtype=np.int64)
    rows = [change_row(PADDING, SAME, None, None, padding, n), *head_rows(COSINE, SAME, layers, cosines[:, 0], n)]
    return rows + (head_rows(COSINE, OTHER_HEADS, layers, cosines[:, 1], n) if cosines.shape[3] > 1 else [])
