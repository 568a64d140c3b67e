"""Heads that link predicates with their roles: files of links, scores, and drawn placements."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import comb, prod
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from conftest import make_sentences
from probing.activations import Request, load, tokens_of
from probing.errors import UserError
from probing.heads.accumulation import accumulate
from probing.heads.roles import (
    ALL,
    Link,
    Pairs,
    Placements,
    Resampled,
    RoleLinks,
    at_one_length,
    distance,
    largest,
    pairs_of,
    read_role_links,
    role_rows,
    role_scores,
    rows_of_scores,
    slope_of,
    treebank_links,
)
from probing.heads.roles import draw as draw_placements
from probing.models import load_tokenizer, resolve_model
from probing.models.anatomy import examine
from probing.models.attention_heads import find_heads, read_heads
from probing.text import Corpus, from_words
from probing.text.tokens import Tokens

pytestmark = pytest.mark.numeric

GOOD = "He left the old house quietly\t1\tsource\t3-4\n"


def written(folder: Path, text: str) -> str:
    path = folder / "roles.tsv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_links_of_a_sentence_in_several_lines_are_together(tmp_path: Path) -> None:
    text = (
        "Soon she gave the boy a book\t2\ttheme\t5-6\n\nHe saw nothing\t1\tthing\t2\n"
        "Soon  she gave the boy a book\t2\trecipient\t4\n"
    )
    found = read_role_links(written(tmp_path, text))
    # A sentence whose links are left out has unlinked pairs.
    assert found.corpus.sentences == ("Soon she gave the boy a book", "He saw nothing")
    assert found.links == (Link(0, (2, 2), "theme", (5, 6)), Link(0, (2, 2), "recipient", (4, 4)))
    assert found.excluded == (("predicate and filler less than 2 words apart", 1),)


def test_long_fillers_and_sentences_are_left_out(tmp_path: Path) -> None:
    long = " ".join("abcdefghijklm")
    text = f"{GOOD}a b c d e f\t0\tx\t2-5\n{long}\t0\tx\t4\n"
    found = read_role_links(written(tmp_path, text))
    assert len(found.links) == 1
    assert dict(found.excluded) == {"filler of more than 3 words": 1, "sentence of more than 12 words": 1}


def test_the_distance_is_between_the_nearest_words_and_has_a_sign() -> None:
    assert distance((1, 2), (5, 6)) == 3
    assert distance((5, 6), (1, 2)) == -3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("He left the house 1 source 3", "line 2: expected text, predicate, role and filler .* found 1 column;"),
        (GOOD.strip() + "\tmore", "line 2: expected .* found 5 columns"),
        ("\t1\tsource\t3", "line 2: the text is empty"),
        ("He left the house\t1\t\t3", "line 2: the role has no name"),
        ("He left the house\tleft\tsource\t3", "line 2: the predicate is 'left', where a word such as 3"),
        ("He left the house\t1\tsource\t2-", "line 2: the filler is '2-'"),
        ("He left the house\t-1\tsource\t2", "line 2: the predicate is '-1'"),
        ("He left the house\t1\tsource\t3-2", "line 2: the filler 3-2 ends before it begins; write 2-3"),
        ("He left the house\t1\tsource\t4", "line 2: the filler 4 is outside of the text, whose 4 words"),
        ("He left the house\t1-2\tsource\t2-3", "line 2: predicate 1-2 and filler 2-3 share a word"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UserError, match=r"`--roles .*roles.tsv`, " + message):
        read_role_links(written(tmp_path, f"{GOOD}{line}\n"))


def test_a_file_without_a_link_that_can_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no link"):
        read_role_links(written(tmp_path, "\n \n"))
    with pytest.raises(UserError, match=r"no role link that can be measured \(predicate and filler less than 2.*: 1\)"):
        read_role_links(written(tmp_path, "He left\t1\tagent\t0\n"))


# --- FrameNet ---

UNIT = """<?xml version="1.0" encoding="UTF-8"?>
<lexicalUnit xmlns="http://framenet.icsi.berkeley.edu" ID="7" name="leave.v" frame="Departing" POS="V">
  <header><frame>
    <FE type="Core" abbrev="Thm" name="Theme"/><FE type="Core" abbrev="Src" name="Source"/>
    <FE type="Peripheral" abbrev="Mnr" name="Manner"/>
  </frame></header>
  <subCorpus name="V-np">
    <sentence sentNo="0" aPos="1" ID="11">
      <text>The old  man slowly left his house .</text>
      <annotationSet status="UNANN" ID="1"><layer rank="1" name="PENN">
        <label start="0" end="2" name="at0"/></layer></annotationSet>
      <annotationSet status="MANUAL" ID="2">
        <layer rank="1" name="FE">
          <label start="0" end="11" name="Theme"/><label start="25" end="33" name="Source"/>
          <label start="13" end="18" name="Manner"/><label itype="DNI" name="Goal"/>
        </layer>
        <layer rank="2" name="FE"><label start="25" end="27" name="Theme"/></layer>
        <layer rank="1" name="GF"><label start="0" end="11" name="Ext"/></layer>
        <layer rank="1" name="Target"><label start="20" end="23" name="Target"/></layer>
      </annotationSet>
    </sentence>
  </subCorpus>
</lexicalUnit>
"""


def framenet(folder: Path, text: str) -> str:
    (folder / "lu").mkdir()
    (folder / "lu" / "lu7.xml").write_text(text, encoding="utf-8")
    return f"framenet:{folder}"


def test_core_elements_are_read_from_the_folder_of_framenet(tmp_path: Path) -> None:
    found = read_role_links(framenet(tmp_path, UNIT))
    assert found.corpus.words == (("The", "old", "man", "slowly", "left", "his", "house", "."),)
    assert found.links == (Link(0, (4, 4), "Theme", (0, 2)),)
    assert found.excluded == (("predicate and filler less than 2 words apart", 1),)  # the source


def test_a_folder_or_file_that_is_not_framenet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected files `lu/lu\*.xml` in the folder"):
        read_role_links(f"framenet:{tmp_path}")
    name = framenet(tmp_path, UNIT.replace("</subCorpus>", ""))
    with pytest.raises(UserError, match=r"lu7\.xml is not XML in line 23"):
        read_role_links(name)
    (tmp_path / "lu" / "lu7.xml").write_text(UNIT.replace('end="33"', 'end="99"'), encoding="utf-8")
    with pytest.raises(UserError, match=r"lu7\.xml has the label 'Source' from character '25' to '99' .*ID 11"):
        read_role_links(name)


# --- treebanks ---


def test_core_arguments_of_a_treebank_are_subjects_and_objects() -> None:
    words = [("Today", "she", "quickly", "gave", "him", "the", "book"), tuple("abcdefghijklm"), ("He", "fell")]
    columns = {
        "head": [("4", "4", "4", "0", "4", "7", "4"), ("3", *["0"] * 12), ("2", "0")],
        "deprel": [
            ("advmod", "nsubj:pass", "advmod", "root", "iobj", "det", "obj"),
            ("nsubj", *["root"] * 12),
            ("nsubj", "root"),
        ],
    }  # fmt: skip
    found = treebank_links(from_words("made up", words, columns))
    assert found.links == (Link(0, (3, 3), "nsubj", (1, 1)), Link(0, (3, 3), "obj", (6, 6)))
    # Short sentences without a link have unlinked pairs to compare with.
    assert found.corpus.columns["deprel"] == (columns["deprel"][0], columns["deprel"][2])
    left_out = {"sentence of more than 12 words": 1, "predicate and filler less than 2 words apart": 2}
    assert dict(found.excluded) == left_out
    with pytest.raises(UserError, match="no columns `head` and `deprel`"):
        treebank_links(Corpus("text", ("He fell.",)))


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


@pytest.mark.slow
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
    measure = role_scores(pairs)
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
    assert role_scores(pairs_of(fewer, tokens, 0)).settings != measure.settings


@pytest.mark.slow
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


def placements(stratum: np.ndarray, linked: np.ndarray, log_ways: np.ndarray) -> Placements:
    """Return placements of one pair each."""
    return Placements(np.arange(len(linked))[:, None], stratum, linked, np.full(len(linked), 9), log_ways, 0)


def test_what_lengths_explain_is_that_of_least_squares_with_a_mean_for_each_kind() -> None:
    generator = np.random.default_rng(7)
    stratum, lengths = generator.integers(0, 6, 80) * 3, generator.integers(5, 15, 80)
    made = placements(stratum, generator.random(80) < 0.3, np.zeros(80))
    values = generator.random((80, 2, 3)) + 4 / lengths[:, None, None] + stratum[:, None, None]
    found = at_one_length(values, replace(made, lengths=lengths))
    kinds = sorted(set(stratum.tolist()))
    design = np.array([[1 / n, *(float(k == kind) for kind in kinds)] for k, n in zip(stratum, lengths, strict=True)])
    slope = np.linalg.lstsq(design, values.reshape(80, -1))[0][0].reshape(2, 3)
    centre = np.mean([1 / n for n, link in zip(lengths, made.linked, strict=True) if link])
    expected = [value - slope * (1 / n - centre) for value, n in zip(values, lengths, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-10)
    np.testing.assert_allclose(found[made.linked].mean(0), values[made.linked].mean(0))
    np.testing.assert_array_equal(at_one_length(values, made), values)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_choices_are_drawn_with_the_product_of_their_odds(m: int) -> None:
    log_odds = np.array([0.0, -1.0, 0.5, 2.0, -3.0])
    drawn = draw_placements(log_odds, m, 40_000, np.random.default_rng(0))
    assert set(drawn.sum(1).tolist()) == {m}
    choices = list(combinations(range(5), m))
    weights = np.array([prod(np.exp(log_odds[list(choice)])) for choice in choices])
    seen = np.array([(drawn.nonzero()[1].reshape(-1, m) == choice).all(1).mean() for choice in choices])
    # Within five binomial standard errors.
    chance = weights / weights.sum()
    assert (np.abs(seen - chance) < 5 * np.sqrt(chance / 40_000) + 1e-9).all()
    # Odds of any size: only their ratios count.
    np.testing.assert_array_equal(draw_placements(log_odds + 600, m, 99, np.random.default_rng(1)),
                                  draw_placements(log_odds - 600, m, 99, np.random.default_rng(1)))  # fmt: skip


def test_the_slope_is_that_of_the_greatest_likelihood_over_all_choices() -> None:
    generator = np.random.default_rng(2)
    stratum, ways = np.repeat([3, 5, 9], 8), generator.random(24) * 3
    linked = np.tile([True, True, False, False, False, True, False, False], 3)

    def likelihood(slope: float) -> float:
        found = 0.0
        for kind in (3, 5, 9):
            own, is_link = slope * ways[stratum == kind], linked[stratum == kind]
            found += own[is_link].sum() - np.log(sum(np.exp(own[list(c)].sum()) for c in combinations(range(8), 3)))
        return found

    assert comb(8, 3) == 56
    slopes = np.linspace(-8, 8, 321)
    best = slopes[np.argmax([likelihood(slope) for slope in slopes])]
    assert slope_of(placements(stratum, linked, ways)) == pytest.approx(best, abs=0.03)
    assert slope_of(placements(stratum, linked, np.zeros(24))) == 0


def of_links(generator: np.random.Generator, slope: float) -> tuple[np.ndarray, Placements]:
    """Return values that grow with the number of ways, and links that are made with odds `ways` ** slope."""
    stratum, ways = generator.integers(0, 4, 160), generator.random(160) * 3
    linked = generator.random(160) < 1 / (1 + 2 * np.exp(-slope * (ways - 1.5)))
    values = generator.standard_normal((160, 2, 2, 3)) - (ways + stratum)[:, None, None, None]
    return values.astype(np.float32), placements(stratum, linked, ways)


@pytest.mark.slow
@pytest.mark.parametrize("slope", [-1.5, 0.0, 1.0])
def test_links_that_depend_on_the_ways_alone_are_seldom_significant_and_a_planted_head_is(slope: float) -> None:
    generator, smallest, equal_odds = np.random.default_rng(0), [], []
    for _ in range(100):
        values, made = of_links(generator, slope)
        smallest.append(Resampled.of(values, made, 0, 39).p_value.min())
        blind = placements(made.stratum, made.linked, np.zeros(160))
        equal_odds.append(Resampled.of(values, blind, 0, 39).p_value.min())
    # Five per cent within four binomial standard errors at n = 100.
    assert np.mean(np.array(smallest) <= 0.05) < 0.05 + 4 * (0.05 * 0.95 / 100) ** 0.5
    if slope < 0:
        assert np.mean(np.array(equal_odds) <= 0.05) > 0.9
    values[made.linked, 1, 0, 2] += 1.5
    found = Resampled.of(values, made, 0, 39)
    assert found.p_value[1, 0, 2] == found.p_value.min() == 1 / 40


def test_unlinked_is_the_mean_by_kind_and_odds() -> None:
    stratum = np.array([0, 0, 0, 1, 1])
    linked = np.array([True, False, False, False, True])
    ways = np.log([2.0, 3.0, 9.0, 7.0, 7.0])
    values = np.arange(10, dtype=np.float32).reshape(5, 2, 1, 1)
    made = placements(stratum, linked, ways)
    slope = slope_of(made)
    odds = np.array([3.0, 9.0]) ** slope
    of_first = (odds @ values[1:3, :, 0, 0]) / odds.sum()
    np.testing.assert_allclose(
        Resampled.of(values, made, 0, 9).unlinked[:, 0, 0], (of_first + values[3, :, 0, 0]) / 2, rtol=1e-12
    )
