"""Entropy, distance, neighbours, and what types of tokens get: against loops in float64, by definition."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from probing.cache import Request, load, tokens_of
from probing.corpus import Corpus, from_sentences
from probing.heads.accumulation import Attention, Batch, BlockMeasure, accumulate, attention_of
from probing.heads.rows import n_queries, profile
from probing.heads.subject import NEGATION, PUNCTUATION, SPECIAL, Attended, attended, types_of
from probing.models import load_tokenizer, resolve_model
from probing.models.anatomy import examine
from probing.models.attention_heads import OutputProjection, find_heads, read_heads

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")

LENGTHS = (7, 4, 1)


def made_up(is_causal: bool) -> tuple[Attention, Batch, Tensor]:
    """Return random attention of three heads over a padded batch, and types of tokens."""
    generator = torch.Generator().manual_seed(0)
    n, length, heads, width = len(LENGTHS), max(LENGTHS), 3, 5
    mask = torch.arange(length) < torch.tensor(LENGTHS)[:, None]
    special = mask.clone()
    special[:, 1:] = False
    ids = torch.arange(n * length).view(n, length)
    batch = Batch(torch.arange(n), ids, ids, mask, special, ids, is_causal)
    scores = torch.randn(n, heads, length, length, generator=generator) * 2
    seen = mask[:, None, None, :] & (torch.ones(length, length).tril().bool() if is_causal else torch.tensor(True))
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    matrix = torch.randn(heads, width, 6, generator=generator)
    values = torch.randn(n, heads, length, width, generator=generator)
    types = (torch.rand(n, length, 3, generator=generator) < 0.4) & mask[:, :, None]
    types[1, :, 2] = False  # a sentence without a type
    return attention_of(1, weights, values, OutputProjection(matrix, torch.zeros(6)), batch), batch, types


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_profile_is_that_of_a_loop(is_causal: bool) -> None:
    attention, batch, _ = made_up(is_causal)
    found = dict(profile(attention, batch))
    assert found.pop("n_entropy").flatten().tolist() == [6 if is_causal else 7, 3 if is_causal else 4, 0]
    for s, n in enumerate(LENGTHS):
        for h in range(3):
            rows = attention.probabilities[s, h, :n, :n].numpy().astype(np.float64)
            expected: dict[str, float] = dict.fromkeys(found, 0.0)
            for i in range(n):
                keys = i + 1 if is_causal else n
                if keys > 1:
                    expected["entropy"] -= sum(p * math.log(p) for p in rows[i] if p) / math.log(keys)
                expected["distance"] += sum(p * abs(i - j) for j, p in enumerate(rows[i]))
                expected["self"] += rows[i, i]
                expected["previous"] += rows[i, i - 1] if i else 0
                expected["next"] += rows[i, i + 1] if i + 1 < n else 0
            assert {name: float(values[s, h]) for name, values in found.items()} == pytest.approx(expected, abs=1e-6)


def test_means_over_queries_of_uniform_and_of_pure_attention() -> None:
    _, batch, _ = made_up(False)
    lengths = torch.tensor(LENGTHS)
    uniform = Attention(1, batch.uniform[:, None].float(), torch.zeros(3, 1, 7, 2), None)
    sums = profile(uniform, batch)
    counts = n_queries({name: values[:, None] for name, values in sums.items()}, lengths)
    mean = {name: float(sums[name].sum() / counts[name].sum()) for name in counts}
    assert mean["entropy"] == pytest.approx(1)
    pairs = sum(1 / n for n in LENGTHS for _ in range(n))
    assert mean["self"] == pytest.approx(pairs / sum(LENGTHS))
    shifted = torch.diag(torch.ones(6), -1).expand(3, 1, 7, 7) * batch.mask[:, None, :, None]
    previous = profile(Attention(1, shifted, torch.zeros(3, 1, 7, 2), None), batch)
    assert float(previous["previous"].sum() / counts["previous"].sum()) == 1
    assert float(previous["entropy"].sum()) == 0


@pytest.mark.parametrize("is_causal", [False, True])
def test_what_types_get_is_that_of_a_loop(is_causal: bool) -> None:
    attention, batch, types = made_up(is_causal)
    found = attended(attention, batch, types)
    assert torch.equal(found["n_tokens"][:, 0], types.sum(1).double())
    seen = batch.uniform.numpy()
    expected = [[seen[s][:, types[s, :, t].numpy()].sum() for t in range(3)] for s in range(3)]
    assert found["expected"][:, 0].tolist() == [pytest.approx(row) for row in expected]
    assert attention.projection
    for s, n in enumerate(LENGTHS):
        for h in range(3):
            rows = attention.probabilities[s, h, :n, :n].numpy().astype(np.float64)
            vectors = (attention.values[s, h, :n].double() @ attention.projection.matrix[h].double()).numpy()
            weighted = rows * np.linalg.norm(vectors, axis=1)
            weighted /= weighted.sum(1, keepdims=True)
            for t in range(3):
                members = np.flatnonzero(types[s, :n, t].numpy())
                assert float(found["mass"][s, h, t]) == pytest.approx(rows[:, members].sum(), abs=1e-6)
                assert float(found["norm_mass"][s, h, t]) == pytest.approx(weighted[:, members].sum(), abs=1e-5)
                largest = max((rows[:, j].mean() for j in members), default=0.0)
                assert float(found["column_max"][s, h, t]) == pytest.approx(largest, abs=1e-6)


def test_equal_norms_change_no_mass_and_a_vector_of_norm_0_gets_none() -> None:
    attention, batch, types = made_up(False)
    same = Attention(1, attention.probabilities, torch.ones_like(attention.values), attention.projection)
    found = attended(same, batch, types)
    assert_close(found["norm_mass"], found["mass"], rtol=1e-5, atol=1e-6)
    values = attention.values.clone()
    values[:, :, 0] = 0  # the first token, as [CLS] is where a head has nothing to do
    first = torch.zeros_like(types[:, :, :1])
    first[:, 0] = True
    found = attended(Attention(1, attention.probabilities, values, attention.projection), batch, first)
    assert not found["norm_mass"].any()
    assert float(found["mass"].min()) > 0


# --- types of tokens ---

TREEBANK = Corpus(
    "made up",
    ("He does n't notice another knot .", "Not now , nobody can't ."),
    words=(
        ("He", "does", "n't", "notice", "another", "knot", "."),
        ("Not", "now", ",", "nobody", "can't", "."),
    ),
    columns={
        "upos": (
            ("PRON", "AUX", "PART", "VERB", "DET", "NOUN", "PUNCT"),
            ("PART", "ADV", "PUNCT", "PRON", "AUX", "PUNCT"),
        ),
        "deprel": (
            ("nsubj", "aux", "advmod", "root", "det", "obj", "punct"),
            ("advmod", "root", "punct", "nsubj:pass", "aux", "punct"),
        ),
    },
)  # fmt: skip


def words_of(corpus: Corpus, folder: Path) -> dict[str, set[str]]:
    source = resolve_model(str(folder))
    tokenizer = load_tokenizer(source)
    tokens = tokens_of(Request(source, corpus, ()), tokenizer)
    special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    texts = tokens.word_texts(corpus)
    return {name: {str(text) for text in texts[members]} for name, members in types_of(tokens, corpus, special).items()}


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_types_are_found_by_words_and_not_by_parts_of_them(checkpoints: dict[str, Path], family: str) -> None:
    found = words_of(TREEBANK, checkpoints[family])
    assert found[NEGATION] == {"n't", "Not", "can't"}
    assert found[PUNCTUATION] == {".", ","}
    assert found["NOUN"] == {"knot"}
    assert (found["subject"], found["object"]) == ({"He", "nobody"}, {"knot"})
    assert ("[CLS]" in found) == (family == "bert")
    running = words_of(
        from_sentences("made up", ["He doesn't notice, not another knot; he can't."]), checkpoints[family]
    )
    assert set(running) == {*(set(found) & {"[CLS]", "[SEP]", "<s>", "</s>"}), PUNCTUATION, NEGATION}
    assert "another" not in running[NEGATION]
    assert {"not", "doesn", "can"} <= running[NEGATION]


def test_the_measure_sums_over_a_corpus_and_uniform_attention_lifts_nothing(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    source = resolve_model(str(checkpoints["bert"]))
    corpus = from_sentences("made up", sentences[:12])
    request = Request(source, corpus, (), batch_tokens=150)
    tokens = tokens_of(request, load_tokenizer(source))
    measure = Attended({PUNCTUATION: types_of(tokens, corpus, {})[PUNCTUATION]}, "x")
    store = accumulate(request, [measure], tmp_path, {"accelerator": "cpu"})["attended"]
    assert measure.settings["types"] == [SPECIAL, PUNCTUATION]
    encoder, _ = load(request)
    heads = find_heads(encoder, examine(encoder))
    commas = measure.types[PUNCTUATION]
    for s in (0, 5):
        rows = tokens.of_sentences(s, 1)
        ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]
        masses: list[Any] = []
        with torch.inference_mode():
            read_heads(
                encoder, heads, lambda layer, maps, values, out=masses: out.append(maps[0].double().sum(1)),  # type: ignore[misc]
                {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
            )  # fmt: skip
        own = torch.from_numpy(commas[rows])
        expected = torch.stack([columns[:, own].sum(1) for columns in masses])
        assert_close(store.by_sentence("mass")[s, :, :, 1], expected, rtol=2e-5, atol=2e-6)

    def uniform(attention: Attention, batch: Batch) -> dict[str, Tensor]:
        one = Attention(1, batch.uniform[:, None].float(), attention.values[:, :1], None)
        return attended(one, batch, torch.stack([batch.special, batch.ordinary], dim=2))

    store = accumulate(request, [BlockMeasure("uniform", uniform)], tmp_path, {"accelerator": "cpu"})["uniform"]
    mass = store.by_sentence("mass")[:, 0, 0].sum(0) / tokens.n_tokens
    shares = torch.tensor([tokens.special.mean(), 1 - tokens.special.mean()])
    assert_close(mass / shares, torch.ones(2, dtype=torch.float64), rtol=1e-5, atol=0)
