"""Tasks of spans: numerals and their value, spans that a file labels, and pairs of spans."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import conllu
import numpy as np
import pytest
import torch
from probing.builtin_tasks.numeral import NumberDigits, NumberValue, numerals, value_of_words
from probing.builtin_tasks.spans import SpanPairs, Spans

from conftest import BARE
from probing import WandbOptions, compare, finetune, fit, position, probe, rank
from probing.data.examples import Examples, SpanVectors, read, with_spans
from probing.data.labelling import label_sides
from probing.errors import UserError
from probing.statistics.chance import permute_within_sentences
from probing.text import Corpus, load_corpus, splits_of
from probing.text.tasks import Span, SpanTask, labels_of, rows_of_spans
from probing.text.tokens import Tokens
from synthetic import make_store

NO_WANDB = WandbOptions(mode="disabled")


def tokens_of(sentences: Sequence[str], cut: int = 100) -> Tokens:
    """Return tokens of at most two characters, with a special token before and after each sentence."""
    spans, words, lengths = [], [], []
    for sentence in sentences:
        pieces = [(m.start(), m.end()) for m in re.finditer(r"\S\S?", sentence)][:cut]
        spans += [(0, 0), *pieces, (0, 0)]
        words += [-1, *(sentence[:start].count(" ") for start, _ in pieces), -1]
        lengths.append(len(pieces) + 2)
    ids = np.random.default_rng(0).integers(1000, size=len(spans))
    return Tokens(
        np.array(lengths, np.int32), ids.astype(np.int32), np.array(words, np.int16), spans=np.array(spans, np.int32)
    )


# About the mean of log10(1 + value) in `counting`: probes have no intercept.
MEAN = 2.75


def number_words(value: int) -> str:
    """Name a whole number below a million in English."""
    low = re.findall(
        r"\w+",
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen",
    )
    if value < 20:
        return low[value]
    if value < 100:
        ten = re.findall(r"\w+", "twenty thirty forty fifty sixty seventy eighty ninety")[value // 10 - 2]
        return ten + (f"-{low[value % 10]}" if value % 10 else "")
    size, name = (1000, "thousand") if value >= 1000 else (100, "hundred")
    rest = value % size
    between = " and " if rest and (size == 100 or rest < 100) else " " if rest else ""
    return f"{number_words(value // size)} {name}{between}{number_words(rest) if rest else ''}"


def test_words_up_to_a_million_have_their_value() -> None:
    values = [*range(1200), 2003, 10_000, 12_345, 100_001, 999_999, *np.random.default_rng(0).integers(10**6, size=300)]
    assert [value_of_words(number_words(int(value))) for value in values] == [int(value) for value in values]
    assert [value_of_words("one million"), value_of_words("million"), value_of_words("thousand")] == [
        10**6,
        10**6,
        1000,
    ]
    for words in (
        "nineteen eighty-four",
        "two three",
        "two million",
        "zero thousand",
        "hundred hundred",
        "two thousand zero",
    ):
        assert value_of_words(words) is None


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("In 1,234 of 5 cases, 3.5% and $20.", [("1,234", 1234), ("5", 5), ("3.5", 3.5), ("20", 20)]),
        ("Twenty-five dogs and one hundred and five cats", [("Twenty-five", 25), ("one hundred and five", 105)]),
        ("three and four", [("three", 3), ("four", 4)]),
        ("a thousand and one nights", [("thousand and one", 1001)]),
        ("On 2001-02-03 at 10:30, v1.2.3, the 3rd, 3–5, -7, 1,2 and b2", []),
        ("5 million, 10 000, two billion, two-thirds, two point five", []),
        ("twenty - five of 2001 - 02 - 03 at 10 : 30", []),
        ("4 , 5 and 6", [("4", 4), ("5", 5), ("6", 6)]),
        ("one of the ones, nineteen eighty-four, someone", []),
    ],
)
def test_numerals_are_found_whole_or_not_at_all(sentence: str, expected: list[tuple[str, float]]) -> None:
    assert [(sentence[start:end], value) for start, end, value in numerals(sentence)] == expected


def planted(folder: Path, task: SpanTask, corpus: Corpus) -> Any:
    """Return the sides of a store of noise in which the mean of neuron 3 over a span is the number, less `MEAN`."""
    tokens, generator = tokens_of(corpus.sentences), np.random.default_rng(1)
    states = generator.standard_normal((tokens.n_tokens, 8)).astype(np.float32)
    for (_, first, after), span in zip(rows_of_spans(task.spans(corpus), tokens), task.spans(corpus), strict=True):
        states[first:after, 3] += span.label - MEAN - states[first:after, 3].mean()
    store = make_store(folder, [states], tokens)
    return label_sides([store], [corpus], [splits_of(corpus, 0)], task)


def counting(n: int = 600) -> Corpus:
    generator = np.random.default_rng(2)
    values = 10 ** generator.uniform(0.5, 5, size=n)
    texts = (f"{int(v):,}" if v < 2000 else number_words(int(v)) for v in values)
    return Corpus("counts", tuple(f"about {text} dogs of kind {i}x" for i, text in enumerate(texts)))


def vectors(examples: Examples) -> np.ndarray:
    return torch.cat([batch.hidden_states[0] for batch in read(examples, [0])]).numpy()


def test_a_planted_value_is_found_and_shuffled_values_find_nothing(tmp_path: Path) -> None:
    sides = planted(tmp_path / "store", NumberValue(), counting())
    parts = {name: getattr(sides, name) for name in ("train", "validation", "test")}
    y = {name: part.targets for name, part in parts.items()}
    X = {name: vectors(part) for name, part in parts.items()}
    assert all(np.allclose(X[name][:, 3], y[name] - MEAN, atol=1e-5) for name in parts)
    split = np.repeat(list(parts), [len(of) for of in y.values()])
    states, targets = np.concatenate([*X.values()]), np.concatenate([*y.values()])
    run = probe(states, targets, split=split, numbers=True, name="n", runs=tmp_path, **{**BARE, "controls": "shuffled"})
    assert run.accuracy[0]["r2"] > 0.99 > 0.05 > run.accuracy[0]["shuffled_r2"]
    assert run.top(0, 1)[0]["neuron"] == 3


def test_test_values_lie_above_all_of_training(tmp_path: Path) -> None:
    sides = planted(tmp_path / "store", NumberValue(test="above_training", highest=500), counting())
    assert max(sides.train.targets.max(), sides.validation.targets.max()) <= np.log10(501) < sides.test.targets.min()
    assert sides.train.n_tokens > 200 < 200 + sides.test.n_tokens


def test_digits_are_of_the_value() -> None:
    corpus = Corpus("few", ("1,234 dogs", "one hundred and five", "7"))
    assert NumberDigits().labels(tokens_of(corpus.sentences), corpus) == [4, 3, 1]


@dataclass(frozen=True)
class Given(SpanTask):
    """Spans as they are given."""

    given: tuple[Span, ...] = ()

    def spans(self, corpus: Corpus) -> Sequence[Span]:
        return self.given


def test_the_spans_of_a_corpus_are_read_once() -> None:
    read: list[Corpus] = []

    class Counted(Given):
        def spans(self, corpus: Corpus) -> Sequence[Span]:
            read.append(corpus)
            return self.given

    task, corpora = Counted(), [Corpus("a", ("x",)), Corpus("b", ("x",))]
    assert [task.spans_of(corpus) for corpus in corpora * 2] == [()] * 4
    assert read == corpora


def test_a_span_has_the_mean_of_its_tokens_also_where_spans_overlap(tmp_path: Path) -> None:
    corpus = Corpus("few", ("these dogs ran", "none", "a cat"))
    tokens = tokens_of(corpus.sentences)  # th|es|e do|gs ra|n, no|ne, a ca|t, each within special tokens
    spans = (Span(0, 0, 10, "x"), Span(0, 6, 10, "y"), Span(0, 11, 14, "x"), Span(2, 2, 5, "y"), Span(2, 0, 5, None))
    states = np.random.default_rng(0).standard_normal((tokens.n_tokens, 4)).astype(np.float32)
    store = SpanVectors(make_store(tmp_path / "s", [states], tokens, shard_tokens=9), "mean", spans)
    got = torch.cat([store.read(0, shard.index) for shard in store.plan.shards]).numpy()
    rows = [range(1, 6), range(4, 6), range(6, 8), range(15, 17), range(14, 17)]
    assert np.allclose(got, [states[list(of)].mean(0) for of in rows], atol=1e-6)
    assert store.tokens.lengths.tolist() == [3, 0, 2]
    most = SpanVectors(store.base, "max", spans)
    assert np.allclose(most.read(0, 0)[0], states[1:6].max(0))
    labels = labels_of(Given(given=spans), tokens, corpus)
    assert labels.tolist() == ["x", "y", "x", "y", ""]
    a, b, c = spans[:3]
    pairs = SpanVectors(store.base, "mean", [a._replace(second=b[1:3]), b._replace(second=c[1:3])], 2)
    naive = np.array([[*states[list(rows[i])].mean(0), *states[list(rows[i + 1])].mean(0)] for i in (0, 1)], float)
    assert pairs.plan.d_model == 8
    assert np.allclose(pairs.read(0, 0), naive, atol=1e-6)
    reverse = SpanVectors(store.base, "mean", [b._replace(second=a[1:3])], 2)
    assert len({int(of.tokens.input_ids[0]) for of in (pairs, reverse, store)}) == 3


def test_a_span_that_is_cut_has_no_label() -> None:
    corpus = Corpus("few", ("these dogs ran",))
    spans = (Span(0, 0, 5, "x"), Span(0, 6, 10, "y"), Span(0, 11, 14, "x"))
    assert labels_of(Given(given=spans), tokens_of(corpus.sentences, cut=4), corpus).tolist() == ["x", "", ""]
    without_first = tokens_of(corpus.sentences)
    without_first = replace(without_first, words=np.where(np.arange(9) == 1, -2, without_first.words).astype(np.int16))
    assert labels_of(Given(given=spans), without_first, corpus).tolist() == ["", "y", "x"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["no numeral here", "nor here"] * 30, "the task gives no span a label; give text that it has labels for"),
        ([f"{word} 7" for word in "abcdefghijklmnopqrstuvwxyz"], "training sentences all have the number 0.90309"),
        (["two dogs", *[f"{word} dogs" for word in "abcdefghij"]], "no span|needs numbers that vary|has a span"),
    ],
)
def test_text_without_enough_numerals_is_refused_in_one_sentence(
    lines: list[str], message: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match=message) as error:
        fit(
            model=str(checkpoints["bert"]), corpus=str(tmp_path / "text.txt"), task="number_value", layer=1,
            cache=str(tmp_path / "cache"), runs=str(tmp_path / "runs"), wandb=NO_WANDB, **BARE,
        )  # fmt: skip
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_values_are_fitted_compared_with_the_token_alone_and_predicted(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("\n".join(counting(150).sentences), encoding="utf-8")
    run = fit(
        model=str(checkpoints["bert"]), corpus=str(tmp_path / "text.txt"), task="number_value", layer=1, name="values",
        control_for="number_digits", runs=str(tmp_path / "runs"), wandb=NO_WANDB,
        **{**BARE, "controls": "token,untrained"},
    )  # fmt: skip
    assert {"r2", "token_r2", "untrained_r2", "covariate_r2"} <= set(run.accuracy[0])
    rows = run.predict(["there are 12 dogs and one hundred and three cats", "none"])
    assert [(row["sentence"], row["token"]) for row in rows] == [(0, "12"), (0, "one hundred and three")]
    assert all(row["token"].strip() and "position" not in row for row in run.contexts)
    with pytest.raises(UserError, match="finds no span in the texts"):
        run.predict(["none"])


def jiant(folder: Path, lines: Sequence[dict[str, Any]]) -> Path:
    (folder / "spans.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return folder / "spans.jsonl"


def roles(n: int = 200, pairs: bool = False) -> list[dict[str, Any]]:
    """Return lines with overlapping spans, labelled by whether they hold the word `dog`; of pairs, whether the second.

    The first span of a pair is the last word.
    """
    generator, lines = np.random.default_rng(3), []
    for i in range(n):
        words = [*generator.choice(["the", "dog", "sees", "many", "cats"], size=6), f"n{i}"]
        ends = [sorted(generator.choice(7, size=2, replace=False)) for _ in range(3)]
        targets: list[dict[str, Any]] = [
            {"span1": [int(a), int(b)], "label": "DOG" if "dog" in words[a:b] else "NONE", "info": {}} for a, b in ends
        ]
        for target in targets if pairs else ():
            target |= {"span1": [6, 7], "span2": target["span1"]}
        lines.append({"text": " ".join(words), "targets": targets, "info": {"source": "made"}})
    return lines


def test_spans_of_a_file_are_those_of_an_independent_reading(tmp_path: Path) -> None:
    lines = [*roles(), {"text": "no  span  here"}, {"text": "none", "targets": []}]
    corpus = load_corpus(str(jiant(tmp_path, lines)), column_of=None)
    expected = [
        (i, " ".join(line["text"].split()[slice(*target["span1"])]), target["label"])
        for i, line in enumerate(lines)
        for target in line.get("targets", [])
    ]
    spans = Spans().spans(corpus)
    assert [(span.sentence, corpus.sentences[span.sentence][span.start : span.end], span.label) for span in spans] == (
        expected
    )
    assert len(corpus.sentences) == 202


BANK = """\
# newdoc
1\tDogs\t_\tNOUN\t_\t_\t3\tnsubj:x\t_\t_
2-3\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
2\tca\t_\tAUX\t_\t_\t3\taux\t_\t_
3\tn't\t_\tVERB\t_\t_\t0\troot\t_\t_
3.1\tgone\t_\t_\t_\t_\t_\t_\t_\t_
4\t.\t_\tPUNCT\t_\t_\t3\tpunct\t_\t_

1\tYes\t_\tINTJ\t_\t_\t0\troot\t_\t_

1\tThe\t_\tDET\t_\t_\t2\tdet\t_\t_
2\tend\t_\tNOUN\t_\t_\t0\troot\t_\t_

"""


def test_pairs_of_a_file_and_of_a_treebank_are_those_of_an_independent_reading(tmp_path: Path) -> None:
    lines = roles(pairs=True)
    corpus = load_corpus(str(jiant(tmp_path, lines)), column_of=None)
    expected = [
        (i, "".join(words[slice(*target["span1"])]), " ".join(words[slice(*target["span2"])]), target["label"])
        for i, line in enumerate(lines)
        for words in [line["text"].split()]
        for target in line["targets"]
    ]
    assert texts_of(SpanPairs(), corpus) == expected

    (tmp_path / "bank.conllu").write_text(BANK, encoding="utf-8")
    bank = load_corpus(str(tmp_path / "bank.conllu"), column_of=None)
    independent = [
        (i, word_of[token["head"]], token["form"], token["deprel"])
        for i, sentence in enumerate(conllu.parse(BANK))
        for word_of in [{token["id"]: token["form"] for token in sentence}]
        for token in sentence
        if isinstance(token["id"], int) and token["head"]
    ]
    assert texts_of(SpanPairs(of="deprel"), bank) == independent
    assert independent[0] == (0, "n't", "Dogs", "nsubj:x")


def holmes(folder: Path, rows: Sequence[tuple[Any, Any, Any, str]]) -> Path:
    """Write a folder as Holmes lays it out, of inputs, contexts, labels and sets."""
    (folder / "holmes").mkdir(exist_ok=True)
    with (folder / "holmes" / "samples.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["", "id", "inputs", "context", "label", "set-0"])
        writer.writerows([i, i, repr(inputs), repr(context), *rest] for i, (inputs, context, *rest) in enumerate(rows))
    (folder / "holmes" / "config-none.yaml").write_text("num_inputs: 2\n", encoding="utf-8")
    return folder / "holmes"


@pytest.mark.parametrize("n_spans", [1, 2])
def test_spans_of_a_folder_of_holmes_are_those_of_an_independent_reading(n_spans: int, tmp_path: Path) -> None:
    rows = []
    for i, line in enumerate(roles(60)):
        text = line["text"].replace(" ", "  " if i % 2 else " ")
        words = [(match[0], 0, *match.span()) for match in re.finditer(r"\S+", text)]
        for k in range(3):
            side = ("train", "dev", "test")[i % 3] if i != 3 or k else "test"
            rows.append(((words[k], words[k + 2])[:n_spans], [text], k, side))
    corpus = load_corpus(str(holmes(tmp_path, rows)), column_of=None)
    # One of the three rows of the fourth text, of training, is tested on; then the others are left out.
    independent = [
        (text.split()[k], text.split()[k + 2] if n_spans == 2 else "", str(k), side)
        for i, (_, (text,), k, side) in enumerate(rows)
        if i not in (10, 11)
    ]
    task = (Spans(), SpanPairs())[n_spans - 1]
    sides = ["dev" if side == "validation" else side for side in splits_of(corpus, 0)]
    assert [(*found[1:], sides[found[0]]) for found in texts_of(task, corpus)] == independent
    assert "2 rows are left out" in corpus.reading
    labelled = label_sides(
        [make_store(tmp_path / "store", [np.ones((len(tokens_of(corpus.sentences).input_ids), 4), np.float32)],
                    tokens_of(corpus.sentences))], [corpus], [splits_of(corpus, 0)], replace(task, min_count=1),
    )  # fmt: skip
    counts = Counter(side for *_, side in independent)
    assert [labelled.train.n_tokens, labelled.validation.n_tokens, labelled.test.n_tokens] == (
        [counts["train"], counts["dev"], counts["test"]]
    )


def texts_of(task: SpanTask, corpus: Corpus) -> list[tuple[int, str, str, Any]]:
    """Return the sentence, the text of both spans and the label of each pair."""
    pairs = [(span, corpus.sentences[span.sentence], span.second or (0, 0)) for span in task.spans(corpus)]
    return [(pair.sentence, text[pair.start : pair.end], text[slice(*end)], pair.label) for pair, text, end in pairs]


def test_lines_of_equal_words_share_their_spans_and_empty_words_count(tmp_path: Path) -> None:
    lines = [
        {"tokens": ["a", "", "cat"], "targets": [{"span1": [0, 1], "label": "x"}]},
        {"tokens": ["a", "", "cat"], "targets": [{"span1": [1, 3], "label": 7}]},
    ]
    corpus = load_corpus(str(jiant(tmp_path, lines)), column_of=None)
    assert corpus.sentences == ("a cat",)
    assert [*Spans().spans(corpus)] == [Span(0, 0, 1, "x"), Span(0, 2, 5, "7")]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"span1": [0, 4], "label": "x"}, r"line 1 has the span \[0, 4\] in a sentence of 3 words; expected"),
        ({"span1": [2, 1], "label": "x"}, r"line 1 has the span \[2, 1\]"),
        ({"span1": [1, 1], "label": "x"}, r"line 1 has the span \[1, 1\]"),
        ({"span1": [-1, 1], "label": "x"}, r"line 1 has the span \[-1, 1\]"),
        ({"span1": [0, True], "label": "x"}, r"line 1 has the span \[0, True\]"),
        ({"span1": "0-1", "label": "x"}, r"line 1 has the span '0-1'"),
        ({"span1": [0, 1]}, r"line 1 has a target without a label"),
        ({"span1": [0, 1], "label": ["x", "y"]}, r"line 1 has a target without a label"),
        ({"span1": [0, 1], "span2": [1, 4], "label": "x"}, r"line 1 has the span \[1, 4\]"),
        ({"span1": [0, 1], "span2": [1, 3], "label": "x"}, r"has pairs of spans \(span2\), and the task reads single"),
        ({"label": "x"}, r"line 1 has the target"),
        ([0, 1, "x"], r"line 1 has the target"),
    ],
)
def test_a_bad_span_is_refused_in_one_sentence_with_its_line(
    target: Any, message: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    path = jiant(tmp_path, [{"text": "the dog barks", "targets": [target]}])
    with pytest.raises(UserError, match=message) as error:
        fit(
            model=str(checkpoints["bert"]), corpus=str(path), task="spans", cache=str(tmp_path / "cache"),
            runs=str(tmp_path / "runs"), wandb=NO_WANDB,
        )  # fmt: skip
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def planted_spans(folder: Path, task: SpanTask) -> Any:
    """Return the sides of a store of noise in which neuron 3 is 2 on the tokens of spans `x` and -2 on those of `y`.

    Of pairs, the label is of the second span; the first is another one.
    """
    generator, pairs = np.random.default_rng(4), task.n_spans == 2
    lines = [
        {"text": f"the dog sees many cats n{i}", "targets": [
            {**({"span1": [b, b + 2], "span2": [a, a + 2]} if pairs else {"span1": [a, a + 2]}),
             "label": str(generator.choice(["x", "y"]))} for a, b in ((0, 2), (2, 4), (4, 0))
        ]} for i in range(400)
    ]  # fmt: skip
    corpus = load_corpus(str(jiant(folder, lines)), column_of=None)
    tokens = tokens_of(corpus.sentences)
    states = generator.standard_normal((tokens.n_tokens, 8)).astype(np.float32)
    spans = task.spans(corpus)
    for (_, first, after), span in zip(rows_of_spans(spans, tokens, pairs), spans, strict=True):
        states[first:after, 3] += 2 if span.label == "x" else -2
    return label_sides([make_store(folder / "store", [states], tokens)], [corpus], [splits_of(corpus, 0)], task)


# The tasks, and the column that neuron 3 of the labelled span is.
PLANTED = pytest.mark.parametrize(("task", "column"), [(Spans(), 3), (SpanPairs(), 8 + 3)], ids=["spans", "pairs"])


@PLANTED
def test_a_planted_label_is_found_with_its_neuron(task: SpanTask, column: int, tmp_path: Path) -> None:
    sides = planted_spans(tmp_path, task)
    parts = [getattr(sides, name) for name in ("train", "validation", "test")]
    split = np.repeat(["train", "validation", "test"], [part.n_tokens for part in parts])
    labels = np.concatenate([part.labels[part.labels >= 0] for part in parts])
    groups = np.concatenate([part.store.tokens.sentences[part.labels >= 0] for part in parts])
    states = np.concatenate([vectors(part) for part in parts])
    run = probe(states, labels, groups, split, name="s", runs=tmp_path, **{**BARE, "controls": "shuffled"})
    assert run.accuracy[0]["accuracy"] > 0.95
    assert run.accuracy[0]["shuffled_accuracy"] < 0.65
    assert run.top(0, 1)[0]["neuron"] == column
    assert {row["neuron"] for row in with_spans(run.neurons, sides) if row.get("span_neuron", -1) == 3} == (
        {3, 11} if column > 8 else set()
    )


@PLANTED
def test_labels_permuted_within_sentences_find_nothing(task: SpanTask, column: int, tmp_path: Path) -> None:
    train = planted_spans(tmp_path, task).train
    sentences, labels = train.store.tokens.sentences[train.labels >= 0], train.labels[train.labels >= 0]
    neuron = vectors(train)[:, column]
    neuron = neuron - (np.bincount(sentences, neuron) / np.maximum(np.bincount(sentences), 1))[sentences]
    draws = permute_within_sentences(labels, sentences, np.arange(len(labels), dtype=np.int32), 400, 0)
    of_draws = np.abs((2 * draws - 1) @ neuron)
    assert np.abs((2 * labels - 1) @ neuron) > 1.5 * of_draws.max()
    # Each of 100 draws is compared with the 300 others at 5%; 11 or more of 100 have a probability of 1%.
    assert (of_draws[:100] > np.quantile(of_draws[100:], 0.95)).sum() <= 10


@pytest.mark.slow
def test_controls_read_the_spans_of_other_states(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path = jiant(tmp_path, roles())
    run = fit(
        model=str(checkpoints["bert"]), corpus=str(path), task="spans", layer=1, name="roles", wandb=NO_WANDB,
        runs=str(tmp_path / "runs"), **{**BARE, "controls": "shuffled,token,untrained"},
    )  # fmt: skip
    (row,) = run.accuracy
    assert row["token_accuracy"] > row["majority_accuracy"]
    assert {"shuffled_accuracy", "untrained_accuracy"} <= set(row)
    assert "label = column targets" in run.results["cache"]["train"]["read"]
    with pytest.raises(UserError, match="has no targets, whose spans the task reads"):
        run.predict(["the dog sees many cats"])
    other: dict[str, Any] = {"model": str(checkpoints["bert"]), "corpus": str(path), "wandb": NO_WANDB}
    for task, message in {"sentence_label": "the corpus has none", "upos": "the corpus has none; give"}.items():
        with pytest.raises(UserError, match=message):
            fit(task=task, **other)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"control_for": "number_digits"}, "labels other spans than the task"),
        ({"control_for": "token"}, "the task labels spans, which have many"),
        ({"controls": "control_task"}, "this task labels spans"),
    ]
    for options, message in refused:
        with pytest.raises(UserError, match=message):
            fit(task="spans", layer=1, runs=str(tmp_path / "none"), **options, **other)
    with pytest.raises(UserError, match=r"`task=.spans.`: its task labels spans"):
        finetune(task="spans", runs=str(tmp_path / "none"), **other)


@pytest.mark.slow
def test_pairs_are_fitted_ranked_and_compared_and_their_neurons_named(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    path, runs = jiant(tmp_path, roles(300, pairs=True)), str(tmp_path / "runs")
    one: dict[str, Any] = {"model": str(checkpoints["bert"]), "corpus": str(path), "wandb": NO_WANDB, "runs": runs}
    how = {**BARE, "controls": "shuffled,token,untrained"}
    run = fit(task="span_pairs", layer=1, name="pairs", rotations=19, **one, **how)
    (row,), d_model = run.accuracy, len(run.neurons) // 2
    assert row["token_accuracy"] > row["majority_accuracy"]
    assert {"shuffled_accuracy", "untrained_accuracy"} <= set(row)
    assert all(row["neuron"] == (row["span"] - 1) * d_model + row["span_neuron"] for row in run.neurons)
    # The first span, the number of the line, says nothing; contexts show the span that a neuron is of.
    of_span = {row["neuron"]: row["span"] for row in run.neurons}
    assert all((row["token"][0] == "n") == (of_span[row["neuron"]] == 1) for row in run.contexts if row["token"] != "n")
    top = run.top(1, 1)[0]
    name = f"neuron {top['span_neuron']} of span {top['span']}"
    assert name in " ".join(run.conclusions())
    assert name in (run.folder / "report.html").read_text(encoding="utf-8")
    naive_contributions(run)

    (rows,) = rank(str(run.folder), method="probeless", wandb=NO_WANDB).rankings.values()
    assert {row["span"] for row in rows} == {1, 2}
    again = fit(task="span_pairs", layer=1, name="again", figure_format="png", **one, **BARE)
    both = compare(
        [str(run.folder), str(again.folder)], name="both", null_draws=2, matching="correlation", runs=runs,
        wandb=NO_WANDB,
    )  # fmt: skip
    # Of a neuron of the layer, the contribution is the sum over both spans.
    sums = np.zeros(d_model)
    for row in run.neurons:
        sums[row["span_neuron"]] += row["contribution"]
    found = {row["neuron_a"]: row["contribution_a"] for row in both.neurons}
    assert np.allclose([found[neuron] for neuron in range(d_model)], sums, rtol=1e-3)
    with pytest.raises(UserError, match="neurons of single vectors, not of pairs of spans"):
        position(run=str(run.folder), wandb=NO_WANDB)
    with pytest.raises(UserError, match="has no targets, whose spans the task reads"):
        run.predict(["the dog sees many cats"])


def naive_contributions(run: Any) -> None:
    """Compare the contributions of a run's only layer with a plain loop over its test examples."""
    states, labels, _ = run.hidden_states(1, "test")
    classes, weight = list(run.results["classes"]), run.weight[0].double().numpy()
    sums = np.zeros(states.shape[1])
    for state, label in zip(states.astype(np.float64), labels, strict=True):
        for column, value in enumerate(state):
            sums[column] += abs((weight[classes.index(label), column] - weight[:, column].mean()) * value)
    found = {row["neuron"]: row["contribution"] for row in run.neurons}
    assert np.allclose([found[column] for column in range(len(sums))], sums / len(labels), rtol=1e-4)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ({"span1": [0, 1], "label": "x"}, {}, r"has a target without a second span \(span2\)"),
        ({"span1": [0, 1], "span2": [2, 4], "label": "x"}, {}, r"line 1 has the span \[2, 4\]"),
        ({"span1": [0, 1], "span2": None, "label": "x"}, {}, r"line 1 has the span None"),
        ({"span1": [0, 1], "span2": [1, 2], "label": "x"}, {"of": "deprel"}, "has no dependency relations"),
        (BANK.replace("\t0\t", "\t_\t").replace("\t3\t", "\t_\t").replace("\t2\tdet", "\t_\tdet"), {"of": "deprel"},
         "has no arc between two words"),
        (BANK.replace("\t3\taux", "\t9\taux"), {"of": "deprel"}, "word 2 of the sentence .* has the head `9`"),
        (BANK, {}, "has no targets, whose spans the task reads; .* `task_args={.of.: .deprel.}`"),
        (BANK, {"of": "heads"}, "task_args={.of.: .heads.}"),
        ((["a whole text"], "", 1, "train"), {}, "line 2 of samples.csv: expected one or two spans"),
        (([("a", 0, 0, 9)], ["a dog"], 1, "train"), {}, "line 2 of samples.csv: expected one or two spans"),
        (([("a", 0, 0, 1, 0), ("dog", 0, 2, 5, 0)], ["a dog"], 1, "train"), {}, "one or two spans of one text"),
        (([("a", 0, 0, 1), ("dog", 1, 2, 5)], ["a dog", "a dog"], 1, "dev"), {}, "one or two spans of one text"),
        (([("a", 0, 0, 1)], ["a dog"], 1, "all"), {}, "expected a label, and train, dev or test as set-0"),
        (([("a", 0, 0, 1)], ["a dog"], 1, "test"), {}, r"has a target without a second span \(span2\)"),
        (BANK, {"of": "deprel", "site": "attention"}, "`site=.attention.`: the task reads the vectors of two spans"),
    ],
)  # fmt: skip
def test_bad_pairs_are_refused_in_one_sentence(
    content: Any, options: dict[str, Any], message: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "bank.conllu"
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif isinstance(content, tuple):
        path = holmes(tmp_path, [content])
    else:
        path = jiant(tmp_path, [{"text": "the dog barks", "targets": [content]}])
    task_args = {name: value for name, value in options.items() if name != "site"}
    with pytest.raises(UserError, match=message) as error:
        fit(
            model=str(checkpoints["bert"]), corpus=str(path), task="span_pairs", task_args=task_args, layer=1,
            site=options.get("site", "residual"), cache=str(tmp_path / "cache"), runs=str(tmp_path / "runs"),
            wandb=NO_WANDB,
        )  # fmt: skip
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()
