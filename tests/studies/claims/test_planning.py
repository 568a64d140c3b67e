"""Which runs claims need, of models as they are and of tuned ones, and which finished runs are taken."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from planted_claims import paper
from probing.activations import Request
from probing.activations.source import PendingRequest, Speed
from probing.cli.arguments import parse
from probing.cli.commandline import without_validation
from probing.cli.options import defaults
from probing.errors import UserError
from probing.models import load_config, resolve_model
from probing.models.loading import Blocks
from probing.runs import study_of
from probing.studies.attention import attention
from probing.studies.claims import DATA
from probing.studies.claims.claim import read_paper
from probing.studies.claims.measures import MEASURES
from probing.studies.claims.planning import (
    Fingerprints,
    Need,
    UserInputs,
    concerns,
    existing,
    finished_runs,
    needs_of,
    runs_of,
    split_models,
)
from probing.studies.claims.session import ClaimsPlan, Planned, _compares, carry_out, plan, seconds
from probing.studies.cloze.predictor import BUILTIN, fingerprint_of, read_pairs
from probing.studies.finetune.tables import TuningOptions
from probing.studies.fit import fit
from probing.studies.geometry import geometry
from probing.studies.pretrain import pretrain
from probing.studies.pretrain.tables import EncoderOptions, TrainingOptions, chosen_recipe
from probing.text import Corpus, from_sentences, load_corpus

DEFAULTS = {"fit": defaults(fit), "geometry": defaults(geometry), "pretrain": defaults(pretrain)}
PRINTS = Fingerprints("m1", "c1")


def claims(*numbers: int) -> list[Any]:
    return [claim for claim in paper().claims if claim.id in numbers]


def given(other: str | None = None, corpus: str = "builtin") -> UserInputs:
    return UserInputs(corpus, {"other_corpus": other, "third_corpus": None, "labels": None})


def test_the_runs_of_claims_are_those_of_their_measures() -> None:
    assert runs_of(claims(1), "bert", paper()) == ["geometry"]
    assert runs_of(claims(19), "bert", paper()) == ["positions"]
    assert runs_of(claims(52, 9, 23), "bert", paper()) == ["geometry", "stream", "held_out", "positions"]
    assert runs_of(claims(47), "bert", paper()) == ["labels"]


def test_claims_on_other_claims_need_the_runs_of_these() -> None:
    assert runs_of(claims(26), "distilbert", paper()) == ["geometry", "positions"]
    assert runs_of(claims(40), "minilm", paper()) == ["geometry"]


def test_claims_without_an_analogue_need_no_runs_of_another_model() -> None:
    assert runs_of(claims(21), "minilm", paper()) == []
    assert runs_of(claims(8, 58), "minilm", paper()) == []
    assert runs_of(claims(58), "smollm2", paper(), {"decoder"}) == ["geometry"]
    assert runs_of(claims(8), "bert-large", paper()) == ["geometry"]


@pytest.mark.parametrize("model", ["minilm", "my model"])
def test_a_run_is_the_command_line_that_makes_it(model: str) -> None:
    names = ["geometry", "stream", "held_out", "positions"]
    for need in needs_of(names, paper(), model, given("other text.txt", "my corpus.txt"), DEFAULTS):
        words = shlex.split(need.line)
        assert words[:3] == ["python", "-m", "probing"]
        commands: dict[str, Any] = {"fit": fit, "geometry": geometry}
        function = without_validation(commands[words[3]])
        found = parse(words[3], function, words[4:])
        assert {name: found[name] for name in need.options} == dict(need.options)
        assert found["corpus"] == "my corpus.txt"
        assert found["model"] == model


def test_defaults_are_not_typed_and_what_is_not_given_is_lacking() -> None:
    needs = needs_of(["geometry", "held_out", "positions"], paper(), "minilm", given(), DEFAULTS)
    assert [need.line for need in needs if not need.lacking] == [
        "python -m probing geometry --transforms clip --draws 10", "python -m probing fit --controls permuted_positions"
    ]  # fmt: skip
    assert [need.lacking for need in needs] == ["", "`--other_corpus`", ""]


def test_the_model_that_another_was_tuned_from_is_what_it_is_compared_with() -> None:
    of = read_paper("kovaleva2019", MEASURES)
    usual = {"attention": defaults(attention)}
    (without,) = needs_of(["change"], of, "own", UserInputs("text.txt", {"untuned": None}), usual)
    assert without.lacking == "`--untuned`"
    (there,) = needs_of(["change"], of, "tuned", UserInputs("text.txt", {"untuned": "bert-uncased"}), usual)
    words = "attention --model tuned --corpus text.txt --parts change --against bert-uncased"
    assert there.line == f"python -m probing {words}"


def test_sentences_with_labels_are_another_text_and_lack_where_they_are_not_given() -> None:
    (without,) = needs_of(["labels"], paper(), "minilm", given(), DEFAULTS)
    assert without.lacking == "`--labels`"
    (there,) = needs_of(["labels"], paper(), "minilm", UserInputs("text.txt", {"labels": "sst.jsonl"}), DEFAULTS)
    assert there.has_separate_corpus
    options = parse("fit", without_validation(fit), shlex.split(there.line)[4:])
    asked = {"corpus": "sst.jsonl", "task": "sentence_label", "transform": "clip", "replicates": 0, "evidence": "none"}
    assert {name: options[name] for name in asked} == asked


def test_pairs_are_read_in_place_of_the_corpus() -> None:
    of = read_paper("kovaleva2019", MEASURES)
    usual = {"attention": defaults(attention)}
    without = needs_of(
        ["attention", "pairs"], of, "minilm", UserInputs("text.txt", {"pairs": None, "roles": None}), usual
    )
    assert [need.lacking for need in without] == ["", "`--pairs`"]
    there = needs_of(
        ["attention", "pairs"], of, "minilm", UserInputs("text.txt", {"pairs": "p.tsv", "roles": "r.tsv"}), usual
    )
    assert [need.line for need in there] == [
        "python -m probing attention --corpus text.txt --roles r.tsv",
        "python -m probing attention --pairs p.tsv --parts classes",
    ]


def finished(place: Path, kind: str | None, corpus: str = "c1", model: str = "m1", **config: Any) -> Path:
    """Write a folder that has what is looked at of a finished run."""
    place.mkdir(parents=True)
    results: dict[str, Any] = {"cache": {"test": {"key": {"corpus": corpus, "model": model}}}}
    (place / "results.json").write_text(json.dumps(results | ({"kind": kind} if kind else {})), encoding="utf-8")
    (place / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return place


NEED = Need("geometry", "geometry", {"draws": 10, "norms": True})
SAME: dict[str, Any] = {"draws": 10, "norms": True, "seed": 0}


def found(place: Path, need: Need = NEED) -> Path | None:
    return existing(need, finished_runs(place), DEFAULTS[need.command], PRINTS)


def test_a_finished_run_with_the_same_settings_is_taken(tmp_path: Path) -> None:
    made = finished(tmp_path / "a", "geometry", **SAME, runs="elsewhere", quiet=True, wandb={"mode": "offline"})
    assert found(tmp_path) == made
    assert found(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    "other",
    [
        {"draws": 9}, {"norms": False}, {"seed": 1}, {"random_weights": True}, {"layer": [1, 2]}, {"clip_to": "mean"},
        {"kind": "checkpoints of a training"}, {"kind": None}, {"corpus": "c2"}, {"model": "m2"},
    ],
)  # fmt: skip
def test_other_runs_are_not_taken(other: dict[str, Any], tmp_path: Path) -> None:
    finished(tmp_path / "a", **{"kind": "geometry", **SAME, **other})
    assert found(tmp_path) is None


def test_the_name_of_a_model_does_not_matter_where_its_files_are_the_same(tmp_path: Path) -> None:
    made = finished(tmp_path / "a", "geometry", **SAME)
    config = {
        **yaml.safe_load((made / "config.yaml").read_text(encoding="utf-8")),
        "model": "some/where",
        "corpus": "copy.txt",
    }
    (made / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert found(tmp_path) == made


def test_what_is_not_finished_or_damaged_is_not_taken(tmp_path: Path) -> None:
    finished(tmp_path / "a.partial", "geometry", **SAME)
    damaged = finished(tmp_path / "b", "geometry", **SAME)
    (damaged / "results.json").write_text("{", encoding="utf-8")
    bare = finished(tmp_path / "c", "geometry", **SAME)
    (bare / "config.yaml").unlink()
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert found(tmp_path) is None


def test_a_run_of_another_text_is_told_by_the_name_of_the_text(tmp_path: Path) -> None:
    need = Need("elsewhere", "geometry", {**SAME, "corpus": "b.txt"}, has_separate_corpus=True)
    finished(tmp_path / "a", "geometry", corpus="c2", **SAME)
    assert found(tmp_path, need) is None
    made = finished(tmp_path / "b", "geometry", corpus="c2", **SAME)
    config = {**yaml.safe_load((made / "config.yaml").read_text(encoding="utf-8")), "corpus": "b.txt"}
    (made / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert found(tmp_path, need) == made


def test_claims_that_compare_two_models_need_the_run_of_both() -> None:
    (claim,) = claims(21)
    assert _compares(claim, "bert")
    assert not _compares(claim, "roberta")


def test_a_run_of_fit_is_one_without_a_kind(tmp_path: Path) -> None:
    made = finished(tmp_path / "a", None)
    assert found(tmp_path, Need("positions", "fit", {})) == made
    finished(tmp_path / "b", None, arrays={})
    assert found(tmp_path / "b", Need("positions", "fit", {})) is None


@pytest.mark.parametrize(
    ("there", "serves"),
    [("all", True), (["shuffled", "permuted_positions"], True), ("permuted_positions", True), ("shuffled", False),
     ("shuffled,permuted_positions", True), ("none", False)],
)  # fmt: skip
def test_a_run_with_more_controls_than_are_asked_for_is_taken(there: Any, serves: bool, tmp_path: Path) -> None:
    made = finished(tmp_path / "a", None, controls=there)
    need = Need("positions", "fit", {"controls": "permuted_positions"})
    assert found(tmp_path, need) == (made if serves else None)
    assert found(tmp_path, Need("positions", "fit", {})) == (made if there == "all" else None)


def test_models_are_named_and_may_be_in_folders() -> None:
    assert split_models("minilm, bert=/some/where") == {"minilm": "minilm", "bert": "/some/where"}
    assert split_models(["a/b", "c"]) == {"a/b": "a/b", "c": "c"}
    with pytest.raises(UserError, match="minilm is there twice"):
        split_models("minilm,minilm")
    for typed in ("", "minilm,", "=x"):
        with pytest.raises(UserError, match="--models"):
            split_models(typed)


def test_estimates_grow_with_the_text_and_with_what_is_asked(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    model = resolve_model(str(checkpoints["bert"]))
    speed = Speed(Blocks.of(load_config(model)), {"square": 1e9, "widen": 1e9, "narrow": 1e9})

    def takes(need: Need, n: int) -> float:
        text = from_sentences("made up", [f"one two three {i}" for i in range(n)])
        reading = PendingRequest.of(Request(model, text, [0, 1, 2]), tmp_path)
        return seconds(need, DEFAULTS[need.command], reading, speed)

    plain, more = Need("geometry", "geometry", {}), Need("stream", "geometry", {"norms": True})
    assert 0 < takes(plain, 100) < takes(more, 100)
    assert takes(plain, 200) == pytest.approx(2 * takes(plain, 100), rel=0.1)  # numbers have one piece or more
    bare = {"controls": "none", "evidence": "none", "replicates": 0}
    assert 0 < takes(Need("positions", "fit", bare), 100) < takes(Need("positions", "fit", {}), 100)


def test_claims_on_trainings_concern_the_encoders_that_are_trained_here() -> None:
    (trained,), (other,) = claims(32), claims(34)
    assert concerns(trained, "pretrain-tiny", paper())
    assert concerns(trained, "pretrain-base", paper())
    assert not concerns(other, "pretrain-tiny", paper())
    assert not concerns(other, "pretrain-base", paper())
    assert concerns(trained, "minilm", paper())  # whose row says what it would need
    assert not concerns(other, "distilbert", paper())


def planned(place: Path, models: dict[str, str], *numbers: int) -> ClaimsPlan:
    text = load_corpus(["one two three", "four five six"])
    return plan(paper(), claims(*numbers), models, UserInputs("builtin", {"size": None}), text, DEFAULTS, place)


def test_trainings_have_a_name_by_which_a_killed_one_is_continued(tmp_path: Path) -> None:
    found = planned(tmp_path, {"pretrain-tiny": "pretrain-tiny"}, 32)
    (one,) = found.models["pretrain-tiny"]
    words = shlex.split(one.need.line)
    options = parse("pretrain", without_validation(pretrain), words[4:])
    assert (options["size"], options["seeds"], options["arms"]) == ("tiny", 3, "learned,none")
    assert str(options["name"]).startswith("pretrain-tiny-")
    (again,) = planned(tmp_path, {"pretrain-tiny": "pretrain-tiny"}, 32).models["pretrain-tiny"]
    assert again == one
    assert one.seconds > 0
    with pytest.raises(UserError, match="`--models pretrain-huge`: encoders that are trained here are pretrain-tiny"):
        planned(tmp_path, {"pretrain-huge": "pretrain-huge"}, 32)


def test_a_finished_training_of_the_same_text_and_recipe_is_taken(tmp_path: Path) -> None:
    text = load_corpus(["one two three", "four five six"])
    shape, recipe = chosen_recipe("tiny", EncoderOptions(), TrainingOptions())
    config = {
        "corpus": "the same.txt", "size": "tiny", "arms": "learned,none", "seeds": 3, "encoder": asdict(shape),
        "training": asdict(recipe),
    }  # fmt: skip
    for name, changed, corpus in (
        ("other", {"training": {**asdict(recipe), "steps": 2}}, text.fingerprint), ("text", {}, "c2"),
        ("same", {}, text.fingerprint),
    ):  # fmt: skip
        made = tmp_path / name
        made.mkdir()
        (made / "config.yaml").write_text(yaml.safe_dump({**config, **changed}), encoding="utf-8")
        results = {"kind": "pretraining with and without positions", "corpus": {"fingerprint": corpus}}
        (made / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (one,) = planned(tmp_path, {"pretrain-tiny": "pretrain-tiny"}, 32).models["pretrain-tiny"]
    assert one.folder == tmp_path / "same"


# The commands of the runs of `bertology`.
OF_BERTOLOGY: dict[str, Any] = {
    name: study_of(name).command
    for name in ("fit", "attention", "ablate", "hierarchy", "cloze", "sts", "finetune", "trees", "triggers")
}  # fmt: skip
USUAL = {name: defaults(function) for name, function in OF_BERTOLOGY.items()}
SENTENCES = load_corpus(["one two three", "four five six"])
PAIR = "They [MASK] here.\tare\tis\tagreement\n"


@pytest.fixture
def toy(checkpoints: dict[str, Path]) -> Path:
    return checkpoints["bert"]


def of_bertology(
    model: Path, place: Path, cloze_file: Path | None = None, folder: Path | None = None, text: Corpus = SENTENCES,
    cache: Path | None = None,
) -> dict[str, Planned]:  # fmt: skip
    """Return the planned runs of a model by their names."""
    of = read_paper("bertology", MEASURES)
    data = {"cloze": None if cloze_file is None else str(cloze_file), "sts": None if folder is None else str(folder)}
    data |= {"untuned": None, "labels": None, "facts": None, "spans": None}
    made = plan(of, of.claims, {"m": str(model)}, UserInputs("text.conllu", data), text, USUAL, place, cache)
    return {one.need.name: one for one in made.models["m"]}


def test_runs_on_grammars_at_masks_and_of_ablated_heads_are_command_lines(
    toy: Path, tmp_path: Path, sentences: list[str]
) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(PAIR, encoding="utf-8")
    text = from_sentences("text", sentences)
    runs = of_bertology(toy, tmp_path, file, tmp_path / "sts", text, tmp_path / "cache")
    lines = {name: one.need.line for name, one in runs.items()}
    assert lines["hierarchy"] == f"python -m probing hierarchy --model {toy}"
    assert lines["minimal_pairs"] == f"python -m probing cloze --model {toy} {file}"
    assert lines["changed_text"] == f"python -m probing cloze --model {toy} --corpus text.conllu"
    assert lines["ablated"] == f"python -m probing ablate --model {toy} --corpus text.conllu --kinds zero --retrain 0"
    for name, one in runs.items():
        words = shlex.split(lines[name])
        found = parse(words[3], without_validation(OF_BERTOLOGY[words[3]]), words[4:])
        plain = {option: value for option, value in one.need.options.items() if option != "tuning"}
        assert {option: found[option] for option in plain} == plain
        assert (one.seconds > 0) is (one.need.lacking == "")
    assert "ablated_words" not in runs  # which is of models with a head alone
    assert runs["minimal_pairs"].seconds < runs["changed_text"].seconds < runs["hierarchy"].seconds


def test_without_a_file_the_pairs_of_the_program_are_asked_about(toy: Path, tmp_path: Path) -> None:
    need = of_bertology(toy, tmp_path)["minimal_pairs"].need
    assert (need.line, need.lacking) == (f"python -m probing cloze --model {toy}", "")
    assert of_bertology(toy, tmp_path)["pooling"].need.lacking == "`--sts`"
    with pytest.raises(UserError, match=r"`--cloze .*no\.tsv`"):
        of_bertology(toy, tmp_path, tmp_path / "no.tsv")


def test_a_finished_run_of_the_same_pairs_or_the_same_text_is_taken(toy: Path, tmp_path: Path) -> None:
    model = resolve_model(str(toy)).fingerprint()
    builtin, text = fingerprint_of(read_pairs(BUILTIN)[0]), SENTENCES.fingerprint
    for name, results, config in (
        ("pairs", {"pairs": {"fingerprint": builtin}}, {"file": None, "corpus": None}),
        ("text", {"corpus": {"fingerprint": text}}, {"file": None, "corpus": "the same.conllu"}),
    ):
        (made := tmp_path / name).mkdir()
        (made / "config.yaml").write_text(yaml.safe_dump({**config, "model": "elsewhere"}), encoding="utf-8")
        summary = {"kind": "predictions at masks", "model": {"name": "elsewhere", "fingerprint": model}, **results}
        (made / "results.json").write_text(json.dumps(summary), encoding="utf-8")
    runs = of_bertology(toy, tmp_path)
    assert (runs["minimal_pairs"].folder, runs["changed_text"].folder) == (tmp_path / "pairs", tmp_path / "text")
    file = tmp_path / "own.tsv"
    file.write_text(PAIR, encoding="utf-8")
    assert of_bertology(toy, tmp_path, file)["minimal_pairs"].folder is None
    (tmp_path / "text" / "results.json").write_text(
        json.dumps(
            {"kind": "predictions at masks", "model": {"fingerprint": "other"}, "corpus": {"fingerprint": text}}
        ),
        encoding="utf-8",
    )
    assert of_bertology(toy, tmp_path)["changed_text"].folder is None


def test_a_run_on_sentences_of_its_own_is_taken_whatever_the_text_is(toy: Path, tmp_path: Path) -> None:
    made = finished(
        tmp_path / "a",
        "linear order or hierarchy",
        corpus="sentences of a grammar",
        model=resolve_model(str(toy)).fingerprint(),
    )
    assert of_bertology(toy, tmp_path)["hierarchy"].folder == made
    finished(tmp_path / "b" / "c", "linear order or hierarchy", model="m2")
    assert of_bertology(toy, tmp_path / "b")["hierarchy"].folder is None


def test_labels_of_a_treebank_are_known_to_be_lacking_before_anything_is_run(toy: Path, tmp_path: Path) -> None:
    assert of_bertology(toy, tmp_path)["relations"].need.lacking == "a treebank as `--corpus`"
    assert of_bertology(toy, tmp_path)["relations"].seconds == 0
    file = tmp_path / "bank.conllu"
    file.write_text("\n".join("1\tGo\t_\tVERB\t_\t_\t0\troot\t_\t_\n" for _ in range(3)) + "\n", encoding="utf-8")
    assert of_bertology(toy, tmp_path, text=load_corpus(str(file)))["relations"].need.lacking == ""


def test_labels_of_another_file_are_those_of_its_sentences_and_a_text_without_labels_is_lacking(
    toy: Path, tmp_path: Path, sentences: list[str]
) -> None:
    rows = "".join(f'"{text}",{"long" if len(text) > 80 else "short"}\n' for text in sentences)
    (tmp_path / "labels.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    paper, text = read_paper("luo2021", MEASURES), from_sentences("text", sentences)
    claims = [claim for claim in paper.claims if claim.id == 47]
    for labels, lacking in (("labels.csv", ""), ("one.csv", "leave 0 classes")):
        (tmp_path / "one.csv").write_text("text,label\na b,c\nd e,f\n", encoding="utf-8")
        data = {**dict.fromkeys(DATA), "labels": str(tmp_path / labels)}
        made = plan(
            paper, claims, {"m": str(toy)}, UserInputs("text.txt", data), text, USUAL, tmp_path, tmp_path / "cache"
        )
        need = {one.need.name: one for one in made.models["m"]}["labels"]
        assert (need.seconds > 0) is (lacking == "")
        assert lacking in need.need.lacking


PAPER = read_paper("kovaleva2019", MEASURES)
TUNED_USUAL = {name: defaults(study_of(name).command) for name in ("attention", "ablate", "finetune")}
TEXT = load_corpus(["one two three", "four five six"])
TASK = "--task position_from_end --tuning.epochs 1 --tuning.learning_rate 0.0002 --tuning.batch_tokens 256"


@pytest.fixture
def model(checkpoints: dict[str, Path]) -> Path:
    return checkpoints["bert"]


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text("text,label\none two,a\nthree four,b\n", encoding="utf-8")
    return path


def made_plan(model: Path, place: Path, labels: Path | None = None, untuned: str | None = None) -> ClaimsPlan:
    data: dict[str, Any] = {"labels": labels and str(labels), "untuned": untuned, "pairs": None, "roles": None}
    claims = [claim for claim in PAPER.claims if claim.id in (4, 5, 9, 10)]
    return plan(PAPER, claims, {"m": str(model)}, UserInputs("text.txt", data), TEXT, TUNED_USUAL, place)


def tuned_planned(*args: Any, **options: Any) -> dict[str, Planned]:
    return {one.need.name: one for one in made_plan(*args, **options).models["m"]}


def test_a_run_that_reads_another_needs_it_too() -> None:
    nine = [claim for claim in PAPER.claims if claim.id == 9]
    assert runs_of(nine, "m", PAPER) == ["tuned", "ablated_task"]
    four = [claim for claim in PAPER.claims if claim.id == 4]
    assert runs_of(four, "m", PAPER) == ["tuned", "tuned_change", "shuffled_change"]
    assert runs_of(four, "m", PAPER, {"tuned model"}) == ["change"]


def test_each_line_names_the_folder_that_the_line_before_it_writes(model: Path, tmp_path: Path) -> None:
    runs = tuned_planned(model, tmp_path)
    lines = {name: one.need.line for name, one in runs.items()}
    name = runs["tuned"].need.options["name"]
    start = f"python -m probing finetune --model {model} --corpus text.txt --starts all --seeds 2 --orders 1 {TASK}"
    assert lines["tuned"] == f"{start} --name {name} --runs {tmp_path}"
    folder = tmp_path / name / "checkpoints"
    of_change = f"--corpus text.txt --parts change --against {model}"
    for run, checkpoint in {"tuned_change": "pretrained", "shuffled_change": "shuffled"}.items():
        words = f"python -m probing attention --model {folder}/{checkpoint}-seed0-order0 {of_change}"
        assert lines[run] == words
    options = f"--readouts tuned={folder}/pretrained-seed0-order0 --kinds uniform --retrain 0"
    assert lines["ablated_task"] == f"python -m probing ablate {options}"
    for one in runs.values():
        words_of = shlex.split(one.need.line)
        found = parse(words_of[3], without_validation(study_of(words_of[3]).command), words_of[4:])
        for option, value in one.need.options.items():
            asked = asdict(TuningOptions()) | {**value} if isinstance(value, Mapping) else value
            assert (asdict(found[option]) if option == "tuning" else found[option]) == asked
        assert one.folder is None


def test_a_labelled_text_that_is_given_is_tuned_on_and_the_name_tells_the_text(
    model: Path, tmp_path: Path, labels: Path
) -> None:
    need = tuned_planned(model, tmp_path, labels)["tuned"].need
    assert f"--corpus {labels} --starts all --seeds 2 --orders 1 --name " in need.line
    labels.write_text("text,label\none two,b\nthree five,a\n", encoding="utf-8")
    assert tuned_planned(model, tmp_path, labels)["tuned"].need.options["name"] != need.options["name"]
    with pytest.raises(UserError, match=r"nowhere\.csv"):
        tuned_planned(model, tmp_path, tmp_path / "nowhere.csv")


def test_a_model_that_was_tuned_elsewhere_is_compared_with_its_start(model: Path, tmp_path: Path) -> None:
    runs = tuned_planned(model, tmp_path, untuned="before")
    assert runs["change"].need.line.endswith("--parts change --against before")
    assert not {"tuned_change", "shuffled_change"} & set(runs)
    assert "tuned" in runs  # for the other claims


def tuned_finished(place: Path, model: Path, **changed: Any) -> Path:
    """Write a folder that has what is looked at of a finished run of `finetune`, with checkpoints."""
    config = {
        "model": "elsewhere", "corpus": "a copy.txt", "task": "position_from_end", "starts": "all", "seeds": 2,
        "orders": 1, "tuning": asdict(TuningOptions(epochs=1, learning_rate=0.0002, batch_tokens=256)),
    } | changed  # fmt: skip
    for start in ("pretrained", "shuffled"):
        (place / "checkpoints" / f"{start}-seed0-order0").mkdir(parents=True)
        for file in model.iterdir():
            (place / "checkpoints" / f"{start}-seed0-order0" / file.name).write_bytes(file.read_bytes())
    results = {
        "kind": "fine-tuning",
        "model": "elsewhere",
        "model_fingerprint": resolve_model(str(model)).fingerprint(),
    }
    results |= {"corpora": {"corpus": {"name": "a copy.txt", "fingerprint": TEXT.fingerprint}}}  # type: ignore[dict-item]
    (place / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (place / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return place


def test_a_finished_tuning_of_the_same_model_and_text_is_taken_and_read_by_others(model: Path, tmp_path: Path) -> None:
    made = tuned_finished(tmp_path / "mine", model)
    runs = tuned_planned(model, tmp_path)
    assert runs["tuned"].folder == made
    assert " --name mine " in runs["tuned"].need.line
    assert f"tuned={made}/checkpoints/pretrained-seed0-order0" in runs["ablated_task"].need.line
    assert runs["ablated_task"].folder is None
    of_task = tmp_path / "task"
    of_task.mkdir()
    checkpoint = made / "checkpoints" / "pretrained-seed0-order0"
    results = {"kind": "ablation", "cache": {"key": {
        "model": resolve_model(str(checkpoint)).fingerprint(), "corpus": "that of the tuning"}}}  # fmt: skip
    (of_task / "results.json").write_text(json.dumps(results), encoding="utf-8")
    config = {"kinds": "uniform", "retrain": 0, "model": str(checkpoint), "corpus": "a copy.txt"}
    for readouts, is_taken in (("position", False), (f"tuned={tmp_path}/./mine/checkpoints/{checkpoint.name}", True)):
        (of_task / "config.yaml").write_text(yaml.safe_dump({**config, "readouts": readouts}), encoding="utf-8")
        assert (tuned_planned(model, tmp_path)["ablated_task"].folder == of_task) is is_taken


@pytest.mark.parametrize(
    ("changed", "is_taken"),
    [
        ({}, True),
        ({"starts": ["pretrained", "random", "shuffled"]}, False),  # the option was typed in another way
        ({"starts": "pretrained,random"}, False),
        ({"seeds": 3}, False),
        ({"tuning": {"epochs": 1, "learning_rate": 0.0002, "batch_tokens": 256}}, True),  # of an earlier version
        ({"tuning": {"epochs": 1, "learning_rate": 0.0002, "batch_tokens": 256, "layer": 2}}, False),
        ({"tuning": asdict(TuningOptions())}, False),
    ],
)
def test_another_tuning_is_not_taken(changed: dict[str, Any], is_taken: bool, model: Path, tmp_path: Path) -> None:
    made = tuned_finished(tmp_path / "mine", model, **changed)
    assert tuned_planned(model, tmp_path)["tuned"].folder == (made if is_taken else None)


def test_a_tuning_from_more_starts_serves_one_from_fewer(model: Path, tmp_path: Path) -> None:
    paper = read_paper("bertology", MEASURES)
    data = {"labels": None, "untuned": None, "sts": None, "cloze": None, "facts": None, "spans": None}
    made = tuned_finished(tmp_path / "mine", model)
    claims = [claim for claim in paper.claims if claim.id == 32]
    found = plan(paper, claims, {"m": str(model)}, UserInputs("text.txt", data), TEXT, TUNED_USUAL, tmp_path).models[
        "m"
    ]
    assert [one.folder for one in found] == [made, None]


def test_what_reads_a_tuning_that_cannot_be_is_left_out_for_the_same_reason(model: Path, tmp_path: Path) -> None:
    tried = []

    def make(command: str, options: Mapping[str, Any]) -> Path:
        tried.append(command)
        raise UserError("the model has no head.")

    (other, _), _ = carry_out(made_plan(model, tmp_path), make, lambda place: place, lambda line: None)
    assert tried == ["finetune"]
    assert set(other.lacking) == {"tuned", "tuned_change", "shuffled_change", "ablated_task"}
    assert set(other.lacking.values()) == {"the model has no head"}


def test_a_tuning_takes_longer_with_more_of_anything(model: Path, tmp_path: Path) -> None:
    source = resolve_model(str(model))
    speed = Speed(Blocks.of(load_config(source)), {"square": 1e9, "widen": 1e9, "narrow": 1e9})
    text = from_sentences("made up", [f"one two three {i}" for i in range(100)])
    reading = PendingRequest.of(Request(source, text, [0, 1, 2]), tmp_path)

    def takes(command: str, reads: tuple[str, ...] = (), **options: Any) -> float:
        return seconds(Need("x", command, options, reads=reads), TUNED_USUAL[command], reading, speed)

    plain = takes("finetune")
    assert takes("finetune", starts="all") == pytest.approx(1.5 * plain)
    assert takes("finetune", seeds=6) == pytest.approx(2 * plain)
    assert takes("finetune", tuning={"layer": 1}) == pytest.approx(plain / 3)
    assert takes("finetune", tuning={"layer": -3}) == pytest.approx(plain / 3)
    assert takes("finetune", tuning={"epochs": 6}) > 1.7 * plain
    of_task = takes("ablate", ("tuned",), kinds="zero", readouts="tuned=x")
    assert 0 < of_task < takes("ablate", kinds="zero")  # on the test part alone
    assert of_task < takes("ablate", ("tuned",), kinds="zero,mean", readouts="tuned=x")
    heads = takes("ablate", ("tuned",), kinds="zero", readouts="tuned=x", units="heads")
    assert heads < of_task
    of_weights, of_all = (
        takes("ablate", ("tuned",), kinds="zero", readouts="tuned=x", prune=one) for one in ("weights", "all")
    )
    assert of_task < of_weights < of_all
