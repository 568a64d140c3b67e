"""Heads that link predicates with their roles: a planted one is found, and links at random give uniform p-values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from conftest import make_sentences
from probing.cache import Request, load, tokens_of
from probing.cache.tokens import Tokens
from probing.corpus import from_words
from probing.heads.accumulation import accumulate
from probing.heads.role_files import Link, RoleLinks, read_role_links
from probing.heads.roles import ALL, Pairs, Roles, largest, pairs_of, role_rows, rows_of_scores
from probing.models import load_tokenizer, resolve_model
from probing.models.anatomy import examine
from probing.models.attention_heads import find_heads, read_heads

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]

N_SENTENCES, N_WORDS, N_LAYERS, N_HEADS = 40, 9, 2, 3


def tokens_and_upos(seed: int) -> tuple[Tokens, list[tuple[str, ...]]]:
    """Return sentences between two special tokens, with words of one or two pieces and two parts of speech."""
    generator = np.random.default_rng(seed)
    words = []
    for _ in range(N_SENTENCES):
        pieces = generator.choice([1, 1, 1, 2], N_WORDS)
        words.append(np.concatenate([[-1], np.repeat(np.arange(N_WORDS), pieces), [-1]]).astype(np.int16))
    flat = np.concatenate(words)
    lengths = np.array([len(one) for one in words], dtype=np.int32)
    upos = [tuple(generator.choice(["NOUN", "VERB"], N_WORDS)) for _ in words]
    return Tokens(lengths, np.zeros(len(flat), dtype=np.int32), flat), upos


def random_links(generator: np.random.Generator, upos: list[tuple[str, ...]]) -> RoleLinks:
    """Link words at random."""
    words = [tuple(f"w{i}{j}" for j in range(N_WORDS)) for i in range(N_SENTENCES)]
    corpus = from_words("made up", words, {"upos": upos})
    places = [
        (i, p, f) for i in range(N_SENTENCES) for p in range(N_WORDS) for f in range(N_WORDS) if abs(p - f) in (2, 3)
    ]
    chosen = sorted(generator.choice(len(places), 50, replace=False))
    return RoleLinks(corpus, tuple(Link(i, (p, p), "x", (f, f)) for i, p, f in (places[k] for k in chosen)))


def scores(
    maps: list[torch.Tensor], pairs: Pairs, known: dict[tuple[int, ...], np.ndarray] | None = None
) -> np.ndarray:
    """Return the largest attention of each pair from maps of shape (layers, heads, from, to), as far as not known."""
    known, found = {} if known is None else known, []
    for sentence, (predicate, filler) in zip(pairs.sentences.tolist(), pairs.tokens.tolist(), strict=True):
        place = (sentence, *predicate, *filler)
        if place not in known:
            flat, shape = maps[sentence].flatten(0, 1), maps[sentence].shape[:2]
            known[place] = largest(flat, slice(*predicate), slice(*filler)).unflatten(1, shape).numpy()
        found.append(known[place])
    return np.stack(found)


def made_up_maps(tokens: Tokens, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(N_LAYERS, N_HEADS, n, n, generator=generator) * 2).softmax(-1) for n in tokens.lengths.tolist()
    ]


@pytest.mark.slow
def test_links_at_random_have_uniform_p_values() -> None:
    tokens, upos = tokens_and_upos(0)
    maps = made_up_maps(tokens, 0)
    generator = np.random.default_rng(1)
    smallest, known = [], dict[tuple[int, ...], np.ndarray]()
    for draw in range(200):
        pairs = pairs_of(random_links(generator, upos), tokens, draw)
        rows = rows_of_scores(scores(maps, pairs, known), pairs, draw, n_draws=99)
        smallest.append(min(row["p_value"] for row in rows if row["role"] == ALL))
    # The p-value of the best of all heads and both directions is uniform on 1/100, ..., 1.
    assert kstest(np.array(smallest) - 0.005, "uniform").pvalue > 0.01
    assert 0.01 <= np.mean(np.array(smallest) <= 0.05) <= 0.1


def test_a_planted_head_is_found_in_its_direction_alone() -> None:
    tokens, upos = tokens_and_upos(2)
    links = random_links(np.random.default_rng(3), upos)
    maps, pairs = made_up_maps(tokens, 4), pairs_of(links, tokens, 0)
    for i in np.flatnonzero(pairs.roles == "x"):
        (_, _), (first, _) = pairs.tokens[i]
        query = pairs.tokens[i, 0, 0]
        maps[pairs.sentences[i]][1, 2, query] = 0.1 * maps[pairs.sentences[i]][1, 2, query]
        maps[pairs.sentences[i]][1, 2, query, first] += 0.9
    rows = [row for row in rows_of_scores(scores(maps, pairs), pairs, 0) if row["role"] == ALL]
    assert len(rows) == 2 * N_LAYERS * N_HEADS
    best = max(rows, key=lambda row: row["z"])
    assert (best["query"], best["layer"], best["head"]) == ("predicate", 2, 3)
    assert best["p_value"] == pytest.approx(1 / 1001)
    assert best["unlinked"] < 0.4 < 0.7 < best["low"] < best["score"] < best["high"]
    assert all(row["p_value"] > 0.01 for row in rows if row is not best)


def test_pairs_of_a_kind_look_alike() -> None:
    tokens, upos = tokens_and_upos(5)
    links = random_links(np.random.default_rng(6), upos)
    pairs = pairs_of(links, tokens, 0)
    linked = pairs.roles != ""
    assert linked.sum() == len(links.links)
    words = [tokens.words[tokens.of_sentences(s, 1)] for s in range(N_SENTENCES)]
    kinds: dict[int, set[tuple[object, ...]]] = {}
    for sentence, ends, stratum in zip(pairs.sentences.tolist(), pairs.tokens, pairs.stratum.tolist(), strict=True):
        predicate, filler = (int(words[sentence][first]) for first, _ in ends)
        sizes = (ends[:, 1] - ends[:, 0]).tolist()
        kinds.setdefault(stratum, set()).add(
            (filler - predicate, *ends[:, 0].tolist(), *sizes, upos[sentence][predicate], upos[sentence][filler])
        )
        assert {int(word) for first, last in ends for word in words[sentence][first:last]} == {predicate, filler}
    assert {len(kind) for kind in kinds.values()} == {1}
    assert len(set.union(*kinds.values())) == len(kinds)
    assert all((~linked[pairs.stratum == kind]).sum() <= 10 * linked[pairs.stratum == kind].sum() for kind in kinds)
    assert len({(s, *ends.flatten().tolist()) for s, ends in zip(pairs.sentences, pairs.tokens, strict=True)}) == len(
        linked
    )


def maps_of_model(request: Request, tokens: Tokens) -> list[torch.Tensor]:
    """Return the maps of each sentence, shape (layers, heads, from, to)."""
    encoder, _ = load(request)
    heads = find_heads(encoder, examine(encoder))
    found = []
    for sentence in range(tokens.n_sentences):
        ids = torch.from_numpy(tokens.input_ids[tokens.of_sentences(sentence, 1)].astype(np.int64))[None]
        maps: list[torch.Tensor] = []
        with torch.inference_mode():
            read_heads(
                encoder, heads, lambda layer, weights, values, out=maps: out.append(weights[0].clone()),  # type: ignore[misc]
                {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
            )  # fmt: skip
        found.append(torch.stack(maps))
    return found


def test_links_at_a_fixed_place_are_no_role_in_a_randomly_initialised_model(checkpoints: dict[str, Path]) -> None:
    corpus = from_words("made up", [text.split() for text in make_sentences(200, longest=12)])
    source = resolve_model(str(checkpoints["bert"]))
    request = Request(source, corpus, (), random_weights_seed=0)
    tokens = tokens_of(request, load_tokenizer(source))
    maps = maps_of_model(request, tokens)
    generator = np.random.default_rng(0)
    chance = np.where(tokens.lengths < np.median(tokens.lengths), 0.8, 0.2)
    smallest, known, n_unmatched = [], dict[tuple[int, ...], np.ndarray](), 0
    for draw in range(20):
        linked = np.flatnonzero(generator.random(tokens.n_sentences) < chance).tolist()
        pairs = pairs_of(RoleLinks(corpus, tuple(Link(s, (2, 2), "x", (0, 0)) for s in linked)), tokens, draw)
        rows = rows_of_scores(scores(maps, pairs, known), pairs, draw, n_draws=99)
        smallest.append(min(row["p_value"] for row in rows))
        assert {row["n"] + row["n_unmatched"] for row in rows} == {len(linked)}
        n_unmatched += rows[0]["n_unmatched"]
    # At 5% there is one false alarm among 20 draws, and more than four have a chance of .003.
    assert sum(p <= 0.05 for p in smallest) <= 4
    assert 0 < n_unmatched < 20 * 40
    # If all sentences have a link there, nothing tells the place from the role.
    everywhere = pairs_of(RoleLinks(corpus, tuple(Link(s, (2, 2), "x", (0, 0)) for s in range(200))), tokens, 0)
    assert (everywhere.roles == "x").all()
    assert rows_of_scores(np.zeros((200, 2, 3, 2), dtype=np.float32), everywhere, 0) == []


def test_scores_are_read_from_a_model(checkpoints: dict[str, Path], long_sentences: list[str], tmp_path: Path) -> None:
    short = [sentence for sentence in long_sentences if 5 < len(sentence.split()) <= 12][:8]
    path = tmp_path / "roles.tsv"
    path.write_text("".join(f"{s}\t1\tx\t3-4\n{s}\t4\ty\t0\n" for s in short), encoding="utf-8")
    links = read_role_links(str(path))
    source = resolve_model(str(checkpoints["bert"]))
    request = Request(source, links.corpus, (), batch_tokens=60)
    tokens = tokens_of(request, load_tokenizer(source))
    pairs = pairs_of(links, tokens, 0)
    measure = Roles(pairs)
    store = accumulate(request, [measure], tmp_path, {"accelerator": "cpu"})["roles"]
    maps_of_sentences = maps_of_model(request, tokens)
    values = store.by_sentence("largest")
    for i in (0, len(pairs.slots) - 1):
        s = int(pairs.sentences[i])
        maps = maps_of_sentences[s]
        (p, q), (f, g) = pairs.tokens[i].tolist()
        expected = torch.stack(
            [torch.stack([m[:, p:q, f:g].amax((1, 2)), m[:, f:g, p:q].amax((1, 2))]) for m in maps], dim=1
        )
        torch.testing.assert_close(values[s, pairs.slots[i]], expected, rtol=1e-5, atol=1e-6)
    rows = role_rows(store, pairs, 0, n_draws=9)
    assert {row["role"] for row in rows} == {ALL}  # eight links are too few to test a role by itself
    assert {(row["layer"], row["head"]) for row in rows} == {(k, h) for k in (1, 2, 3) for h in (1, 2)}
    fewer = RoleLinks(links.corpus, links.links[::2])
    assert Roles(pairs_of(fewer, tokens, 0)).settings != measure.settings


def test_fillers_of_one_predicate_are_no_evidence_of_their_own() -> None:
    """Predicates with four random fillers, in maps in which some words attend to all others and some to none."""
    tokens, upos = tokens_and_upos(8)
    generator = np.random.default_rng(9)
    maps = [
        of * torch.from_numpy(generator.random((N_LAYERS, N_HEADS, of.shape[2], 1)).astype(np.float32) ** 4)
        for of in made_up_maps(tokens, 9)
    ]
    corpus = random_links(generator, upos).corpus
    corpus = from_words("made up", corpus.words or ())
    smallest, known = [], dict[tuple[int, ...], np.ndarray]()
    for draw in range(60):
        links = []
        for s in sorted(generator.choice(N_SENTENCES, 25, replace=False).tolist()):
            p = int(generator.integers(N_WORDS))
            others = [f for f in range(N_WORDS) if abs(f - p) > 1]
            links += [Link(s, (p, p), "x", (int(f), int(f))) for f in generator.choice(others, 4, replace=False)]
        pairs = pairs_of(RoleLinks(corpus, tuple(links)), tokens, draw)
        rows = rows_of_scores(scores(maps, pairs, known), pairs, draw, n_draws=39)
        smallest += [min(row["p_value"] for row in rows)] if rows else []
        for placements in pairs.placements.values():
            assert all(len(set(pairs.sentences[own[own >= 0]].tolist())) == 1 for own in placements.pairs)
    # More than eight false alarms among 60 draws have a chance of .003.
    assert len(smallest) == 60
    assert sum(p <= 0.05 for p in smallest) <= 8
