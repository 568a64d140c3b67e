"""Relations that heads carry: against loops by definition, on planted heads, and on heads that know nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from families import untouched
from probing.cache import Request
from probing.corpus import Corpus, from_sentences, load_corpus
from probing.errors import UserError
from probing.heads import accumulation
from probing.heads.accumulation import accumulate, attention_of
from probing.heads.syntax import (
    OFFSETS,
    Arcs,
    MostAttended,
    Scored,
    WordBatch,
    arcs_of,
    by_sentence,
    has_arcs,
    head_relation_rows,
    most_attended,
    relation_rows,
    scored,
)
from probing.models import resolve_model
from probing.statistics.intervals import difference_p_value
from probing.tables.heads import beats_offset
from small_data import MapsOf, batch_of, kept_of, random_maps, tokens_of_words, treebank

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]


def test_words_and_what_they_attend_to_are_those_of_a_loop() -> None:
    corpus = treebank(6)
    tokens = tokens_of_words(corpus)
    for is_causal in (False, True):
        batch = batch_of(tokens, range(6), is_causal)
        words = WordBatch.of(batch)
        weights = random_maps(batch.mask.shape[1], 1)[0].expand(6, -1, -1, -1)
        attention = attention_of(1, weights, torch.empty(0), None, batch)
        maps = words.maps(attention.probabilities)
        found = most_attended(maps, words)
        for s in range(6):
            own = [np.flatnonzero((words.words[s] == w).numpy()) for w in range(len((corpus.words or ())[s]))]
            assert is_causal or all(len(pieces) for pieces in own)
            for h in range(3):
                table = attention.probabilities[s, h].numpy().astype(np.float64)
                expected = np.zeros((len(own), len(own)))
                for i, queries in enumerate(own):
                    for j, keys in enumerate(own):
                        if i != j and len(queries) and len(keys):
                            expected[i, j] = np.mean([sum(table[q, k] for k in keys) for q in queries])
                np.testing.assert_allclose(maps[s, h, : len(own), : len(own)].numpy(), expected, rtol=1e-6, atol=1e-7)
                for w, pieces in enumerate(own):
                    there = expected[w].argmax() if len(pieces) else -1
                    assert int(found.from_word[s, h, w]) == there
                    assert int(found.to_word[s, h, w]) == (expected[:, w].argmax() if len(pieces) else -1)
                assert (found.from_word[s, h, len(own) :] == -1).all()


def test_ties_go_to_the_lower_index_and_a_word_alone_has_no_other() -> None:
    words = WordBatch(torch.tensor([[-1, 0, 1, 2, -1], [-1, 0, -1, -1, -1]]))
    uniform = words.maps(torch.full((2, 1, 5, 5), 0.2))
    found = most_attended(uniform, words)
    assert found.from_word[:, 0].tolist() == found.to_word[:, 0].tolist() == [[1, 0, 0], [-1, -1, -1]]
    at_tokens = words.at_tokens(found.from_word)
    assert at_tokens[:, :, 0].tolist() == [[-1, 1, 0, 0, -1], [-1, -1, -1, -1, -1]]


# --- planted heads, and heads that know nothing ---


def planted(corpus: Corpus, relation: str, query: str) -> MapsOf:
    """Return maps in which head 2 of layer 2 carries a relation, all others being random."""
    arcs = arcs_of(corpus)

    def maps_of(sentence: int, words: NDArray[np.int16]) -> Tensor:
        maps = random_maps(len(words), sentence)
        maps[1, 1] *= 0.01
        maps[1, 1, :, 0] += 0.4
        chosen = (arcs.sentences == sentence) & (arcs.relations == relation)
        for dependent, head in zip(arcs.dependents[chosen], arcs.heads[chosen], strict=True):
            ends = (words == dependent, words == head)
            queries, keys = map(np.flatnonzero, ends if query == "dependent" else ends[::-1])
            for i in queries:  # spread over the pieces of the key, and part of it on the special token
                maps[1, 1, i, keys] += 0.6 / len(keys)
        return maps / maps.sum(-1, keepdim=True)

    return maps_of


@pytest.mark.parametrize("query", ["dependent", "head"])
def test_a_planted_head_is_found_and_right_about_every_arc(query: str) -> None:
    parts = []
    for seed in (0, 1):
        corpus = treebank(60, seed)
        tokens = tokens_of_words(corpus, seed)
        maps = planted(corpus, "obl:tmod", query)
        parts.append(scored(kept_of(MostAttended(), corpus, tokens, maps), corpus))
    rows = {row["relation"]: row for row in relation_rows(parts[0], parts[1], least=50)}
    assert set(rows) == {"nsubj", "obl:tmod", "det"}  # neither the root nor punctuation
    row = rows["obl:tmod"]
    assert (row["layer"], row["head"], row["query"], row["train"], row["test"]) == (2, 2, query, 1.0, 1.0)
    assert row["test_high"] == 1 > row["test_low"] > 0.9
    assert row["difference"] == pytest.approx(1 - row["offset_test"])
    assert row["p_value"] < 1e-6
    assert max(rows["nsubj"]["test"], rows["det"]["test"]) < 0.5


def made_up_arcs(generator: np.random.Generator, n_sentences: int, n_relations: int) -> Arcs:
    """Return arcs whose heads are any other word, each as likely."""
    lengths = generator.integers(6, 25, n_sentences)
    sentences = np.repeat(np.arange(n_sentences), lengths)
    words = np.concatenate([np.arange(length) for length in lengths])
    of = lengths[sentences]
    heads = (words + 1 + (generator.random(len(words)) * (of - 1)).astype(np.int64)) % of
    relations = np.array([f"r{i}" for i in range(n_relations)], dtype=object)
    return Arcs(sentences, words, heads, relations[generator.integers(n_relations, size=len(words))])


def test_shuffled_heads_of_a_treebank_seldom_give_a_false_alarm() -> None:
    generator = np.random.default_rng(0)
    alarms = []
    for _ in range(60):
        parts = []
        for n in (150, 60):
            arcs = made_up_arcs(generator, n, 4)
            of = np.bincount(arcs.sentences)[arcs.sentences]
            guesses = (generator.random((len(arcs), 3, 4, 2)) * of[:, None, None, None]).astype(np.int64)
            parts.append(Scored(arcs, guesses == arcs.heads[:, None, None, None]))
        rows = relation_rows(parts[0], parts[1])
        assert len(rows) == 4
        alarms.append(any(row["p_value"] < 0.05 for row in rows))
    assert np.mean(alarms) <= 0.05


def test_the_best_offset_is_chosen_on_train_and_out_of_range_is_wrong() -> None:
    generator = np.random.default_rng(1)
    parts, others = [], []
    for n in (200, 100):
        arcs = made_up_arcs(generator, n, 1)
        length = np.bincount(arcs.sentences)[arcs.sentences]
        heads = np.where(arcs.dependents >= 3, arcs.dependents - 3, arcs.dependents + 1)
        arcs = Arcs(arcs.sentences, arcs.dependents, heads, arcs.relations)
        right = generator.random((len(arcs), 2, 2, 2)) < 0.3
        right[:, 0, 1, 1] = (arcs.dependents >= 3) & (arcs.dependents < length - 1)
        parts.append(Scored(arcs, right))
        others.append(Scored(arcs, generator.random((len(arcs), 2, 2, 2)) < 0.3))
    (row,) = relation_rows(parts[0], parts[1], untrained=(others[0], others[1]))
    reported = parts[1].arcs
    assert (row["offset"], row["layer"], row["head"], row["query"]) == (-3, 1, 2, "head")
    assert row["offset_test"] == pytest.approx(np.mean(reported.dependents >= 3))
    assert row["difference"] == pytest.approx(-100 / len(reported))  # the last word of each sentence
    assert row["difference_low"] < row["difference"] < row["difference_high"] < 0
    assert row["p_value"] < 0.05
    assert row["untrained_low"] < row["untrained"] == pytest.approx(0.3, abs=0.05)
    assert (row["n_train"], row["n_test"]) == (len(parts[0].arcs), len(reported))
    assert relation_rows(parts[0], parts[1], least=len(reported) + 1) == []


def test_the_relation_of_a_head_is_that_in_which_it_is_furthest_above_the_offset() -> None:
    """Against a loop by definition; one head carries a relation between words far apart."""
    generator = np.random.default_rng(5)
    parts = []
    for n in (120, 90):
        arcs = made_up_arcs(generator, n, 3)
        near = arcs.relations == "r0"  # a relation between neighbours, which every head finds often
        heads = np.where(near, np.where(arcs.dependents > 0, arcs.dependents - 1, 1), arcs.heads)
        arcs = Arcs(arcs.sentences, arcs.dependents, heads, arcs.relations)
        right = generator.random((len(arcs), 2, 3, 2)) < np.where(near, 0.7, 0.1)[:, None, None, None]
        right[arcs.relations == "r2", 1, 0, 1] = True
        parts.append(Scored(arcs, right))
    rows = head_relation_rows(parts[0], parts[1], least=50)
    assert [(row["layer"], row["head"]) for row in rows] == [(layer, head) for layer in (1, 2) for head in (1, 2, 3)]
    p_values = []
    for row in rows:
        layer, head, best = row["layer"] - 1, row["head"] - 1, []
        for name in ("r0", "r1", "r2"):
            train, test = (part.where(part.arcs.relations == name) for part in parts)
            shares = {offset: np.mean(train.arcs.offsets == offset) for offset in OFFSETS}
            offset = max(OFFSETS, key=lambda one: shares[one])
            for q, query in enumerate(("dependent", "head")):
                there = train.right[:, layer, head, q].mean()
                here, by_offset = test.right[:, layer, head, q].mean(), np.mean(test.arcs.offsets == offset)
                best.append((there - shares[offset], name, query, there, here, offset, by_offset, len(test.arcs)))
        _, name, query, there, here, offset, by_offset, n_test = max(best, key=lambda one: one[0])
        assert (row["relation"], row["query"], row["offset"], row["n_test"]) == (name, query, offset, n_test)
        assert (row["train"], row["test"], row["offset_test"]) == pytest.approx((there, here, by_offset))
        assert row["difference"] == pytest.approx(here - by_offset)
        p_values.append(row["p_value"])
    planted = rows[3]
    assert (planted["relation"], planted["query"], planted["test"]) == ("r2", "head", 1.0)
    assert [beats_offset(row) for row in rows] == [False] * 3 + [True] + [False] * 2
    # Corrected for the number of heads: six times what one comparison alone gives.
    arcs = parts[1].arcs.where(parts[1].arcs.relations == "r2")
    one, at_offset = by_sentence(arcs, np.ones(len(arcs)), arcs.offsets == planted["offset"])
    assert 0 < p_values[3] == pytest.approx(6 * difference_p_value(one - at_offset, one), abs=0)
    assert head_relation_rows(parts[0], parts[1], least=10_000) == []


def test_equally_good_offsets_and_heads_go_to_the_nearest_and_the_first() -> None:
    assert OFFSETS[:4] == (-1, 1, -2, 2)
    assert (min(OFFSETS), max(OFFSETS), len(OFFSETS)) == (-10, 10, 20)
    arcs = Arcs(np.arange(40), np.full(40, 2), np.tile([1, 3], 20), np.full(40, "x", dtype=object))
    same = Scored(arcs, np.ones((40, 2, 3, 2), dtype=bool))
    (row,) = relation_rows(same, same, least=1)
    assert (row["offset"], row["layer"], row["head"], row["query"]) == (-1, 1, 1, "dependent")


# --- from a file and a model ---

LINES = """\
1\tIt\tit\tPRON\t_\t_\t4\tnsubj\t_\t_
2-3\tdoesn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdoes\tdo\tAUX\t_\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t_\t_
4\tcount\tcount\tVERB\t_\t_\t0\troot\t_\t_
4.1\tghost\t_\t_\t_\t_\t_\t_\t_\t_
5\twords\tword\tNOUN\t_\t_\t4\tobj\t_\t_
6\t.\t.\tPUNCT\t_\t_\t4\tpunct\t_\t_
"""


def test_arcs_are_between_words_without_multiword_tokens_and_empty_nodes(tmp_path: Path) -> None:
    path = tmp_path / "x.conllu"
    path.write_text(LINES + "\n", encoding="utf-8")
    corpus = load_corpus(str(path))
    arcs = arcs_of(corpus)
    assert arcs.dependents.tolist() == [0, 1, 2, 4, 5]
    assert set(arcs.heads.tolist()) == {3}
    assert arcs.offsets.tolist() == [3, 2, 1, -1, -2]
    assert arcs.is_punctuation.tolist() == [False] * 4 + [True]
    for bad in ("7", "1", "-2", "x", "²"):
        path.write_text(LINES.replace("PRON\t_\t_\t4", f"PRON\t_\t_\t{bad}"), encoding="utf-8")
        with pytest.raises(UserError, match=rf"word 1 of the sentence `It does .* has the head `{bad}`, where 0 or"):
            arcs_of(load_corpus(str(path)))
    plain = from_sentences("plain", ["One sentence."])
    assert has_arcs(corpus)
    assert not has_arcs(plain)
    with pytest.raises(UserError, match=r"`--test_corpus plain` has no dependency relations: .* give a .conllu file"):
        arcs_of(plain, "--test_corpus")


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_model_s_heads_are_scored_as_in_a_loop_over_its_own_attention(
    checkpoints: dict[str, Path], tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulation, "SHARD_TOKENS", 150)
    corpus = treebank(8, seed=3)
    source = resolve_model(str(checkpoints[family]))
    request = Request(source, corpus, (), batch_tokens=200, max_length=40)
    store = accumulate(request, [MostAttended()], tmp_path, {"accelerator": "cpu"})["most_attended"]
    assert len(store.plan.shards) > 1
    found = scored(store, corpus)
    model, tokens = untouched(checkpoints[family], attn_implementation="eager"), store.tokens
    expected, n = [], 0
    for sentence in range(8):
        rows = tokens.of_sentences(sentence, 1)
        ids, words = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None], tokens.words[rows].copy()
        words[0] = -1
        with torch.no_grad():
            layers = model(input_ids=ids, output_attentions=True).attentions
        maps = torch.stack(layers)[:, 0].double().numpy()
        own = arcs_of(corpus)
        own = own.where((own.sentences == sentence) & ~own.is_punctuation)
        for dependent, head in zip(own.dependents, own.heads, strict=True):
            if dependent not in words or head not in words:
                continue
            others = [w for w in sorted({*words.tolist()} - {-1}) if w != dependent]
            there = [maps[..., words == dependent, :][..., words == w].sum(-1).mean(-1) for w in others]
            back = [maps[..., words == w, :][..., words == dependent].sum(-1).mean(-1) for w in others]
            expected.append(np.stack([np.array(others)[np.argmax(x, axis=0)] == head for x in (there, back)], axis=2))
            n += 1
    assert n == len(found.arcs) > 20
    assert (found.right == np.array(expected)).mean() == 1
    assert 0 < found.right.mean() < 0.5
    half = np.arange(8) < 4
    assert set(found.of_sentences(half).arcs.sentences.tolist()) <= {0, 1, 2, 3}


def test_the_work_is_linear_in_the_tokens(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulation, "SHARD_TOKENS", 150)
    sizes: list[int] = []
    maps = WordBatch.maps

    def counted(words: WordBatch, probabilities: Tensor) -> Tensor:
        sizes.append(probabilities.numel())
        return maps(words, probabilities)

    monkeypatch.setattr(WordBatch, "maps", counted)
    totals = []
    for n in (20, 60):
        request = Request(resolve_model(str(checkpoints["bert"])), treebank(n, longest=6), (), batch_tokens=200)
        sizes.clear()
        store = accumulate(request, [MostAttended()], tmp_path, {"accelerator": "cpu"})["most_attended"]
        totals.append((sum(sizes) / store.plan.n_tokens, store.by_token("most_attended").numel() / store.plan.n_tokens))
    (work, kept), (more_work, as_much_kept) = totals
    assert 0.8 < more_work / work < 1.2  # elements of attention maps by token
    assert kept == as_much_kept
