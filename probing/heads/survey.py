"""What each head does, as tables: its class, how far it reaches, and which tokens it attends to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache import Request, tokens_of
from probing.heads.accumulation import accumulate
from probing.heads.attended import SPECIAL, Attended, types_of
from probing.heads.measures import BlockMeasure, Measure
from probing.heads.patterns import CLASSES, SWEEP, classify, patterns
from probing.heads.profile import n_queries, profile
from probing.heads.sums import SumsStore
from probing.models import load_tokenizer
from probing.statistics.intervals import mean_interval

Rows = list[dict[str, Any]]

PROFILE = BlockMeasure("profile", profile, {"version": 1})
PATTERNS = BlockMeasure("patterns", patterns, {"version": 1})

HEADS_COLUMNS = ("layer", "head", "measure", "to", "value", "low", "high", "n")
CLASSES_COLUMNS = (
    "layer", "head", "v", "d", "class", "share", "share_lower_thresholds", "share_higher_thresholds", "class_entropy",
    "n",
)  # fmt: skip
SHARES_COLUMNS = ("class", "share", "low", "high", "share_lower_thresholds", "share_higher_thresholds", "n")


@dataclass(frozen=True)
class Survey:
    """What the heads of a model do over a corpus.

    Args:
        heads: A row for each layer, head, measure and, where it has one, type of token: its mean with its interval by
            sentence, and `n`, the number of sentences that it goes over.
        classes: A row for each layer and head: its most frequent class and the share of sentences that have it.
        shares: A row for each class: its share of all maps, also with all thresholds a quarter lower and higher.
    """

    heads: Rows
    classes: Rows
    shares: Rows


def head_rows(
    profiles: Mapping[str, Tensor], attended: Mapping[str, Tensor], lengths: Tensor, types: Sequence[str]
) -> Rows:
    """Return the rows of `heads.csv`.

    Args:
        profiles: What `profile` returned, each of shape (n_sentences, n_layers, heads).
        attended: What `attended` returned, each of shape (n_sentences, n_layers, heads, types).
        lengths: Number of tokens of each sentence, shape (n_sentences,).
        types: Names of the types.

    Returns:
        Measures without a type: `entropy`, in units of uniform attention's; `distance`, in tokens; `self`, `previous`,
        `next`. With a type in `to`: `mass`, the mean over queries of the attention to it; `lift`, the mass over the
        type's share of the tokens; `norm_mass`; `column_max`, the mean over the sentences that have the type.
    """
    rows: Rows = []
    for measure, counts in n_queries(profiles, lengths).items():
        rows += _rows(measure, "", profiles[measure], counts)
    n_of_type = attended["n_tokens"].flatten(1, 2)[:, 0]
    for i, name in enumerate(types):
        n_tokens = n_of_type[:, i]
        for measure, counts in {
            "mass": lengths, "lift": n_tokens, "norm_mass": lengths, "column_max": (n_tokens > 0).long()
        }.items():  # fmt: skip
            sums = attended.get("mass" if measure == "lift" else measure)
            if sums is not None:
                rows += _rows(measure, name, sums[..., i], counts)
    return sorted(rows, key=lambda row: (row["layer"], row["head"]))


def _rows(measure: str, to: str, sums: Tensor, counts: Tensor) -> Rows:
    """Return a row for each layer and head; sums of shape (n_sentences, n_layers, heads), counts (n_sentences,)."""
    values, n = sums.numpy(), counts.numpy()
    rows: Rows = []
    for layer in range(values.shape[1]):
        for head in range(values.shape[2]):
            # A sentence without a token of the type has attention 0 to it, which is part of the sum.
            low, high = mean_interval(values[:, layer, head], n.astype(np.int64))
            rows.append(
                {
                    "layer": layer + 1,
                    "head": head + 1,
                    "measure": measure,
                    "to": to,
                    "value": float(values[:, layer, head].sum() / max(n.sum(), 1)),
                    "low": low,
                    "high": high,
                    "n": int((n > 0).sum()),
                }
            )
    return rows


def class_rows(v: Tensor, d: Tensor) -> tuple[Rows, Rows]:
    """Return the rows of `attention_classes.csv`, and those of the shares of all maps.

    Args:
        v: How vertical each map is, shape (n_sentences, n_layers, heads).
        d: How diagonal it is, of the same shape.
    """
    found = {factor: classify(v, d, factor=factor).numpy() for factor in (1.0, *SWEEP)}
    counts = {factor: _one_hot(classes) for factor, classes in found.items()}
    by_head = {factor: values.mean(0) for factor, values in counts.items()}  # (n_layers, heads, classes)
    n, n_layers, n_heads = v.shape
    rows: Rows = []
    for layer in range(n_layers):
        for head in range(n_heads):
            shares = by_head[1.0][layer, head]
            chosen = int(shares.argmax())
            seen = shares[shares > 0]
            rows.append(
                {
                    "layer": layer + 1,
                    "head": head + 1,
                    "v": float(v[:, layer, head].mean()),
                    "d": float(d[:, layer, head].mean()),
                    "class": CLASSES[chosen],
                    "share": float(shares[chosen]),
                    "share_lower_thresholds": float(by_head[SWEEP[0]][layer, head, chosen]),
                    "share_higher_thresholds": float(by_head[SWEEP[1]][layer, head, chosen]),
                    "class_entropy": float(-(seen * np.log(seen)).sum()),
                    "n": n,
                }
            )
    of_all = {factor: values.mean((0, 1, 2)) for factor, values in counts.items()}
    totals: Rows = []
    for i, name in enumerate(CLASSES):
        low, high = mean_interval(counts[1.0][..., i].sum((1, 2)), np.full(n, n_layers * n_heads))
        totals.append(
            {
                "class": name,
                "share": float(of_all[1.0][i]),
                "low": low,
                "high": high,
                "share_lower_thresholds": float(of_all[SWEEP[0]][i]),
                "share_higher_thresholds": float(of_all[SWEEP[1]][i]),
                "n": n,
            }
        )
    return rows, totals


def _one_hot(classes: NDArray[np.int64]) -> NDArray[np.float64]:
    return (classes[..., None] == np.arange(len(CLASSES))).astype(np.float64)


def survey(
    profiles: Mapping[str, Tensor],
    stripes: Mapping[str, Tensor],
    attended: Mapping[str, Tensor],
    lengths: Tensor,
    types: Sequence[str],
) -> Survey:
    """Return the tables; the arguments are those of `head_rows` and, as `stripes`, what `patterns` returned.

    Sentences without tokens are left out.
    """
    kept = lengths > 0
    profiles, stripes, attended = (
        {name: values[kept] for name, values in sums.items()} for sums in (profiles, stripes, attended)
    )
    classes, shares = class_rows(stripes["v"], stripes["d"])
    return Survey(head_rows(profiles, attended, lengths[kept], types), classes, shares)


def read_survey(
    request: Request,
    cache: Path,
    trainer_options: Mapping[str, Any],
    say: Callable[[str], None] = lambda message: None,
    callbacks: Sequence[Any] = (),
) -> tuple[Survey, SumsStore]:
    """Survey the heads of a model over a corpus in one pass; return the tables and an entry with the table of tokens.

    Parts of speech, subjects and objects are among the types of tokens if the corpus has the columns of a treebank.

    Args:
        request: Model and corpus.
        cache: The cache folder, where the sums are kept.
        trainer_options: Lightning's `Trainer` arguments; only those that concern a forward pass are used.
        say: Called with one-line messages.
        callbacks: Lightning callbacks, such as a progress bar.

    Raises:
        UserError: If the model has no attention weights or cannot be loaded, or the cache cannot be written.
    """
    tokenizer = load_tokenizer(request.source)
    tokens = tokens_of(request, tokenizer)
    special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    types = types_of(tokens, request.corpus, special)
    digest = hashlib.sha256(b"".join(members.tobytes() for members in types.values())).hexdigest()[:16]
    measures: list[Measure] = [PROFILE, PATTERNS, Attended(types, digest)]
    stores = accumulate(request, measures, cache, trainer_options, say, callbacks)
    profiles, stripes, attended = (sums_of(stores[measure.name]) for measure in measures)
    store = stores[PROFILE.name]
    return survey(profiles, stripes, attended, lengths_of(store), [SPECIAL, *types]), store


def sums_of(store: SumsStore) -> dict[str, Tensor]:
    """Return everything that a measure kept by sentence, by its name."""
    names = [name.removeprefix("by_sentence/") for name in store.names() if name.startswith("by_sentence/")]
    return {name: store.by_sentence(name) for name in names}


def lengths_of(store: SumsStore) -> Tensor:
    """Return the number of tokens of each sentence, shape (n_sentences,)."""
    return torch.from_numpy(store.tokens.lengths.astype(np.int64))
