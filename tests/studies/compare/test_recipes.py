"""Two runs of `finetune` held against each other: which recipe is better, and which runs cannot be compared."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from conftest import make_sentences
from probing import UserError, compare, finetune, load_run, report
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.results import write_csv
from probing.runs import Result
from probing.runs.loading import checkpoint_name
from probing.studies.finetune.results import ANSWERS
from probing.studies.finetune.tables import TUNINGS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NO_WANDB: Any = {"mode": "disabled"}
LEARNS = {"learning_rate": 5e-3, "epochs": 6, "batch_tokens": 100}
NOTHING = {**LEARNS, "epochs": 0}


def labelled(path: Path, n: int, seed: int) -> str:
    """Write sentences, half of which end in the word that their label is told by."""
    plain = [" ".join(w for w in text.split() if w != "probe") for text in make_sentences(n, seed, longest=8)]
    rows = [f'"{text} probe",yes' if i % 2 else f'"{text} layer",no' for i, text in enumerate(plain)]
    path.write_text("\n".join(["text,label", *rows, ""]), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], one_block: Path, place: Path) -> Callable[[str], Result]:
    """Return a run of `finetune` by its name, made when it is first asked for."""
    train, test = labelled(place / "train.csv", 300, 0), labelled(place / "test.csv", 60, 1)
    numbers = place / "numbers.csv"
    text = Path(train).read_text(encoding="utf-8").replace(",yes", ",1.5").replace(",no", ",-1")
    numbers.write_text(text, encoding="utf-8")
    usual: dict[str, Any] = {
        "model": str(one_block), "corpus": train, "test_corpus": test, "seeds": 2, "orders": 2,
        "starts": "pretrained", "runs": str(place), "quiet": True, "wandb": NO_WANDB, "tuning": LEARNS,
    }  # fmt: skip
    asked: dict[str, dict[str, Any]] = {
        "learns": {},
        "nothing": {"tuning": NOTHING},
        "other-seeds": {"seed": 10},
        "more-seeds": {"seeds": 3, "tuning": NOTHING},
        "less-text": {"corpus": labelled(place / "less.csv", 150, 0), "tuning": NOTHING},
        "moved": {"corpus": shutil.copy(train, place / "moved.csv"), "tuning": NOTHING},
        "other-model": {"model": str(checkpoints["roberta"]), "tuning": NOTHING},
        "random": {"starts": "random", "tuning": NOTHING},
        "other-test": {"test_corpus": labelled(place / "test2.csv", 60, 2), "tuning": NOTHING},
        "numbers": {"corpus": str(numbers), "test_corpus": None, "task_args": {"numbers": True}, "tuning": NOTHING},
        "numbers-tuned": {
            "corpus": str(numbers), "test_corpus": None, "task_args": {"numbers": True},
            "tuning": {**LEARNS, "epochs": 3},
        },
        "single": {"seeds": 1, "orders": 1, "tuning": NOTHING},
    }  # fmt: skip
    done: dict[str, Result] = {}

    def made_of(name: str) -> Result:
        if name not in done:
            found = finetune(name=name, **{**usual, **asked[name]})
            assert found is not None
            done[name] = found
        return done[name]

    return made_of


def held(place: Path, *runs: Result) -> Result:
    return compare(list(runs), runs=str(place / "comparisons"), quiet=True, wandb=NO_WANDB)


def test_a_recipe_that_learns_is_better_than_one_without_steps(made: Callable[[str], Result], place: Path) -> None:
    learns, nothing = made("learns"), made("nothing")
    found = held(place, nothing, learns)
    (row,) = found.recipes
    scores = [np.mean([one["score"] for one in run.tunings]) for run in (nothing, learns)]
    assert (row["score_a"], row["score_b"]) == pytest.approx(scores)
    assert row["difference"] == pytest.approx(scores[0] - scores[1])
    assert (row["verdict"], row["draws"], row["tunings_a"], row["tunings_b"]) == ("b", "paired", 4, 4)
    assert row["high"] < 0
    assert found.answer()[0].startswith("learns is better than nothing, tuned from the pretrained model: +")
    assert {one["option"] for one in found.options} == {"tuning.epochs"}
    assert "The runs differ in tuning.epochs (nothing: 0; learns: 6)." in found.conclusions()


def test_a_run_and_its_copy_differ_by_exactly_nothing(made: Callable[[str], Result], place: Path) -> None:
    copy = shutil.copytree(made("learns").folder, place / "copies" / "copy")
    found = compare([made("learns"), copy], runs=str(place / "comparisons"), quiet=True, wandb=NO_WANDB)
    (row,) = found.recipes
    assert (row["difference"], row["low"], row["high"], row["verdict"]) == (0, 0, 0, "equal")
    assert "do not differ" in found.answer()[0]
    assert not found.options
    assert any("have the same options" in line for line in found.conclusions())


def test_the_same_recipe_with_other_seeds_is_not_resolved(made: Callable[[str], Result], place: Path) -> None:
    found = held(place, made("learns"), made("other-seeds"))
    (row,) = found.recipes
    assert (row["verdict"], row["draws"]) == ("unresolved", "independent")
    assert row["low"] <= 0 <= row["high"]
    assert any("these are independent draws" in line for line in found.conclusions())
    assert {one["option"] for one in found.options} == {"seed"}


def test_of_more_seeds_those_of_both_runs_are_paired(made: Callable[[str], Result], place: Path) -> None:
    """The tunings that both have are the same ones."""
    found = held(place, made("nothing"), made("more-seeds"))
    (row,) = found.recipes
    assert (row["draws"], row["tunings_a"], row["tunings_b"], row["verdict"]) == ("paired", 4, 4, "equal")
    assert any("left out are the tunings that only one has, 2 of more-seeds" in line for line in found.conclusions())


def test_another_model_is_compared_on_the_same_sentences(made: Callable[[str], Result], place: Path) -> None:
    found = held(place, made("nothing"), made("other-model"))
    (row,) = found.recipes
    assert row["draws"] == "paired"
    assert math_of(made("other-model")) == pytest.approx(row["score_b"])
    assert {one["option"] for one in found.options} == {"model"}


def math_of(made: Result) -> float:
    return float(np.mean([row["score"] for row in made.tunings]))


def test_another_training_text_is_an_option_that_differs_and_a_moved_one_is_not(
    made: Callable[[str], Result], place: Path
) -> None:
    less = held(place, made("nothing"), made("less-text"))
    assert {one["option"] for one in less.options} == {"corpus"}
    assert "less.csv (" in less.options[1]["setting"]
    assert not held(place, made("nothing"), made("moved")).options


def test_three_runs_are_compared_in_pairs_at_a_level_for_all_of_them(
    made: Callable[[str], Result], place: Path
) -> None:
    runs = made("nothing"), made("learns"), made("other-seeds")
    found = held(place, *runs)
    assert [(row["run_a"], row["run_b"]) for row in found.recipes] == [
        ("nothing", "learns"), ("nothing", "other-seeds"), ("learns", "other-seeds"),
    ]  # fmt: skip
    (alone,) = held(place, *runs[:2]).recipes
    assert found.recipes[0]["low"] < alone["low"]
    assert any("Intervals are of 98.3%" in line for line in found.conclusions())


def test_numbers_are_compared_by_their_errors(made: Callable[[str], Result], place: Path) -> None:
    found = held(place, made("numbers-tuned"), made("numbers"))
    (row,) = found.recipes
    assert row["difference"] == pytest.approx(math_of(made("numbers-tuned")) - math_of(made("numbers")))
    assert row["low"] < row["difference"] < row["high"]
    assert "R²" in found.answer()[0]


def test_of_one_tuning_no_verdict_is_given(made: Callable[[str], Result], place: Path) -> None:
    found = held(place, made("single"), made("learns"))
    (row,) = found.recipes
    assert (row["verdict"], row["tunings_a"], row["tunings_b"]) == ("unknown", 1, 1)
    assert np.isnan(row["low"])
    assert "cannot be said" in found.answer()[0]


def test_the_command_line_and_pages_say_the_same(
    made: Callable[[str], Result], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(made(name).folder) for name in ("learns", "nothing")]
    args = ["compare", *folders, "--runs", str(place / "typed"), "--name", "typed", "--wandb.mode", "disabled"]
    assert run(COMMANDS, args) == 0
    output = capsys.readouterr().out
    found = load_run(place / "typed" / "typed")
    assert output.startswith(found.answer()[0])
    assert "Scores of learns (a) and nothing (b) on the same test part" in output
    assert "Options that differ" in output
    assert {path.name for path in (found.folder / "figures").iterdir()} == {"recipes.png", "recipes.pdf"}
    again = yaml.safe_load((found.folder / "config.yaml").read_text(encoding="utf-8"))
    assert "top" not in again
    for sources in ([found], [found, *folders]):
        page = report([str(one.folder) if isinstance(one, Result) else one for one in sources], str(place / "p.html"))
        text = " ".join(unescape(re.sub("<[^>]*>", " ", page.read_text(encoding="utf-8"))).split())
        assert found.answer()[0] in text
        assert "Recipes of tuning: typed" in text
        assert "The first score less the second" in text  # a term


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("learns", "other-test"), r"are tested on 60 and 60 sentences, of which they share \d"),
        (("learns", "numbers"), "predict sentence_label as classes and sentence_label as numbers"),
        (("learns", "random"), "start from pretrained and from random; expected a start that both have"),
        (("learns", "learns"), "is given twice"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    names: tuple[str, str], words: str, made: Callable[[str], Result], place: Path
) -> None:
    with pytest.raises(UserError, match=words):
        held(place, *map(made, names))


@pytest.mark.parametrize(("option", "value"), [("top", 5), ("matching", "index"), ("models", ["minilm"])])
def test_options_of_rankings_are_refused(option: str, value: Any, made: Callable[[str], Result], place: Path) -> None:
    with pytest.raises(UserError, match=f"`--{option}` is about rankings"):
        compare([made("learns"), made("nothing")], runs=str(place / "c"), wandb=NO_WANDB, **{option: value})


def changed(made: Result, place: Path, name: str, change: Callable[[dict[str, Any]], None]) -> Path:
    """Return a copy of a run in whose answers something is changed."""
    copy = shutil.copytree(made.folder, place / "changed" / name)
    tensors = load_file(copy / ANSWERS)
    change(tensors)
    save_file(tensors, copy / ANSWERS)
    return copy


def test_other_targets_units_and_scores_and_no_answers_are_refused(made: Callable[[str], Result], place: Path) -> None:
    learns = made("learns")

    def refused(name: str, change: Callable[[dict[str, Any]], None], words: str) -> None:
        with pytest.raises(UserError, match=words):
            compare([learns, changed(learns, place, name, change)], runs=str(place / "c"), wandb=NO_WANDB)

    def of_labels(tensors: dict[str, Any]) -> None:
        tensors["labels"][:3] += 1

    def of_units(tensors: dict[str, Any]) -> None:
        tensors["cluster"] //= 2

    def of_scores(tensors: dict[str, Any]) -> None:
        tensors["right/pretrained-seed0-order0"] *= 0.5

    refused("labels", of_labels, "in 3 of 60 sentences, other things are to be predicted")
    refused("units", of_units, "intervals over other units")
    refused("scores", of_scores, "is damaged .*another score than tunings.csv")
    refused("no-tuning", lambda tensors: tensors.pop("right/pretrained-seed0-order0"), "is damaged")
    copy = shutil.copytree(learns.folder, place / "changed" / "none")
    (copy / ANSWERS).unlink()
    with pytest.raises(UserError, match=f"does not have {ANSWERS}, what its tuned models have right"):
        compare([learns, copy], runs=str(place / "c"), wandb=NO_WANDB)
    rows = [row for row in learns.tunings if (row["seed"], row["order_seed"]) != (1, 1)]
    copy = shutil.copytree(learns.folder, place / "changed" / "crossed")
    write_csv(copy / "tunings.csv", rows, TUNINGS)
    with pytest.raises(UserError, match="does not have every seed of pretrained with every order"):
        compare([learns, copy], runs=str(place / "c"), wandb=NO_WANDB)


def test_answers_are_in_any_order_of_sentences(made: Callable[[str], Result], place: Path) -> None:
    def turned(tensors: dict[str, Any]) -> None:
        for name, values in tensors.items():
            tensors[name] = np.roll(values[::-1], 7).copy()

    copy = changed(made("learns"), place, "turned", turned)
    (row,) = compare([made("learns"), copy], runs=str(place / "c"), quiet=True, wandb=NO_WANDB).recipes
    assert row["verdict"] == "equal"


def test_a_word_that_two_tokenizers_read_alike_has_the_same_target(
    checkpoints: dict[str, Path], long_sentences: list[str], place: Path
) -> None:
    """A model whose limit cuts sentences lacks targets that the other one has, and is refused."""
    words = place / "words.tsv"
    tagged = ("".join(f"{word}\t{'abc'[len(word) % 3]}\n" for word in text.split()) for text in make_sentences(150))
    words.write_text("\n".join(tagged), encoding="utf-8")
    usual: dict[str, Any] = {
        "corpus": str(words), "task": "label", "seeds": 2, "orders": 1, "starts": "pretrained", "runs": str(place),
        "quiet": True, "wandb": NO_WANDB, "tuning": NOTHING,
    }  # fmt: skip
    runs = {
        name: finetune(model=str(checkpoints[family]), name=f"words-{name}", max_length=longest, **usual)
        for name, family, longest in (("bert", "bert", None), ("roberta", "roberta", None), ("cut", "bert", 12))
    }
    (row,) = held(place, runs["bert"], runs["roberta"]).recipes
    assert row["draws"] == "paired"
    with pytest.raises(UserError, match="other things are to be predicted, because labels have changed, or tokenizers"):
        held(place, runs["bert"], runs["cut"])


def test_kept_answers_are_those_of_each_sentence(made: Callable[[str], Result]) -> None:
    """Against transformers alone, sentence by sentence."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from probing.text import load_corpus

    learns = made("nothing")
    name = checkpoint_name(learns.tunings[0])
    folder = learns.folder / "checkpoints" / name
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    corpus = load_corpus(learns.config["test_corpus"])
    right = [
        model.config.id2label[int(model.eval()(**tokenizer(text, return_tensors="pt")).logits.argmax())] == label
        for text, label in zip(corpus.sentences, corpus.sentence_columns["label"], strict=True)
    ]
    kept = load_file(learns.folder / ANSWERS)
    assert kept[f"right/{name}"].tolist() == right
    assert kept["of"].tolist() == [1.0] * len(right)
    assert len(set(kept["sentence"].tolist())) == len(right)
