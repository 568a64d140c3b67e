"""Heads that attend by position: contrasts against a loop over all pairs, and words at an offset."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from families import untouched
from probing.activations import Request, tokens_of
from probing.activations.extraction import reading_order
from probing.heads.accumulation import accumulate
from probing.heads.position import (
    AT_OFFSETS,
    OFFSETS,
    PERMUTED,
    contributions_in_bases,
    mass_at_offsets,
    permuted_offsets,
    permuted_positions,
    rank_agreement,
)
from probing.heads.position_controls import (
    LEAST,
    HeadScores,
    LagMoments,
    PositionMeans,
    Shares,
    WordTokens,
    as_masks,
    contrast_without,
    matched_sets,
    random_sets,
    top_neurons,
    word_mass,
)
from probing.models import load_tokenizer, resolve_model
from probing.statistics.chance import rank_p
from probing.text import Corpus, from_sentences

pytestmark = pytest.mark.numeric

D, D_HEAD = 40, 12
PLANTED = tuple(range(3, 33, 3))


@dataclass(frozen=True)
class Head:
    """Sentences of words, the queries and keys of a head, and its bias for each offset from -19 to 19."""

    words: WordTokens
    states: Tensor
    query: Tensor
    key: Tensor
    bias: Tensor
    biases: Tensor = field(default_factory=lambda: torch.zeros(39, dtype=torch.float64))

    def biases_at(self, offsets: Tensor) -> Tensor:
        return self.biases[offsets + 19][None]

    @property
    def matrix(self) -> Tensor:
        return self.query @ self.key.T

    @property
    def towards(self) -> Tensor:
        return self.key @ self.bias

    def scores(self, states: Tensor, sentence: int) -> Tensor:
        """Return the scores of a sentence, with a bias of keys, which no softmax sees."""
        x = states[self.words.sentences == sentence]
        scores = (x @ self.query + self.bias) @ (x @ self.key + 0.7).T
        for i in range(len(scores)):
            for j in range(len(scores)):
                scores[i, j] += self.biases[19 + j - i]
        if self.words.is_causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), torch.nan)
        return scores


def made_up(is_causal: bool = False, n_sentences: int = 120, seed: int = 0) -> Head:
    """Return a head of random weights on words whose states have a part of their position, and sentences of 1 to 12."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 13, (n_sentences,), generator=generator)
    sentences = torch.arange(n_sentences).repeat_interleave(lengths)
    positions = torch.cat([torch.arange(1, int(n) + 1) for n in lengths])
    table = torch.randn(20, D, generator=generator, dtype=torch.float64)
    states = table[positions] + torch.randn(len(positions), D, generator=generator, dtype=torch.float64) + 2

    def weights(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) / D**0.5

    return Head(
        WordTokens(sentences, positions, is_causal), states, weights(D, D_HEAD), weights(D, D_HEAD), weights(D_HEAD)
    )


def with_biases(head: Head) -> Head:
    """Return the head with a random bias for each offset."""
    return replace(head, biases=torch.randn(39, generator=torch.Generator().manual_seed(3), dtype=torch.float64))


def planted(n_sentences: int = 60, noise: float = 0.3) -> Head:
    """Return a head that finds the previous word by sines and cosines of its position, in ten of the neurons."""
    generator = torch.Generator().manual_seed(1)
    head = made_up(n_sentences=n_sentences, seed=1)
    states = noise * torch.randn(len(head.states), D, generator=generator, dtype=torch.float64)
    query, key = torch.zeros(D, D_HEAD, dtype=torch.float64), torch.zeros(D, D_HEAD, dtype=torch.float64)
    t = head.words.positions.double()
    for i in range(5):
        rate = 0.4 * (i + 1)
        cosine, sine = PLANTED[2 * i : 2 * i + 2]
        states[:, cosine] += 2 * (rate * t).cos()
        states[:, sine] += 2 * (rate * t).sin()
        # (cos(r (t - 1)), sin(r (t - 1))) is the query that the key at t - 1 meets.
        turn = torch.tensor(rate)
        key[cosine, 2 * i] = key[sine, 2 * i + 1] = 1
        query[cosine, 2 * i], query[sine, 2 * i] = turn.cos(), turn.sin()
        query[cosine, 2 * i + 1], query[sine, 2 * i + 1] = -turn.sin(), turn.cos()
    return Head(head.words, states, query, key, torch.zeros(D_HEAD, dtype=torch.float64))


def contrast_by_loops(head: Head, states: Tensor, offset: int) -> float:
    """Return the mean over queries of the score at the offset less the mean of those of all keys that are seen."""
    found = []
    for sentence in head.words.sentences.unique().tolist():
        scores = head.scores(states, sentence)
        for i, row in enumerate(scores):
            if 0 <= i + offset < len(scores) and not row[i + offset].isnan():
                found.append(float(row[i + offset]) - float(row[~row.isnan()].mean()))
    return mean(found)


def lag(head: Head, states: Tensor, offset: int, mean_of: Tensor | None = None) -> LagMoments:
    return LagMoments.of(
        *pairs_of(head, states, offset), torch.zeros(D, dtype=torch.float64) if mean_of is None else mean_of
    )


def pairs_of(head: Head, states: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """Return the states of queries, and those of their keys less the mean of the keys that they see."""
    queries = head.words.with_key_at(offset)
    return states[queries], states[queries + offset] - head.words.means_seen(states)[queries]


def split(head: Head, offset: int, mean_of: Tensor | None = None) -> tuple[Tensor, Tensor]:
    mean_state = head.states.mean(0) if mean_of is None else mean_of
    return lag(head, head.states, offset, mean_state).split(head.matrix, head.towards)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("offset", [-1, -3, 2])
def test_the_contrast_is_that_of_a_loop_over_all_pairs_whatever_the_mean(is_causal: bool, offset: int) -> None:
    head = made_up(is_causal)
    if is_causal and offset > 0:
        assert len(head.words.with_key_at(offset)) == 0
        return
    expected = contrast_by_loops(head, head.states, offset)
    for mean_of in (None, torch.zeros(D, dtype=torch.float64)):
        pairs, singles = split(head, offset, mean_of)
        assert float(pairs.sum() + singles.sum()) == pytest.approx(expected, abs=1e-9)
    (none,) = contrast_without(pairs, singles, torch.zeros(1, D, dtype=torch.bool))
    assert float(none) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("is_causal", "offset"), [(False, 2), (False, -1), (True, -2)])
def test_the_contrast_with_biases_has_a_part_of_theirs_alone(is_causal: bool, offset: int) -> None:
    head = with_biases(made_up(is_causal))
    pairs, singles = split(head, offset)
    queries = head.words.with_key_at(offset)
    biases = head.biases_at(torch.tensor(offset)) - head.words.mean_biases_seen(head.biases_at)[0, queries]
    assert float(biases.mean().abs()) > 0.01
    expected = contrast_by_loops(head, head.states, offset)
    assert float(pairs.sum() + singles.sum() + biases.mean()) == pytest.approx(expected, abs=1e-9)


def test_held_neurons_are_at_their_mean_in_queries_and_keys() -> None:
    head = made_up()
    sets = random_sets(D, 7, np.random.default_rng(0), 5)
    found = contrast_without(*split(head, -1), as_masks(sets, D))
    for held, value in zip(sets, found.tolist(), strict=True):
        states = head.states.clone()
        states[:, held] = head.states.mean(0)[held]
        assert value == pytest.approx(contrast_by_loops(head, states, -1), abs=1e-9)


def test_the_parts_of_a_contrast_add_up_and_the_shares_to_the_part_of_positions() -> None:
    head, offset = made_up(), -2
    means = PositionMeans.of(head.states, head.words.positions)
    of_position = means.of_words(head.words.positions)
    rest = head.states - means.mean - of_position
    shares = Shares.of(head.query[None], head.key[None], lag(head, of_position, offset).products)
    # The part by definition: each query's position against the key's, word by word.
    pairs = zip(*pairs_of(head, of_position, offset), strict=True)
    part = float(torch.stack([p @ head.matrix @ difference for p, difference in pairs]).mean())
    assert float(shares.by_query.sum()) == pytest.approx(part, abs=1e-6)
    assert float(shares.by_key.sum()) == pytest.approx(part, abs=1e-6)
    assert abs(part) > 0.01
    # Together with the other parts it is the contrast.
    sides = (means.mean.expand_as(rest), of_position, rest)
    total = float((pairs_of(head, head.states, offset)[1] @ head.towards).mean())
    for side in sides:
        for other in sides:
            asking, differences = pairs_of(head, side, offset)[0], pairs_of(head, other, offset)[1]
            total += float(((asking @ head.query) * (differences @ head.key)).sum(1).mean())
    assert total == pytest.approx(contrast_by_loops(head, head.states, offset), abs=1e-9)


def test_means_of_positions_are_those_of_training_words_and_0_where_there_are_few() -> None:
    generator = torch.Generator().manual_seed(0)
    positions = torch.tensor([1] * LEAST + [2] * (LEAST - 1) + [4] * (2 * LEAST))
    states = torch.randn(len(positions), 3, generator=generator, dtype=torch.float64)
    means = PositionMeans.of(states, positions)
    assert means.counts.tolist() == [0, LEAST, 0, 0, 2 * LEAST]
    found = means.of_words(torch.tensor([0, 1, 2, 4, 9]))
    expected = torch.stack([states[positions == t].mean(0) - states.mean(0) for t in (1, 4)])
    assert_close(found[[1, 3]], expected)
    assert not found[[0, 2, 4]].any()
    assert_close(means.sd, torch.from_numpy(states.numpy().std(0)))
    spread, steps = means.spread
    of_words = np.repeat(expected.numpy(), [LEAST, 2 * LEAST], axis=0)
    assert_close(spread, torch.from_numpy(of_words.std(0)))
    assert not steps.any()  # no two positions follow each other


def test_without_query_weights_there_is_no_contrast() -> None:
    head = made_up()
    moments = lag(head, head.states, -1, head.states.mean(0))
    pairs, singles = moments.split(torch.zeros(D, D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64))
    assert float(pairs.abs().sum() + singles.abs().sum()) == 0
    assert not Shares.of(0 * head.query[None], head.key[None], moments.products).use.any()


def test_a_head_planted_on_ten_neurons_is_found_by_use_and_by_removal() -> None:
    head = planted()
    means = PositionMeans.of(head.states, head.words.positions)
    of_position = means.of_words(head.words.positions)
    use = Shares.of(head.query[None], head.key[None], lag(head, of_position, -1).products).use[0].numpy()
    top = top_neurons(use, 10)
    assert tuple(top) == PLANTED
    generator = np.random.default_rng(0)
    pairs, singles = split(head, -1)
    scores = head_scores(head)
    (before,) = contrast_without(pairs, singles, as_masks(top[None, :0], D))
    mass_before, mass = (float(word_mass(scores, sets)[0]) for sets in (top[None, :0], top[None]))
    assert mass_before > 0.9
    assert mass < 0.2
    sd = means.sd.numpy()
    for sets in (random_sets(D, 10, generator), matched_sets(sd, top, generator)):
        held = contrast_without(pairs, singles, as_masks(np.concatenate([top[None], sets]), D))
        assert float(held[0]) < 0.05 * float(before)
        assert rank_p(-float(held[0]), -held[1:].numpy()) == pytest.approx(1 / 101)
        assert rank_p(-mass, -word_mass(scores, sets)) == pytest.approx(1 / 101)


def head_scores(head: Head, offset: int = -1) -> list[HeadScores]:
    """Return the head's words as padded sentences, in two groups."""
    mean_state = head.states.mean(0)
    query_of_mean = mean_state @ head.query + head.bias
    groups = []
    for numbers in head.words.sentences.unique().chunk(2):
        parts = [head.states[head.words.sentences == i] - mean_state for i in numbers]
        padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        is_word = torch.nn.utils.rnn.pad_sequence([torch.ones(len(part)) for part in parts], batch_first=True).bool()
        places = torch.arange(padded.shape[1])
        biases = head.biases_at(places - places[:, None]).expand(len(padded), -1, -1)
        groups.append(
            HeadScores(
                padded, is_word, head.query, head.key, query_of_mean, biases, offset, is_causal=head.words.is_causal
            )
        )
    return groups


@pytest.mark.parametrize(("is_causal", "offset"), [(False, 2), (False, -1), (True, -2)])
def test_attention_with_held_neurons_is_that_of_a_loop(is_causal: bool, offset: int) -> None:
    head = with_biases(made_up(is_causal, n_sentences=15))
    sets = random_sets(D, 6, np.random.default_rng(0), 4)
    found = word_mass(head_scores(head, offset), sets)
    for held, value in zip(sets, found.tolist(), strict=True):
        states = head.states.clone()
        states[:, held] = head.states.mean(0)[held]
        masses = []
        for sentence in range(15):
            scores = head.scores(states, sentence)
            rows = scores.masked_fill(scores.isnan(), -torch.inf).softmax(1)
            masses += [float(rows[i, i + offset]) for i in range(len(rows)) if 0 <= i + offset < len(rows)]
        assert value == pytest.approx(mean(masses), abs=1e-9)


def test_random_sets_that_are_declared_the_top_are_rarely_significant() -> None:
    head = planted(n_sentences=20)
    pairs, singles = split(head, -1)
    sd, scores = head.states.std(0).numpy(), head_scores(head)
    alarms = {"random": 0, "matched": 0, "mass": 0}
    for run in range(100):
        generator = np.random.default_rng(run)
        (top,) = random_sets(D, 5, generator, 1)
        for kind, sets in (("random", random_sets(D, 5, generator)), ("matched", matched_sets(sd, top, generator))):
            held = contrast_without(pairs, singles, as_masks(np.concatenate([top[None], sets]), D))
            alarms[kind] += rank_p(-float(held[0]), -held[1:].numpy()) < 0.05
        masses = word_mass(scores, np.concatenate([top[None], random_sets(D, 5, generator, 19)]))
        alarms["mass"] += rank_p(-masses[0], -masses[1:]) <= 0.05
    assert all(number <= 9 for number in alarms.values()), alarms


def test_sets_are_of_distinct_neurons_and_matched_ones_alike_in_sd() -> None:
    generator = np.random.default_rng(0)
    sd = np.exp(generator.normal(size=200))
    neurons = top_neurons(sd + 10 * (np.arange(200) % 4 == 0), 20)
    assert all(neurons % 4 == 0)
    found = matched_sets(sd, neurons, generator)
    drawn = random_sets(200, 20, generator)
    assert all(len(set(row)) == 20 for row in [*found.tolist(), *drawn.tolist()])
    assert found.shape == drawn.shape == (100, 20)
    assert np.abs(np.log(sd[found].mean() / sd[neurons].mean())) < 0.1
    assert np.abs(np.log(sd[drawn].mean() / sd[neurons].mean())) > 0.3
    assert len(np.unique(found)) > 60
    whole = matched_sets(sd[:20], np.arange(20), generator, 3)  # nothing else is left
    assert (np.sort(whole, axis=1) == np.arange(20)).all()


# --- whether a ranking tells what a head reads ---


def test_partial_correlation_is_that_of_residuals_and_sees_through_a_common_cause() -> None:
    generator = np.random.default_rng(0)
    cause, other = generator.normal(size=(2, 400))
    ranking = cause + 0.3 * generator.normal(size=400)
    use = np.stack([cause + 0.3 * generator.normal(size=400), ranking + 0.1 * generator.normal(size=400)])
    found = rank_agreement(use, ranking, [cause, other])
    assert found["spearman"][0] > 0.85
    assert abs(found["partial"][0]) < 0.15
    assert found["partial"][1] > 0.8
    from scipy.stats import pearsonr, rankdata, spearmanr

    design = np.column_stack([np.ones(400), rankdata(cause), rankdata(other)])
    left = [rankdata(one) - design @ np.linalg.lstsq(design, rankdata(one), rcond=None)[0] for one in (ranking, *use)]
    assert found["spearman"] == pytest.approx([spearmanr(ranking, one).statistic for one in use])
    assert found["partial"] == pytest.approx([pearsonr(left[0], one).statistic for one in left[1:]])
    tied = rank_agreement(cause[None], other, [cause, other])
    assert np.isnan(tied["partial"][0])  # nothing is left of the ranking


def test_p_values_by_rank_count_the_value_itself() -> None:
    assert rank_p(1.0, [0.0] * 100) == pytest.approx(1 / 101)
    assert rank_p(0.0, [0.0] * 100) == 1
    assert rank_p(2.0, [3.0, 1.0, 2.0]) == 0.75


def test_in_another_basis_directions_have_the_use_and_the_contributions_that_are_theirs() -> None:
    generator = torch.Generator().manual_seed(0)
    head = made_up()
    basis = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64)).Q
    products = lag(head, head.states, -1).products
    eye = torch.eye(D, dtype=torch.float64)
    two = torch.stack([head.query, 2 * head.query.flip(0)]), torch.stack([head.key, head.key.flip(1)])
    both = Shares.of(*two, products, torch.stack([basis, eye]))
    assert_close(both.by_query[1], Shares.of(*two, products).by_query)
    assert_close(both.by_key[1], Shares.of(*two, products).by_key)
    found = Shares(both.by_query[0], both.by_key[0])
    turned = lag(head, head.states @ basis, -1).products
    matrix = basis.T @ head.matrix @ basis  # by definition, with M
    assert_close(found.by_query[0], (matrix * turned).sum(1))
    assert_close(found.by_key[0], (matrix * turned).sum(0))
    assert bool((found.by_query < 0).any() and (found.by_key < 0).any())
    assert_close(found.use[0], (matrix * turned).sum(1).abs() + (matrix * turned).sum(0).abs())
    weight, classes = torch.randn(5, D, generator=generator, dtype=torch.float64), torch.arange(len(head.states)) % 5
    (contributions,) = contributions_in_bases(weight, head.states, classes, basis[None])
    centred = weight - weight.mean(0)
    expected = [
        mean(
            abs(float((centred[c] @ basis[:, n]) * (x @ basis[:, n])))
            for x, c in zip(head.states, classes, strict=True)
        )
        for n in (0, 7)
    ]
    assert contributions[[0, 7]].tolist() == pytest.approx(expected)


def by_loops(maps: Tensor, ordinary: Tensor) -> dict[str, Tensor]:
    """Return what `mass_at_offsets` does of one sentence, by definition, shape (heads, offsets)."""
    found = {
        name: torch.zeros(len(maps), len(OFFSETS), dtype=torch.float64) for name in ("mass", "word_mass", "hit", "n")
    }
    for head, rows in enumerate(maps.double()):
        for at, offset in enumerate(OFFSETS):
            for i, row in enumerate(rows):
                j = i + offset
                if 0 <= j < len(row) and ordinary[i] and ordinary[j]:
                    found["n"][head, at] += 1
                    found["mass"][head, at] += row[j]
                    found["word_mass"][head, at] += row[j] / row[ordinary].sum()
                    found["hit"][head, at] += int(row.argmax()) == j
    return found


def test_attention_at_offsets_is_that_of_a_loop_and_ignores_special_tokens_and_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths, heads, longest = (14, 5, 1, 3), 2, 14
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    scores = 3 * torch.randn(len(lengths), heads, longest, longest, generator=generator)
    maps = scores.masked_fill(~mask[:, None, None], -torch.inf).softmax(-1) * mask[:, None, :, None]
    ordinary = mask.clone()
    ordinary[:, 0], ordinary[0, 13] = False, False
    found = mass_at_offsets(maps, ordinary)
    for s, n in enumerate(lengths):
        expected = by_loops(maps[s, :, :n, :n], ordinary[s, :n])
        for name, values in expected.items():
            assert torch.allclose(found[name][s].expand_as(values), values, atol=1e-6), (name, s)
    assert 0 not in OFFSETS
    assert len(OFFSETS) == 20


def test_a_head_that_attends_to_one_offset_has_all_its_mass_and_hits_there() -> None:
    maps = torch.zeros(1, 1, 9, 9)
    for i in range(9):
        maps[0, 0, i, (i - 2) % 9] = 0.75
        maps[0, 0, i, 0] += 0.25
    ordinary = torch.ones(1, 9, dtype=torch.bool)
    ordinary[0, 0] = False
    found = {name: values[0, 0, OFFSETS.index(-2)] for name, values in mass_at_offsets(maps, ordinary).items()}
    assert {name: float(value / found["n"]) for name, value in found.items()} == pytest.approx(
        {"mass": 0.75, "word_mass": 1, "hit": 1, "n": 1}
    )


@pytest.fixture(scope="module")
def request_of_bert(checkpoints: dict[str, Path], sentences: list[str]) -> Request:
    corpus: Corpus = from_sentences("some", sentences[:12])
    return Request(resolve_model(str(checkpoints["bert"])), corpus, [1])


def test_told_positions_are_those_that_the_model_is_told(request_of_bert: Request, tmp_path: Path) -> None:
    seed = 3
    from dataclasses import replace

    told_request = replace(request_of_bert, permuted_tokens_seed=seed)
    stores = accumulate(told_request, [permuted_offsets(seed)], tmp_path, {"accelerator": "cpu"})
    store = stores[PERMUTED]
    tokens = tokens_of(request_of_bert, load_tokenizer(request_of_bert.source))
    told = permuted_positions(tokens, seed)
    order = reading_order(store, slice(0, tokens.n_tokens)).numpy()
    assert (told[order] == tokens.positions).all()
    assert (told[tokens.special] == tokens.positions[tokens.special]).all()
    assert (told != tokens.positions).mean() > 0.5
    # The model itself reads the sentences in their order and is told positions as `position_ids`.
    model = untouched(Path(request_of_bert.source.name), attn_implementation="eager")
    for s in (0, 5):
        rows = tokens.of_sentences(s, 1)
        ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]
        with torch.inference_mode():
            maps = model(input_ids=ids, position_ids=torch.from_numpy(told[rows])[None], output_attentions=True)
        ordinary = torch.from_numpy(~tokens.special[rows])
        by_told = torch.from_numpy(np.argsort(told[rows]))
        for layer, attention in enumerate(maps.attentions):
            true = by_loops(attention[0], ordinary)["mass"]
            as_told = by_loops(attention[0][:, by_told][:, :, by_told], ordinary)["mass"]
            for name, expected in (("told", as_told), ("told_true", true)):
                assert torch.allclose(store.by_sentence(name)[s, layer], expected, atol=1e-5), (name, layer)


def test_sums_of_a_corpus_are_kept_by_sentence(request_of_bert: Request, tmp_path: Path) -> None:
    (store,) = accumulate(request_of_bert, [AT_OFFSETS], tmp_path, {"accelerator": "cpu"}).values()
    sums = store.all_by_sentence()
    n_layers, n_heads = 3, 2
    assert sums["mass"].shape == (12, n_layers, n_heads, len(OFFSETS))
    lengths = torch.from_numpy(store.tokens.lengths.astype(np.int64))
    for at, offset in enumerate(OFFSETS):
        assert torch.equal(sums["n"][:, 0, 0, at], (lengths - 2 - abs(offset)).clamp_min(0).double())
    assert bool((sums["mass"] <= sums["word_mass"] + 1e-9).all())
