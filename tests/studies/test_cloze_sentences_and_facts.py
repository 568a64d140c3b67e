"""`cloze --score pll` and `cloze --facts`: each number against a loop that reads one sequence at a time in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from families import causal_lm, masked_lm
from probing import cloze, report
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.models import resolve_model
from probing.runs.loading import load_run
from probing.studies.cloze import of_facts, of_sentences
from probing.studies.cloze.predictor import Predictor
from probing.studies.cloze.sentences import (
    log_likelihoods,
    pair_rows,
    pseudo_log_likelihoods,
    read_sentence_pairs,
    sentence_survey,
    tokens_of_pairs,
)
from probing.studies.cloze.survey import ask_facts, read_facts
from probing.text import from_sentences
from rendering import rendered
from written import read_csv

NONE: Any = {"mode": "disabled"}
CPU = {"accelerator": "cpu"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("language")
    return {
        "bert": masked_lm(place / "bert", "bert", sentences),
        "roberta": masked_lm(place / "roberta", "roberta", sentences),
        "gpt2": causal_lm(place / "gpt2", sentences),
    }


def exact(folder: Path) -> Predictor:
    """Return a model in float64."""
    predictor = Predictor.of(resolve_model(str(folder)), CPU, decoders=True)
    predictor.model.double()
    return predictor


def write_pairs(path: Path, sentences: list[str], n: int = 24) -> Path:
    lines = []
    for i, line in enumerate(sentences[:n]):
        words = line.split()
        bad = " ".join(reversed(words)) if i % 2 else " ".join(words[:-1])
        phenomenon = ("word order", "ellipsis")[(i + 1) % 2]
        lines.append(f"{line}\t{bad}\t{phenomenon}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def naive_pll(model: Any, tokenizer: Any, sentence: str) -> float:
    """Return the within-word left-to-right score, by one forward pass for each token."""
    encoding = tokenizer(sentence)
    ids, words = encoding["input_ids"], encoding.word_ids()
    total = 0.0
    for i, word in enumerate(words):
        if word is None:
            continue
        masked = [tokenizer.mask_token_id if j >= i and words[j] == word else token for j, token in enumerate(ids)]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([masked])).logits[0, i].numpy()
        total += log_softmax(logits)[ids[i]]
    return float(total)


@pytest.mark.numeric
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_masked_model_scores_a_sentence_as_a_loop_does(
    family: str, folders: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    from transformers import AutoModelForMaskedLM

    predictor, reference = exact(folders[family]), AutoModelForMaskedLM.from_pretrained(folders[family]).double().eval()
    pairs, _ = read_sentence_pairs(str(write_pairs(tmp_path / "s.tsv", sentences, 6)), "cloze")
    pairs, tokens = tokens_of_pairs(predictor, pairs, "cloze")
    assert not tokens.first_pieces[~tokens.special].all()  # some words have several pieces
    log_p = pseudo_log_likelihoods(predictor, tokens, predictor.batching(300), lambda n: None)
    rows = pair_rows(pairs, tokens, log_p, log_p)
    for pair, row in zip(pairs, rows, strict=True):
        for which in ("good", "bad"):
            expected = naive_pll(reference, predictor.tokenizer, getattr(pair, which))
            assert row[f"{which}_log_probability"] == pytest.approx(expected, abs=1e-9)
            n = sum(word is not None for word in predictor.tokenizer(getattr(pair, which)).word_ids())
            assert row[f"{which}_tokens"] == n


@pytest.mark.numeric
def test_a_decoder_scores_a_sentence_by_its_log_likelihood(
    folders: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    predictor, reference = exact(folders["gpt2"]), AutoModelForCausalLM.from_pretrained(folders["gpt2"]).double().eval()
    assert predictor.is_causal
    pairs, _ = read_sentence_pairs(str(write_pairs(tmp_path / "s.tsv", sentences, 8)), "cloze")
    pairs, tokens = tokens_of_pairs(predictor, pairs, "cloze")
    log_p = log_likelihoods(predictor, tokens, predictor.batching(200), lambda n: None)
    for pair, row in zip(pairs, pair_rows(pairs, tokens, log_p, log_p), strict=True):
        ids = [predictor.tokenizer.bos_token_id, *predictor.tokenizer(pair.bad)["input_ids"]]
        with torch.inference_mode():
            all_log_p = log_softmax(reference(input_ids=torch.tensor([ids])).logits[0].numpy(), axis=1)
        expected = sum(all_log_p[i, token] for i, token in enumerate(ids[1:]))
        assert row["bad_log_probability"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.numeric
def test_a_decoder_that_reads_ahead_is_refused(
    folders: dict[str, Path], sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = exact(folders["gpt2"])
    forward = predictor.model.forward

    def read_ahead(**inputs: Any) -> Any:
        output = forward(**inputs)
        output.logits = output.logits + output.logits.mean(1, keepdim=True)
        return output

    monkeypatch.setattr(predictor.model, "forward", read_ahead)
    pairs, _ = read_sentence_pairs(str(write_pairs(tmp_path / "s.tsv", sentences)), "cloze")
    with pytest.raises(UserError, match="attend to later ones"):
        sentence_survey(predictor, pairs, "cloze", from_sentences("x", sentences), 200, print)


@pytest.mark.numeric
def test_baselines_are_frequency_and_length(folders: dict[str, Path], sentences: list[str], tmp_path: Path) -> None:
    predictor = Predictor.of(resolve_model(str(folders["bert"])), CPU, decoders=True)
    pairs, _ = read_sentence_pairs(str(write_pairs(tmp_path / "s.tsv", sentences)), "cloze")
    output = sentence_survey(predictor, pairs, "cloze", from_sentences("x", sentences[:50]), 400, print)
    ids = [token for line in sentences[:50] for token in predictor.tokenizer(line, add_special_tokens=False).input_ids]
    counts = np.bincount(ids, minlength=len(predictor.tokenizer)) + 1
    for row in output.tables["sentence_pairs"]:
        for which in ("good", "bad"):
            tokens = predictor.tokenizer(row[which], add_special_tokens=False).input_ids
            assert row[f"{which}_unigrams"] == pytest.approx(sum(np.log(counts[tokens] / counts.sum())))
    every, shorter, order = output.tables["phenomena"]
    assert [row["phenomenon"] for row in (every, shorter, order)] == ["all", "ellipsis", "word order"]
    assert (every["n"], shorter["n"]) == (24, 12)
    assert (shorter["tokens_share"], order["tokens_share"], every["tokens_share"]) == (0, 0.5, 0.25)
    assert (shorter["unigrams_share"], order["unigrams_share"]) == (0, 0.5)
    right = [row["difference"] > 0 for row in output.tables["sentence_pairs"]]
    assert every["n_right"] == sum(right)
    assert order["above_tokens"] == pytest.approx(order["share"] - 0.5)


def some_facts(predictor: Predictor) -> list[dict[str, Any]]:
    words = [
        word
        for word in ["token", "model", "probe", "neuron", "question", "the", "layer"]
        if word in predictor.tokenizer.vocab
    ]
    assert len(words) >= 5
    subjects = ("untranslatable words", "The Model", "this", "absent")
    facts = [
        {"masked_sentences": [f"Often {subject} reads", "the [MASK] ."] if subject != "absent" else ["It is [MASK] ."],
         "sub_label": subject, "obj_label": word, "predicate_id": f"P{i % 2}"}
        for i, subject in enumerate(subjects)
        for word in words[: 2 + i]
    ]  # fmt: skip
    return [*facts, {**facts[0], "obj_label": "internationalisation"}]


def write_facts(path: Path, predictor: Predictor) -> Path:
    path.write_text("".join(f"{json.dumps(fact)}\n" for fact in some_facts(predictor)), encoding="utf-8")
    return path


@pytest.mark.numeric
def test_ranks_are_those_of_a_loop_over_facts(folders: dict[str, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    predictor = exact(folders["bert"])
    tokenizer = predictor.tokenizer
    reference = AutoModelForMaskedLM.from_pretrained(folders["bert"]).double().eval()
    facts, _ = read_facts(str(write_facts(tmp_path / "f.jsonl", predictor)), "--facts")
    prompts = predictor.prompts(facts, "--facts", "fact")
    assert prompts.dropped == {"a word is not a single piece of the vocabulary": 1}
    found = ask_facts(predictor, prompts, facts, 100)
    objects = {fact.text: {tokenizer.vocab[other.object] for other in facts if other.text == fact.text
                           and other.object in tokenizer.vocab} for fact in facts}  # fmt: skip
    by_line = {fact.line: fact for fact in facts}

    def log_p_of(text: str) -> Any:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        at = int((ids[0] == tokenizer.mask_token_id).nonzero()[-1])  # the object is the last mask
        with torch.inference_mode():
            return log_softmax(reference(input_ids=ids).logits[0, at].numpy())

    def rank_of(log_p: Any, answer: int, others: set[int]) -> int:
        return 1 + sum(log_p[i] > log_p[answer] for i in range(len(log_p)) if i not in others)

    for row in found["facts"]:
        fact = by_line[row["line"]]
        answer = tokenizer.vocab[fact.object]
        log_p = log_p_of(fact.text)
        others = objects[fact.text] - {answer}
        assert row["log_probability"] == pytest.approx(log_p[answer], abs=1e-9)
        assert row["rank"] == rank_of(log_p, answer, others)
        assert row["predicted_piece"] == tokenizer.convert_ids_to_tokens(int(log_p.argmax()))
        if fact.subject == "absent":
            assert "rank_without_subject" not in row
        else:
            alone = log_p_of(fact.text.replace(fact.subject, "[MASK]"))
            assert row["rank_without_subject"] == rank_of(alone, answer, others)
    every, first, _ = found["fact_relations"]
    ranks = np.array([row["rank"] for row in found["facts"]])
    assert (every["n"], every["n_left_out"], first["n_left_out"]) == (len(facts) - 1, 1, 1)
    assert every["reciprocal_rank"] == pytest.approx((1 / ranks).mean())
    assert every["precision_at_10"] == (ranks <= 10).mean()
    assert every["n_without_subject"] == sum(fact.subject != "absent" for fact in facts) - 1
    assert 0 < every["most_frequent"] < 1


def test_a_subject_inside_of_a_word_is_no_occurrence(folders: dict[str, Path], tmp_path: Path) -> None:
    predictor = exact(folders["bert"])
    fact = {"masked_sentences": ["Thistle reads the [MASK] ."], "sub_label": "This", "obj_label": "token"}
    (tmp_path / "f.jsonl").write_text(json.dumps(fact) + "\n", encoding="utf-8")
    facts, _ = read_facts(str(tmp_path / "f.jsonl"), "--facts")
    found = ask_facts(predictor, predictor.prompts(facts, "--facts", "fact"), facts, 100)
    assert found["fact_relations"][0]["n_without_subject"] == 0
    assert "without_subject" not in found["fact_relations"][0]


def test_verdicts_follow_from_intervals() -> None:
    from probing.results import Table

    low = {"low": 0.6, "high": 0.9, "above_unigrams_low": 0.1, "above_unigrams_high": 0.3,
           "above_tokens_low": -0.1, "above_tokens_high": 0.5}  # fmt: skip
    row = {"phenomenon": "NPI", "n": 40, "n_right": 30, "share": 0.75, "unigrams_share": 0.55, "above_unigrams": 0.2,
           "tokens_share": 0.55, "above_tokens": 0.2, **low}  # fmt: skip
    (sentence,) = of_sentences(Table([row | {"phenomenon": "all"}, row]), "builtin")
    assert sentence.startswith("NPI: the good sentence is more probable in 30 of 40 pairs, 75.0% (60.0 to 90.0): above")
    assert "tokens in builtin (55.0%), +0.200 (+0.100 to +0.300): above it; with fewer tokens" in sentence
    assert sentence.endswith("+0.200 (-0.100 to +0.500): not distinguished from it.")
    fact = {"relation": "P19", "n": 9, "precision_at_1": 0.0, "precision_at_1_low": 0.0, "precision_at_1_high": 0.3,
            "most_frequent": 0.6, "above_most_frequent": -0.6, "above_most_frequent_low": -0.9,
            "above_most_frequent_high": -0.2}  # fmt: skip
    (sentence,) = of_facts(Table([fact | {"relation": "all"}, fact]))
    assert sentence == (
        "P19: the object is the most probable token in 0.0% (0.0 to 30.0) of 9 facts; compared with the most frequent "
        "object of the relation (60.0%), -0.600 (-0.900 to -0.200): below it."
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@rendered()
def test_sentences_and_facts_from_end_to_end(
    folders: dict[str, Path], sentences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write_pairs(tmp_path / "s.tsv", sentences)
    rows = [line.split("\t") for line in pairs.read_text(encoding="utf-8").splitlines()]
    layout = [
        {"sentence_good": good, "sentence_bad": bad, "UID": "x", "linguistics_term": of} for good, bad, of in rows
    ]
    (tmp_path / "s.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in layout), encoding="utf-8")
    headed = "sentence_good\tsentence_bad\tUID\n" + pairs.read_text(encoding="utf-8")
    (tmp_path / "headed.tsv").write_text(headed, encoding="utf-8")
    (tmp_path / "corpus.txt").write_text("\n".join(sentences[:40]), encoding="utf-8")
    shared: dict[str, Any] = {
        "score": "pll", "corpus": str(tmp_path / "corpus.txt"), "runs": str(tmp_path / "runs"), "wandb": NONE
    }  # fmt: skip
    tables = []
    for name in ("s.tsv", "s.jsonl", "headed.tsv"):
        result = cloze(str(tmp_path / name), model=str(folders["gpt2"]), name=name, **shared)
        tables.append([row | {"line": 0} for row in result.sentence_pairs])
    assert tables[0] == tables[1] == tables[2]
    assert "Pairs whose good sentence is more probable" in capsys.readouterr().out
    loaded = load_run(tmp_path / "runs" / "s.jsonl")
    assert len(loaded.phenomena) == 3
    assert (loaded.folder / "figures" / "phenomena.png").is_file()
    assert "the good sentence is more probable in" in report([str(loaded.folder)]).read_text(encoding="utf-8")
    loaded.export("csv", tmp_path / "exported")
    assert (tmp_path / "exported" / "phenomena.csv").is_file()
    predictor = exact(folders["bert"])
    facts = write_facts(tmp_path / "f.jsonl", predictor)
    args = ["cloze", f"--facts={facts}", f"--model={folders['bert']}", f"--runs={tmp_path / 'runs'}", "--name=f"]
    assert run(COMMANDS, [*args, "--wandb.mode=disabled"]) == 0
    said = capsys.readouterr()
    assert f"1 of {len(some_facts(predictor))} facts are left out: a word is not a single piece" in said.err
    assert "All facts: the object is the most probable token in" in said.out
    assert len(read_csv(tmp_path / "runs" / "f" / "fact_relations.csv")) == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("args", "content", "message"),
    [
        ("--score=pll", None, "`--score pll` needs a file of pairs of sentences"),
        ("FILE --score=pll --facts=x", "", "`--facts x` does not apply to `--score pll`"),
        ("FILE --score=pll --max_length=9", "", "`--max_length 9` does not apply to `--score pll`"),
        ("FILE --score=pll", "\n", "holds no pair: it is empty or blank"),
        ("FILE --score=pll", "a\tb\tc\td\n", "line 1: expected a good sentence, a bad sentence and a phenomenon"),
        ("FILE --score=pll", "a b\ta  b\tc\n", "line 1: the good sentence is the bad one, `a b`"),
        ("FILE --score=pll", '{"sentence_good": "a"}\n', "line 1: expected a good sentence"),
        ("FILE --score=pll", "{\n", "line 1 is not JSON"),
        ("FILE --score=pll", f"a b\tc d\tx\n{'layer ' * 200}\tlayer\tx\n", "line 2: a sentence has 602 tokens"),
        ("--facts=FILE", "", "holds no fact: it is empty or blank"),
        ("--facts=FILE", "[1]\n", "line 1 is no JSON object"),
        ("--facts=FILE", "a\tb\n", "line 1 is not JSON"),
        ("--facts=FILE", '{"masked_sentences": ["a"], "sub_label": "a", "obj_label": "b"}', "has [MASK] 0 times"),
        (
            "--facts=FILE",
            '{"masked_sentences": ["[MASK]", "[MASK]"], "sub_label": "a", "obj_label": "b"}',
            "has [MASK] 2 times",
        ),
        ("--facts=FILE", '{"masked_sentences": ["[MASK]"], "obj_label": "b"}', "line 1: expected texts"),
        (
            "--facts=FILE",
            '{"masked_sentences": ["a [MASK] ."], "sub_label": "a", "obj_label": "internationalisation"}',
            "has no fact that the model can be asked about (a word is not a single piece",
        ),
        ("--facts=FILE --model=GPT2", '{"masked_sentences": ["a [MASK]"], "sub_label": "a", "obj_label": "b"}',
         "`cloze` needs a model with a trained masked-language-model head"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_refused(
    args: str, content: str | None, message: str, folders: dict[str, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "file"
    path.write_text(content or "", encoding="utf-8")
    typed = args.replace("FILE", str(path)).replace("GPT2", str(folders["gpt2"])).split()
    typed += [] if "--model" in args else [f"--model={folders['bert']}"]
    assert run(COMMANDS, ["cloze", *typed, f"--runs={tmp_path / 'runs'}", "--wandb.mode=disabled"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
