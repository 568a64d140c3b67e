"""`triggers`: planted words that mislead a tuned model are found, and nothing is claimed where there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import make_sentences
from probing import Result, finetune, triggers
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.cli.options import WandbOptions
from probing.errors import UserError
from probing.runs import study_of
from probing.runs.call import Call
from probing.runs.loading import load_run
from probing.studies.triggers import NONE, RANDOM, SEARCHED, Attack, TriggersOptions, read_run
from small_data import entailment_of, marked_pairs, write_sick
from written import read_csv

pytestmark = pytest.mark.slow

NO_WANDB: Any = {"mode": "disabled"}
TUNED: dict[str, Any] = {"seeds": 1, "orders": 1, "starts": "pretrained", "quiet": True, "wandb": NO_WANDB}
FAST: dict[str, Any] = {"learning_rate": 1e-2, "epochs": 4, "warm_up": 0.3, "batch_tokens": 200}
FEW: dict[str, Any] = {"candidates": 5, "rounds": 1, "shuffles": 1, "draws": 20, "quiet": True, "wandb": NO_WANDB}
# The words that decide the class.
DECIDE = ("probe", "layer")


def labelled(n: int = 600) -> str:
    """Return sentences with one of two words, by which they are labelled."""
    sentences = (text.lower().split() for text in make_sentences(n, longest=8))
    plain = ([word for word in words if word.strip(".,?!") not in DECIDE] for words in sentences)
    texts = (" ".join([*words[: i % 3], DECIDE[i % 2], *words[i % 3 :]]) for i, words in enumerate(plain))
    return "".join(["text,label\n", *(f'"{text}",{"yes" if DECIDE[0] in text else "no"}\n' for text in texts)])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("triggers")
    (folder / "planted.csv").write_text(labelled(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tuned(one_block: Path, place: Path) -> Path:
    options = {**TUNED, "seeds": 2, "starts": "pretrained,shuffled"}
    made = finetune(
        model=str(one_block), corpus=str(place / "planted.csv"), runs=str(place), name="tuned", tuning=FAST, **options
    )
    return made.folder


@pytest.fixture(scope="module")
def made(tuned: Path, place: Path) -> Result:
    return triggers(run=tuned, runs=str(place), name="made", **FEW)


def attack_on(folder: Path, place: Path, **options: Any) -> Attack:
    """Return what `triggers` reads of a tuned model."""
    asked = TriggersOptions(run=folder, runs=str(place), quiet=True, wandb=WandbOptions(mode="disabled"), **options)
    return read_run(asked, Call.of(study_of("triggers"), asked))[0]


def losses_of(attack: Attack, texts: list[str], labels: list[int]) -> torch.Tensor:
    """Return the losses of texts that are typed and read one by one, by transformers alone, in float64."""
    model, tokenizer = attack.module.model.double(), attack.task.tokenizer
    logits = torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in texts])
    return torch.nn.functional.cross_entropy(logits, torch.tensor(labels), reduction="none")


def searched_texts(attack: Attack, place: Path) -> tuple[list[str], list[int]]:
    from probing.text import load_corpus

    corpus = load_corpus(str(place / "planted.csv"))
    sentences = attack.search.sentences.tolist()
    return [corpus.sentences[i] for i in sentences], attack.search.targets[sentences].tolist()


def test_a_planted_word_is_found_and_misleads_the_other_half_and_other_seeds(made: Result) -> None:
    attacked = made.triggers.where(checkpoint="pretrained-seed0-order0")
    assert attacked.column("condition") == ["none", "searched", "shuffled", "random", "frequent"]
    (none,), (found,), (random,) = (attacked.where(condition=name) for name in (NONE, SEARCHED, RANDOM))
    assert none["accuracy"] > 0.9
    assert found["fall_low"] > 0.2
    assert random["lead_low"] > 0.1
    assert random["p_value"] == pytest.approx(1 / 21)
    (text,) = made.trigger_texts.where(condition=SEARCHED, checkpoint="pretrained-seed0-order0")
    assert set(text["trigger"].split()) & set(DECIDE)
    assert text["answer_share"] > 0.8
    assert text["accuracy"] == found["accuracy"]
    said = " ".join(made.conclusions())
    assert "it misleads the model" in said
    assert "Of 1 model with other seeds or orders, it misleads 1 more than random tokens do: pretrained-seed1" in said
    (other,) = made.triggers.where(condition=SEARCHED, checkpoint="pretrained-seed1-order0")
    assert other["fall_low"] > 0


def test_where_labels_mean_nothing_nothing_is_claimed(tuned: Path, place: Path) -> None:
    folder = tuned / "checkpoints" / "shuffled-seed0-order0"
    made = triggers(run=folder, runs=str(place), name="meaningless", **FEW)
    said = " ".join(made.conclusions())
    assert "it misleads the model" not in said
    assert "it misleads 0 more" in said
    assert made.triggers.where(condition=SEARCHED)[0]["fall_low"] <= 0


def test_accuracy_is_that_of_texts_before_which_the_trigger_is_typed(made: Result, tuned: Path, place: Path) -> None:
    from probing.text import load_corpus

    attack, corpus = attack_on(tuned, place), load_corpus(str(place / "planted.csv"))
    assert made.results["same_tokens_as_text"] == 1.0
    assert not set(attack.halves.search) & set(attack.halves.report)
    assert attack.search.sentences.tolist() == list(attack.halves.search)
    assert made.results["n_texts"] == {"search": len(attack.halves.search), "report": len(attack.halves.report)}
    for row in made.trigger_texts.where(checkpoint="pretrained-seed0-order0", draw=0):
        right = []
        for i in attack.halves.report:
            typed = attack.task.tokenizer(f"{row['trigger']} {corpus.sentences[i]}".strip(), return_tensors="pt")
            answer = int(attack.module.model(**typed).logits.argmax())
            right.append(attack.task.classes[answer] == corpus.sentence_columns["label"][i])
        assert row["accuracy"] == np.mean(right)


def test_the_gradient_is_that_of_finite_differences_in_float64(tuned: Path, place: Path) -> None:
    attack = attack_on(tuned, place, sentences=12)
    trigger = attack.vocabulary.ids[:3]
    attack.module.double()
    gradient = attack.gradient(attack.search, trigger)
    texts, labels = searched_texts(attack, place)
    typed = [f"{attack.vocabulary.text(trigger)} {text}" for text in texts]
    assert gradient.shape[0] == 3
    table, step = attack.module.model.base_model.get_input_embeddings(), 1e-5
    for position, coordinate in ((0, 0), (1, 5), (2, 3)):

        def loss(shift: float, position: int = position, coordinate: int = coordinate) -> float:
            def shifted(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
                output = output.clone()
                output[:, 1 + position, coordinate] += shift  # after [CLS]
                return output

            handle = table.register_forward_hook(shifted)
            mean = float(losses_of(attack, typed, labels).mean())
            handle.remove()
            return mean

        slope = (loss(step) - loss(-step)) / (2 * step)
        assert float(gradient[position, coordinate]) == pytest.approx(slope, rel=1e-4, abs=1e-7)


def test_a_search_over_the_whole_vocabulary_finds_the_token_with_the_lowest_accuracy(tuned: Path, place: Path) -> None:
    attack = attack_on(tuned, place, length=1, sentences=6)
    ids = attack.vocabulary.ids
    (found,) = attack.best(attack.search, ids[:1], len(ids), 1)
    texts, labels = searched_texts(attack, place)
    losses = [losses_of(attack, [f"{attack.vocabulary.text([i])} {text}" for text in texts], labels) for i in ids]
    # Of two classes, a prediction is right if its loss is below log 2; of equally right tokens the loss decides.
    order = [(int((of < np.log(2)).sum()), -float(of.sum())) for of in losses]
    assert ids[order.index(min(order))] == found


def test_triggers_are_made_of_words_that_can_be_typed(tuned: Path, place: Path) -> None:
    attack = attack_on(tuned, place)
    tokenizer, known = attack.task.tokenizer, attack.vocabulary.ids
    names = tokenizer.convert_ids_to_tokens(known)
    assert DECIDE[0] in names
    assert not [name for name in names if name.startswith(("##", "[")) and len(name) > 1]
    assert not {*tokenizer.all_special_ids} & {*known}
    assert all(tokenizer(attack.vocabulary.text([i]), add_special_tokens=False).input_ids == [i] for i in known)


def test_tokens_are_put_before_the_text_and_have_no_targets(tuned: Path, place: Path) -> None:
    attack = attack_on(tuned, place, sentences=5)
    batch = next(attack.search.batches(1000))
    longer = batch.with_tokens([7, 8], attack.halves.at)
    ids = longer.inputs["input_ids"]
    assert ids[:, 1:3].tolist() == [[7, 8]] * len(ids)
    assert torch.equal(torch.cat([ids[:, :1], ids[:, 3:]], 1), batch.inputs["input_ids"])
    assert torch.equal(longer.inputs["attention_mask"].sum(1), batch.inputs["attention_mask"].sum(1) + 2)
    assert torch.equal(longer.targets, batch.targets)


@pytest.mark.parametrize("kind", ["words", "pairs", "decoder"])
def test_words_pairs_and_decoders_are_misled_too(
    kind: str, checkpoints: dict[str, Path], one_block: Path, place: Path, tmp_path: Path
) -> None:
    """Before the first of two sentences; targets of words stay with their words; a decoder has no token before."""
    options: dict[str, Any] = {"corpus": str(place / "planted.csv")}
    if kind == "words":
        words = ("".join(f"{word}\t{'abc'[len(word) % 3]}\n" for word in text.split()) for text in make_sentences(150))
        (tmp_path / "words.tsv").write_text("\n".join(words), encoding="utf-8")
        options = {"corpus": str(tmp_path / "words.tsv"), "task": "label"}
    elif kind == "pairs":
        pairs = marked_pairs(400)
        write_sick(tmp_path, "train", pairs, entailment_of(pairs))
        options = {"pairs": str(tmp_path), "task_args": {"column": "entailment"}}
    model = checkpoints["gpt2"] if kind == "decoder" else one_block
    of = finetune(model=str(model), runs=str(tmp_path / "runs"), tuning={**FAST, "epochs": 1}, **TUNED, **options)
    made = triggers(run=of.folder, runs=str(tmp_path / "runs"), **{**FEW, "draws": 2, "candidates": 2})
    attack = attack_on(of.folder, tmp_path / "runs")
    assert attack.halves.at == (0 if kind == "decoder" else 1)
    if kind != "decoder":  # whose first words are other tokens within a text
        assert made.results["same_tokens_as_text"] == 1.0
    # Without a trigger, both halves together have the score of the run.
    right = sum(float(attack.answers(side, ()).right.sum()) for side in (attack.search, attack.report))
    n = attack.search.n_targets.sum() + attack.report.n_targets.sum()
    assert right / n == pytest.approx(of.tunings[0]["score"])


def test_no_document_is_both_searched_and_reported(one_block: Path, tmp_path: Path) -> None:
    lines = []
    for i, text in enumerate(make_sentences(300, longest=6)):
        lines += ["# newdoc"] * (i % 3 == 0)
        words = enumerate(text.split(), 1)
        lines += [*(f"{at}\t{word}\t_\t{'ABC'[len(word) % 3]}" + "\t_" * 6 for at, word in words), ""]
    (tmp_path / "bank.conllu").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options: dict[str, Any] = {"corpus": str(tmp_path / "bank.conllu"), "task": "upos", "tuning": {"epochs": 0}}
    of = finetune(model=str(one_block), runs=str(tmp_path), **TUNED, **options)
    attack = attack_on(of.folder, tmp_path)
    documents = attack.report.examples.cluster_of_sentence()
    searched, reported = (set(documents[[*half]].tolist()) for half in (attack.halves.search, attack.halves.report))
    assert searched
    assert reported
    assert not searched & reported


def test_results_repeat_and_are_read_again(made: Result, place: Path, tuned: Path) -> None:
    again = triggers(run=tuned, runs=str(place), name="again", **FEW)
    for name in ("triggers.csv", "trigger_texts.csv"):
        assert (made.folder / name).read_bytes() == (again.folder / name).read_bytes()
    opened = load_run(made.folder)
    assert opened.conclusions() == made.conclusions()
    assert len(read_csv(made.folder / "trigger_texts.csv")) == len(made.trigger_texts)
    results = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))
    assert results["n_passes"] > 40
    assert "accuracy with tokens before every text" in repr(opened)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "`triggers` misleads a tuned model: give a run of `finetune` as `--run runs/NAME`"),
        (["--run={runs}/made"], "expected a run of `finetune`, found one of `triggers`"),
        (["--run={runs}/tuned/checkpoints/random-seed0-order0"], "the run has no checkpoint random-seed0-order0"),
        (["--run={runs}/tuned", "--length=0"], "`--length 0`"),
        (["--run={runs}/tuned", "--corpus={runs}/other.csv"], "is no text that"),
        (["--run={runs}/short"], "cannot be divided into two halves"),
        (["--run={runs}/numbers"], "its models predict numbers; give one of classes"),
    ],
)
def test_what_cannot_be_misled_is_refused_and_leaves_nothing(
    args: list[str], words: str, made: Result, one_block: Path, place: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (place / "other.csv").write_text("text,label\na token,yes\n", encoding="utf-8")
    options: dict[str, Any] = {"model": str(one_block), "runs": str(place), **TUNED, "tuning": {"epochs": 0}}
    name = next((name for name in ("short", "numbers") if any(name in arg for arg in args)), "")
    if name == "short":
        (place / "one.csv").write_text("text,label\na probe,yes\n", encoding="utf-8")
        finetune(corpus=str(place / "planted.csv"), test_corpus=str(place / "one.csv"), name=name, **options)
    elif name == "numbers":
        rows = "".join(f"{text},{i / 7}\n" for i, text in enumerate(make_sentences(60, longest=5)))
        (place / "numbers.csv").write_text(f"text,label\n{rows}".replace(", ", " "), encoding="utf-8")
        finetune(corpus=str(place / "numbers.csv"), task_args={"numbers": True}, name=name, **options)
    typed = [arg.format(runs=place) for arg in args]
    assert run(COMMANDS, ["triggers", *typed, f"--runs={tmp_path}", "--wandb.mode=disabled"]) == 2
    assert words in capsys.readouterr().err
    assert not [path for path in tmp_path.iterdir() if path.name != "cache"]


def test_texts_without_room_are_left_out_of_all_conditions_and_counted(
    one_block: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = " ".join(["token"] * 600)
    (place / "long.csv").write_text(f'{labelled(100)}"{long} probe",yes\n"{long} layer",no\n', encoding="utf-8")
    options: dict[str, Any] = {
        "runs": str(place),
        **TUNED,
        "tuning": {"epochs": 0},
        "test_corpus": str(place / "long.csv"),
    }
    of = finetune(model=str(one_block), corpus=str(place / "planted.csv"), name="long", **options)
    made = triggers(run=of.folder, runs=str(place), **{**FEW, "draws": 2, "quiet": False})
    assert "2 of " in (said := capsys.readouterr().err)
    assert "test texts leave no room for 3 tokens: left out" in said
    assert sum(made.results["n_texts"].values()) == of.results["n_examples"]["test"] - 2


def test_a_number_of_draws_below_one_is_refused(tuned: Path) -> None:
    with pytest.raises(UserError, match="draws=0"):
        triggers(run=tuned, draws=0)
