"""`disable` from end to end on tiny models."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import BARE
from families import make_tokenizer, masked_lm, save_at_random
from probing import Result, UserError, WandbOptions, disable, fit, load_run, report
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.disabling.probed_task import Job, Passes
from probing.readouts.forward import Readout
from probing.studies.disable.schema import DISABLED
from probing.studies.disable.tables import conclusions
from small_data import sentence_pairs, word_pairs, write_semeval, write_wic
from wandb_stand_in import read_offline_runs

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning")

# A few passes of training: how good probes are does not matter here.
USUAL: dict[str, Any] = {
    "quiet": True,
    "wandb": WandbOptions("disabled"),
    "trainer": {"accelerator": "cpu", "max_epochs": 15},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disable")


def disabled(place: Path, model: Path, corpus: Path, **options: Any) -> Result:
    own = {"retrain": 0, "runs": str(place / "runs"), **USUAL, **options}
    made = disable(model=str(model), corpus=str(corpus), **own)
    assert made is not None
    return made


@pytest.fixture(scope="module")
def made(place: Path, checkpoints: dict[str, Path], corpus_file: Path) -> Result:
    return disabled(place, checkpoints["bert"], corpus_file, name="all", wandb=WandbOptions("offline"))


@pytest.mark.slow
def test_there_is_a_row_for_every_unit_kind_and_later_layer(made: Result) -> None:
    expected = {
        (f"{block}-{head}", kind, layer)
        for block in (1, 2, 3) for head in (1, 2) for kind in ("uniform", "zero", "mean", "resample")
        for layer in range(block, 4)
    }  # fmt: skip
    expected |= {
        (str(block), kind, layer)
        for block in (1, 2, 3) for kind in ("uniform", "zero", "mean", "resample", "skip") for layer in range(block, 4)
    }  # fmt: skip
    found = [(row["unit"], row["kind"], row["layer"]) for row in made.disabled]
    assert set(found) == expected
    assert len(found) == len(expected)
    for row in made.disabled:
        assert row["readout"] == "position"
        assert row["effect"] == pytest.approx(row["value"] - row["intact"])
        assert row["intact"] == pytest.approx(made.results["intact_accuracy"][str(row["layer"])])
        assert row["low"] <= row["effect"] <= row["high"]
        assert 0 <= row["p_value"] <= 1
        assert row["n"] == made.results["n_sentences"]
        assert math.isnan(row["percentile"]) == ("-" not in row["unit"])
    assert {row["units"] for row in made.better_without} == {"heads", "layers"}
    assert [row["unit"] for row in made.importance] == ["1-1", "1-2", "2-1", "2-2", "3-1", "3-2"]
    for row in made.importance:
        assert row["layer"] == 3
        assert 0 < row["low"] < row["importance"] < row["high"]


@pytest.mark.slow
def test_results_are_shown_and_logged(made: Result) -> None:
    assert list(load_run(made.folder).disabled[0]) == list(DISABLED.types)
    shown = repr(made)
    assert "of 6 heads" in shown
    lines = conclusions(made.by_name)
    assert sum("the probe of layer 3 loses" in line for line in lines) == 9
    assert sum("the loss of layer 3's probe depends most on heads" in line for line in lines) == 1
    figures = {path.stem for path in (made.folder / "figures").glob("*.png")}
    assert figures == {"layers", "heads_uniform", "heads_zero", "heads_mean", "heads_resample"}
    (logged,) = read_offline_runs(made.folder)
    assert logged.rows("by_layer/skip_effect")


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_next_unit_and_ends_with_the_same_numbers(
    made: Result, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Job] = []
    run_one = Passes.run

    def counting(self: Passes, job: Job, readout: Readout) -> Any:
        seen.append(job)
        if len(seen) == 7:
            raise KeyboardInterrupt
        return run_one(self, job, readout)

    monkeypatch.setattr(Passes, "run", counting)
    with pytest.raises(KeyboardInterrupt):
        disabled(tmp_path, checkpoints["bert"], corpus_file, name="all")
    first = list(seen)
    monkeypatch.setattr("probing.disabling.probed_task.train_probes", None)  # they are stored, too
    again = disabled(tmp_path, checkpoints["bert"], corpus_file, name="again")
    assert seen[7] == first[6]
    assert len(seen) == 42 + 1
    assert len(set(seen)) == 42
    assert [str(row) for row in again.disabled] == [str(row) for row in made.disabled]
    # What is asked for later is read from the same passes.
    few = disabled(tmp_path, checkpoints["bert"], corpus_file, units="heads", kinds=["zero"], layer=2)
    assert len(seen) == 43
    assert {(row["unit"], row["kind"]) for row in few.disabled} == {("2-1", "zero"), ("2-2", "zero")}
    assert {path.stem for path in (few.folder / "figures").glob("*.png")} == {"heads_zero"}


@pytest.mark.slow
def test_probes_are_trained_again_without_the_units_that_cost_most_and_random_ones(
    made: Result, place: Path, checkpoints: dict[str, Path], corpus_file: Path
) -> None:
    again = disabled(place, checkpoints["bert"], corpus_file, retrain=1)
    frozen = {(row["unit"], row["layer"]): row for row in again.disabled if row["readout"] == "position"}
    rows = [row for row in again.disabled if row["readout"] == "position_retrained"]
    assert len(again.disabled) - len(rows) == len(made.disabled)
    assert {row["kind"] for row in rows} == {"uniform"}
    for wanted in (True, False):
        units = {row["unit"] for row in rows if ("-" in row["unit"]) is wanted}
        of_type = [row for row in made.disabled if ("-" in row["unit"]) is wanted and row["kind"] == "uniform"]
        strongest = min((row for row in of_type if row["layer"] == 3), key=lambda row: row["effect"])
        assert len(units) == 2
        assert strongest["unit"] in units
        for unit in units:
            layers = [row["layer"] for row in rows if row["unit"] == unit]
            assert layers == list(range(int(unit[0]), 4))
    for row in rows:
        # Trained on the sentences that were drawn, which are all here: intact, they are the probes as they were.
        assert row["intact"] == pytest.approx(frozen[row["unit"], row["layer"]]["intact"], abs=0.01)
    assert "trained again" in repr(again)
    assert sum("Trained again without one of 2" in line for line in conclusions(again.by_name)) == 2


@pytest.fixture(scope="module")
def fitted(place: Path, checkpoints: dict[str, Path], corpus_file: Path) -> Path:
    options = {**BARE, **USUAL, "name": "fitted", "runs": str(place / "runs")}
    made = fit(model=str(checkpoints["bert"]), corpus=str(corpus_file), layer=[0, 2], **options)
    assert made is not None
    return made.folder


@pytest.mark.slow
def test_the_probes_of_a_run_are_read_where_it_is_given(fitted: Path, place: Path, tmp_path: Path) -> None:
    made = disable(run=str(fitted), runs=str(place / "runs"), kinds="mean", retrain=0, **USUAL)
    assert made is not None
    assert {row["layer"] for row in made.disabled} == {2}
    assert {row["unit"] for row in made.disabled} == {"1-1", "1-2", "1", "2-1", "2-2", "2"}
    (row,) = [row for row in load_run(fitted).accuracy if row["layer"] == 2]
    assert made.results["intact_accuracy"]["2"] == pytest.approx(row["accuracy"])
    with pytest.raises(
        UserError, match=r"--max_length 9`: with `--run .*fitted`, the run's own is read, which is None"
    ):
        disable(run=str(fitted), max_length=9, **USUAL)
    (other := tmp_path / "other.txt").write_text("Another text.\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"--corpus .*other\.txt` is no text that `.*fitted` read"):
        disable(run=str(fitted), corpus=other, **USUAL)


def test_what_cannot_be_disabled_is_refused(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = [f"--corpus={corpus_file}", f"--runs={tmp_path / 'runs'}", "--wandb.mode=disabled"]
    refused = {
        "`--kinds skip` takes whole layers out; give `--units layers`": ["--units=heads", "--kinds=skip"],
        "`--units neurons` is not one of heads, layers, all": ["--units=neurons"],
        "`--kinds means` is not one of uniform, zero, mean, resample, skip, all": ["--kinds=means"],
        "heads are in blocks, and": ["--layer=0"],
        "`--readouts words` is not one of position, mlm": ["--readouts=words"],
        "`--readouts sts` needs its data; give sts=DIR": ["--readouts=position,sts"],
        "`--readouts wic=nowhere": ["--readouts=wic=nowhere"],
        "`--readouts sts=nowhere` cannot be read": ["--readouts=sts=nowhere"],
        "`--readouts mlm=x`: mlm takes no data; give mlm alone": ["--readouts=mlm=x"],
        "`--readouts mlm` needs a model with a trained masked-language-model head: ": ["--readouts=position,mlm"],
        "`--prune` disables heads together by zero or mean, and": ["--prune", "--kinds=uniform,resample"],
        "`--prune wights` is not one of units, weights, all (did you mean `weights`?)": ["--prune=wights"],
        "`--prune_share 2.0` is out of range": ["--prune_share=2"],
        "`--tokens 0` is out of range": ["--tokens=0"],
        "`--retrain -1` is out of range": ["--retrain=-1"],
    }
    for message, options in refused.items():
        model = f"--model={checkpoints['bert']}"
        assert run(COMMANDS, ["disable", model, *usual, *options]) == 2
        assert message in capsys.readouterr().err
    assert run(COMMANDS, ["disable", f"--model={checkpoints['xlnet']}", *usual]) == 2
    assert "no head or layer of it can be disabled, because its blocks do not" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_masked_words_are_read_where_there_is_a_head(
    place: Path, corpus_file: Path, tmp_path: Path, sentences: list[str]
) -> None:
    model = masked_lm(tmp_path / "masked", "bert", sentences)
    made = disabled(place, model, corpus_file, readouts="mlm", kinds=["zero", "skip"], tokens=1500, prune=True)
    assert {row["readout"] for row in made.disabled} == {row["readout"] for row in made.importance} == {"mlm"}
    assert {row["layer"] for row in made.disabled} == {3}
    assert len(made.disabled) == 6 + 2 * 3
    told = made.results["readouts"]["mlm"]
    for row in made.disabled:
        assert row["effect"] == pytest.approx(row["value"] - row["intact"])
        assert row["intact"] == pytest.approx(told["intact"]["3"])
        assert row["low"] < row["effect"] < row["high"]
    assert told["n_examples"] > 100
    assert "intact_accuracy" not in made.results
    assert {path.stem for path in (made.folder / "figures").glob("*.png")} == {
        "heads_zero_mlm", "layers_mlm", "pruning_heads_mlm", "pruning_layers_mlm",
    }  # fmt: skip
    assert [row["n_disabled"] for row in made.pruning if row["order"] == "reverse"] == [*range(7), *range(4)]
    page = report([str(made.folder)]).read_text(encoding="utf-8")
    (section,) = re.findall(r'<section id="?disable-0.*?</section>', page, flags=re.DOTALL)
    for line in conclusions(made.by_name):
        assert line.replace("'", "&#x27;") in section or line in html.unescape(section)
    assert section.count("heads-map") == 1  # one kind that heads can be disabled by
    (shaded,) = [row for row in made.disabled if row["unit"] == "2-1"]
    assert f"{shaded['effect']:+.3f}</span>" in section
    for row in made.pruning:
        assert row["order"] == "random" or f"{row['value']:.3f}</td>" in section
    assert "Loss of masked words without a head, in nats, of 6 heads" in " ".join(repr(made).split())


@pytest.mark.slow
def test_sentence_similarity_and_word_senses_are_read_from_the_last_layer(
    place: Path, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    write_semeval(tmp_path / "STS12", "one", sentence_pairs(40, 0))
    for part, n in (("train", 60), ("dev", 40)):
        write_wic(tmp_path / "wic", part, word_pairs(n, n))
    made = disabled(
        place, checkpoints["bert"], corpus_file, readouts=[f"sts={tmp_path / 'STS12'}", f"wic={tmp_path / 'wic'}"],
        kinds="zero", layer=2, prune=True,
    )  # fmt: skip
    readouts = {"sts:STS12": "pair", "wic": "pair"}
    found = [(row["readout"], row["unit"], row["layer"]) for row in made.disabled]
    assert found == [(readout, unit, 3) for readout in readouts for unit in ("2-1", "2-2", "2")]
    assert {row["readout"] for row in made.importance} == {*readouts}
    for row in made.disabled:
        assert row["n"] == 40
        assert row["intact"] == pytest.approx(made.results["readouts"][row["readout"]]["intact"]["3"])
        assert row["low"] <= row["effect"] <= row["high"]
    assert {path.stem for path in (made.folder / "figures").glob("*.png")} == {
        "heads_zero_sts_STS12", "layers_sts_STS12", "heads_zero_wic", "layers_wic", "pruning_heads_sts_STS12",
        "pruning_heads_wic",
    }  # fmt: skip
    assert {(row["readout"], row["units"], row["order"]) for row in made.pruning_areas} == {
        (readout, "heads", order) for readout in readouts for order in ("importance", "reverse")
    }  # fmt: skip
    assert sum("Spearman's correlation (STS12) of layer 3" in line for line in conclusions(made.by_name)) == 3


def test_runs_of_different_layers_have_the_same_intact_accuracy_where_a_layer_is_more_than_its_block(
    place: Path, tmp_path: Path, corpus_file: Path, long_sentences: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import CONFIG_MAPPING, AutoModel

    tokenizer = make_tokenizer("wordpiece", long_sentences)
    make: Any = CONFIG_MAPPING["xlm"]
    config = make(vocab_size=len(tokenizer), emb_dim=16, n_layers=3, n_heads=2, pad_index=0)
    model = save_at_random(tmp_path / "xlm", AutoModel.from_config(config), tokenizer)
    options: dict[str, Any] = {"units": "layers", "quiet": False}
    first, last = (disabled(place, model, corpus_file, layer=layer, name=f"xlm{layer}", **options) for layer in (1, 3))
    assert first.results["intact_accuracy"]["3"] == last.results["intact_accuracy"]["3"]
    assert {row["kind"] for row in last.disabled} == {"uniform", "zero", "mean", "resample"}
    assert "no layer is skipped: a layer of" in capsys.readouterr().err
    for own, said in (
        ({"kinds": "skip"}, "`--kinds skip` takes whole layers out, and a layer of"),
        ({"prune": "weights"}, "`--prune weights` prunes"),
        ({"quantise": 4}, "`--quantise 4` rounds"),
    ):
        with pytest.raises(UserError, match=said):
            disabled(place, model, corpus_file, layer=1, **{**options, **own})
