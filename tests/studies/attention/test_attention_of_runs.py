"""`attention` beside something else, from end to end: a run's neurons, another checkpoint, fusions of layers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import BARE, N_LAYERS, make_sentences
from families import untouched
from probing import Result, Run, WandbOptions, attention, fit
from probing.__main__ import COMMANDS
from probing.cli.commandline import run as run_command
from probing.errors import UserError
from probing.heads import accumulation
from probing.heads import change as change_as_published
from probing.heads.position import OFFSETS
from probing.heads.survey import PositionRun
from probing.models import load_tokenizer, resolve_model
from probing.runs.loading import load_run
from probing.studies.attention.conclusions import conclusions
from probing.studies.attention.tables import FUSION, tables
from rendering import rendered
from tiny_models import CHANGED, other_queries, other_second_sentences, tuned
from wandb_stand_in import read_offline_runs

pytestmark = pytest.mark.slow

NAMES = ("position_heads", "position_neurons", "position_removal")

CPU = {"accelerator": "cpu"}
PARTS = "position_heads,position_neurons"


def make_position_head(folder: Path) -> None:
    """Let head 2 of block 1 of a tiny BERT attend to the previous token by sines in eight of the neurons."""
    from transformers import AutoModel

    model: Any = AutoModel.from_pretrained(folder)
    d_head = model.config.hidden_size // model.config.num_attention_heads
    layer = model.encoder.layer[0].attention.self
    with torch.no_grad():
        embeddings = model.embeddings
        embeddings.word_embeddings.weight[:, :8] = 0
        embeddings.token_type_embeddings.weight[:, :8] = 0
        embeddings.LayerNorm.weight[:8], embeddings.LayerNorm.bias[:8] = 1, 0
        rows = slice(d_head, 2 * d_head)
        for matrix in (layer.query, layer.key):
            matrix.weight[rows], matrix.bias[rows] = 0, 0
        t = torch.arange(model.config.max_position_embeddings)
        for i, rate in enumerate((0.1, 0.3, 0.8, 2.0)):
            cosine, sine = (rate * t).cos(), (rate * t).sin()
            embeddings.position_embeddings.weight[:, 2 * i : 2 * i + 2] = torch.stack([cosine, sine], 1)
            turn = torch.tensor(rate)
            at, strength = d_head + 2 * i, 12
            layer.key.weight[at, 2 * i], layer.key.weight[at + 1, 2 * i + 1] = 1, 1
            layer.query.weight[at, 2 * i : 2 * i + 2] = strength * torch.stack([turn.cos(), turn.sin()])
            layer.query.weight[at + 1, 2 * i : 2 * i + 2] = strength * torch.stack([-turn.sin(), turn.cos()])
    model.save_pretrained(folder)


def fitted(model: Path, corpus: Path, runs: Path, **options: Any) -> Run:
    usual = {"corpus": str(corpus), "runs": str(runs), "quiet": True, "trainer": CPU, "name": "A", "layer": "all"}
    return fit(model=str(model), **{**BARE, **usual, "wandb": WandbOptions("disabled"), **options})


def survey(run: Run, **options: Any) -> Result:
    usual = {"corpus": run.config["corpus"], "runs": str(run.folder.parent), "quiet": True, "trainer": CPU}
    usual |= {"model": run.config["model"], "run": str(run.folder), "parts": PARTS}
    return attention(**{**usual, "wandb": WandbOptions("disabled"), **options})


@pytest.fixture(scope="module")
def run(checkpoints: dict[str, Path], long_corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("position-heads")
    model = folder / "model"
    model.mkdir()
    for path in checkpoints["bert"].iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    make_position_head(model)
    return fitted(model, long_corpus_file, folder / "runs")


@pytest.fixture(scope="module")
def made(run: Run) -> Result:
    with rendered():
        return survey(run, wandb=WandbOptions("offline"), name="heads")


def test_the_planted_head_is_found_and_follows_the_positions_that_it_is_told(made: Result) -> None:
    assert len(made.position_heads) == 6
    (row,) = (row for row in made.position_heads if (row["layer"], row["head"]) == (1, 2))
    assert (row["offset"], row["position_head"]) == (-1, "yes")
    assert row["mass_low"] <= row["mass"] <= row["mass_high"]
    assert row["mass"] > 0.9
    assert row["hit"] > 0.9
    assert row["told"] > 0.8
    assert row["told_true"] < 0.2
    assert 0.9 < row["position_part"] / row["contrast"] < 1.1
    for one in made.position_heads:
        assert one["offset"] in OFFSETS
        assert one["mass"] <= one["word_mass"]


def test_neurons_of_the_planted_head_are_those_that_carry_its_sines(made: Result) -> None:
    own = [row for row in made.position_neurons if (row["layer"], row["head"]) == (1, 2)]
    assert [row["rank"] for row in own] == list(range(1, 17))
    assert {row["neuron"] for row in own[:8]} == set(range(8))
    assert all(row["use"] == 0 for row in own[8:])
    part = own[0]["position_part"]
    for side in ("by_query", "by_key"):
        assert sum(row[side] for row in own) == pytest.approx(part, abs=1e-6)
    assert part == pytest.approx(made.position_heads[1]["position_part"], abs=1e-9)
    removed = [row for row in made.position_removal if (row["layer"], row["head"]) == (1, 2)]
    assert {row["ranking"] for row in removed} == {"contribution", "contribution_centred", "eta_squared", "use"}
    (by_use,) = (row for row in removed if row["ranking"] == "use")
    assert by_use["k"] == 5
    assert set(map(int, by_use["neurons"].split())) <= set(range(8))
    assert by_use["contrast"] == pytest.approx(made.position_heads[1]["contrast"])
    assert by_use["contrast_held"] < by_use["contrast_random"] < by_use["contrast"]
    assert by_use["word_mass_held"] < by_use["word_mass_random"] < by_use["word_mass"]
    assert by_use["contrast_random_p"] < 0.1  # of sixteen neurons, sets of five have most of the eight now and then


def test_contrasts_are_those_of_the_attention_that_the_model_itself_gives(made: Result, run: Run) -> None:
    hold_contrasts(made, run)
    assert all(row["bias_part"] == 0 for row in made.position_heads)


def test_a_bias_of_relative_positions_is_a_part_of_the_contrast(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    biased = fitted(checkpoints["mpnet"], corpus_file, tmp_path, layer="0")
    found = survey(biased)
    hold_contrasts(found, biased)
    assert max(abs(row["bias_part"]) for row in found.position_heads) > 0.01
    assert all(row["bias_part_low"] <= row["bias_part"] <= row["bias_part_high"] for row in found.position_heads)


@torch.inference_mode()
def hold_contrasts(made: Result, run: Run) -> None:
    """Hold the contrasts of a survey to the attention that the model itself gives in float64."""
    from transformers import AutoModel, AutoTokenizer

    folder = run.config["model"]
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").double().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sums = {(row["layer"], row["head"]): [0.0, 0] for row in made.position_heads}
    for sentence in run.test_sentences:
        maps = model(**tokenizer(sentence, return_tensors="pt"), output_attentions=True).attentions
        for row in made.position_heads:
            at = row["layer"], row["head"]
            words = maps[row["layer"] - 1][0, row["head"] - 1, 1:-1, 1:-1].log()  # scores but for a term of each query
            own = words.diagonal(row["offset"])
            first = max(0, -row["offset"])
            sums[at][0] += float((own - words.mean(1)[first : first + len(own)]).sum())
            sums[at][1] += len(own)
    for row in made.position_heads:
        total, n = sums[row["layer"], row["head"]]
        assert row["contrast"] == pytest.approx(total / n, rel=1e-4, abs=1e-4)


def test_its_files_figure_sentences_and_wandb_say_the_same(made: Result) -> None:
    again = load_run(made.folder)
    for name in NAMES:
        assert getattr(made, name)
        assert str(getattr(again, name)) == str(getattr(made, name))
    assert {path.name for path in (made.folder / "figures").iterdir()} == {
        f"position_neurons.{form}" for form in ("png", "pdf")
    }
    assert json.loads((made.folder / "results.json").read_text(encoding="utf-8"))["parts"] == PARTS.split(",")
    lines = conclusions(made.by_name)
    assert len(lines) == 6
    assert "1-2 at offset -1 with" in lines[0]
    (logged,) = read_offline_runs(made.folder)
    assert all(logged.rows(name) for name in (*NAMES, "figures/position_neurons"))
    assert "1-2 *" in repr(made)


def test_a_rotary_model_has_position_heads_and_no_neurons_of_theirs(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: Any
) -> None:
    rotary = fitted(checkpoints["modernbert"], corpus_file, tmp_path, layer="0")
    found = survey(rotary, parts="all", quiet=False)
    err = capsys.readouterr().err
    assert "the part position_neurons is left out: it needs positions that heads read from the hidden states" in err
    assert "has relative or rotary positions, or none" in err
    assert found.position_heads
    assert all("contrast" not in row and not math.isnan(row["told"]) for row in found.position_heads)
    assert not found.position_neurons
    assert "position_neurons" in found.results["left_out"]
    with pytest.raises(UserError, match="a ranking of the neurons that enter a block, layers 2, and `run="):
        survey(rotary, parts="position_neurons", layer=3)


def test_a_run_of_something_else_is_refused_in_a_sentence(
    run: Run, made: Result, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: Any
) -> None:
    usual = ["attention", "--corpus", str(corpus_file), "--runs", str(tmp_path), "--wandb.mode", "disabled"]
    same = [*usual, "--model", run.config["model"]]
    for args, message in (
        ([*same, "--run", str(tmp_path / "nowhere")], "nowhere"),
        ([*same, "--run", str(made.folder)], "holds a survey of attention heads; give the folder of a run that `fit`"),
        (
            [*usual, "--model", str(checkpoints["bert"]), "--run", str(run.folder)],
            "which has other weights; give a run",
        ),
        ([*same, "--parts", "position_heads"], "`--parts position_heads` needs a run of `fit` on position"),
    ):
        assert run_command(COMMANDS, args) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"task": "upos"}, "is a run on `--task upos`, and position heads are compared with a run on position"),
        ({"site": "mlp"}, "has `--site mlp` and `--transform none`, and position heads read hidden states"),
        ({"transform": "clip"}, "has `--site residual` and `--transform clip`"),
    ],
)
def test_runs_of_another_task_site_or_space_are_refused(run: Run, changed: dict[str, str], message: str) -> None:
    key = run.results["cache"]["test"]["key"]
    assert PositionRun.of(run, key, "tiny").layers == [0, 1, 2, 3]
    with pytest.raises(UserError, match=re.escape(message)):
        PositionRun.of(Run(run.folder, {**run.config, **changed}, run.results, run.accuracy, run.neurons), key, "tiny")


@pytest.fixture
def pair(tiny_model: Callable[..., Path], tmp_path: Path, sentences: list[str]) -> tuple[Path, Path]:
    """A checkpoint, and one in which the queries of the second block are others; beside them a corpus."""
    before = tiny_model("bert")
    (tmp_path / "plain.txt").write_text("\n".join(sentences[:25]) + "\n", encoding="utf-8")
    return before, tuned(before, other_queries)


def compared(pair: tuple[Any, Any], tmp_path: Path, **options: Any) -> Result:
    usual = {"corpus": str(tmp_path / "plain.txt"), "runs": str(tmp_path / "runs"), "quiet": True, "trainer": CPU}
    usual |= {"parts": "change", "wandb": WandbOptions("disabled")}
    return attention(model=pair[0], against=pair[1], **{**usual, **options})


def values(made: Result, measure: str, of: str = "same") -> dict[tuple[int, int | None], float]:
    return {
        (row["layer"], row.get("head")): row["value"]
        for row in made.change
        if (row["measure"], row["of"]) == (measure, of) and "layer" in row
    }


def known(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the ends of intervals that there are not, which are NaN and thus unequal to themselves."""
    return [{name: value for name, value in row.items() if value == value} for row in rows]


def test_below_a_changed_block_nothing_changes(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_as_published, "PUBLISHED_LENGTH", 100)
    wandb = WandbOptions("offline")
    made = compared(pair, tmp_path, parts="classes", as_published=True, wandb=wandb, figure_format="png")
    assert made.results["parts"] == ["classes", "change"]
    for measure in ("cosine", "cosine_as_published"):
        found = values(made, measure)
        assert {key: value == 1 for key, value in found.items()} == {
            (layer, head): layer < CHANGED for layer in (1, 2, 3) for head in (1, 2, None)
        }
    assert {layer: value == 1 for (layer, _), value in values(made, "hidden_states").items()} == {
        0: True, 1: True, 2: False, 3: False,
    }  # fmt: skip
    changed = [row for row in made.change if row["measure"] == "parameters" and row["value"] != 1]
    assert [(row["of"], row["layer"]) for row in changed] == [("encoder.layer.1.attention.self.query.weight", CHANGED)]
    assert known(load_run(made.folder).change) == known(made.change)
    assert made.config["against"] == made.results["against"]["model"] == str(pair[1])
    figures = made.folder / "figures"
    assert {path.name for path in figures.iterdir()} == {
        f"{name}.png" for name in ("classes", "examples", "change", "change_by_layer")
    }
    (logged,) = read_offline_runs(made.folder)
    assert len(logged.table("change")) == len(made.change)
    assert [row["by_layer/change_hidden_states"] for row in logged.rows("by_layer/change_hidden_states")] == list(
        values(made, "hidden_states").values()
    )
    least = min((1, 2, 3), key=lambda layer: values(made, "cosine")[layer, None])
    first, same, published, states, parameters = conclusions({"change": made.change})
    assert first.startswith(f"Between the two checkpoints, the attention maps of layer {least} change most, to a mean")
    assert "two heads of this layer: " in first
    assert "two sentences of equal length: " in first
    assert same == "The attention maps of layer 1 are the same: their cosine is 1."
    assert published.startswith("As published, in maps of which ")
    assert states.startswith("Hidden states change most in layer ")
    assert parameters.startswith("1 of ")
    assert tables({"change": made.change})[0].row_count == 4


def test_a_model_and_itself_are_the_same_in_every_number(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = compared((pair[0], pair[0]), tmp_path, layer=[2, 3], quiet=False)
    others = ("other heads", "other sentences", "other tokens")
    for measure in ("cosine", "hidden_states", "parameters"):
        rows = [row for row in made.change if row["measure"] == measure and row["of"] not in others]
        assert {row["value"] for row in rows} == {1}
    assert {layer for layer, _ in values(made, "cosine")} == {layer for layer, _ in values(made, "hidden_states")}
    out = capsys.readouterr().out
    assert "The two checkpoints have the same attention maps in all layers that are reported: each cosine is 1." in out
    assert "Cosines between the two checkpoints" in out
    assert "matrices of parameters have a cosine of 1." in out


def test_a_model_is_compared_with_its_random_initialisation(pair: tuple[Path, Path], tmp_path: Path) -> None:
    made = compared((pair[0], pair[0]), tmp_path, random_weights=True)
    found = values(made, "cosine")
    assert max(found.values()) < 0.999
    assert conclusions({"change": made.change})[0].startswith("Between the two checkpoints")


def test_objects_are_compared_and_the_sums_are_kept_for_a_second_run(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = compared(pair, tmp_path)
    before, after = (untouched(folder) for folder in pair)
    tokenizer = load_tokenizer(resolve_model(str(pair[0])))
    by_object = compared((before, after), tmp_path, tokenizer=tokenizer)
    assert known(by_object.change) == known(by_name.change)
    assert by_object.config["against"].startswith("object:BertModel@")
    assert known(compared((pair[0], after), tmp_path).change) == known(by_name.change)

    def nothing_is_read(*args: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(accumulation.AttentionPass, "process", nothing_is_read)
    assert known(compared(pair, tmp_path).change) == known(by_name.change)


def test_pairs_of_sentences_are_read_as_pairs_by_both_checkpoints(
    tiny_model: Callable[..., Path], tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_as_published, "PUBLISHED_LENGTH", 100)
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"{one}\t{two}\n" for one, two in zip(sentences[:12], sentences[12:24], strict=True)), encoding="utf-8"
    )
    (tmp_path / "plain.txt").write_text("\n".join(sentences[:12]) + "\n", encoding="utf-8")
    before = tiny_model("bert")
    after = tuned(before, other_second_sentences)
    of_pairs = {"corpus": "builtin", "pairs": str(tmp_path / "pairs.tsv"), "as_published": True, "max_length": 60}
    for against, is_same in ((before, True), (after, False)):
        made = compared((before, against), tmp_path, **of_pairs)
        for measure in ("cosine", "hidden_states", "cosine_as_published"):
            assert {value == 1 for value in values(made, measure).values()} == {is_same}, measure
    alone = compared((before, after), tmp_path, as_published=True)
    for measure in ("cosine", "hidden_states", "cosine_as_published"):
        assert set(values(alone, measure).values()) == {1}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--against", "ROBERTA"], "` has 2 blocks, and "),
        (["--against", "nowhere/at-all"], "`--against nowhere/at-all`"),
        (["--against", "EMPTY"], "EMPTY`: the folder has no config.json; give a folder written by `save_pretrained`"),
        (["--as_published"], "`--as_published` needs another checkpoint, given as --against MODEL"),
        (["--as_published", "--against", "BERT"], "`--as_published` pads sentences to 200 tokens, and "),
        (["--parts", "change"], "`--parts change` needs another checkpoint, given as --against MODEL"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(
    args: list[str], message: str, checkpoints: dict[str, Path], tmp_path: Path, sentences: list[str], capsys: Any
) -> None:
    (tmp_path / "plain.txt").write_text("\n".join(sentences[:25]) + "\n", encoding="utf-8")
    (tmp_path / "EMPTY").mkdir()
    where = ["--corpus", str(tmp_path / "plain.txt"), "--runs", str(tmp_path / "runs"), "--wandb.mode", "disabled"]
    named = {"ROBERTA": str(checkpoints["roberta"]), "BERT": str(checkpoints["bert"]), "EMPTY": str(tmp_path / "EMPTY")}
    given = [named.get(arg, arg) for arg in args]
    capsys.readouterr()  # what was said while checkpoints were made
    assert run_command(COMMANDS, ["attention", "--model", str(checkpoints["bert"]), *given, *where]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "`--model" not in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


HOW: dict[str, Any] = {"quiet": True, "trainer": {"accelerator": "cpu"}, "wandb": WandbOptions("disabled")}


def bank(sentences: list[str]) -> str:
    """Write sentences as CoNLL-U with the parts of speech of the first word, those of even length, and others."""
    lines = []
    for sentence in sentences:
        for i, word in enumerate(sentence.split(), 1):
            upos = "DET" if i == 1 else "NOUN" if len(word) % 2 else "VERB"
            lines.append(f"{i}\t{word}\t_\t{upos}\t_\t_\t_\t_\t_\t_")
        lines.append("")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fusion")
    (folder / "bank.conllu").write_text(bank(make_sentences(200, longest=9)), encoding="utf-8")
    (folder / "few.txt").write_text("\n".join(make_sentences(4, longest=5)) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def fused_made(place: Path, checkpoints: dict[str, Path]) -> Result:
    with rendered():
        found = attention(
            model=str(checkpoints["bert"]), corpus=str(place / "bank.conllu"), parts="fusion", layer="1,3",
            runs=str(place / "runs"), name="fusion", **HOW,
        )  # fmt: skip
    assert found is not None
    return found


def test_every_task_that_the_corpus_has_is_tested_with_every_fusion(fused_made: Result) -> None:
    assert {row["task"] for row in fused_made.fusion if row["measure"] == "accuracy"} == {"upos", "position"}
    assert N_LAYERS["bert"] == 3
    for task in ("upos", "position"):
        accuracies = [row for row in fused_made.fusion if (row.get("task"), row["measure"]) == (task, "accuracy")]
        assert [(row["fusion"], row.get("layer")) for row in accuracies] == [
            ("layer", 1), ("layer", 3), ("equal", None), ("max", None), ("concat", None), ("gate", None)
        ]  # fmt: skip
        assert all(row["low"] <= row["value"] <= row["high"] and row["optimality_gap"] < 1e-5 for row in accuracies)
        assert {row["converged"] for row in accuracies[-2:]} == {"yes"}
        weights = [row["value"] for row in fused_made.fusion if (row.get("task"), row["measure"]) == (task, "weight")]
        assert sum(map(abs, weights)) == pytest.approx(2)  # those of concat and of the gate
    against = [row for row in fused_made.fusion if row["measure"] == "difference"]
    assert len(against) == 2 * 3 * 3
    assert all(0 <= row["p_value"] <= 1 for row in against)
    of_all = [row["fusion"] for row in fused_made.fusion if row["measure"] == "cosine" and not row.get("task")]
    assert of_all == ["layer", "layer", "equal", "max"]


def test_the_folder_holds_what_was_returned_and_what_it_says(fused_made: Result) -> None:
    def known(rows: Any) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if not (isinstance(v, float) and math.isnan(v))} for row in rows]

    assert known(load_run(fused_made.folder).fusion) == known(fused_made.fusion)
    header = (fused_made.folder / "fusion.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header.split(",") == list(FUSION.types)
    results = json.loads((fused_made.folder / "results.json").read_text(encoding="utf-8"))
    assert results["parts"] == ["fusion"]
    assert sorted(path.name for path in (fused_made.folder / "figures").iterdir()) == ["fusion.pdf", "fusion.png"]
    lines = conclusions({"fusion": fused_made.fusion})
    assert [line.split(":")[0] for line in lines[:2]] == ["Fusion for upos", "Fusion for position"]
    assert lines[2].startswith("The mean cosine of two tokens of a sentence is 0.")
    assert lines[3].startswith(
        "P-values are corrected for 18 comparisons. The model was not trained with these fusions"
    )
    assert len(lines) == 4
    unfinished = [{**row, "converged": "no"} if row["fusion"] == "gate" else row for row in fused_made.fusion]
    assert "Training of gate for upos did not end at a minimum" in conclusions({"fusion": unfinished})[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--layer", "2"], "`--parts fusion` needs at least two layers to fuse, and `--layer 2` is one."),
        (["--corpus", "few.txt"], "`--parts fusion` needs labels of upos, deprel or position, and "),
    ],
)
def test_what_cannot_be_fused_is_refused(
    place: Path, checkpoints: dict[str, Path], capsys: Any, args: list[str], message: str
) -> None:
    args = [str(place / arg) if arg.endswith(".txt") else arg for arg in args]
    corpus = [] if "--corpus" in args else ["--corpus", str(place / "bank.conllu")]
    usual = ["--model", str(checkpoints["bert"]), "--runs", str(place / "refused"), "--wandb.mode", "disabled"]
    assert run_command(COMMANDS, ["attention", *usual, *corpus, "--parts", "fusion", *args]) == 2
    assert message in capsys.readouterr().err
    assert not list((place / "refused").glob("*-attention-*"))
