"""Labelled pairs for `finetune`: their parts and sides, and what baselines read of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probing import UserError
from probing.cache import Request, tokens_of
from probing.corpus.splits import compared
from probing.data.examples import read
from probing.data.labelling import label_sides
from probing.downstream.labelled_pairs import PairText, groups_of, pair_text, read_parts, task_of
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.residual_stream import word_table
from probing.studies.finetune.examples import TokenTable, labelled, static_pairs
from small_data import entailment_of, marked_pairs, sentence_pairs, word_pairs, write_benchmark, write_sick
from small_data import write_wic as written_wic


def text_of(source: Path, other: Path | None = None, group_by: Any = "auto") -> tuple[PairText, list[str]]:
    said: list[str] = []
    tested = None if other is None else (str(other), read_parts(str(other), "--test_pairs", said.append))
    text = pair_text(str(source), read_parts(str(source), "--pairs", said.append), tested, 0, group_by, said.append)
    return text, said


def pairs_of(text: PairText, side: str) -> list[tuple[str, str]]:
    return [
        pair
        for corpus, splits in zip(text.corpora, text.splits, strict=True)
        for pair, own in zip(corpus.pairs, splits, strict=True)
        if own == side
    ]


def chained(n: int, length: int) -> list[tuple[str, str, float]]:
    """Return pairs in `n` groups of `length`, each of which shares a sentence with the next one of its group."""
    return [(f"Text {i} {j}.", f"text {i} {j + 1}", float(j)) for j in range(length) for i in range(n)]


def test_groups_are_linked_by_sentences_in_either_place_whatever_their_case() -> None:
    pairs = [("a b", "c"), ("d", "e"), ("C.", "f"), ("g", "A b!"), ("e", "e"), ("h", "i")]
    assert groups_of(pairs).tolist() == [0, 1, 0, 0, 1, 2]


def test_no_sentence_is_on_two_sides_of_a_split_by_seed(tmp_path: Path) -> None:
    write_sick(tmp_path, "train", pairs := chained(100, 4))
    text, said = text_of(tmp_path)
    (corpus,) = text.corpora
    assert sorted(corpus.pairs) == sorted((a, b) for a, b, _ in pairs)
    sentences = {
        side: {compared(one) for pair in pairs_of(text, side) for one in pair}
        for side in ("train", "validation", "test")
    }
    assert all(sentences.values())
    assert not sentences["train"] & sentences["test"]
    assert not sentences["train"] & sentences["validation"]
    assert text.n_sharing == 0
    assert said == [f"{tmp_path}: pairs that share a sentence are on the same side of the split (100 groups)"]
    score = {(a, b): score for a, b, score in pairs}
    assert [score[pair] for pair in corpus.pairs] == list(corpus.sentence_columns["relatedness"])
    again, _ = text_of(tmp_path)
    assert again.splits == text.splits


def test_pairs_divided_one_by_one_are_said_to_share_sentences(tmp_path: Path) -> None:
    write_sick(tmp_path, "train", chained(100, 4))
    text, said = text_of(tmp_path, group_by="sentence")
    known = {compared(one) for pair in pairs_of(text, "train") for one in pair}
    n = sum(any(compared(one) in known for one in pair) for pair in pairs_of(text, "test"))
    assert text.n_sharing == n > 10
    assert said[-1].startswith(f"{n} of {len(pairs_of(text, 'test'))} test pairs have a sentence that training pairs")
    assert said[-1].endswith("--group_by document keeps such pairs together")


def test_a_group_that_is_too_large_to_be_tested_on_is_trained_on(tmp_path: Path) -> None:
    large = [(f"hub {i}", "hub", 1.0) for i in range(150)]
    write_sick(tmp_path, "train", [*large, *chained(100, 2)])
    for seed in range(30):
        parts = read_parts(str(tmp_path), "--pairs", print)
        text = pair_text(str(tmp_path), parts, None, seed, "auto", print)
        assert {(a, b) for a, b, _ in large} <= {*pairs_of(text, "train")}


def test_pairs_that_are_all_linked_have_no_groups(tmp_path: Path) -> None:
    write_sick(tmp_path, "train", [(f"hub {i}", "hub", float(i % 5)) for i in range(150)])
    with pytest.raises(UserError, match=r"`--group_by document`: all pairs of .* are linked by sentences"):
        text_of(tmp_path, group_by="document")
    text, _ = text_of(tmp_path)
    assert text.n_sharing == len(pairs_of(text, "test")) > 5


def test_parts_of_a_data_set_are_its_sides_and_training_has_no_test_pair(tmp_path: Path) -> None:
    train, dev, test = (sentence_pairs(60, seed) for seed in range(3))
    (a, b, score), (c, d, other) = test[:2]
    write_benchmark(tmp_path, "train", [*train, (b, a, score), (c, d, other)])
    write_benchmark(tmp_path, "dev", dev)
    text, said = text_of(tmp_path)
    assert len(pairs_of(text, "validation")) < 20  # without a test part, dev is the test part
    assert {*pairs_of(text, "test")} == {(a, b) for a, b, _ in dev}
    assert any("trained on STS-B train, tested on STS-B dev" in line for line in said)
    write_benchmark(tmp_path, "test", test)
    text, said = text_of(tmp_path)
    for side, pairs in (("train", train), ("validation", dev), ("test", test)):
        assert sorted(pairs_of(text, side)) == sorted((a, b) for a, b, _ in pairs), side
    assert "2 pairs that are also in" in said[0]


def test_test_pairs_are_given_apart_and_all_parts_are_trained_on(tmp_path: Path) -> None:
    train, test = sentence_pairs(60, 0), sentence_pairs(30, 1)
    write_sick(tmp_path, "train", train)
    write_sick(tmp_path / "other", "test", test)
    text, _ = text_of(tmp_path / "SICK_train.txt", tmp_path / "other" / "SICK_test.txt")
    assert len(pairs_of(text, "test")) == 30
    assert len(pairs_of(text, "train")) + len(pairs_of(text, "validation")) == 60
    write_benchmark(tmp_path / "stsb", "test", test)
    sources = {
        "--pairs a": read_parts(str(tmp_path / "SICK_train.txt"), "--pairs", print),
        "--test_pairs b": read_parts(str(tmp_path / "stsb"), "--test_pairs", print),
    }
    with pytest.raises(UserError, match=r"`--test_pairs b` has no relatedness; give `--task_args.column similarity`"):
        task_of("sentence_label", {"column": "relatedness"}, sources)


def test_one_data_set_is_read_at_a_time(tmp_path: Path) -> None:
    write_sick(tmp_path / "a", "train", sentence_pairs(5, 0))
    write_benchmark(tmp_path / "b", "dev", sentence_pairs(5, 1))
    with pytest.raises(UserError, match=r"`--pairs .*` holds STS-B, SICK-R; give the folder or file of one of them"):
        read_parts(str(tmp_path), "--pairs", print)
    (tmp_path / "a" / "SICK_trial.txt").write_text("sentence_A\tsentence_B\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"`--pairs .*SICK_trial.txt`: its first line names no column relatedness"):
        read_parts(str(tmp_path / "a"), "--pairs", print)


def test_the_contexts_of_a_word_are_a_pair(tmp_path: Path) -> None:
    written_wic(tmp_path, "train", made := word_pairs(20, 0))
    (part,) = read_parts(str(tmp_path), "--pairs", print).values()
    assert list(part.pairs) == [(" ".join(a), " ".join(b)) for a, b, *_ in made]
    assert part.columns == {"same_sense": [same for *_, same in made]}
    task, options = task_of("sentence_label", None, {"--pairs x": {"train": part}})
    assert options == {"column": "same_sense"}
    assert not task.numbers  # type: ignore[attr-defined]


def test_baselines_read_the_means_of_both_sentences_and_their_differences(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    write_sick(tmp_path, "train", pairs := marked_pairs(60), entailment_of(pairs))
    text, _ = text_of(tmp_path)
    source = resolve_model(str(checkpoints["bert"]))
    tokenizer, encoder = load_tokenizer(source), load_encoder(source)
    tables = [TokenTable(tokens_of(Request(source, corpus, [0]), tokenizer)) for corpus in text.corpora]
    task, _ = task_of("sentence_label", {"column": "entailment"}, {"x": read_parts(str(tmp_path), "--pairs", print)})
    sides = label_sides(tables, text.corpora, text.splits, task)
    table: Any = word_table(encoder)

    def mean(sentence: str) -> torch.Tensor:
        return table.weight[tokenizer(sentence, add_special_tokens=False, return_tensors="pt")["input_ids"][0]].mean(0)

    for second_alone in (False, True):
        found = static_pairs(sides, encoder, second_alone)
        features = torch.cat([batch.hidden_states[0] for batch in read(found.train, [0])])
        trained = [(mean(a), mean(b)) for a, b in pairs_of(text, "train")]
        expected = [v if second_alone else torch.cat([u, v, (u - v).abs(), u * v]) for u, v in trained]
        torch.testing.assert_close(features, torch.stack(expected).detach())


@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2"])
def test_a_batch_has_both_sentences_and_their_types_where_the_model_takes_these(
    family: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    write_sick(tmp_path, "train", pairs := marked_pairs(200), entailment_of(pairs))
    text, _ = text_of(tmp_path)
    source = resolve_model(str(checkpoints[family]))
    parts = read_parts(str(tmp_path), "--pairs", print)
    task, _ = task_of("sentence_label", {"column": "entailment"}, {"x": parts})
    said: list[str] = []
    made = labelled(source, text.corpora, text.splits, task, "auto", None, said.append)
    assert any("puts no token between the two sentences" in line for line in said) is (family == "gpt2")
    assert made.are_pairs
    tokenizer = load_tokenizer(source)
    chosen = made.train.sentences[:5]
    batch = made.train.batch(chosen)
    for row, i in enumerate(chosen.tolist()):
        given = tokenizer(*text.corpora[0].pairs[i], return_token_type_ids=True)
        n = int(batch.inputs["attention_mask"][row].sum())
        assert batch.inputs["input_ids"][row, :n].tolist() == given["input_ids"]
        if family == "bert":
            assert batch.inputs["token_type_ids"][row, :n].tolist() == given["token_type_ids"]
            assert {0, 1} == {*given["token_type_ids"]}
    assert ("token_type_ids" in batch.inputs) is (family == "bert")
    assert np.isin(batch.targets.numpy(), [0, 1]).all()
