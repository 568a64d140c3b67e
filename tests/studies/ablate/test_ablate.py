"""`ablate` on tiny models: heads and layers alone and together, and their importance by gradients."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from conftest import BARE
from families import make_tokenizer, masked_lm, save_at_random
from probing import Result, WandbOptions, ablate, fit, report
from probing.__main__ import COMMANDS
from probing.activations.store import WorkPlan, WorkStore
from probing.cli.commandline import run
from probing.errors import UserError
from probing.interventions.forward import Forward, LaterBlocks, Readers, Readout
from probing.interventions.frozen_probes import ProbeReadout, probe_loss
from probing.interventions.heads import KINDS, OF_HEADS, AblationJob, HeadPasses, joint_change, replaced_heads
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.anatomy import hidden_states
from probing.runs.loading import load_run
from probing.studies.ablate.tables import ABLATED
from probing.studies.ablate.weights import (
    N_RANDOM,
    Cumulative,
    PruningCurve,
    Unit,
    all_orders,
    area_rows,
    by_importance,
    counts,
    curve_rows,
    head_gradients,
    importance_rows,
    n_files,
    scores,
    units_of,
)
from small_data import sentence_pairs, word_pairs, write_semeval, write_wic
from tiny_models import Case, of_whole_model, weights_of
from wandb_stand_in import read_offline_runs

pytestmark = pytest.mark.numeric

# A few passes of training: how good probes are does not matter here.
USUAL: dict[str, Any] = {
    "quiet": True,
    "wandb": WandbOptions("disabled"),
    "trainer": {"accelerator": "cpu", "max_epochs": 15},
}


def ablated(place: Path, model: Path, corpus: Path, **options: Any) -> Result:
    own = {"retrain": 0, "runs": str(place / "runs"), **USUAL, **options}
    return ablate(model=str(model), corpus=str(corpus), **own)


@pytest.fixture(scope="module")
def made(place: Path, checkpoints: dict[str, Path], corpus_file: Path) -> Result:
    return ablated(place, checkpoints["bert"], corpus_file, name="all", wandb=WandbOptions("offline"))


@pytest.mark.slow
def test_there_is_a_row_for_every_unit_kind_and_later_layer(made: Result) -> None:
    expected: set[tuple[str, str, int]] = {
        (f"{block}-{head}", kind, layer)
        for block in (1, 2, 3) for head in (1, 2) for kind in OF_HEADS for layer in range(block, 4)
    }  # fmt: skip
    expected |= {(str(block), kind, layer) for block in (1, 2, 3) for kind in KINDS for layer in range(block, 4)}
    found = [(row["unit"], row["kind"], row["layer"]) for row in made.ablated]
    assert set(found) == expected
    assert len(found) == len(expected)
    for row in made.ablated:
        assert row["readout"] == "position"
        assert row["effect"] == pytest.approx(row["value"] - row["intact"])
        assert row["intact"] == pytest.approx(made.results["readouts"]["position"]["intact"][str(row["layer"])])
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
    assert list(load_run(made.folder).ablated[0]) == list(ABLATED.types)
    shown = repr(made)
    assert "of 6 heads" in shown
    lines = made.conclusions()
    assert sum("osition accuracy of layer 3 " in line and "of 3 layers and higher" in line for line in lines) == len(
        KINDS
    )
    assert sum("osition accuracy of layer 3 " in line and "of 6 heads and" in line for line in lines) == len(OF_HEADS)
    assert sum("the loss of the probe of layer 3 (nats) depends most on heads" in line for line in lines) == 1
    figures = {path.stem for path in (made.folder / "figures").glob("*.png")}
    assert figures == {"layers", *(f"heads_{kind}" for kind in OF_HEADS)}
    (logged,) = read_offline_runs(made.folder)
    assert logged.rows("by_layer/skip_effect")


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_next_unit_and_ends_with_the_same_numbers(
    made: Result, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[AblationJob] = []
    run_one = HeadPasses.read

    def counting(self: HeadPasses, job: AblationJob, readout: Readout) -> Any:
        seen.append(job)
        if len(seen) == 7:
            raise KeyboardInterrupt
        return run_one(self, job, readout)

    monkeypatch.setattr(HeadPasses, "read", counting)
    with pytest.raises(KeyboardInterrupt):
        ablated(tmp_path, checkpoints["bert"], corpus_file, name="all")
    first = list(seen)
    monkeypatch.setattr("probing.interventions.probed_task.train_probes", None)  # they are stored, too
    again = ablated(tmp_path, checkpoints["bert"], corpus_file, name="again")
    assert seen[7] == first[6]
    n_passes = 3 * (1 + 2 * len(OF_HEADS) + len(KINDS))  # three blocks of two heads, each once without a change
    assert (len(seen), len(set(seen))) == (n_passes + 1, n_passes)
    assert [str(row) for row in again.ablated] == [str(row) for row in made.ablated]
    # What is asked for later is read from the same passes.
    few = ablated(tmp_path, checkpoints["bert"], corpus_file, units="heads", kinds=["zero"], layer=2)
    assert len(seen) == n_passes + 1
    assert {(row["unit"], row["kind"]) for row in few.ablated} == {("2-1", "zero"), ("2-2", "zero")}
    assert {path.stem for path in (few.folder / "figures").glob("*.png")} == {"heads_zero"}
    # Stored passes are not those of other jobs that have their numbers in a version with other kinds.
    monkeypatch.undo()
    kinds = (*OF_HEADS[::-1], "skip")
    for name in ("probing.interventions.heads.KINDS", "probing.studies.ablate.survey.KINDS"):
        monkeypatch.setattr(name, kinds)
    monkeypatch.setattr("probing.interventions.heads.OF_HEADS", kinds[:-1])
    other = ablated(tmp_path, checkpoints["bert"], corpus_file, units="heads", kinds=["mean"], layer=2)
    effects = {(row["unit"], row["layer"]): row["effect"] for row in made.ablated if row["kind"] == "mean"}
    assert [row["effect"] for row in other.ablated] == [effects[row["unit"], row["layer"]] for row in other.ablated]


@pytest.mark.slow
def test_probes_are_trained_again_without_the_units_that_cost_most_and_random_ones(
    made: Result, place: Path, checkpoints: dict[str, Path], corpus_file: Path
) -> None:
    again = ablated(place, checkpoints["bert"], corpus_file, retrain=1)
    frozen = {(row["unit"], row["layer"]): row for row in again.ablated if row["readout"] == "position"}
    rows = [row for row in again.ablated if row["readout"] == "position_retrained"]
    assert len(again.ablated) - len(rows) == len(made.ablated)
    assert {row["kind"] for row in rows} == {KINDS[0]}
    for wanted in (True, False):
        units = {row["unit"] for row in rows if ("-" in row["unit"]) is wanted}
        of_type = [row for row in made.ablated if ("-" in row["unit"]) is wanted and row["kind"] == KINDS[0]]
        strongest = min((row for row in of_type if row["layer"] == 3), key=lambda row: row["effect"])
        assert len(units) == 2
        assert strongest["unit"] in units
        for unit in units:
            layers = [row["layer"] for row in rows if row["unit"] == unit]
            assert layers == list(range(int(unit[0]), 4))
    for row in rows:
        # Trained on the sentences that were drawn, which are all here: intact, they are the probes as they were.
        assert row["intact"] == pytest.approx(frozen[row["unit"], row["layer"]]["intact"], abs=0.01)
    assert "retrained probe" in repr(again)
    lines = [line for line in again.conclusions() if line.startswith("If probes are retrained while one ")]
    assert [unit for line in lines for unit in ("layer", "head") if f"of 2 {unit}s (corrected" in line] == [
        "layer",
        "head",
    ]


@pytest.fixture(scope="module")
def fitted(place: Path, checkpoints: dict[str, Path], corpus_file: Path) -> Path:
    options = {**BARE, **USUAL, "name": "fitted", "runs": str(place / "runs")}
    made = fit(model=str(checkpoints["bert"]), corpus=str(corpus_file), layer=[0, 2], **options)
    return made.folder


@pytest.mark.slow
def test_the_probes_of_a_run_are_read_where_it_is_given(fitted: Path, place: Path, tmp_path: Path) -> None:
    made = ablate(run=str(fitted), runs=str(place / "runs"), kinds="mean", retrain=0, **USUAL)
    assert {row["layer"] for row in made.ablated} == {2}
    assert {row["unit"] for row in made.ablated} == {"1-1", "1-2", "1", "2-1", "2-2", "2"}
    (row,) = [row for row in load_run(fitted).accuracy if row["layer"] == 2]
    assert made.results["readouts"]["position"]["intact"]["2"] == pytest.approx(row["accuracy"])
    with pytest.raises(UserError, match=r"`max_length=9`: with `run=.*fitted.`, the run's own is read, which is None"):
        ablate(run=str(fitted), max_length=9, **USUAL)
    (other := tmp_path / "other.txt").write_text("Another text.\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"`corpus=.*other\.txt.` is no text that `.*fitted` read"):
        ablate(run=str(fitted), corpus=other, **USUAL)


def test_what_cannot_be_ablated_is_refused(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = [f"--corpus={corpus_file}", f"--runs={tmp_path / 'runs'}", "--wandb.mode=disabled"]
    refused = {
        "`--kinds skip` takes whole layers out; give `--units layers`": ["--units=heads", "--kinds=skip"],
        "`--units neurons` is not one of heads, layers, all": ["--units=neurons"],
        f"`--kinds means` is not one of {', '.join(KINDS)}, all": ["--kinds=means"],
        "heads are in blocks, and": ["--layer=0"],
        "`--readouts words` is not one of position, mlm": ["--readouts=words"],
        "`--readouts sts` needs its data; give sts=DIR": ["--readouts=position,sts"],
        "`--readouts wic=nowhere": ["--readouts=wic=nowhere"],
        "`--readouts sts=nowhere` cannot be read": ["--readouts=sts=nowhere"],
        "`--readouts mlm=x`: mlm takes no data; give mlm alone": ["--readouts=mlm=x"],
        "`--readouts mlm` needs a model with a trained masked-language-model head: ": ["--readouts=position,mlm"],
        "`--prune` ablates heads together by zero or mean, and": ["--prune", "--kinds=uniform,resample"],
        "`--prune wights` is not one of units, weights, all (did you mean `weights`?)": ["--prune=wights"],
        "`--prune_share 2.0` is out of range": ["--prune_share=2"],
        "`--tokens 0` is out of range": ["--tokens=0"],
        "`--retrain -1` is out of range": ["--retrain=-1"],
    }
    for message, options in refused.items():
        model = f"--model={checkpoints['bert']}"
        assert run(COMMANDS, ["ablate", model, *usual, *options]) == 2
        assert message in capsys.readouterr().err
    assert run(COMMANDS, ["ablate", f"--model={checkpoints['xlnet']}", *usual]) == 2
    assert "no head or layer of it can be ablated, because its blocks do not" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_masked_words_are_read_where_there_is_a_head(
    place: Path, corpus_file: Path, tmp_path: Path, sentences: list[str]
) -> None:
    model = masked_lm(tmp_path / "masked", "bert", sentences)
    made = ablated(place, model, corpus_file, readouts="mlm", kinds=["zero", "skip"], tokens=1500, prune=True)
    assert {row["readout"] for row in made.ablated} == {row["readout"] for row in made.importance} == {"mlm"}
    assert {row["layer"] for row in made.ablated} == {3}
    assert len(made.ablated) == 6 + 2 * 3
    told = made.results["readouts"]["mlm"]
    for row in made.ablated:
        assert row["effect"] == pytest.approx(row["value"] - row["intact"])
        assert row["intact"] == pytest.approx(told["intact"]["3"])
        assert row["low"] < row["effect"] < row["high"]
    assert told["n_examples"] > 100
    assert {path.stem for path in (made.folder / "figures").glob("*.png")} == {
        "heads_zero_mlm", "layers_mlm", "pruning_heads_mlm", "pruning_layers_mlm",
    }  # fmt: skip
    assert [row["n_ablated"] for row in made.pruning if row["order"] == "reverse"] == [*range(7), *range(4)]
    page = report([str(made.folder)]).read_text(encoding="utf-8")
    (section,) = re.findall(r'<section id="?ablate-0.*?</section>', page, flags=re.DOTALL)
    for line in made.conclusions():
        assert line.replace("'", "&#x27;") in section or line in html.unescape(section)
    assert section.count("heads-map") == 1  # one kind that heads can be ablated by
    (shaded,) = [row for row in made.ablated if row["unit"] == "2-1"]
    assert f"{shaded['effect']:+.3f}</span>" in section
    for row in made.pruning:
        what = {"importance": "least important first", "reverse": "most important first"}.get(row["order"])
        text = f"{what}, {row['units']} ablated {row['n_ablated']}: {row['value']:.3f}</title>"
        assert what is None or text in section
    drawn = [
        row["value"] for row in made.pruning if (row["units"], row["order"], row["n_ablated"]) == ("heads", "random", 3)
    ]
    of_random = f"{sum(drawn) / len(drawn):.3f} ({min(drawn):.3f} to {max(drawn):.3f})"
    assert f"random orders: mean, heads ablated 3: {of_random}</title>" in section
    assert "Loss of masked words without a head, in nats, of 6 heads" in " ".join(repr(made).split())


@pytest.mark.slow
def test_sentence_similarity_and_word_senses_are_read_from_the_last_layer(
    place: Path, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    write_semeval(tmp_path / "STS12", "one", sentence_pairs(40, 0))
    for part, n in (("train", 60), ("dev", 40)):
        write_wic(tmp_path / "wic", part, word_pairs(n, n))
    made = ablated(
        place, checkpoints["bert"], corpus_file, readouts=[f"sts={tmp_path / 'STS12'}", f"wic={tmp_path / 'wic'}"],
        kinds="zero", layer=2, prune=True,
    )  # fmt: skip
    readouts = {"sts:STS12": "pair", "wic": "pair"}
    found = [(row["readout"], row["unit"], row["layer"]) for row in made.ablated]
    assert found == [(readout, unit, 3) for readout in readouts for unit in ("2-1", "2-2", "2")]
    assert {row["readout"] for row in made.importance} == {*readouts}
    for row in made.ablated:
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
    assert sum("Spearman's correlation (STS12) of layer 3" in line for line in made.conclusions()) == 5


@pytest.mark.slow
def test_runs_of_different_layers_have_the_same_intact_accuracy_where_a_layer_is_more_than_its_block(
    place: Path, tmp_path: Path, corpus_file: Path, long_sentences: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import CONFIG_MAPPING, AutoModel

    tokenizer = make_tokenizer("wordpiece", long_sentences)
    make: Any = CONFIG_MAPPING["xlm"]
    config = make(vocab_size=len(tokenizer), emb_dim=16, n_layers=3, n_heads=2, pad_index=0)
    model = save_at_random(tmp_path / "xlm", AutoModel.from_config(config), tokenizer)
    options: dict[str, Any] = {"units": "layers", "quiet": False}
    first, last = (ablated(place, model, corpus_file, layer=layer, name=f"xlm{layer}", **options) for layer in (1, 3))
    assert first.results["readouts"]["position"]["intact"]["3"] == last.results["readouts"]["position"]["intact"]["3"]
    assert {row["kind"] for row in last.ablated} == {*OF_HEADS}
    assert "no layer is skipped: a layer of" in capsys.readouterr().err
    for own, said in (
        ({"kinds": "skip"}, "`kinds=.skip.` takes whole layers out, and a layer of"),
        ({"prune": "weights"}, "`prune=.weights.` prunes"),
        ({"quantise": 4}, "`quantise=4` rounds"),
    ):
        with pytest.raises(UserError, match=said):
            ablated(place, model, corpus_file, layer=1, **{**options, **own})


# Only these heads are read by what follows.
MATTER = {(1, 2), (3, 1)}


def only_some_matter(encoder: Any) -> None:
    for block in (1, 2, 3):
        read = weights_of(encoder, "output", block).weight
        for head in (1, 2):
            if (block, head) not in MATTER:
                read[:, 8 * (head - 1) : 8 * head] = 0
            else:
                read[:, 8 * (head - 1) : 8 * head] *= 20


class Setting:
    """What is ablated, and a place for the passes."""

    def __init__(self, case: Case, place: Path) -> None:
        self.readers = Readers.of(case.encoder, case.pad, "tiny")
        self.readout = ProbeReadout(case.text, case.weight, case.labels, self.readers.device)
        model, self.case, self.place = self.readers.model, case, place
        stands = torch.zeros(3, model.width)
        self.how = Cumulative(self.readers, "heads", "zero", stands, [1, 2, 3], 0.1, 0, 256)

    def store(self, name: str) -> WorkStore:
        tokens = self.case.text.tokens
        plan = WorkPlan.of_whole_text({"a": 1}, "{n} files", 1 + n_files(6, 0.1), tokens, 256)
        return WorkStore.opened(self.place / name, lambda: (plan, tokens), {})

    def rows(self, name: str) -> list[list[dict[str, Any]]]:
        return list(self.how.rows(self.readout, self.readout, self.store(name)))


@pytest.fixture(scope="module")
def setting(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Setting:
    import shutil

    place = tmp_path_factory.mktemp("pruning")
    shutil.copytree(checkpoints["bert"], place / "model")
    return Setting(Case(place / "model", place / "cache", sentences, only_some_matter), place)


@pytest.mark.slow
def test_the_curve_stays_flat_until_the_heads_go_that_matter(setting: Setting) -> None:
    rows, areas = setting.rows("whole")
    curve = [row for row in rows if row["order"] == "importance"]
    assert [row["n_ablated"] for row in curve] == list(range(7))
    last = {row["ablated"] for row in curve[-2:]}
    assert last == {f"{block}-{head}" for block, head in MATTER}
    assert [row["effect"] for row in curve[:5]] == [0] * 5
    assert all(row["effect"] != 0 for row in curve[5:])
    assert {row["order"]: len([one for one in rows if one["order"] == row["order"]]) for row in rows} == {
        "importance": 7, "reverse": 7, "random": 140,
    }  # fmt: skip
    assert {row["order"] for row in areas} == {"importance", "reverse"}
    # All orders begin with nothing and end with everything.
    assert len({row["value"] for row in rows if row["n_ablated"] == 0}) == 1
    assert len({row["value"] for row in rows if row["n_ablated"] == 6}) == 1


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = setting.rows("whole")  # from what is stored, or made now
    before = {name: value.clone() for name, value in setting.case.encoder.state_dict().items()}
    calls: list[Any] = []
    read = Forward.read

    def counting(self: Forward, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return read(self, *given)

    monkeypatch.setattr(Forward, "read", counting)
    with pytest.raises(KeyboardInterrupt):
        setting.rows("killed")
    assert all(torch.equal(value, before[name]) for name, value in setting.case.encoder.state_dict().items())
    assert [str(table) for table in setting.rows("killed")] == [str(table) for table in whole]
    n_done = len(calls)
    assert [str(table) for table in setting.rows("killed")] == [str(table) for table in whole]
    assert len(calls) == n_done  # nothing is computed twice
    files = [sorted((setting.place / name).rglob("*.safetensors")) for name in ("whole", "killed")]
    assert len(files[0]) == len(files[1]) > 20
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))


def test_heads_together_are_the_same_heads_with_weights_of_zero(setting: Setting) -> None:
    case = setting.case
    change = joint_change({(1, 2), (2, 1)}, setting.how.stands, 8, 0)
    found = Forward(setting.readers, case.text, 256).read(change, setting.readout)[-1]
    read = weights_of(case.encoder, "output", 1).weight
    before = read.detach().clone()
    with torch.no_grad():
        read[:, 8:16] = 0  # 2-1 is not read at all
    with torch.no_grad():
        expected = of_whole_model(case, 3)
        read.copy_(before)
    assert np.array_equal(found.numpy(), expected.numpy())


TEXTS = ["the probe reads one layer", "a small model often forgets every position of a large sentence, quietly"]


def loaded(folder: Path) -> tuple[LaterBlocks, dict[str, Tensor]]:
    source = resolve_model(str(folder))
    tokenizer, pad = load_tokenizer(source), load_tokenizer(source).pad_token_id or 0
    model = LaterBlocks.of(load_encoder(source), pad, folder.name)
    model.encoder.double()  # differences of losses need more digits than float32 has
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    longest = max(map(len, ids))
    return model, {
        "input_ids": torch.tensor([one + [pad] * (longest - len(one)) for one in ids]),
        "attention_mask": torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in ids]),
    }


@pytest.mark.parametrize("family", ["bert", "albert", "gpt2"])  # Llama's norms compute in float32
def test_gradients_are_finite_differences_of_each_sentence_by_itself(family: str, checkpoints: dict[str, Path]) -> None:
    model, inputs = loaded(checkpoints[family])
    mask, n_layers = inputs["attention_mask"].bool(), model.heads.n_layers
    generator = torch.Generator().manual_seed(0)
    labels = torch.where(mask, torch.randint(-1, 5, mask.shape, generator=generator), -1)
    loss = probe_loss(torch.randn(5, 16, generator=generator), labels)
    found = head_gradients(model, inputs, loss)
    assert found.shape == (n_layers, 2, 2)
    with torch.inference_mode():
        states = hidden_states(model.encoder, model.anatomy, range(n_layers), **inputs)
        beside = model.beside_states(inputs)
        for block in range(1, n_layers + 1):
            for head in (1, 2):
                columns = model.columns(head)

                def scaled(factor: float, block: int = block, here: slice = columns) -> Tensor:
                    def change(outputs: Tensor) -> Tensor:
                        outputs = outputs.clone()
                        outputs[..., here] *= factor
                        return outputs

                    last = model.run(inputs, block, states[block - 1], beside, [n_layers], {block: change})[n_layers]
                    return loss(last)

                expected = (scaled(1 + 1e-4) - scaled(1 - 1e-4)) / 2e-4
                assert torch.allclose(found[block - 1, :, head - 1], expected, rtol=1e-3, atol=1e-8)
                assert (expected.abs() > 1e-7).all()


def test_a_head_that_is_not_read_has_no_importance(checkpoints: dict[str, Path]) -> None:
    model, inputs = loaded(checkpoints["bert"])
    assert model.heads.projections is not None
    projection: Any = model.encoder.get_submodule(model.heads.projections[1])
    with torch.no_grad():
        projection.weight[:, 8:] = 0
    labels = torch.where(inputs["attention_mask"].bool(), 1, -1)
    found = head_gradients(model, inputs, probe_loss(torch.randn(5, 16), labels))
    assert not found[1, :, 1].any()
    assert (found[1, :, 0] != 0).all()


def test_rows_are_means_over_sentences_and_shares_of_the_norm_of_a_layer() -> None:
    found = np.random.default_rng(0).random((40, 2, 3)).astype(np.float32)
    n = np.full(40, 7)
    n[:10] = 0  # without examples, they do not count
    found[:10] = 0
    rows = importance_rows(found, n, [2], 2, "position")
    assert [row["unit"] for row in rows] == ["2-1", "2-2", "2-3"]
    assert sum(row["normalised"] ** 2 for row in rows) == pytest.approx(1)
    for head, row in enumerate(rows):
        assert row["importance"] == pytest.approx(found[10:, 1, head].mean())
        assert row["low"] < row["importance"] < row["high"]
        assert row["n"] == 30


N = np.full(60, 10)
NAMED: dict[str, Any] = {"units": "heads", "kind": "zero", "readout": "position", "layer": 3}


def test_a_share_is_added_at_each_step_until_all_are_ablated() -> None:
    assert counts(72, 0.1) == [0, 7, 14, 21, 28, 35, 42, 49, 56, 63, 70, 72]
    assert counts(3, 0.1) == counts(3, 0) == [0, 1, 2, 3]
    assert counts(5, 1) == [0, 5]


def test_importance_is_normalised_by_layer_for_heads_and_summed_for_layers() -> None:
    gradients = np.random.default_rng(0).normal(size=(30, 2, 3)).astype(np.float32)
    gradients[:, 1, 2] = 0
    n = np.full(30, 4)
    n[:5] = 0
    gradients[:5] = 100
    mean = np.abs(gradients[5:].astype(np.float64)).mean(0)
    expected = (mean / np.linalg.norm(mean, axis=1, keepdims=True)).ravel()
    assert scores(gradients, n, units_of("heads", [1, 2], 3)) == pytest.approx(expected)
    together = np.abs(gradients[5:].astype(np.float64).sum(2)).mean(0)
    assert scores(gradients, n, units_of("layers", [1, 2], 3)) == pytest.approx(together)
    assert scores(np.zeros_like(gradients), n, units_of("heads", [2], 3)).tolist() == [0, 0, 0]


def test_importance_is_estimated_again_without_what_is_ablated() -> None:
    units = units_of("heads", [1, 2], 2)
    seen: list[tuple[int, list[str]]] = []

    def estimate(step: int, gone: Any) -> NDArray[np.float64]:
        seen.append((step, [unit.name for unit in gone]))
        # Once 2-1 is gone, 1-1 matters least; a tie goes to the first.
        return np.array([3.0, 2.0, 1.0, 2.0]) if step == 0 else np.array([0.0, 2.0, 0.0, 2.0])

    order = by_importance(units, [0, 1, 2, 3, 4], estimate)
    assert [unit.name for unit in order] == ["2-1", "1-1", "1-2", "2-2"]
    assert seen == [(0, []), (1, ["2-1"]), (2, ["2-1", "1-1"]), (3, ["2-1", "1-1", "1-2"])]
    orders = all_orders(order, units, seed=3)
    assert orders[1][2] == order[::-1]
    assert len({tuple(unit.name for unit in random) for name, _, random in orders if name == "random"}) > 10
    assert all(sorted(unit.name for unit in one) == ["1-1", "1-2", "2-1", "2-2"] for _, _, one in orders)


def test_what_stands_in_the_place_of_heads_is_theirs_alone() -> None:
    stands = torch.arange(2 * 6, dtype=torch.float32).reshape(2, 6)
    changes = replaced_heads({(2, 1), (2, 3)}, stands, 2)
    assert list(changes) == [2]
    given = -torch.ones(1, 2, 7)  # a projection may receive more than the heads' outputs
    assert changes[2](given)[0, 0].tolist() == [6, 7, -1, -1, 10, 11, -1]
    assert (given == -1).all()


def curves(matter: list[int], order: list[int], seed: int) -> list[PruningCurve]:
    """Curves of eight heads, each of which that matters costs a tenth of the right answers wherever it is ablated."""
    generator = np.random.default_rng(seed)
    units = [Unit(f"1-{head}", ((1, head),)) for head in range(1, 9)]
    at = list(range(9))
    noise = generator.normal(0, 0.3, (9, 60))
    found = []
    for name, draw, chosen in all_orders([units[i] for i in order], units, seed):
        cost = np.cumsum([0, *(1.0 if units.index(unit) in matter else 0.0 for unit in chosen)])
        found.append(
            PruningCurve(name, draw, chosen, at, 8 - cost[:, None] + noise + generator.normal(0, 0.05, (9, 60)))
        )
    return found


def test_an_area_is_that_under_the_curve_and_the_order_by_importance_is_found_better_than_random_ones() -> None:
    made = curves([4, 5, 6, 7], list(range(8)), 0)
    rows = curve_rows(made, N, NAMED)
    assert len(rows) == 9 * (2 + N_RANDOM)
    first = rows[:9]
    assert [row["value"] for row in first] == pytest.approx([0.8] * 5 + [0.7, 0.6, 0.5, 0.4], abs=0.02)
    assert [row["ablated"] for row in first] == ["", *(f"1-{head}" for head in range(1, 9))]
    assert first[0]["effect"] == 0
    for row in first[1:]:
        assert row["low"] < row["value"] - first[0]["value"] < row["high"]
    best, worst = area_rows(made, N, NAMED)
    expected = np.trapezoid([row["value"] for row in first], [row["share"] for row in first])
    assert best["area"] == pytest.approx(expected)
    assert best["effect"] == pytest.approx(best["area"] - best["random_area"])
    assert best["low"] > 0 > worst["high"]
    assert (best["p_value"], worst["p_value"]) == (pytest.approx(1 / 21), pytest.approx(1 / 21))
    assert best["percentile"] == 100


def test_where_no_head_matters_the_order_by_importance_is_as_good_as_any() -> None:
    p_values = [area_rows(curves([], list(range(8)), seed), N, NAMED)[0]["p_value"] for seed in range(60)]
    assert sum(p < 0.05 for p in p_values) <= 8
    assert 0.3 < np.mean(p_values) < 0.7


def test_of_a_loss_a_smaller_area_is_better() -> None:
    made = [
        PruningCurve(one.order, one.draw, one.units, one.at, 10 - one.sums)
        for one in curves([4, 5, 6, 7], list(range(8)), 0)
    ]
    best, worst = area_rows(made, N, NAMED | {"readout": "mlm"})
    assert best["percentile"] == 100
    assert best["area"] < best["random_area"] < worst["area"]
    assert best["p_value"] == pytest.approx(1 / 21)
