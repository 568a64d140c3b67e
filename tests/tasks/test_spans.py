"""Tasks of spans: numerals and their value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing.builtin_tasks.numeral import NumberDigits, NumberValue, numerals, value_of_words

from conftest import BARE
from probing import WandbOptions, fit, probe
from probing.data.examples import Examples, SpanVectors, read
from probing.data.labelling import label_sides
from probing.errors import UserError
from probing.text import Corpus, splits_of
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
