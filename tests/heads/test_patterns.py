"""Classes of maps, entropy, distance and what types of tokens get, against loops, whatever the mask shows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from families import FAMILIES, make_tokenizer, save_at_random
from probing.activations import Request, load, tokens_of
from probing.heads.accumulation import AttentionReader, BlockAttention, Measure, SentenceBatch, accumulate, attention_of
from probing.heads.measures import (
    BLOCK,
    CLASSES,
    NEGATION,
    PATTERNS,
    PROFILE,
    PUNCTUATION,
    SINK,
    STRIPES,
    SentenceDraws,
    attended,
    attention_by_type,
    blocks,
    class_rows,
    classify,
    n_queries,
    profile,
    profile_rows,
    stripes,
    type_rows,
    types_of,
    without_first_token,
)
from probing.heads.parts import ROLLOUT
from probing.models import load_tokenizer, resolve_model
from probing.models.anatomy import examine
from probing.models.attention_heads import OutputProjection, find_heads, read_heads
from probing.tables.heads import SPECIAL
from probing.text import Corpus, from_sentences

pytestmark = pytest.mark.numeric

N_MAPS = 150


def pair(n: int, middle: int | None = None, is_causal: bool = False) -> tuple[SentenceBatch, Tensor]:
    """Return a batch of one sentence, or of one pair, of n tokens, special ones at the ends; and its segments."""
    special = torch.zeros(1, n, dtype=torch.bool)
    special[0, [0, n - 1] if middle is None else [0, middle, n - 1]] = True
    ids = torch.arange(n)[None]
    segments = (ids > (n if middle is None else middle)).long()
    mask = torch.ones_like(special)
    return SentenceBatch(
        torch.zeros(1, dtype=torch.long), ids, ids, mask, special, ids.masked_fill(special, -1), is_causal
    ), (segments)


def generated(kind: str, noise: float, generator: np.random.Generator) -> tuple[np.ndarray, SentenceBatch, Tensor]:
    """Return a map of a class with a share of noise, by the recipe of the specification."""
    n = int(generator.integers(12, 61))
    middle = int(generator.integers(n // 3, 2 * n // 3 + 1))
    batch, segments = pair(n, middle)
    columns = np.flatnonzero(batch.special[0].numpy())
    vertical = np.zeros((n, n))
    vertical[:, columns] = generator.dirichlet(np.ones(len(columns)))
    offset = int(generator.integers(-1, 2))
    diagonal = np.zeros((n, n))
    diagonal[np.arange(n), np.clip(np.arange(n) + offset, 0, n - 1)] = 1
    mixing = generator.uniform(0.35, 0.65)
    same = segments[0].numpy()[:, None] == segments[0].numpy()[None]
    pure = {
        "vertical": lambda: vertical,
        "diagonal": lambda: diagonal,
        "vertical and diagonal": lambda: mixing * vertical + (1 - mixing) * diagonal,
        "block": lambda: generator.gamma(1, size=(n, n)) * same,
        "heterogeneous": lambda: generator.gamma(generator.uniform(0.1, 1), size=(n, n)) + 1e-12,
    }[kind]()
    pure = pure / pure.sum(1, keepdims=True)
    other = generator.gamma(0.3, size=(n, n)) + 1e-12
    return (1 - noise) * pure + noise * other / other.sum(1, keepdims=True), batch, segments


def class_of(weights: np.ndarray, batch: SentenceBatch, segments: Tensor | None) -> str:
    maps = torch.from_numpy(weights)[None, None]
    v, d = stripes(maps, batch)
    b = None if segments is None else blocks(maps, batch, segments)
    return CLASSES[int(classify(v, d, b))]


def macro_f1(noise: float) -> float:
    generator = np.random.default_rng(0)
    pairs = [(kind, class_of(*generated(kind, noise, generator))) for kind in CLASSES for _ in range(N_MAPS)]
    scores = []
    for kind in CLASSES:
        hits = sum(true == found == kind for true, found in pairs)
        scores.append(2 * hits / (sum(true == kind for true, _ in pairs) + sum(found == kind for _, found in pairs)))
    return float(np.mean(scores))


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "least"), [(0.0, 0.97), (0.1, 0.97), (0.2, 0.97), (0.3, 0.97), (0.4, 0.85)])
def test_generated_maps_get_their_class(noise: float, least: float) -> None:
    assert macro_f1(noise) >= least


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n", [3, 4, 5, 12, 60])
def test_uniform_attention_is_heterogeneous_whatever_the_length(n: int, is_causal: bool) -> None:
    batch, _ = pair(n, is_causal=is_causal)
    v, d = stripes(batch.uniform[:, None], batch)
    b = blocks(batch.uniform[:, None], batch, (torch.arange(n) > n // 2).long()[None])
    assert max(float(v), float(d), float(b)) < 1e-9
    assert CLASSES[int(classify(v, d))] == "heterogeneous"


@pytest.mark.parametrize("kind", ["vertical", "diagonal", "vertical and diagonal", "heterogeneous"])
def test_single_sentences_have_no_block_pattern(kind: str) -> None:
    weights, batch, _ = generated(kind, 0.1, np.random.default_rng(1))
    assert class_of(weights, batch, None) == kind
    weights, batch, _ = generated("block", 0.0, np.random.default_rng(1))
    assert class_of(weights, batch, None) == "heterogeneous"


def test_values_are_0_for_uniform_and_1_for_pure_patterns() -> None:
    batch, segments = pair(20, 9)
    to_special = torch.zeros(1, 1, 20, 20)
    to_special[..., 9] = 1
    assert [float(value) for value in stripes(to_special, batch)] == pytest.approx([1, 0])
    # The last token's next one does not exist, and special keys do not count.
    following = torch.zeros(1, 1, 20, 20)
    following[0, 0, torch.arange(19), torch.arange(1, 20)] = 1
    following[0, 0, 19, 19] = 1
    v, d = (float(value) for value in stripes(following, batch))
    uniform = batch.uniform[0].numpy()
    near = np.abs(np.subtract.outer(np.arange(20), np.arange(20))) <= 1
    e = (uniform * near * batch.ordinary[0].numpy()).sum() / 20
    assert d == pytest.approx((17 / 20 - e) / (1 - e))
    assert v == pytest.approx((3 / 20 - 3 / 20) / (1 - 3 / 20), abs=1e-12)
    same = (segments[:, :, None] == segments[:, None, :]).double()[:, None]
    assert float(blocks(same / same.sum(-1, keepdim=True), batch, segments)) == pytest.approx(1)
    assert float(blocks(batch.uniform[:, None], batch, segments)) == pytest.approx(0)


def test_padding_changes_nothing() -> None:
    generator = np.random.default_rng(2)
    weights, alone, segments = generated("vertical and diagonal", 0.3, generator)
    n = weights.shape[0]
    padded = torch.zeros(1, 1, n + 5, n + 5, dtype=torch.float64)
    padded[..., :n, :n] = torch.from_numpy(weights)

    def longer(values: Tensor, fill: int) -> Tensor:
        return torch.nn.functional.pad(values, (0, 5), value=fill)

    batch = SentenceBatch(
        alone.sentences, longer(alone.rows, 0), longer(alone.input_ids, 0), longer(alone.mask, False),
        longer(alone.special, False), longer(alone.words, -1),
    )  # fmt: skip
    for found, expected in zip(
        stripes(padded, batch), stripes(torch.from_numpy(weights)[None, None], alone), strict=True
    ):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        blocks(padded, batch, longer(segments, 0)),
        blocks(torch.from_numpy(weights)[None, None], alone, segments),
    )


def test_thresholds_are_where_they_are_said_to_be() -> None:
    def found(v: float, d: float, b: float = 0.0, factor: float = 1.0) -> str:
        one = [torch.tensor([value], dtype=torch.float64) for value in (v, d, b)]
        return CLASSES[int(classify(one[0], one[1], one[2], factor))]

    assert found(STRIPES, 0) == "vertical"
    assert found(STRIPES - 0.01, 0) == "heterogeneous"
    assert found(STRIPES - 0.01, 0, BLOCK) == "block"
    assert found(0.74, 0.26) == found(0.26, 0.74) == "vertical and diagonal"
    assert (found(0.76, 0.24), found(0.24, 0.76)) == ("vertical", "diagonal")
    assert found(0.5, 0.1, factor=1.25) == "heterogeneous"
    assert found(0.4, 0, factor=0.75) == "vertical"


LENGTHS = (7, 4, 1)


def made_up(is_causal: bool) -> tuple[BlockAttention, SentenceBatch, Tensor]:
    """Return random attention of three heads over a padded batch, and types of tokens."""
    generator = torch.Generator().manual_seed(0)
    n, length, heads, width = len(LENGTHS), max(LENGTHS), 3, 5
    mask = torch.arange(length) < torch.tensor(LENGTHS)[:, None]
    special = mask.clone()
    special[:, 1:] = False
    ids = torch.arange(n * length).view(n, length)
    batch = SentenceBatch(torch.arange(n), ids, ids, mask, special, ids, is_causal)
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
    uniform = BlockAttention(1, batch.uniform[:, None].float(), torch.zeros(3, 1, 7, 2), None)
    sums = profile(uniform, batch)
    counts = n_queries({name: values[:, None] for name, values in sums.items()}, np.array(LENGTHS))
    mean = {name: float(sums[name].sum() / counts[name].sum()) for name in counts}
    assert mean["entropy"] == pytest.approx(1)
    pairs = sum(1 / n for n in LENGTHS for _ in range(n))
    assert mean["self"] == pytest.approx(pairs / sum(LENGTHS))
    shifted = torch.diag(torch.ones(6), -1).expand(3, 1, 7, 7) * batch.mask[:, None, :, None]
    previous = profile(BlockAttention(1, shifted, torch.zeros(3, 1, 7, 2), None), batch)
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
    same = BlockAttention(1, attention.probabilities, torch.ones_like(attention.values), attention.projection)
    found = attended(same, batch, types)
    assert_close(found["norm_mass"], found["mass"], rtol=1e-5, atol=1e-6)
    values = attention.values.clone()
    values[:, :, 0] = 0  # the first token, as [CLS] is where a head has nothing to do
    first = torch.zeros_like(types[:, :, :1])
    first[:, 0] = True
    found = attended(BlockAttention(1, attention.probabilities, values, attention.projection), batch, first)
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
    commas = types_of(tokens, corpus, {})[PUNCTUATION]
    measure = attention_by_type({PUNCTUATION: commas})
    store = accumulate(request, [measure], tmp_path, {"accelerator": "cpu"})["attended"]
    assert measure.settings["types"] == [SPECIAL, PUNCTUATION]
    encoder, _ = load(request)
    heads = find_heads(encoder, examine(encoder))
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

    def uniform(attention: BlockAttention, batch: SentenceBatch) -> dict[str, Tensor]:
        one = BlockAttention(1, batch.uniform[:, None].float(), attention.values[:, :1], None)
        return attended(one, batch, torch.stack([batch.special, batch.ordinary], dim=2))

    store = accumulate(request, [Measure.of_blocks("uniform", uniform)], tmp_path, {"accelerator": "cpu"})["uniform"]
    mass = store.by_sentence("mass")[:, 0, 0].sum(0) / tokens.n_tokens
    shares = torch.tensor([tokens.special.mean(), 1 - tokens.special.mean()])
    assert_close(mass / shares, torch.ones(2, dtype=torch.float64), rtol=1e-5, atol=0)


WINDOW = 6
_DECODER: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 32, "max_position_embeddings": 128, "sliding_window": WINDOW,
}  # fmt: skip


def _config(name: str, size: int) -> Any:
    from transformers import CONFIG_MAPPING

    mapping: Any = CONFIG_MAPPING
    if name == "mistral":
        return mapping["mistral"](vocab_size=size, head_dim=8, **_DECODER)
    if name == "gemma3":
        types = ["sliding_attention", "full_attention", "sliding_attention"]
        return mapping["gemma3_text"](vocab_size=size, head_dim=8, layer_types=types, **_DECODER)
    config = FAMILIES[name].config(size)
    if name == "modernbert":
        config.local_attention = WINDOW
    return config


TOKENIZERS = {"mistral": "byte-level <s> first", "gemma3": "byte-level <s> first"}
# Which blocks have a window; attention of mistral and gemma3 is causal too.
LOCAL = {"bert": (), "gpt2": (), "modernbert": (2, 3), "mistral": (1, 2, 3), "gemma3": (1, 3)}


def uniform_model(folder: Path, name: str, sentences: list[str], implementation: str) -> Path:
    """Save a model whose queries are 0, so that its heads attend alike to all that they may see."""
    from transformers import AutoModel

    kind = TOKENIZERS.get(name) or FAMILIES[name].tokenizer
    tokenizer = make_tokenizer(kind, sentences)
    config = _config(name, len(tokenizer))
    save_at_random(folder, AutoModel.from_config(config), tokenizer)
    model = AutoModel.from_pretrained(folder, attn_implementation=implementation)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "query" in path or "q_proj" in path:
                parameter.zero_()
            elif "Wqkv" in path:
                parameter[:16] = 0
            elif "c_attn" in path:
                parameter[..., :16] = 0
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", LOCAL)
def test_uniform_heads_have_entropy_1_lift_1_and_no_pattern(
    name: str, implementation: str, long_sentences: list[str], tmp_path: Path
) -> None:
    source = resolve_model(str(uniform_model(tmp_path / "m", name, long_sentences, implementation)))
    corpus = from_sentences("made up", long_sentences[:25])
    request = Request(source, corpus, (), batch_tokens=200)
    tokens = tokens_of(request, load_tokenizer(source))
    types = {"third": np.arange(tokens.n_tokens) % 3 == 0}
    measures: list[Measure] = [PROFILE, PATTERNS, SINK, ROLLOUT, attention_by_type(types)]
    stores = accumulate(request, measures, tmp_path, {"accelerator": "cpu"})
    draws, layers = SentenceDraws(tokens.n_sentences, 0), [1, 2, 3]
    tables = profile_rows(stores["profile"].all_by_sentence(), tokens.lengths, layers, draws)
    rows, of_layers = ([row for row in of if row["measure"] == "entropy"] for of in tables.values())
    counts: dict[str, Any] = {SPECIAL: tokens.lengths, "third": np.bincount(tokens.sentences[types["third"]])}
    of_types = type_rows(stores["attended"].all_by_sentence(), counts, tokens.lengths, layers, draws)
    rows += [row for row in of_types["heads"] if row["measure"] == "lift"]
    assert len(rows) == 3 * 2 * 3
    assert [row["value"] for row in rows + of_layers] == pytest.approx([1] * (len(rows) + 3), abs=2e-6)
    classes = class_rows(stores["patterns"].all_by_sentence(), tokens.lengths, layers, draws)
    heads = [row for row in classes if "head" in row]
    assert {row["class"] for row in heads} == {"heterogeneous"}
    assert max(max(row["v"], row["d"]) for row in heads) < 1e-5
    first = stores["sink"].all_by_sentence()
    assert_close(first["mass"], first["uniform"], rtol=1e-5, atol=1e-6)
    later = accumulate(request, [without_first_token(PROFILE)], tmp_path, {"accelerator": "cpu"})["profile"]
    rows = profile_rows(later.all_by_sentence(), tokens.lengths - 1, layers, draws)["heads"]
    assert [row["value"] for row in rows if row["measure"] == "entropy"] == pytest.approx([1] * 6, abs=2e-6)
    rolled = stores["rollout"].by_sentence("sums")
    assert_close(rolled[:, :, 0], rolled[:, :, 1], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", LOCAL)
def test_the_mask_is_that_of_the_model_even_where_attention_is_sharp(
    name: str, implementation: str, long_sentences: list[str], tmp_path: Path
) -> None:
    """A head with large scores gives nothing to most of what it sees."""
    from transformers import AutoModel

    folder = uniform_model(tmp_path / "m", name, long_sentences, implementation)
    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if any(part in path for part in ("query", "q_proj", "Wqkv", "c_attn")):
                parameter.copy_(8 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    model.save_pretrained(folder)
    request = Request(resolve_model(str(folder)), from_sentences("made up", long_sentences[:1]), ())
    encoder, pad = load(request)
    heads = AttentionReader.of(encoder, pad, name).heads
    ids = torch.arange(20)[None] + 5
    masks: list[Tensor | None] = []
    maps: list[Tensor] = []
    with torch.inference_mode():
        read_heads(
            encoder, heads, lambda layer, of, values: maps.append(of.clone()),
            {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, masks.append,
        )  # fmt: skip
    offsets = torch.arange(20) - torch.arange(20)[:, None]
    for layer, (mask, of) in enumerate(zip(masks, maps, strict=True), 1):
        expected = offsets <= 0 if name in ("gpt2", "mistral", "gemma3") else offsets < 20
        if layer in LOCAL[name]:
            reach = WINDOW // 2 + 1 if name == "modernbert" else WINDOW
            expected = expected & (offsets.abs() < reach)
        assert torch.equal(expected if mask is None else mask[0], expected)
        assert not of[0, :, ~expected].any()
    if name != "gemma3":  # which divides queries by their norm
        assert any(bool((of[0, :, offsets == 0] == 0).any()) for of in maps)
