"""Example sentences and pairs of sentences: their maps are those of the model, and figures show what was measured."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from families import untouched
from probing.activations import Request
from probing.heads import accumulation
from probing.heads.accumulation import BlockAttention, SentenceBatch, accumulate
from probing.heads.examples import (
    MOST_TOKENS,
    MOST_WORDS,
    N_SENTENCES,
    ClassExample,
    Example,
    ExampleMaps,
    ExampleSentence,
    cover,
    examples_of,
    maps_of_classes,
    read_examples,
    write_examples,
)
from probing.heads.measures import (
    BLOCK,
    CLASSES,
    PATTERNS,
    STRIPES,
    SentenceDraws,
    class_rows,
    classify,
    exchanged,
    patterns,
)
from probing.heads.survey import HeadSurvey
from probing.heads.syntax import WordBatch, most_attended
from probing.models import load_tokenizer, resolve_model
from probing.runs import Result, study_of
from probing.studies.attention.figures import class_examples, drawings, relation_map
from probing.tables.figures import GREY, write_drawings
from probing.text import Corpus, from_pairs, from_sentences
from rendering import rendered
from small_data import batch_of, random_maps, tokens_of_words, treebank

pytestmark = pytest.mark.numeric


def subject_of(model: Path, corpus: Corpus, layers: list[int]) -> HeadSurvey:
    return HeadSurvey.of(Request(resolve_model(str(model)), corpus, (), batch_tokens=200), layers, 0)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_maps_are_those_of_the_model_and_each_is_of_its_class(
    checkpoints: dict[str, Path], tmp_path: Path, family: str
) -> None:
    subject = subject_of(checkpoints[family], treebank(40, shortest=2, longest=3), [2])
    tokens = subject.tokens
    stores = accumulate(subject.request, [PATTERNS], tmp_path, {"accelerator": "cpu"})
    found = examples_of(subject, dict(stores))
    assert found is not None
    assert (found.layers, len(found.examples)) == ([2], N_SENTENCES)
    model = untouched(checkpoints[family], attn_implementation="eager")
    for one in found.examples:
        rows = tokens.of_sentences(one.of.sentence, 1)
        with torch.no_grad():
            ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]
            expected = model(input_ids=ids, output_attentions=True).attentions[1]
        np.testing.assert_allclose(one.maps, expected.numpy(), atol=1e-6)
        assert list(one.of.words) == list((subject.request.corpus.words or ())[one.of.sentence])
        assert len(one.of.tokens) == len(one.of.special) == len(one.of.word_of_token) <= MOST_TOKENS
        assert list(one.of.special) == subject.special[rows].tolist()
        assert all(word == -1 for word, special in zip(one.of.word_of_token, one.of.special, strict=True) if special)
        assert all(one.of.words[d] != one.of.words[h] for d, h, _ in one.of.arcs)
        assert {relation for *_, relation in one.of.arcs} <= {"nsubj", "obl:tmod", "det"}
    if family == "bert":
        assert (found.examples[0].of.tokens[0], found.examples[0].of.tokens[-1]) == ("[CLS]", "[SEP]")
    assert found.classes
    for name, of in found.classes.items():
        sentence = found.examples[of.example].of.sentence
        v, d = (stores["patterns"].by_sentence(one)[sentence, of.layer - 1, of.head - 1] for one in ("v", "d"))
        assert CLASSES[int(classify(v, d))] == name


def test_the_head_of_a_class_is_that_whose_maps_are_most_often_of_it() -> None:
    v, d = torch.zeros(10, 2, 3), torch.zeros(10, 2, 3)
    v[:6, 1, 0] = 0.9  # vertical in six sentences, heterogeneous in the others
    v[3:7, 0, 1] = 0.9
    d[:, 1, 2] = 0.8
    lengths = np.array([5] * 9 + [0], dtype=np.int32)
    found = maps_of_classes({"v": v, "d": d}, lengths, [1, 2])
    assert list(found) == ["vertical", "diagonal", "heterogeneous"]
    assert found["vertical"][0] == pytest.approx((2, 1, 6 / 9))
    assert found["vertical"][1].tolist() == [True] * 6 + [False] * 4
    assert found["diagonal"][0] == (2, 3, 1.0)
    assert found["diagonal"][1].tolist() == [True] * 9 + [False]
    assert found["heterogeneous"][0] == (1, 1, 1.0)
    assert maps_of_classes({"v": v, "d": d}, lengths, [1])["vertical"][0] == pytest.approx((1, 2, 4 / 9))


def test_sentences_are_added_while_they_have_something_new() -> None:
    has = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], dtype=bool)
    assert cover(has, []) == [1, 3]
    assert cover(has, [2]) == [2, 0, 3]
    assert cover(has, [2], most=2) == [2, 0]
    assert cover(np.zeros((4, 0), dtype=bool), []) == []


def test_running_text_has_words_and_no_arcs(checkpoints: dict[str, Path], sentences: list[str]) -> None:
    short = [text for text in sentences if 5 <= len(text.split()) <= 8][:3]
    corpus = from_sentences("plain", [" ".join(sentences[:5]), *short])
    found = examples_of(subject_of(checkpoints["bert"], corpus, [1]), {})
    assert found is not None
    assert found.classes == {}
    assert all(len(one.of.words) <= MOST_WORDS and not one.of.arcs for one in found.examples)
    joined = {"".join(one.of.words) for one in found.examples}
    assert joined <= {text.replace(" ", "") for text in short}
    assert joined


def test_a_corpus_without_a_short_sentence_has_no_examples(checkpoints: dict[str, Path], sentences: list[str]) -> None:
    corpus = from_sentences("long", [" ".join(sentences[i : i + 5]) for i in range(0, 20, 5)])
    assert examples_of(subject_of(checkpoints["bert"], corpus, [1]), {}) is None


def test_malformed_arcs_are_left_out(checkpoints: dict[str, Path]) -> None:
    corpus = treebank(8, longest=5)
    heads = tuple(("99", *of[1:]) for of in corpus.columns["head"])
    broken = Corpus(corpus.name, corpus.sentences, 0, corpus.words, {**corpus.columns, "head": heads})
    found = examples_of(subject_of(checkpoints["bert"], broken, [1]), {})
    assert found is not None
    assert not any(one.of.arcs for one in found.examples)


def example(sentence: int, is_causal: bool = False) -> tuple[Example, WordBatch]:
    """Return a made-up example of two layers of three heads, and its words as the survey has them."""
    corpus = treebank(4)
    tokens = tokens_of_words(corpus)
    batch = batch_of(tokens, [sentence], is_causal)
    words, n = WordBatch.of(batch), batch.mask.shape[1]
    texts = (corpus.words or ())[sentence]
    of = ExampleSentence(
        sentence, [f"t{i}" for i in range(n)], batch.special[0].tolist(), texts, words.words[0].tolist(), [(0, 1, "x")]
    )
    return Example(of, random_maps(n, sentence).float().numpy()), words


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_attention_between_words_is_that_of_the_survey(is_causal: bool) -> None:
    import torch

    for sentence in range(4):
        one, words = example(sentence, is_causal)
        expected = words.maps(torch.from_numpy(one.maps))
        n = expected.shape[-1]
        np.testing.assert_allclose(one.word_maps[..., :n, :n], expected.numpy(), rtol=1e-5, atol=1e-7)
        found = most_attended(expected, words).from_word
        for layer, head in np.ndindex(*one.maps.shape[:2]):
            assert [(i, j) for i, j, _ in one.strongest(layer, head)] == [
                (i, int(j)) for i, j in enumerate(found[layer, head]) if j >= 0
            ]
            assert all(weight == one.word_maps[layer, head, i, j] for i, j, weight in one.strongest(layer, head))
            special = [i for i, is_special in enumerate(one.of.special) if is_special]
            rows = [sum(float(row[i]) for i in special) for row in one.maps[layer, head]]
            assert one.mass_on_special(layer, head) == pytest.approx(np.mean(rows), rel=1e-5)


def test_a_word_without_a_piece_neither_attends_nor_is_attended_to() -> None:
    of = ExampleSentence(0, ["[CLS]", "a", "c"], [True, False, False], ["a", "b", "c"], [-1, 0, 2])
    one = Example(of, np.full((1, 1, 3, 3), 1 / 3, dtype=np.float32))
    assert [(i, j) for i, j, _ in one.strongest(0, 0)] == [(0, 2), (2, 0)]


def test_the_file_gives_back_what_was_written_to_three_digits(tmp_path: Path) -> None:
    made = ExampleMaps([2, 4], [example(0)[0], example(1)[0]], {"diagonal": ClassExample(1, 4, 3, 0.75)})
    path = write_examples(tmp_path, made)
    again = read_examples(tmp_path)
    assert again is not None
    assert (again.layers, again.classes) == ([2, 4], made.classes)
    for one, other in zip(made.examples, again.examples, strict=True):
        np.testing.assert_allclose(other.maps, one.maps, rtol=1e-3, atol=1e-7)
        assert list(other.of.tokens) == list(one.of.tokens)
        assert [tuple(arc) for arc in other.of.arcs] == [(0, 1, "x")]
    of, shown = again.map_of("diagonal")
    assert of.sentence == 1
    np.testing.assert_allclose(shown, made.examples[1].maps[1, 2], rtol=1e-3, atol=1e-7)
    (other_file := tmp_path / "other").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other_file.stat().st_mode)
    assert read_examples(tmp_path / "elsewhere") is None


def test_maps_that_do_not_fit_their_sentence_are_refused(tmp_path: Path) -> None:
    one = example(0)[0]
    write_examples(tmp_path, ExampleMaps([1, 2], [Example(one.of, one.maps[..., :-1])]))
    with pytest.raises(ValueError, match="maps of another shape than their sentence of"):
        read_examples(tmp_path)


CPU = {"accelerator": "cpu"}
# How a pair is given to each: with token types, without them, relative ones, and without a token between the two.
FAMILIES = ("bert", "roberta", "xlnet", "gpt2")


def above(mass: float, uniform: float) -> float:
    return 0.0 if uniform > 1 - 1e-9 else max(0.0, (mass - uniform) / (1 - uniform))


def values_of(weights: np.ndarray, segments: list[int | None], causal: bool) -> tuple[float, float, float]:
    """Return v, d and b of one map by the definitions, a row and a key at a time."""
    n = len(weights)
    # In a causal model, the first token is special, and uniform attention is over earlier tokens.
    special = [segment is None or (causal and i == 0) for i, segment in enumerate(segments)]
    flat = np.array([[float(j <= i or not causal) for j in range(n)] for i in range(n)])
    flat /= flat.sum(1, keepdims=True)

    def masses(rows: np.ndarray) -> tuple[float, float, float]:
        v = d = b = 0.0
        for i in range(n):
            within = total = 0.0
            for j in range(n):
                v += rows[i, j] * special[j]
                d += rows[i, j] * (abs(i - j) <= 1 and not special[j])
                if not special[i] and not special[j]:
                    total += rows[i, j]
                    within += rows[i, j] * (segments[i] == segments[j])
            b += within / total if total else 0.0
        return v / n, d / n, b / (n - sum(special))

    found, expected = masses(weights), masses(flat)
    return above(found[0], expected[0]), above(found[1], expected[1]), above(found[2], expected[2])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_those_of_a_loop_over_single_pairs(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(accumulation, "SHARD_TOKENS", 200)
    short = [" ".join(text.split()[:12]) for text in sentences]
    pairs = list(zip(short[:8], short[8:16], strict=True))
    source = resolve_model(str(checkpoints[family]))
    request = Request(source, from_pairs("made up", pairs), (), batch_tokens=250)
    store = accumulate(request, [PATTERNS], tmp_path, CPU)["patterns"]
    assert len(store.plan.shards) > 1
    model = untouched(checkpoints[family], attn_implementation="eager")
    tokenizer = load_tokenizer(source)
    for i, (first, second) in enumerate(pairs):
        encoding = tokenizer(first, second)
        ids = torch.tensor([encoding["input_ids"]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if family in ("bert", "xlnet"):
            inputs["token_type_ids"] = torch.tensor([encoding.encodings[0].type_ids])
        with torch.no_grad():
            maps = model(**inputs, output_attentions=True).attentions
        for layer, of_heads in enumerate(maps):
            for head, weights in enumerate(of_heads[0].double().numpy()):
                segments = encoding.sequence_ids()
                order = [None if segment is None else j for j, segment in enumerate(segments)]
                places = [j for j in order if j is not None][segments.count(1) :]
                moved = [None if j is None else int(j in places) for j in order]
                (v, d, b), (_, _, b_moved) = (values_of(weights, of, family == "gpt2") for of in (segments, moved))
                expected = [v, d, b, b_moved]
                found = [float(store.by_sentence(name)[i, layer, head]) for name in ("v", "d", "b", "b_moved")]
                # The forward pass is in float32, and a batch and a single pair are rounded otherwise.
                assert found == pytest.approx(expected, rel=2e-5, abs=2e-6)
    texts = Request(source, from_sentences("made up", request.corpus.sentences), (), batch_tokens=250)
    alone = accumulate(texts, [PATTERNS], tmp_path, CPU)["patterns"]
    assert alone.folder != store.folder
    assert sorted(alone.all_by_sentence()) == ["d", "v"]


def test_a_pair_alone_has_the_numbers_that_it_has_in_a_batch(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    source = resolve_model(str(checkpoints["bert"]))
    pairs = from_pairs("made up", [(a[:60], b[:30]) for a, b in zip(sentences[:12], sentences[12:24], strict=True)])
    stores = [
        accumulate(Request(source, pairs, (), batch_tokens=n), [PATTERNS], tmp_path / str(n), CPU)["patterns"]
        for n in (1, 1000)
    ]
    for name in ("v", "d", "b", "b_moved"):
        torch.testing.assert_close(
            stores[0].by_sentence(name), stores[1].by_sentence(name), rtol=2e-5, atol=2e-6, msg=name
        )


def test_planted_blocks_are_found_and_told_from_attention_to_words_nearby() -> None:
    generator = torch.Generator().manual_seed(0)
    sums: dict[str, list[torch.Tensor]] = {}
    for _ in range(30):
        n_first, n_second = (int(n) for n in torch.randint(5, 15, (2,), generator=generator))
        segments = torch.tensor([[-1, *[0] * n_first, -1, *[1] * n_second, -1]])
        n, special = segments.shape[1], segments < 0
        ids = torch.arange(n)[None]
        batch = SentenceBatch(
            torch.zeros(1, dtype=torch.long), ids, ids, torch.ones_like(special), special, ids, segments=segments
        )
        noise = torch.rand(1, 3, n, n, generator=generator)
        noise[:, 1] *= torch.where(segments[:, :, None] == segments[:, None], 1.0, 0.05)
        noise[:, 2] *= torch.where((ids[:, :, None] - ids[:, None]).abs() < 4, 1.0, 0.05)
        maps = noise / noise.sum(-1, keepdim=True)
        for name, values in patterns(BlockAttention(1, maps, torch.empty(0), None), batch).items():
            sums.setdefault(name, []).append(values[:, None])
    together = {name: torch.cat(values) for name, values in sums.items()}
    rows = class_rows(together, np.full(30, 20), [1], SentenceDraws(30, 0))
    of_heads = {row["head"]: row for row in rows if row["layer"] == 1 and row["factor"] == 1}
    assert (of_heads[1]["class"], of_heads[2]["class"]) == ("heterogeneous", "block")
    assert of_heads[1]["b"] < 0.2 < 0.8 < of_heads[2]["b"]
    assert of_heads[2]["b"] - of_heads[2]["b_moved"] > 0.3
    assert of_heads[3]["b"] > 0.4
    assert of_heads[3]["b"] - of_heads[3]["b_moved"] < 0.1
    (block,) = (row for row in rows if (row["layer"], row["factor"], row["class"]) == ("all", 1, "block"))
    is_block = (together["b_moved"] >= BLOCK) & (together["v"] + together["d"] < STRIPES)
    assert block["share_moved"] == pytest.approx(is_block.double().mean().item())
    assert block["share_moved_low"] <= block["share_moved"] <= block["share_moved_high"] < block["low"]


def test_moved_boundaries_exchange_the_lengths_of_sentences_and_leave_special_tokens() -> None:
    segments = torch.tensor(
        [[-1, 0, 0, 0, -1, 1, -1, -1], [-1, 0, -1, -1, 1, 1, 1, -1], [-1, 0, -1, 1, -1, -1, -1, -1]]
    )
    assert exchanged(segments).tolist() == [
        [-1, 0, 1, 1, -1, 1, -1, -1], [-1, 0, -1, -1, 0, 0, 1, -1], [-1, 0, -1, 1, -1, -1, -1, -1],
    ]  # fmt: skip


TOKENS = ["[CLS]", "$", "5", "and", "$", "6", "[SEP]"]


def examples(n_classes: int) -> ExampleMaps:
    of = ExampleSentence(3, TOKENS, [True, *[False] * 5, True], TOKENS[1:-1], [-1, 0, 1, 2, 3, 4, -1])
    maps = np.random.default_rng(0).dirichlet(np.ones(7), size=(2, 3, 7)).astype(np.float32)
    names = ("vertical", "diagonal", "heterogeneous")[:n_classes]
    return ExampleMaps(
        [1, 5], [Example(of, maps)], {name: ClassExample(0, 5, 3 - i, 0.7) for i, name in enumerate(names)}
    )


@pytest.mark.parametrize("n_classes", [1, 3])
def test_each_class_has_a_panel_with_its_map_and_the_tokens(n_classes: int) -> None:
    figure, made = Figure(), examples(n_classes)
    class_examples(figure, made, "bert")
    panels = [axes for axes in figure.axes if axes.get_visible() and axes.get_title()]
    titles = [axes.get_title() for axes in panels]
    assert titles == [f"{name}\nhead 5-{3 - i}, 70% of its maps" for i, name in enumerate(made.classes)]
    for i, axes in enumerate(panels):
        assert [label.get_text() for label in axes.get_xticklabels()] == TOKENS
        assert [label.get_text() for label in axes.get_yticklabels()] == TOKENS
        np.testing.assert_array_equal(axes.images[0].get_array(), made.examples[0].maps[1, 2 - i])
        assert axes.images[0].get_clim() == (0, 1)
    bars = [axes for axes in figure.axes if axes.get_ylabel() == "attention"]
    assert len([axes for axes in figure.axes if axes.get_visible()]) == len(panels) + len(bars) == n_classes + 1


def test_a_head_is_shaded_where_it_beats_the_offset() -> None:
    rows = [
        {
            "layer": layer,
            "head": head,
            "relation": "nsubj:pass",
            "test": 0.8,
            "difference": difference,
            "p_value": p,
            "p_permuted": p,
        }
        for layer, head, difference, p in ((2, 1, 0.3, 0.001), (2, 2, 0.3, 0.2), (4, 1, -0.3, 0.001), (4, 2, 0.0, 1.0))
    ]
    figure = Figure()
    relation_map(figure, rows, "bert")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["nsubj:pass\n.80"] * 4
    assert [text.get_color() for text in axes.texts] == ["white", GREY, GREY, GREY]
    np.testing.assert_array_equal(axes.images[0].get_array(), [[0.8, 0], [0, 0]])
    assert "(1 of 4)" in axes.get_title()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["2", "4"]


@pytest.mark.slow
@rendered()
def test_examples_come_in_the_formats_that_are_asked_for(tmp_path: Path) -> None:
    write_examples(tmp_path, examples(3))
    result = Result(study_of("attention"), tmp_path, {"model": "bert"}, {}, {})
    paths = write_drawings(tmp_path, drawings(result, ["bert"]), ["pdf", "svg"])
    assert [path.name for path in paths] == ["examples.pdf", "examples.svg"]
    text = paths[1].read_text(encoding="utf-8")
    assert text.count(">$<") == 2 * 2 * 3  # a dollar sign stays one
    assert 'width="489.6pt"' in text  # of a page, 6.8 inches
