"""Decoders measured with and without the first token: tiny ones, and one that has a planted sink."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import BARE, make_sentences
from families import untouched
from probing import Result, Run, WandbOptions, attention, fit, rank, report
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.models import load_tokenizer, resolve_model
from probing.studies.geometry import geometry

pytestmark = pytest.mark.slow

NO_WANDB = WandbOptions("disabled")
DECODERS = ("gpt2", "gpt_neox", "llama", "xlnet")
# Llama's first token is the special one that its tokenizer adds; the first token of the others is a word.
FIRST_IS_A_WORD = ("gpt2", "gpt_neox", "xlnet")
SINK, EVERYWHERE = 7, 31


@pytest.fixture(scope="module")
def text(place: Path) -> Path:
    path = place / "sentences.txt"
    path.write_text("".join(f"{sentence}\n" for sentence in make_sentences(120, longest=12)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def sink(place: Path, sentences: list[str]) -> Path:
    """A tiny GPT-2 in which neuron 7 is huge at the first position, and neuron 31 large at every position."""
    from transformers import AutoConfig, AutoModel

    from families import make_checkpoint

    folder = make_checkpoint(place / "sink", "gpt2", sentences)
    config = AutoConfig.from_pretrained(folder)
    config.n_embd, config.n_layer = 96, 2
    torch.manual_seed(0)
    model = AutoModel.from_config(config)
    with torch.no_grad():
        model.wpe.weight[0, SINK] += 60
        model.wpe.weight[:, EVERYWHERE] -= 3
    model.save_pretrained(folder)
    return folder


def cached(place: Path) -> dict[Path, int]:
    """The files of cached activations, and when each was written."""
    return {path: path.stat().st_mtime_ns for path in (place / "cache").rglob("*.safetensors")}


def measured(model: Path, text: Path, place: Path, **options: Any) -> Result:
    return geometry(
        model=str(model), corpus=str(text), runs=str(place), cache=str(place / "cache"), transforms="none", draws=0,
        wandb=NO_WANDB, figure_format="png", **{"quiet": True, **options},
    )  # fmt: skip


def fitted(model: Path, text: Path, place: Path, **options: Any) -> Run:
    return fit(
        model=str(model), corpus=str(text), runs=str(place), cache=str(place / "cache"), layer=1, quiet=True,
        wandb=NO_WANDB, **{**BARE, **options},
    )  # fmt: skip


def far(made: Result, layer: int) -> set[int]:
    rows = (row for row in made.outliers if row["layer"] == layer and row["special_tokens"] == "exclude")
    return {row["neuron"] for row in rows if row["definition"] == "mean_profile"}


def test_geometry_finds_the_sinks_outlier_with_the_first_token_and_not_without_it(
    sink: Path, text: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = measured(sink, text, place, name="usual", layer="0,1", quiet=False)
    assert "first token" not in capsys.readouterr().out
    before = cached(place)
    without = measured(sink, text, place, name="without", layer="0,1", quiet=False, first_token="exclude", verbose=True)
    shown = capsys.readouterr().out
    assert "The first token of each sentence: neurons with a far mean" in shown
    assert "These measures are of all tokens but the first token of each sentence." in shown
    assert f"with the first token and not without it: layer 0: {SINK}; layer 1: {SINK}." in shown
    assert before == cached(place) != {}  # the model has read nothing again
    assert not usual.first_token
    for layer in (0, 1):
        assert far(usual, layer) == {SINK, EVERYWHERE}
        assert far(without, layer) == {EVERYWHERE}
        named = {
            which: {
                row["neuron"]: row["value"]
                for row in without.first_token
                if (row["layer"], row["first_token"], row["measure"]) == (layer, which, "mean_profile")
            }
            for which in ("exclude", "include", "only")
        }
        assert (set(named["exclude"]), set(named["only"])) == ({EVERYWHERE}, {SINK})
        # What stands beside it is what the run with the first token finds.
        beside = [row for row in usual.outliers if row["layer"] == layer and row["definition"] == "mean_profile"]
        assert named["include"] == pytest.approx({row["neuron"]: row["value"] for row in beside})
    assert {row["n_tokens"] for row in without.first_token if row["first_token"] == "only"} == {120}
    for which, made in {"include": usual, "exclude": without}.items():
        cosines = [
            [row["value"] for row in rows if row["measure"] == "mean_cosine"]
            for rows in (made.geometry, [row for row in without.first_token if row["first_token"] == which])
        ]
        assert cosines[0] == pytest.approx(cosines[1], abs=1e-6)
        assert len(cosines[0]) == 2


def test_the_rest_of_a_survey_is_that_of_the_other_tokens(sink: Path, text: Path, place: Path) -> None:
    made = measured(sink, text, place, name="rest", layer="1", first_token="exclude", special_tokens="include")
    counted = {row["n_tokens"] for row in made.geometry if row["measure"] == "mean_cosine"}
    assert counted == {row["n_tokens"] for row in made.first_token if row["first_token"] == "exclude"}
    assert counted == {row["n_tokens"] for row in made.explained}


@pytest.mark.parametrize("family", DECODERS)
def test_fit_leaves_the_first_token_out_of_its_examples(
    checkpoints: dict[str, Path], text: Path, place: Path, family: str
) -> None:
    usual = fitted(checkpoints[family], text, place, name=f"{family}-usual")
    before = cached(place)
    without = fitted(checkpoints[family], text, place, name=f"{family}-without", first_token="exclude")
    assert cached(place) == before
    left = [label for label in usual.results["classes"] if label > 0]
    assert without.results["classes"] == left
    assert (0 in usual.results["classes"]) == (family in FIRST_IS_A_WORD)
    n = [run.accuracy[0]["n_test_tokens"] for run in (usual, without)]
    n_sentences = without.results["intervals_over"]["n"]
    assert n[0] - n[1] == (n_sentences if family in FIRST_IS_A_WORD else 0)


def test_the_side_on_which_a_tokenizer_pads_changes_nothing(
    checkpoints: dict[str, Path], tiny_model: Callable[..., Path], text: Path, place: Path
) -> None:
    own = tiny_model("xlnet")  # the published tokenizer pads on the left
    config = own / "tokenizer_config.json"
    config.write_text(
        json.dumps({**json.loads(config.read_text(encoding="utf-8")), "padding_side": "left"}), encoding="utf-8"
    )
    assert load_tokenizer(resolve_model(str(own))).padding_side == "left"
    left, right = (fitted(model, text, place, name=f"pads-{i}") for i, model in enumerate((own, checkpoints["xlnet"])))
    assert left.accuracy == right.accuracy


def test_a_finished_run_is_read_again_without_the_first_token(sink: Path, text: Path, place: Path) -> None:
    made = fitted(sink, text, place, name="again", first_token="exclude")
    # `rank` computes contributions again and refuses those that are not the run's.
    found = rank(str(made.folder), method="contribution", quiet=True, wandb=NO_WANDB)
    assert [row["neuron"] for row in found.rankings["contribution"]] == [row["neuron"] for row in made.neurons]
    assert {row["position"] for row in made.predict(["the probe reads"])}.isdisjoint({0})


def surveyed(model: Path, text: Path, place: Path, **options: Any) -> Result:
    return attention(
        model=str(model), corpus=str(text), runs=str(place), cache=str(place / "cache"), wandb=NO_WANDB,
        figure_format="png", **{"quiet": True, **options},
    )  # fmt: skip


@torch.no_grad()
def means_of_a_loop(model: Path, text: Path) -> dict[tuple[str, int, int], float]:
    """Return of each head what the first token gets, and the entropy and the distance of the rest, in float64."""
    encoder, tokenizer = untouched(model, attn_implementation="eager"), load_tokenizer(resolve_model(str(model)))
    sums: dict[tuple[str, int, int], float] = {}
    n_queries, n_entropies = 0, 0
    for line in text.read_text(encoding="utf-8").splitlines():
        ids = torch.tensor([tokenizer(line)["input_ids"]])
        maps = encoder(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True).attentions
        is_causal = not any(bool(layer.triu(1).any()) for layer in maps)
        n = ids.shape[1]
        n_queries += n - 1
        n_entropies += n - 2 if is_causal else n - 1
        for layer, of_layer in enumerate(maps, start=1):
            for head, one in enumerate(of_layer[0].double().numpy(), start=1):
                for i in range(1, n):
                    row, n_seen = one[i, 1:] / one[i, 1:].sum(), i if is_causal else n - 1
                    own = {"mass": one[i, 0], "distance": sum(p * abs(i - j) for j, p in enumerate(row, start=1))}
                    if n_seen > 1:
                        own["entropy"] = -sum(p * np.log(p) for p in row if p) / np.log(n_seen)
                    for name, value in own.items():
                        sums[name, layer, head] = sums.get((name, layer, head), 0.0) + value
    return {key: value / (n_entropies if key[0] == "entropy" else n_queries) for key, value in sums.items()}


@pytest.mark.parametrize("family", DECODERS)
def test_attention_without_the_first_token_is_that_of_a_loop(
    checkpoints: dict[str, Path], place: Path, family: str
) -> None:
    text = place / "few.txt"
    text.write_text("".join(f"{sentence}\n" for sentence in make_sentences(8, seed=1, longest=8)), encoding="utf-8")
    made = surveyed(
        checkpoints[family], text, place, name=f"{family}-attention", first_token="exclude",
        parts="profile,first_token",
    )  # fmt: skip
    expected = means_of_a_loop(checkpoints[family], text)
    found = {(row["measure"], row["layer"], row["head"]): row["value"] for row in made.heads}
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=2e-4, abs=1e-5)
    assert len(expected) == 3 * 3 * 2


def test_a_survey_without_the_first_token_says_what_it_gets_and_what_it_leaves_out(
    sink: Path, text: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = surveyed(sink, text, place, name="survey", first_token="exclude", against=str(sink), quiet=False)
    assert "the parts roles, change are left out: they need `--first_token include`" in capsys.readouterr().err
    assert {row.get("to") for row in made.heads} == {None, "first token", "punctuation", "negation"}
    assert made.results["n_sentences"] == 120
    (line,) = (line for line in made.conclusions() if line.startswith("The first token receives "))
    assert "; uniform attention gives it 0." in line
    page = Path(report([str(made.folder)], output=str(place / "page.html"))).read_text(encoding="utf-8")
    assert "The first token of each sentence is left out, as query and as key." in page
    assert "Share of the attention of later tokens that goes to the first one" in page
    by_name = surveyed(sink, text, place, name="by-name", parts="first_token")
    assert by_name.heads == [row for row in made.heads if row.get("to") == "first token"]


@pytest.mark.parametrize("family", ["gpt2", "xlnet"])
def test_only_of_a_causal_model_it_is_said_that_the_first_token_counts_as_special(
    checkpoints: dict[str, Path], place: Path, family: str
) -> None:
    text = place / "three.txt"
    text.write_text("".join(f"{sentence}\n" for sentence in make_sentences(3, seed=2, longest=5)), encoding="utf-8")
    usual = surveyed(checkpoints[family], text, place, name=f"{family}-usual-heads", parts="profile,tokens")
    lines = usual.conclusions()
    (neighbours,) = (line for line in lines if line.startswith("Most attention to neighbours"))
    is_causal = family == "gpt2"
    assert any(line.startswith("The first token counts as a special token here.") for line in lines) == is_causal
    assert ("to the next token" in neighbours) == (not is_causal)


@pytest.mark.parametrize(
    ("command", "args", "message"),
    [
        (
            "ablate",
            ["--neurons", "3"],
            "`--first_token exclude` is for outliers, and `--neurons 3` is given; leave it out",
        ),
        ("attention", ["--parts", "roles"], "`--parts roles` needs `--first_token include`"),
        ("geometry", ["--first_token", "leave"], "`--first_token leave`: expected"),
        ("fit", ["--task", "sentence_label", "--task_args.pooling", "cls"], "`--first_token exclude` leaves out"),
    ],
)
def test_what_cannot_be_done_without_the_first_token_is_refused(
    sink: Path, text: Path, place: Path, tmp_path: Path, capsys: Any, command: str, args: list[str], message: str
) -> None:
    if "sentence_label" in args:
        lines = "".join(
            f'{{"text": "{line}", "label": "{len(line) % 2}"}}\n'
            for line in text.read_text(encoding="utf-8").splitlines()
        )
        text = tmp_path / "labelled.jsonl"
        text.write_text(lines, encoding="utf-8")
    usual = [command, "--model", str(sink), "--corpus", str(text), "--runs", str(tmp_path / "runs")]
    status = run(COMMANDS, [*usual, "--wandb.mode", "disabled", "--first_token", "exclude", *args])
    err = capsys.readouterr().err
    assert message in err
    assert status == 2
    assert not (tmp_path / "runs" / "cache").exists() or not any((tmp_path / "runs" / "cache").rglob("layer_*"))
