"""The parts of a head survey, each from sums over a corpus to rows of tables.

A part defines its needs of the corpus, its measures, and the step from sums to rows. To add a part, add an entry to
`PARTS`; the command, the files of a run and the cache need no change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import activations
from probing.errors import UserError, as_clause
from probing.heads.accumulation import (
    BatchValues,
    BlockAttention,
    Measure,
    SentenceBatch,
    StackedBlocks,
    SumsStore,
    accumulate,
)
from probing.heads.change import CHANGE
from probing.heads.fusion import FUSION
from probing.heads.measures import (
    NEGATION,
    PATTERNS,
    PROFILE,
    PUNCTUATION,
    SINK,
    Rows,
    SentenceDraws,
    attention_by_type,
    class_rows,
    counts_of,
    entropy_scale,
    in_one,
    mean_cells,
    measure_rows,
    profile_rows,
    type_rows,
    without_first_token,
)
from probing.heads.position import POSITION_HEADS, POSITION_PARTS, joined
from probing.heads.roles import ALL, role_rows, role_scores
from probing.heads.survey import STATES, HeadSurvey, SurveyInputs, SurveyPart
from probing.heads.syntax import has_arcs
from probing.heads.trees import TREEBANK_PARTS
from probing.results import count
from probing.runtime.processes import is_main_process
from probing.runtime.progress import note, stage
from probing.tables.heads import FIRST, SPECIAL

# --------------------------------------------------------------------------------------------------------------------
# How alike heads are, and how alike the attention of consecutive layers is.
# --------------------------------------------------------------------------------------------------------------------

# Maximum number of queries of a sentence by which heads are compared; of a longer sentence, this many evenly spaced
# queries are taken. So the maps of one batch that wait for the last block take at most heads x 64 x batch_tokens x 4
# bytes: 18 MiB for the 72 heads of the built-in model and the 1,024 tokens of a batch on a CPU, 96 MiB for the 384
# heads of bert-large.
QUERIES = 64
# Sums for each pair of heads are kept for groups of sentences, which are the clusters of the intervals. For each
# sentence, the 10,296 pairs of bert-base would take 82 kB.
GROUPS = 40
COSINES = ("cosine", "cosine_of_means", "cosine_matched")
JENSEN_SHANNON = "jensen_shannon"
_WITHOUT = "_without_special"


def jensen_shannon(maps: Tensor) -> Tensor:
    """Return the divergence of all pairs of heads, summed over the queries, shape (pairs,), float64.

    `maps` has rows that sum to 1, shape (heads, queries, keys). The pairs (0, 1), (0, 2), ..., (1, 2), ... are in the
    order of `torch.triu_indices(heads, heads, 1)`.
    """
    flat, n_queries = maps.flatten(1), maps.shape[1]
    entropies = _entropies(flat)
    # The entropy of the mean of p and q is half of -sum (p + q) ln (p + q), plus ln 2.
    divergences = [
        _entropies(flat[i + 1 :] + flat[i]) / 2 + n_queries * math.log(2) - (entropies[i + 1 :] + entropies[i]) / 2
        for i in range(len(flat) - 1)
    ]
    return torch.cat(divergences or [entropies[:0]]).clamp(0, n_queries * math.log(2))


def _entropies(values: Tensor) -> Tensor:
    """Return -sum x ln x of each row, shape (rows,), float64."""
    logarithms = values.clamp_min(torch.finfo(values.dtype).tiny).log_()  # twice as fast as `torch.special.entr`
    return -logarithms.mul_(values).sum(1, dtype=torch.float64)


def cosines(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Compare the maps of two layers, each of shape (batch, heads, from, to), in which excluded rows and columns are 0.

    Return the inner product of each head of `a` with each head of `b`, over the norms of all heads together, shape
    (batch, heads, heads), whose trace is the published cosine; and the cosine of the means over heads, shape (batch,).
    Both are float64, and 0 where a map is 0.
    """
    products = (a.flatten(2).double() @ b.flatten(2).double().transpose(1, 2)) / _norms(a, b)[:, None, None]
    mean_a, mean_b = (maps.double().mean(1, keepdim=True) for maps in (a, b))
    return products, (mean_a * mean_b).sum((1, 2, 3)) / _norms(mean_a, mean_b)


def _norms(a: Tensor, b: Tensor) -> Tensor:
    squares = [maps.double().square().sum((1, 2, 3)) for maps in (a, b)]
    return (squares[0] * squares[1]).sqrt().clamp_min(torch.finfo(torch.float64).tiny)


def without_special(probabilities: Tensor, batch: SentenceBatch) -> Tensor:
    """Return maps in which special tokens neither attend nor are attended to; rows sum to 1 or are 0."""
    ordinary = batch.ordinary[:, :, None] & batch.ordinary[:, None, :]
    masked = torch.where(ordinary[:, None], probabilities, 0.0)
    return masked / masked.sum(3, keepdim=True).clamp_min(torch.finfo(masked.dtype).tiny)


class _BatchMaps:
    def __init__(self, batch: SentenceBatch) -> None:
        self.batch = batch
        self.groups = batch.sentences % GROUPS
        self.lengths = batch.lengths.tolist()
        queries = [torch.from_numpy(queries_of(n)).to(batch.mask.device) for n in self.lengths]
        self.queries, self.first = queries, batch.first.tolist()
        self.counted = torch.stack([batch.lengths > 1, batch.ordinary.sum(1) > 1], dim=1).double()
        self.maps_by_sentence: list[list[Tensor]] = [[] for _ in self.lengths]
        self.last: list[Tensor] = []
        self.published: list[Tensor] = []
        self.of_means: list[Tensor] = []
        self.products: list[Tensor] = []

    def add(self, attention: BlockAttention) -> None:
        for i, (rows, first, n) in enumerate(zip(self.queries, self.first, self.lengths, strict=True)):
            self.maps_by_sentence[i].append(attention.probabilities[i][:, first + rows, first : first + n].float())
        maps = [attention.probabilities.clone(), without_special(attention.probabilities, self.batch)]
        if self.last:
            pairs = [cosines(a, b) for a, b in zip(self.last, maps, strict=True)]
            products = torch.stack([products for products, _ in pairs], 1) * self.counted[:, :, None, None]
            self.published.append(products.diagonal(dim1=2, dim2=3).sum(2))
            self.of_means.append(torch.stack([of_means for _, of_means in pairs], 1) * self.counted)
            self.products.append(self._by_group(products))
        self.last = maps

    def batch_values(self) -> BatchValues:
        divergences = torch.stack([jensen_shannon(torch.cat(maps)) for maps in self.maps_by_sentence])
        by_sentence = {"counted": self.counted}
        totals = {JENSEN_SHANNON: self._by_group(divergences)}
        if self.products:
            by_sentence |= {"cosine": torch.stack(self.published, 1), "cosine_of_means": torch.stack(self.of_means, 1)}
            totals["products"] = torch.stack(self.products, 1)
        return BatchValues(by_sentence, total=totals)

    def _by_group(self, values: Tensor) -> Tensor:
        sums = torch.zeros(GROUPS, *values.shape[1:], dtype=torch.float64, device=values.device)
        return sums.index_add_(0, self.groups, values.double())


SIMILARITY = Measure(
    "similarity", lambda tokens, corpus: _BatchMaps, {"version": 1, "queries": QUERIES, "groups": GROUPS}
)


def queries_of(n_tokens: int) -> NDArray[np.int64]:
    """Return the queries, ascending, by which the heads are compared in a sentence of `n_tokens` tokens."""
    if n_tokens <= QUERIES:
        return np.arange(n_tokens)
    return np.linspace(0, n_tokens - 1, QUERIES).round().astype(np.int64)


def similarity_rows(
    store: SumsStore, n_layers: int, n_heads: int, lengths: NDArray[Any] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of `similarity.csv`.

    A row compares two heads (`jensen_shannon`, in nats, a mean over queries), or two consecutive layers (cosines, means
    over sentences). Confidence intervals are over sentences, but over groups of sentences for pairs of heads and
    matched heads. `lengths`, shape (n_sentences,), counts the measured tokens of each sentence; None for all.
    """
    lengths = store.tokens.lengths if lengths is None else lengths
    n_queries = _grouped(np.minimum(lengths, QUERIES).astype(np.int64))
    sums = store.total(JENSEN_SHANNON).numpy()
    names = [(layer, head) for layer in range(1, n_layers + 1) for head in range(1, n_heads + 1)]
    first, second = np.triu_indices(len(names), 1)
    rows = [
        _row(JENSEN_SHANNON, *names[i], *names[j], sums[:, pair], n_queries)
        for pair, (i, j) in enumerate(zip(first.tolist(), second.tolist(), strict=True))
    ]
    if n_layers > 1:
        rows += _layer_rows(store, n_layers)
    return rows


def _layer_rows(store: SumsStore, n_layers: int) -> list[dict[str, Any]]:
    counted = store.by_sentence("counted").numpy().astype(np.int64)
    products = store.total("products").numpy()
    rows = []
    for k, ending in enumerate(("", _WITHOUT)):
        by_group = _grouped(counted[:, k])
        for name in COSINES:
            for i in range(n_layers - 1):
                if name == "cosine_matched":
                    sums, n = matched(products[:, i, k]), by_group
                else:
                    sums, n = store.by_sentence(name)[:, i, k].numpy(), counted[:, k]
                rows.append(_row(name + ending, i + 1, None, i + 2, None, sums, n))
    return rows


def matched(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine of best-matched heads, summed over each group, shape (groups,).

    Each head is matched with one head of the other layer so that the mean cosine is the largest (the assignment
    problem). The best matching of the odd groups is applied to the even groups, and vice versa, so that the choice
    among many matchings does not inflate the cosine. `products` are the sums over each group of the products of
    `cosines`.
    """
    from scipy.optimize import linear_sum_assignment

    cosines = np.zeros(len(products))
    for side in (0, 1):
        heads, others = linear_sum_assignment(products[1 - side :: 2].sum(0), maximize=True)
        cosines[side::2] = products[side::2, heads, others].sum(1)
    return cosines


def _grouped(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array([values[group::GROUPS].sum() for group in range(GROUPS)])


def _row(
    measure: str, layer: int, head: int | None, other_layer: int, other_head: int | None,
    sums: NDArray[np.float64], n: NDArray[np.int64],
) -> dict[str, Any]:  # fmt: skip
    return {
        "measure": measure, "layer": layer, "head": head, "other_layer": other_layer, "other_head": other_head,
        **mean_cells(sums, n),
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# Attention rollout: which tokens the vectors after each block are composed of (Abnar & Zuidema 2020).
# --------------------------------------------------------------------------------------------------------------------

# The tokens whose vectors are described.
ROLLOUT_QUERIES = ("words", "special tokens")
# Shares of a vector, which sum to 1, each token counted once; then what describes all shares of a vector together.
SHARES = ("self", "special_tokens", "previous", "next", "others")
MEASURES = (*SHARES, "distance", "entropy")


class _Rollout(StackedBlocks):
    """The product so far: for each sentence of a batch one map, not a map of each head."""

    def __init__(self, batch: SentenceBatch) -> None:
        super().__init__(self._sums, as_values=self._with_counts)
        self.batch = batch
        self.product = torch.eye(batch.mask.shape[1], dtype=torch.float64, device=batch.mask.device)

    def _sums(self, attention: BlockAttention) -> dict[str, Tensor]:
        residual_maps = with_residual(attention.probabilities.mean(1, dtype=torch.float64))
        both = torch.stack([residual_maps, with_residual(attention.uniform(self.batch))], dim=1)
        self.product = both @ self.product
        return {"sums": described(self.product, self.batch)}

    def _with_counts(self, sums: dict[str, Tensor]) -> BatchValues:
        chosen = torch.stack([self.batch.ordinary, self.batch.special], dim=1)
        has_entropy = chosen & (entropy_scale(reached(self.product, self.batch)) > 0)[:, None]
        return BatchValues({**sums, "counts": torch.stack([chosen.sum(2), has_entropy.sum(2)], dim=2)})


# The measure: attention rollout (Abnar & Zuidema 2020), the rows of the product after every block. `sums` has shape
# (n_sentences, n_layers, 2, queries, measures), where 2 is for the model and for uniform attention. `counts` has shape
# (n_sentences, queries, 2): the number of tokens, and of tokens with an entropy.
ROLLOUT = Measure("rollout", lambda tokens, corpus: _Rollout, {"version": 2})


def with_residual(maps: Tensor) -> Tensor:
    """Return (I + A) / 2, with rows of A rescaled to sum to 1 (half precision is inexact), (batch, from, to)."""
    scaled = maps / maps.sum(2, keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)
    return (scaled + torch.eye(maps.shape[2], dtype=maps.dtype, device=maps.device)) / 2


def described(products: Tensor, batch: SentenceBatch) -> Tensor:
    """Return sums over the tokens of each sentence, shape (batch, maps, queries, measures), float64.

    Each share is counted once: the token itself; other special tokens; the previous and the next token unless special;
    all others. `distance` is in tokens. `entropy` is relative to equal shares of the tokens that a token sees through
    the blocks so far. `products` has rows that sum to 1, shape (batch, maps, from, to), the last map with uniform
    attention in all blocks.
    """
    n, device = products.shape[-1], products.device
    steps = torch.arange(n, device=device)
    offsets = steps - steps[:, None]
    itself, special = offsets == 0, batch.special[:, None] & (offsets != 0)
    neighbours = [(offsets == step) & ~special for step in (-1, 1)]
    known = itself | special | neighbours[0] | neighbours[1]
    groups = (itself.expand_as(known), special, *neighbours, ~known)
    by_token = [(products * group[:, None]).sum(3) for group in groups]
    by_token.append((products * offsets.abs()).sum(3))
    by_token.append(torch.special.entr(products).sum(3) * entropy_scale(reached(products, batch))[:, None])
    chosen = torch.stack([batch.ordinary, batch.special], dim=1).double()
    return chosen[:, None] @ torch.stack(by_token, dim=3)


def reached(products: Tensor, batch: SentenceBatch) -> Tensor:
    """Return values above 0 for the tokens that a token sees through the blocks so far, shape (batch, from, to)."""
    return torch.where(batch.mask[:, :, None], products[:, -1], 0.0)


def rollout_rows(sums: Tensor, counts: Tensor, layers: Sequence[int], sentences: SentenceDraws) -> Rows:
    """Return the rows of `rollout.csv`: for the vectors after each block, a row for each kind of token and measure."""
    sums_of_layers = sums[:, [layer - 1 for layer in layers]].numpy()
    rows: dict[tuple[int, int, int], dict[str, Any]] = {}
    for q, m in np.ndindex(len(ROLLOUT_QUERIES), len(MEASURES)):
        counted = counts[:, q, int(MEASURES[m] == "entropy")].numpy()
        if not counted.any():
            continue
        means = sentences.means(sums_of_layers[:, :, :, q, m], counted)
        for i, layer in enumerate(layers):
            uniform = float(means.values[i, 1])
            rows[i, q, m] = {
                "layer": layer, "query": ROLLOUT_QUERIES[q], "measure": MEASURES[m],
                **means.row(i, 0), "uniform": uniform,
            }  # fmt: skip
    return [row for _, row in sorted(rows.items())]


# --------------------------------------------------------------------------------------------------------------------
# The part of a survey that follows role links, in sentences of their own or in those of a treebank.
# --------------------------------------------------------------------------------------------------------------------


def _lacks_roles(survey: HeadSurvey) -> str | None:
    corpus = survey.request.corpus
    if survey.role_links is None and not has_arcs(corpus):
        return (
            "role links, given as --roles FILE or read from the columns head and deprel of a .conllu file, and "
            f"`--corpus {corpus.name}` has no such columns"
        )
    try:
        request, pairs = survey.roles
    except UserError as error:
        return f"role links, and {as_clause(error)}"
    if not len(pairs.placements[ALL].links):
        return (
            "pairs of words that look like a role link and are none (the same distance, place in the sentence, "
            f"parts of speech and numbers of words and pieces), and `{request.corpus.name}` has none; give more "
            "sentences"
        )
    return None


def _tables(survey: HeadSurvey, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    rows = role_rows(stores["roles/roles"], survey.roles[1], survey.seed)
    return {"roles": [row for row in rows if row["layer"] in survey.layers]}


ROLES = SurveyPart(
    "roles", _tables, needs=_lacks_roles,
    beside=lambda survey: [SurveyInputs("roles", survey.roles[0], [role_scores(survey.roles[1])])],
)  # fmt: skip


def measurable(survey: HeadSurvey, names: Sequence[str], by_name: bool) -> tuple[list[SurveyPart], dict[str, str]]:
    """Return the parts that can be measured, and the missing requirement of each other part.

    Raises:
        UserError: If the user named a part (`by_name`) that cannot be measured.
    """
    selected = [part for part in PARTS if part.name in names]
    lacking = {part.name: lack for part in selected if (lack := _lacks(survey, part))}
    if by_name and lacking:
        name, lack = next(iter(lacking.items()))
        raise UserError(f"`--parts {name}` needs {lack}.")
    return [part for part in selected if part.name not in lacking], lacking


def _lacks(survey: HeadSurvey, part: SurveyPart) -> str | None:
    """Return the missing requirement of a part, as the end of a sentence."""
    if survey.without_first and not part.excludes_first:
        return "`--first_token include`, under which all tokens are measured"
    return _lacks_sentences(survey, part) or part.needs(survey)


def _lacks_sentences(survey: HeadSurvey, part: SurveyPart) -> str | None:
    """Return the missing requirement if the corpus has pairs of sentences and the part cannot read them."""
    corpus = survey.request.corpus
    has_role_file = part.name == ROLES.name and survey.role_links is not None
    if corpus.seconds is None or part.reads_pairs or has_role_file:
        return None
    if part in (FUSION, *POSITION_PARTS):
        return f"single sentences, given as --corpus, and `--pairs {corpus.name}` has pairs of sentences"
    return (
        "single sentences with the columns of a treebank, given as --corpus FILE.conllu, and "
        f"`--pairs {corpus.name}` has pairs of sentences without them"
    )


def measure(
    survey: HeadSurvey,
    parts: Sequence[SurveyPart],
    cache: Path,
    trainer_options: Mapping[str, Any],
    say: Callable[[str], None],
) -> tuple[dict[str, Rows], dict[str, SumsStore]]:
    """Read each corpus once for all parts; return tables (none except on the rank-zero process) and sums."""
    stores: dict[str, SumsStore] = {}
    for name, readings in _readings(survey, parts).items():
        about = f"attention of {count(survey.heads.n_layers, 'block')}"
        with stage(f"{about}, {name}" if name else about):
            stores |= _sums(survey, name, readings, cache, trainer_options, say)
    if not is_main_process():  # it has read its share of the corpus
        for part in parts:
            if part.trains:
                part.rows(survey, stores)
        return {}, stores
    tables: dict[str, Rows] = {}
    with stage(f"tables of {count(len(parts), 'part')}", len(parts)) as advance:
        for part in parts:
            note(part.name)
            for name, rows in part.rows(survey, stores).items():
                before = tables.setdefault(name, [])
                if name == POSITION_HEADS and before:  # further columns of the same heads
                    tables[name] = joined(before, rows)
                else:
                    before.extend(rows)
            advance(1)
    return tables, stores


def n_stages(survey: HeadSurvey, parts: Sequence[SurveyPart]) -> int:
    """Return the number of stages of `measure`."""
    return len(_readings(survey, parts)) + 1


def _readings(survey: HeadSurvey, parts: Sequence[SurveyPart]) -> dict[str, list[SurveyInputs]]:
    """Return the inputs of the parts by name of the text; first the corpus itself, whose name is empty."""
    corpus_reading = SurveyInputs("", survey.request, [measure for part in parts for measure in part.measures(survey)])
    by_text: dict[str, list[SurveyInputs]] = {}
    for reading in [corpus_reading, *(reading for part in parts for reading in part.beside(survey))]:
        by_text.setdefault(reading.name, []).append(reading)
    return by_text


def _sums(
    survey: HeadSurvey, name: str, readings: Sequence[SurveyInputs], cache: Path, trainer_options: Mapping[str, Any],
    say: Callable[[str], None],
) -> dict[str, SumsStore]:  # fmt: skip
    stores: dict[str, SumsStore] = {}
    distinct = {measure.name: measure for reading in readings for measure in reading.measures}
    request = readings[0].request
    if distinct:
        seen = [
            without_first_token(measure) if survey.without_first and measure is not SINK else measure
            for measure in distinct.values()
        ]
        new_stores = accumulate(request, seen, cache, trainer_options, say)
        stores |= {f"{name}/{measure}" if name else measure: store for measure, store in new_stores.items()}
    if any(reading.states for reading in readings):
        read = replace(request, layers=range(survey.heads.n_layers))
        stores[f"{name}/{STATES}"] = cast(Any, activations(read, cache, trainer_options, say))
    return stores


# --- the parts ---


def _class_tables(survey: HeadSurvey, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    sums = stores["patterns"].all_by_sentence()
    return {"attention_classes": class_rows(sums, survey.lengths, survey.layers, survey.sentences)}


def _profile_tables(survey: HeadSurvey, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    return profile_rows(stores["profile"].all_by_sentence(), survey.lengths, survey.layers, survey.sentences)


def _first_token_tables(survey: HeadSurvey, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    later = np.maximum(survey.tokens.lengths - 1, 0)
    return in_one(
        measure_rows(summed.numpy(), later, survey.layers, survey.sentences, measure=name, to=FIRST)
        for name, summed in stores[SINK.name].all_by_sentence().items()
    )


# Types that need no annotation of words, beside the special tokens.
_OF_TOKENS = (PUNCTUATION, NEGATION)
# Names of the measures of other types, and of the types that need it.
_ATTENDED = ("attended", "attended_words")


def _types(survey: HeadSurvey, of_words: bool) -> dict[str, NDArray[np.bool_]]:
    """Return the types of tokens that need the annotation of words, or those that need none."""
    plain = {*_OF_TOKENS, *survey.special_tokens.values()}
    return {name: members for name, members in survey.types.items() if (name not in plain) == of_words}


def _type_tables(survey: HeadSurvey, stores: Mapping[str, SumsStore], of_words: bool) -> dict[str, Rows]:
    counts = counts_of({SPECIAL: survey.special, **_types(survey, of_words)}, survey.tokens)
    sums = stores[_ATTENDED[of_words]].all_by_sentence()
    leave_out = [SPECIAL] if of_words or not survey.special.any() else []
    return type_rows(sums, counts, survey.lengths, survey.layers, survey.sentences, leave_out)


def _lacks_columns(survey: HeadSurvey) -> str | None:
    if {"upos", "deprel"} & set(survey.request.corpus.columns):
        return None
    return (
        f"a corpus with the columns upos or deprel, such as a .conllu file, and `{survey.request.corpus.name}` has "
        "neither"
    )


def _part_of_types(name: str, of_words: bool, **needs: Any) -> SurveyPart:
    def measures(survey: HeadSurvey) -> list[Measure]:
        return [attention_by_type(_types(survey, of_words), _ATTENDED[of_words])]

    return SurveyPart(name, partial(_type_tables, of_words=of_words), measures, **needs)


def _similarity_tables(survey: HeadSurvey, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    rows = similarity_rows(stores["similarity"], survey.heads.n_layers, survey.heads.n_heads, survey.lengths)
    reported = set(survey.layers)
    return {"similarity": [row for row in rows if {row["layer"], row["other_layer"]} <= reported]}


def _rollout_tables(survey: HeadSurvey, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    sums, counts = (stores[ROLLOUT.name].by_sentence(name) for name in ("sums", "counts"))
    return {"rollout": rollout_rows(sums, counts, survey.layers, survey.sentences)}


_OF_ALL: dict[str, Any] = {"reads_pairs": True, "excludes_first": True}
PARTS = (
    SurveyPart("classes", _class_tables, lambda survey: [PATTERNS], **_OF_ALL),
    SurveyPart("profile", _profile_tables, lambda survey: [PROFILE], **_OF_ALL),
    _part_of_types("tokens", of_words=False, **_OF_ALL),
    _part_of_types("words", of_words=True, needs=_lacks_columns, excludes_first=True),
    SurveyPart("first_token", _first_token_tables, lambda survey: [SINK], by_name_only=True, **_OF_ALL),
    SurveyPart("rollout", _rollout_tables, lambda survey: [ROLLOUT], **_OF_ALL),
    SurveyPart("similarity", _similarity_tables, lambda survey: [SIMILARITY], **_OF_ALL),
    *TREEBANK_PARTS,
    ROLES,
    CHANGE,
    FUSION,
    *POSITION_PARTS,
)  # fmt: skip
NAMES = [part.name for part in PARTS]
# Parts that are measured by default, and those that are added by `--first_token exclude`, by `--against` and by
# `--run`.
USUAL = [part.name for part in PARTS if not part.by_name_only]
OF_FIRST = ["first_token"]
OF_AGAINST = [CHANGE.name]
OF_RUNS = [part.name for part in POSITION_PARTS]
