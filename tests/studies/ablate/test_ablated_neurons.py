"""`ablate --neurons` with named neurons, texts with masks, and outliers, from end to end on tiny models."""

from __future__ import annotations

import html
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import BARE
from families import bend, make_checkpoint, masked_lm
from probing import WandbOptions, fit, report
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.interventions import NEURON_KINDS
from probing.interventions.neurons import NeuronPasses, NeuronSet
from probing.runs import Result
from probing.runs.loading import load_run
from probing.studies.ablate import ablate
from probing.studies.ablate.neuron_tables import NEURON_INTERVENTIONS, conclusions, outlier_conclusions, tables
from small_data import sentence_pairs, word_pairs, write_semeval, write_wic
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = pytest.mark.slow

USUAL: dict[str, Any] = {
    "quiet": True, "wandb": WandbOptions("disabled"), "trainer": {"accelerator": "cpu", "max_epochs": 25},
    "figure_format": "png",
}  # fmt: skip
PLANTED = [7, 21, 30]


@pytest.fixture(scope="module")
def model(place: Path, sentences: list[str]) -> Path:
    """A BERT of 36 neurons whose position table has nothing but three of them, and whose blocks add little."""
    from transformers import BertConfig, BertModel

    folder = make_checkpoint(place / "planted", "bert", sentences)
    torch.manual_seed(0)
    vocab_size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    encoder = BertModel(
        BertConfig(
            vocab_size=vocab_size,
            hidden_size=36,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=128,
        )
    )
    with torch.no_grad():
        table = encoder.embeddings.position_embeddings.weight
        angles = torch.arange(len(table)) / 4
        table.zero_()
        table[:, PLANTED] = 3 * torch.stack([angles.sin(), angles.cos(), angles / 10 - 1], dim=1)
        encoder.embeddings.word_embeddings.weight.mul_(30)
    encoder.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def fitted(place: Path, model: Path, corpus_file: Path) -> Path:
    options = {**BARE, **USUAL, "transform": "none", "name": "fitted", "runs": str(place / "runs")}
    made = fit(model=str(model), corpus=str(corpus_file), **options)
    return made.folder


def measured(place: Path, **options: Any) -> Result:
    return ablate(**{"runs": str(place / "runs"), **USUAL, **options})


@pytest.fixture(scope="module")
def made(place: Path, fitted: Path) -> Result:
    return measured(
        place, run=str(fitted), neurons="ranked", top=3, layer=1, kinds="mean,direction", draws=9, retrain=1,
        name="made", wandb=WandbOptions("offline"),
    )  # fmt: skip


def test_planted_neurons_are_ranked_first_and_cost_more_than_others(made: Result, fitted: Path) -> None:
    rows = made.neuron_interventions
    assert {row["changed_layer"] for row in rows} == {1}
    assert {(row["readout"], row["layer"]) for row in rows if row["readout"].startswith("position")} == {
        ("position", 2), ("position", 3), ("position_retrained", 3),
    }  # fmt: skip
    accuracy = {row["layer"]: row["accuracy"] for row in load_run(fitted).accuracy}
    for row in rows:
        assert row["effect"] == pytest.approx(row["value"] - row["intact"])
        if row["readout"] == "position":
            assert row["intact"] == pytest.approx(accuracy[row["layer"]])
            assert row["low"] <= row["effect"] <= row["high"]
        if row["k"] == 3:
            assert sorted(map(int, row["neurons"].split())) == PLANTED
            if row["readout"] == "position":
                assert row["effect"] < -0.1
                assert row["random_p"] == pytest.approx(1 / 10)
                assert row["random_percentile"] == 100
            if row["readout"] == "position_retrained":
                assert row["random_p"] == pytest.approx(1 / 2)
    heads = [row for row in rows if row["readout"] == "head_contrast" and row["k"] == 3]
    assert len({(row["layer"], row["head"]) for row in heads}) >= 3
    assert {row["layer"] for row in heads} <= {2, 3}
    draws = [
        row["effect"]
        for row in made.neuron_draws
        if (row["kind"], row["k"], row["readout"], row["layer"], row["set"]) == ("mean", 2, "position", 2, "random")
    ]
    (row,) = [
        row for row in rows if (row["kind"], row["k"], row["readout"], row["layer"]) == ("mean", 2, "position", 2)
    ]
    assert len(draws) == 9
    assert row["random"] == pytest.approx(sum(draws) / 9)
    assert (row["random_lowest"], row["random_highest"]) == (min(draws), max(draws))


def test_results_are_shown_and_logged(made: Result) -> None:
    again = load_run(made.folder)
    assert set(again.neuron_interventions[0]) <= set(NEURON_INTERVENTIONS.types)
    assert again.results["neurons"]["n_drawn_sentences"] > 0
    assert not again.interventions
    shown = repr(again)
    assert "k neurons of layer 1 set to their mean" in shown
    mean, direction = conclusions(again.neuron_interventions)
    assert mean.startswith("Layer 1, 3 neurons set to their mean: probe of layer 3 from ")
    assert "random sets" in mean
    assert "retrained probe of layer 3 from " in direction
    assert (made.folder / "figures" / "neurons_layer_1.png").is_file()
    (logged,) = read_offline_runs(made.folder)
    assert all(logged.rows(name) for name in ("neuron_interventions", "neuron_draws", "figures/neurons_layer_1"))


def test_the_report_says_what_the_terminal_says(made: Result, fitted: Path, tmp_path: Path) -> None:
    page = html.unescape(
        report([str(fitted), str(made.folder)], output=str(tmp_path / "page.html")).read_text(encoding="utf-8")
    )
    for line in conclusions(made.neuron_interventions):
        assert f"<p>{line}</p>" in page
    assert "k neurons of layer 1 set to their mean" in page


def test_neurons_at_random_cost_no_more_than_others_and_a_killed_run_goes_on(
    place: Path, model: Path, corpus_file: Path, fitted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[NeuronSet] = []
    run_one = NeuronPasses.read

    def counting(self: NeuronPasses, one: NeuronSet, *reads: Any) -> Any:
        seen.append(one)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return run_one(self, one, *reads)

    monkeypatch.setattr(NeuronPasses, "read", counting)
    options: dict[str, Any] = {"model": str(model), "corpus": str(corpus_file), "retrain": 0}
    options |= {"neurons": [4, 12, 33], "layer": 2, "kinds": "zero", "at": "everywhere", "draws": 4}
    with pytest.raises(KeyboardInterrupt):
        measured(place, **options)
    monkeypatch.setattr("probing.interventions.probed_task.train_probes", None)  # they are stored, too
    found = measured(place, **options)
    assert seen[6] == seen[5]
    assert len(seen) == 1 + 3 + 3 * 8 + 1
    assert {row["layer"] for row in found.neuron_interventions if row["readout"] == "position"} == {3}
    (row,) = [row for row in found.neuron_interventions if row["readout"] == "position" and row["k"] == 3]
    assert row["random_p"] > 0.05
    assert "position_retrained" not in {row["readout"] for row in found.neuron_interventions}


def test_named_neurons_are_read_by_the_probes_of_a_run(place: Path, fitted: Path) -> None:
    found = measured(place, run=str(fitted), neurons="33,4", layer=1, kinds="zero", draws=2, retrain=0)
    accuracy = {row["layer"]: row["accuracy"] for row in load_run(fitted).accuracy}
    rows = [row for row in found.neuron_interventions if row["readout"] == "position"]
    assert {(row["layer"], row["neurons"]) for row in rows} == {(k, of) for k in (2, 3) for of in ("33", "33 4")}
    assert all(row["intact"] == pytest.approx(accuracy[row["layer"]]) for row in rows)
    assert found.results["neurons"]["probes"] == {"position": "run"}


def test_options_that_contradict_each_other_are_refused(
    place: Path, model: Path, corpus_file: Path, fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    usual = ["ablate", f"--runs={tmp_path / 'runs'}", "--wandb.mode=disabled"]
    own = [f"--model={model}", f"--corpus={corpus_file}"]
    refused = {
        "`--neurons ranked` takes the first neurons of a ranking; give `--run` too": [*own, "--neurons=ranked"],
        "`--top 3` is for `--neurons ranked`, and `--neurons 3` is given": [*own, "--neurons=3", "--top=3"],
        "`--at everywhere` is for neurons, and heads and layers are ablated; leave it out": [*own, "--at=everywhere"],
        "`--units heads` is for heads and layers, and `--neurons 3` is given; leave it out": [
            *own, "--neurons=3", "--units=heads"
        ],
        "`--kinds zero` is for heads and layers and neurons, and `--neurons outliers` is given; leave it out": [
            *own, "--neurons=outliers", "--kinds=zero"
        ],
        "`--definition variance` is for outliers, and `--neurons all` is given; leave it out": [
            *own, "--neurons=all", "--kinds=direction", "--definition=variance"
        ],
        "`--neurons 36` is out of range: expected 0 to 35": [*own, "--neurons=36"],
        "`--neurons 3,x`: expected numbers of neurons": [*own, "--neurons=3,x"],
        "neuron 3 is there twice": [*own, "--neurons=3,3"],
        "`--layer 3` with `--neurons 3`: neurons of this layer cannot be changed, because no later layer": [
            *own, "--neurons=3", "--layer=3"
        ],
        "`--top 19`: 19 neurons are more than half of the 36": [
            "--neurons=ranked", f"--run={fitted}", "--top=19"
        ],
        "the run's own is read, which is": ["--neurons=ranked", f"--run={fitted}", "--model=minilm2"],
        f"`--kinds means` is not one of {', '.join(NEURON_KINDS)}, all": [
            *own, "--neurons=3", "--kinds=means"
        ],
        "`--neurons all` with `--kinds mean` would leave nothing": [*own, "--neurons=all"],
        "`--readouts sts=nowhere` cannot be read": [*own, "--neurons=3", "--readouts=sts=nowhere"],
        "`--readouts task` reads the classes of the task of a run; give `--run`": [
            *own, "--neurons=3", "--readouts=task"
        ],
        "`--readouts wic=nowhere` with `--kinds translate`: words are moved from their own class": [
            *own, "--neurons=3", "--readouts=wic=nowhere", "--kinds=translate"
        ],
    }  # fmt: skip
    monkeypatch.setenv("PROBING_CACHE", str(tmp_path / "cache"))
    for message, options in refused.items():
        assert run(COMMANDS, [*usual, *options]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()  # nothing was extracted
    assert not (tmp_path / "runs").exists()
    with pytest.raises(UserError, match=r"holds no finished run|no finished"):
        measured(place, run=str(tmp_path), neurons="ranked")


def test_the_loss_of_masked_words_is_read_where_the_model_has_a_head(
    place: Path, corpus_file: Path, sentences: list[str]
) -> None:
    folder = masked_lm(place / "masked", "bert", sentences)
    found = measured(
        place, model=str(folder), corpus=str(corpus_file), neurons="3,9", layer=1, readouts="mlm", draws=2, tokens=1500
    )
    rows = found.neuron_interventions
    assert [(row["readout"], row["layer"], row["k"]) for row in rows] == [("mlm", 3, 1), ("mlm", 3, 2)]
    for row in rows:
        assert row["effect"] == pytest.approx(row["value"] - row["intact"])
        assert row["random_p"] >= 1 / 3
    (line,) = conclusions(rows)
    assert "loss of masked words" in line
    assert "nats" in line


def test_similarity_and_senses_are_read_from_data(place: Path, corpus_file: Path, sentences: list[str]) -> None:
    write_semeval(place / "STS12", "one", sentence_pairs(40, 0))
    for part in ("train", "dev"):
        write_wic(place / "wic", part, word_pairs(40, len(part)))
    found = measured(
        place, model=str(make_checkpoint(place / "pairs", "bert", sentences)), corpus=str(corpus_file), neurons="3",
        layer=1, readouts=[f"sts={place / 'STS12'}", f"wic={place / 'wic'}"], draws=2, tokens=1500,
    )  # fmt: skip
    rows = found.neuron_interventions
    assert [(row["readout"], row["layer"], row["n"]) for row in rows] == [("sts:STS12", 3, 40), ("wic", 3, 40)]
    for row in rows:
        assert row["effect"] == pytest.approx(row["value"] - row["intact"])


OF_WORDS: dict[str, Any] = {
    "quiet": True, "wandb": WandbOptions("disabled"), "trainer": {"accelerator": "cpu"}, "figure_format": "png",
}  # fmt: skip
MASKED_PLANTED, OTHERS = "4,11", "2,9"
NOUNS = ("probe", "sentence", "neuron", "token", "model")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("words")


@pytest.fixture(scope="module")
def masked(room: Path, sentences: list[str]) -> Path:
    """A BERT whose blocks after the first add nothing, and whose head reads two neurons of the last layer."""
    from transformers import AutoModelForMaskedLM

    folder = masked_lm(room / "planted", "bert", sentences)
    whole = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        for block in whole.bert.encoder.layer[1:]:
            for part in (block.attention.output, block.output):
                part.dense.weight.zero_()
                part.dense.bias.zero_()
                part.LayerNorm.weight.fill_(1)
                part.LayerNorm.bias.zero_()
        read = whole.cls.predictions.transform.dense.weight
        read[:, [neuron for neuron in range(read.shape[1]) if str(neuron) not in MASKED_PLANTED.split(",")]] = 0
    whole.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pairs(room: Path) -> Path:
    (path := room / "words.tsv").write_text(
        "".join(
            f"The {one} of a {of} [MASK] the model.\tThe {other} of a {of} [MASK] the model.\treads\thides\n"
            for one, other, of in product(NOUNS, NOUNS, NOUNS)
            if one < other
        ),
        encoding="utf-8",
    )
    return path


@pytest.fixture(scope="module")
def options(room: Path, masked: Path, corpus_file: Path, pairs: Path) -> dict[str, Any]:
    return {
        "model": str(masked), "corpus": str(corpus_file), "kinds": "interchange", "pairs": str(pairs), "layer": 1,
        "draws": 19, "seed": 1, "runs": str(room / "runs"), **OF_WORDS,
    }  # fmt: skip


@pytest.fixture(scope="module")
def masked_made(options: dict[str, Any]) -> Result:
    return ablate(**options, neurons=MASKED_PLANTED, name="planted")


def largest(made: Result) -> dict[str, Any]:
    return max(made.neuron_interventions, key=lambda row: row["k"])


def test_neurons_that_the_head_reads_carry_the_odds_and_others_do_not(
    masked_made: Result, options: dict[str, Any]
) -> None:
    row = largest(masked_made)
    assert (row["readout"], row["layer"], row["k"], row["intact"]) == ("words", 3, 2, 0.0)
    assert row["low"] > 0.5
    assert row["random_p"] == row["matched_p"] == 0.05  # the least that 19 draws can give
    assert row["random"] < 0.3
    noise = ablate(**options, neurons=OTHERS, name="noise")
    of_noise = largest(noise)
    assert abs(of_noise["value"]) < 0.2
    assert min(of_noise["random_p"], of_noise["matched_p"]) > 0.1
    # Later blocks only look at each token by itself.
    assert of_noise["all_neurons"] == row["all_neurons"] == pytest.approx(1, abs=1e-5)


def test_what_was_found_is_on_disk_in_the_terminal_and_on_the_page(
    masked_made: Result, options: dict[str, Any]
) -> None:
    neurons = masked_made.results["neurons"]
    assert (neurons["n_pairs"], neurons["n_left_out"], neurons["probes"]) == (50, 0, {})
    assert largest(masked_made)["difference"] > 0
    assert masked_made.config["readouts"] == "words"
    read = read_csv(masked_made.folder / "neuron_interventions.csv")
    assert [row["all_neurons"] for row in read] == [row["all_neurons"] for row in masked_made.neuron_interventions]
    line, told = conclusions(masked_made.neuron_interventions)
    assert told.startswith("In the intact model, the log odds of the two words differ by ")
    assert line.startswith(
        "Layer 1, 2 neurons exchanged between the sentences of pairs: log odds carried, layer 3 from 0"
    )
    assert "; all neurons +" in line
    (table,) = tables(masked_made.neuron_interventions)
    assert list(table.columns[1].cells) == ["1", "2", "all"]
    page = html.unescape(Path(report([str(masked_made.folder)])).read_text(encoding="utf-8"))
    assert line in page
    assert told in page
    assert "log odds carried, layer 3" in page
    assert load_run(masked_made.folder).neuron_interventions == masked_made.neuron_interventions
    again = ablate(**{**masked_made.config, **OF_WORDS, "name": "again"})
    assert again.neuron_interventions == masked_made.neuron_interventions


def test_neurons_of_a_run_of_positions_may_be_asked_about_too(
    room: Path, masked: Path, corpus_file: Path, options: dict[str, Any]
) -> None:
    of_run = fit(
        model=str(masked), corpus=str(corpus_file), layer="1", transform="none", runs=str(room / "runs"),
        name="positions", **BARE, **OF_WORDS,
    )  # fmt: skip
    own = {name: value for name, value in options.items() if name not in ("model", "corpus")}
    found = ablate(**{**own, "run": str(of_run.folder), "neurons": "ranked", "top": 2, "draws": 0, "name": "ranked"})
    assert {row["readout"] for row in found.neuron_interventions} == {"words"}


def test_what_does_not_go_with_words_is_refused(
    room: Path, masked: Path, pairs: Path, corpus_file: Path, sentences: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    headless = make_checkpoint(room / "headless", "bert", sentences)
    (mixed := room / "mixed.tsv").write_text(f"a\tb\n{pairs.read_text(encoding='utf-8')}", encoding="utf-8")
    usual = ["--neurons=3", "--layer=1", "--kinds=interchange"]
    refused: dict[str, list[str]] = {
        "`--pairs` of texts with [MASK] needs a model with a trained masked-language-model head": [
            f"--model={headless}", f"--pairs={pairs}", *usual
        ],
        "line 2: expected 2 columns as in the lines above, found 4": [
            f"--model={masked}", f"--pairs={mixed}", *usual
        ],
        "`--pairs -`: pairs are read more than once; give them as a file": [f"--model={masked}", "--pairs=-", *usual],
        "pairs are read by the model's own head for masked words alone": [
            f"--model={masked}", f"--pairs={pairs}", "--readouts=mlm", *usual
        ],
        "`--retrain 2` with `--pairs ": [f"--model={masked}", f"--pairs={pairs}", "--retrain=2", *usual],
        "is read by `--kinds interchange` alone, and `--kinds mean` is given": [
            f"--model={masked}", f"--pairs={pairs}", *usual[:2]
        ],
    }  # fmt: skip
    place_of = [f"--runs={room}", f"--corpus={corpus_file}", "--wandb.mode=disabled"]
    for message, options in refused.items():
        assert run(COMMANDS, ["ablate", *place_of, *options]) == 2
        assert message in capsys.readouterr().err


OUTLIERS_PLANTED = 3
LEAN: dict[str, Any] = {"neurons": "outliers", "definition": "argmin_share", "draws": 1, "quiet": True}


@pytest.fixture(scope="module")
def outliers_made(place: Path, bent: Path, short_text: Path) -> Result:
    return ablate(
        str(bent), "1,2", corpus=str(short_text), runs=str(place / "runs"), name="a", wandb=WandbOptions("offline"),
        **LEAN,
    )  # fmt: skip


@pytest.mark.numeric
@pytest.mark.usefixtures("few_passes")
def test_the_outlier_is_zeroed_inside_and_clipped_after_beside_random_neurons(outliers_made: Result) -> None:
    found = {
        (row["measure"], row["where"], row["kind"], row.get("draw", 0)): row for row in outliers_made.interventions
    }
    assert {key[0] for key in found} == {"position_accuracy", "position_accuracy_retrained"}
    for measure in ("position_accuracy", "position_accuracy_retrained"):
        for where in ("inside", "after"):
            assert found[measure, where, "outliers", 0]["neurons"] == str(OUTLIERS_PLANTED)
            assert found[measure, where, "random", 1]["neurons"] != str(OUTLIERS_PLANTED)
        assert found[measure, "inside", "largest_gain", 0]["neurons"] != str(OUTLIERS_PLANTED)
        assert found[measure, "inside", "outliers", 0]["effect"] != found[measure, "after", "outliers", 0]["effect"]
    intact = found["position_accuracy", "", "intact", 0]
    assert intact["value"] == found["position_accuracy_retrained", "", "intact", 0]["value"]
    assert 0.1 < intact["value"] <= 1


@pytest.mark.numeric
@pytest.mark.usefixtures("few_passes")
def test_tables_figures_and_sentences_are_where_the_others_are(outliers_made: Result) -> None:
    stored = read_csv(outliers_made.folder / "interventions.csv")
    assert len(stored) == len(outliers_made.interventions) > 0
    for row, again in zip(outliers_made.interventions, stored, strict=True):
        # An empty end of an interval is read as one that is not defined.
        given, read = ({k: str(v) for k, v in one.items() if str(v) not in ("", "nan")} for one in (row, again))
        assert read == given
    assert {path.name for path in (outliers_made.folder / "figures").iterdir()} == {
        "interventions.png",
        "interventions.pdf",
    }
    assert outliers_made.results["outliers"] == {"1": [OUTLIERS_PLANTED], "2": [OUTLIERS_PLANTED]}
    assert "zeroed inside the model" in repr(outliers_made)
    (effect,) = outlier_conclusions(outliers_made.interventions)
    assert outliers_made.conclusions() == [effect]
    assert f"zeroing neuron {OUTLIERS_PLANTED} inside the model changes it by" in effect
    assert "clipping the last hidden states changes it by" in effect
    (tracked,) = read_offline_runs(outliers_made.folder)
    assert all(tracked.rows(key) for key in ("interventions", "figures/interventions"))


@pytest.mark.numeric
@pytest.mark.usefixtures("few_passes")
def test_a_model_with_its_head_is_read_by_the_loss_of_masked_words(
    place: Path, sentences: list[str], short_text: Path
) -> None:
    folder = bend(masked_lm(place / "headed", "bert", sentences), OUTLIERS_PLANTED)
    found = ablate(
        str(folder), 2, corpus=str(short_text), runs=str(place / "runs"), wandb=WandbOptions("disabled"),
        **LEAN,
    )  # fmt: skip
    assert {row["measure"] for row in found.interventions} == {"mlm_loss"}
    effects = [row for row in found.interventions if row["kind"] == "outliers"]
    assert [row["where"] for row in effects] == ["inside", "after"]


@pytest.mark.numeric
@pytest.mark.usefixtures("few_passes")
def test_a_model_without_outliers_is_told_so(
    checkpoints: dict[str, Path], short_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--model={checkpoints['gpt2']}", f"--corpus={short_text}", f"--runs={tmp_path}", "--name=g"]
    options += ["--neurons=outliers", "--layer=1", "--draws=2", "--wandb.mode=disabled"]
    assert run(COMMANDS, ["ablate", *options]) == 0
    # A model of 16 neurons has no outlier by the default definition.
    assert "--neurons outliers: no outlier dimension was found" in capsys.readouterr().err


@pytest.mark.numeric
@pytest.mark.usefixtures("few_passes")
def test_too_few_sentences_for_a_probe_are_refused_and_nothing_is_left(bent: Path, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("The probe reads a sentence.\nEvery neuron hides.\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"`neurons=.outliers.*2 sentences are too few"):
        ablate(
            str(bent), 1, corpus=str(tmp_path / "two.txt"), runs=str(tmp_path / "runs"), wandb=WandbOptions("disabled"),
            **LEAN,
        )  # fmt: skip
    assert list((tmp_path / "runs").glob("[!c]*")) == []


@pytest.mark.numeric
@pytest.mark.usefixtures("few_passes")
def test_a_randomly_initialised_model_is_never_read_by_a_head_that_means_nothing(
    place: Path, sentences: list[str]
) -> None:
    from probing.activations import Request, activations
    from probing.interventions.outliers import OutlierModel, ablate_outliers
    from probing.models import load_encoder, load_tokenizer, resolve_model
    from probing.text import from_sentences

    source = resolve_model(str(masked_lm(place / "twin", "bert", sentences)))
    corpus = from_sentences("made up", sentences)
    store = activations(Request(source, corpus, [1]), place / "cache", {"accelerator": "cpu"})
    rows = ablate_outliers(OutlierModel(
        source, load_encoder(source, 0), load_tokenizer(source), store, corpus, {0: [9], 1: [2, 5]}, "exclude",
        is_trained=False, n_draws=0, seed=0, say=print,
    ))  # fmt: skip
    assert {row["measure"] for row in rows} == {"position_accuracy", "position_accuracy_retrained"}
    # What the embeddings alone have is left alone.
    assert {row["neurons"] for row in rows if row["kind"] == "outliers"} == {"2 5"}
