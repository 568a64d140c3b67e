"""The same results on a GPU, shown without one, on a device without float64, and on a GPU where there is one.

The devices of `pretended_device` compute as the processor does and refuse what CUDA or MPS refuses, so that a tensor on
the wrong device, or one of float64 where there is none, ends a command with an error. What differs is where sums are
taken: hence `TOLERANCE`, some rounding errors of float32. Small runs of the commands are made once on each device; a
run that reads another one reads that of the same device.

The device of `pretended_device` computes as the processor does, so what differs is where sums are taken in float64, and
perhaps the float32 operations that a library chooses for MPS: hence the tolerance of `TOLERANCE`, some rounding errors
of float32.
"""

from __future__ import annotations

import csv
import filecmp
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

import probing
from conftest import BARE, make_sentences
from families import masked_lm
from pretended_device import pretended
from probing import ActivationDataModule, WandbOptions, extract, fit
from probing.activations import Request
from probing.activations.store import StorePlan, divide
from probing.cli.options import Dtype
from probing.errors import UserError
from probing.heads.accumulation import Measure, accumulate
from probing.heads.measures import attention_by_type, profile
from probing.heads.parts import SIMILARITY
from probing.models import BUILTIN_PACKAGE, resolve_model
from probing.models.residual_stream import find_blocks
from probing.probes import solvers as midway_curvature
from probing.probes.solvers import ClassCurvature, OptimumValue, Penalty, Problem
from probing.probes.training import LayerFit, Lbfgs, Training, train_problems
from probing.runs import Result
from probing.studies.geometry import geometry
from probing.studies.geometry.smoothing_bound import constants, measure
from probing.text import from_sentences
from small_data import word_pairs, write_sts, write_wic
from synthetic import make_tokens

# torch warns of this once in a process, whose first test that pretends a device may be any of these.
pytestmark = pytest.mark.filterwarnings("ignore:at..frobenius_norm is deprecated:UserWarning")

TOLERANCE = 1e-6
PROCESSOR, CUDA, MPS = "cpu", "cuda", "mps"
# An encoder that is pretrained within a second.
ENCODER = {"n_layers": 1, "d_model": 16, "n_heads": 2, "d_feedforward": 16, "vocabulary": 100, "row_length": 16}


def treebank(sentences: list[str]) -> str:
    """Return sentences as CoNLL-U, in which every word but the second depends on the second."""
    lines = []
    for sentence in sentences:
        for i, word in enumerate(sentence.split(), 1):
            head, relation, upos = (0, "root", "VERB") if i == 2 else (2, "nsubj" if i == 1 else "dep", "NOUN")
            lines.append("\t".join([str(i), word, "_", upos, "_", "_", str(head), relation, "_", "_"]))
        lines.append("")
    return "\n".join(lines) + "\n"


class Runs:
    """Small runs of every command on each device, made when they are first asked for.

    Args:
        place: Folder for all files.
        sentences: Sentences of the corpus.
    """

    def __init__(self, place: Path, sentences: list[str]) -> None:
        self.place, self.done = place, dict[tuple[str, str], Result]()
        self.n_calls: dict[tuple[str, str], int] = {}
        self.model = str(masked_lm(place / "bert", "bert", sentences))
        self.text = str(place / "text.txt")
        Path(self.text).write_text("\n".join(sentences[:150]) + "\n", encoding="utf-8")
        (place / "trees.conllu").write_text(treebank(sentences[:30]), encoding="utf-8")
        (place / "more.conllu").write_text(treebank(sentences[30:60]), encoding="utf-8")
        with (place / "labelled.csv").open("w", encoding="utf-8", newline="") as file:
            labelled = [(text, "long" if len(text) > 60 else "short") for text in sentences[:120]]
            csv.writer(file).writerows([("text", "label"), *labelled])
        for part in ("train", "dev"):
            write_wic(place / "senses", part, word_pairs(40, len(part)))
        write_sts(place / "pairs", 20)

    def __call__(self, name: str, device: str) -> Result:
        """Return a run on a device."""
        key = name, device
        if key not in self.done:
            command, options = self.call_of(name, device)
            trainer = {"accelerator": "gpu" if device == CUDA else device, **options.pop("trainer", {})}
            usual = {
                "quiet": True, "wandb": {"mode": "disabled"}, "runs": str(self.place / device), "trainer": trainer,
                "cache": str(self.place / device / "cache"), "name": name.replace(" ", "-"),
            }  # fmt: skip
            with nullcontext() if device == PROCESSOR else pretended(device) as mode:
                self.done[key] = getattr(probing, command.replace("-", "_"))(**{**usual, **options})
            self.n_calls[key] = 0 if mode is None else mode.n_calls
        return self.done[key]

    def call_of(self, name: str, device: str) -> tuple[str, dict[str, Any]]:
        """Return the command of a run and its options; the number of tokens in a batch is set, since devices differ."""
        of_model: dict[str, Any] = {"model": self.model, "batch_tokens": 500}
        read: dict[str, Any] = {**of_model, "corpus": self.text}
        here = self.place
        trees = {**read, "corpus": str(here / "trees.conllu"), "test_corpus": str(here / "more.conllu")}
        pairs = [f"wic={here / 'senses'}", f"sts={here / 'pairs'}"]

        def run(of: str) -> str:
            return str(self(of, device).folder)

        match name:
            case "all evidence":
                return "fit", {**read, "layer": "1,2", "probe": {"l2": 1e-2}, "replicates": 2}
            case "adam":
                adam = {"solver": "adam", "l2": 1e-2}
                return "fit", {**read, **BARE, "layer": 1, "probe": adam, "trainer": {"max_epochs": 2}}
            case "sparse":
                return "fit", {**read, **BARE, "layer": 1, "probe": {"l2": 1e-2, "l1": 1e-3}}
            case "units of the MLP":
                return "fit", {**read, **BARE, "layer": 1, "site": "mlp"}
            case "layers":
                return "fit", {**read, **BARE, "layer": "all"}
            case "heads":
                return "attention", trees
            case "position heads":
                return "attention", {**read, "run": run("layers"), "parts": "position_heads,position_neurons"}
            case "ablated":
                return "ablate", {
                    **read, "readouts": ["position", "mlm", *pairs], "units": "heads", "kinds": "zero,mean,resample",
                    "retrain": 1, "prune": True, "prune_share": 0.5, "quantise": 8, "tokens": 300,
                    "trainer": {"max_epochs": 15},
                }  # fmt: skip
            case "changed neurons":
                return "ablate", {
                    "run": run("layers"), "neurons": "ranked", "batch_tokens": 500, "layer": 1, "draws": 1,
                    "retrain": 0, "kinds": "mean,direction", "tokens": 200, "readouts": ["task", "position"],
                }  # fmt: skip
            case "pretrained":
                training = {"steps": 4, "warm_up": 1, "batch_size": 4}
                return "pretrain", {
                    "corpus": self.text, "arms": "learned", "size": "tiny", "sentences": 60, "encoder": ENCODER,
                    "training": training,
                }  # fmt: skip
            case "tuned":
                return "finetune", {
                    "model": self.model, "corpus": str(here / "labelled.csv"), "seeds": 1, "orders": 1,
                    "starts": "pretrained", "tuning": {"epochs": 1},
                }  # fmt: skip
            case "tuned heads":
                return "attention", {"run": run("tuned"), "batch_tokens": 500, "parts": "similarity,change"}
            case "tuned changes":
                measures = "states,special"
                return "tuning-effect", {
                    "run": run("tuned"),
                    "sentences": 30,
                    "batch_tokens": 500,
                    "measures": measures,
                }
            case "syntax":
                few = {"train_sentences": 60, "test_sentences": 25, "generalisation_sentences": 30}
                return "hierarchy", {**of_model, **few, "layer": 1, "probe": {"l2": 1e-2}}
            case "words in context":
                return "wic", {**of_model, "folder": str(here / "senses"), "layer": 1}
            case "similar sentences":
                return "sts", {**of_model, "folders": [str(here / "pairs")], "layer": "0,1"}
            case "static vectors":
                return "position-bias", {**read, "sentences": 3, "documents": 20, "draws": 2, "top": 2}
        raise ValueError(name)


QUICK = ("all evidence", "adam", "sparse", "position heads", "heads", "pretrained", "tuned", "tuned heads")
LONG = (
    "units of the MLP", "ablated", "changed neurons", "tuned changes", "syntax",
    "words in context", "similar sentences", "static vectors",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Runs:
    return Runs(tmp_path_factory.mktemp("absent"), sentences)


@pytest.fixture
def curvature_of_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure no curvature on the way, which is done on processors alone: probes would take other ways there."""
    monkeypatch.setattr(midway_curvature, "LEAST_TOKENS", sys.maxsize)


def is_same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE, nan_ok=True))
    return bool(found == expected)


def differences(found: Result, expected: Result) -> list[str]:
    """Return the cells of all tables in which two runs differ, and check that there are any cells."""
    tables: Mapping[str, Any] = {
        schema.name: getattr(expected, schema.name)
        for schema in expected.study.schemas
        if getattr(expected, schema.name, None)
    }
    assert tables
    told = []
    for name, rows in tables.items():
        own = getattr(found, name)
        assert len(own) == len(rows)
        for i, (row, other) in enumerate(zip(own, rows, strict=True)):
            assert row.keys() == other.keys()
            wrong = [of for of in other if not is_same(row[of], other[of])]
            told += [f"{name} {i} {of}: {row[of]}, expected {other[of]}" for of in wrong]
    return told


# What differs between the two devices, such as float64, is in what the quick runs do.
@pytest.mark.slow
@pytest.mark.usefixtures("curvature_of_the_optimum")
@pytest.mark.parametrize(
    ("name", "device"),
    [(name, device) for name in QUICK for device in (CUDA, MPS)]
    + [pytest.param(name, CUDA, marks=pytest.mark.slow) for name in LONG],
)
def test_a_run_has_the_tables_of_the_processor(name: str, device: str, runs: Runs) -> None:
    found, expected = runs(name, device), runs(name, PROCESSOR)
    assert runs.n_calls[name, device] > 1000
    assert differences(found, expected) == []


@pytest.fixture
def options(checkpoints: dict[str, Path], tmp_path: Path) -> dict[str, Any]:
    """A tiny model and 150 sentences, for any command that runs a model."""
    (tmp_path / "sentences.txt").write_text(
        "".join(f"{sentence}\n" for sentence in make_sentences(150)), encoding="utf-8"
    )
    return {
        "model": str(checkpoints["bert"]), "corpus": str(tmp_path / "sentences.txt"), "runs": str(tmp_path / "runs"),
        "quiet": True,
    }  # fmt: skip


def assert_same(rows: Iterable[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> None:
    rows = list(rows)
    assert len(rows) == len(expected) > 0
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() == other.keys()
        for name, value in other.items():
            is_number = isinstance(value, float)
            assert row[name] == (
                pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE, nan_ok=True) if is_number else value
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    "solver", [{}, {"probe": {"solver": "adam", "l2": 1e-2}, "trainer": {"max_epochs": 2}}], ids=["lbfgs", "adam"]
)
def test_fit_gives_the_tables_of_the_processor(
    options: dict[str, Any], tmp_path: Path, solver: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Curvature is measured on the way on processors alone, so that these take other points to the optimum.
    monkeypatch.setattr(midway_curvature, "LEAST_TOKENS", sys.maxsize)
    found = {}
    for name in ("cpu", "mps"):
        own = {**BARE, **solver, "trainer": {"accelerator": name, **solver.get("trainer", {})}}
        with pretended("mps") if name == "mps" else nullcontext() as device:
            found[name] = fit(
                **options, **own, layer="0,2", cache=str(tmp_path / name), name=name, wandb=WandbOptions("disabled")
            )
    assert device is not None
    assert device.n_calls > 2000  # 200 of them are the model's
    assert found["cpu"] is not None
    assert found["mps"] is not None
    assert_same(found["mps"].accuracy, found["cpu"].accuracy)
    assert_same(found["mps"].neurons, found["cpu"].neurons)


@pytest.mark.slow
def test_extract_and_geometry_give_those_of_the_processor(options: dict[str, Any], tmp_path: Path) -> None:
    measured = {}
    for name in ("cpu", "mps"):
        own = {**options, "layer": "0,2", "cache": str(tmp_path / name), "trainer": {"accelerator": name}}
        with pretended("mps") if name == "mps" else nullcontext() as device:
            extract(**own)
            measured[name] = geometry(**own, name=name, transforms="clip,whiten", wandb=WandbOptions("disabled"))
    assert device is not None
    assert device.n_calls > 100
    shards = [path.relative_to(tmp_path / "cpu") for path in (tmp_path / "cpu").rglob("*.safetensors")]
    assert shards
    assert filecmp.cmpfiles(tmp_path / "cpu", tmp_path / "mps", shards, shallow=False)[1:] == ([], [])
    assert measured["cpu"] is not None
    assert measured["mps"] is not None
    assert_same(measured["mps"].geometry, measured["cpu"].geometry)
    assert_same(measured["mps"].dimensions, measured["cpu"].dimensions)


N, D = 400, 16
PENALTY = Penalty(0.0, 1e-2)


def variants(accelerator: str) -> list[LayerFit]:
    """Train all that a stack can hold: other sentences, labels, neurons, penalties, preconditioners, and a readout."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(N, D, generator=generator)
    labels = (states[:, :3] + torch.randn(N, 3, generator=generator)).argmax(1)
    data = ActivationDataModule.from_arrays(states.to(accelerator), labels, seed=1)
    curvature = ClassCurvature(torch.eye(D).expand(3, D, D) / (0.2 + 2 * PENALTY.l2))
    others, readout = torch.arange(D) != 2, OptimumValue(torch.randn(3, D, generator=generator), resolution=1e-3)
    plain = Problem("plain", 0, PENALTY)
    problems = [
        plain,
        replace(plain, penalty=Penalty(1e-3, 1e-2)),
        replace(plain, draws=torch.randint(0, 3, (N,), generator=generator)),
        replace(plain, labels=torch.where(labels >= 0, labels.roll(1), -1)),
        replace(plain, neurons=others, start=torch.randn(3, D, generator=generator)),
        replace(plain, neurons=torch.arange(D) < 4),
        replace(plain, neurons=others, curvature=curvature, readout=readout),
    ]
    training = Training(PENALTY, Lbfgs(1e-6), trainer={"accelerator": accelerator})
    return train_problems(data.sides, [0], data.moments, problems, training, test=True)


def test_all_variants_of_probes_are_those_of_the_processor() -> None:
    expected = variants("cpu")
    with pretended("mps"):
        found = variants("mps")
    for own, other in zip(found, expected, strict=True):
        assert other.converged
        assert own.n_passes == other.n_passes
        torch.testing.assert_close(own.weight, other.weight, rtol=TOLERANCE, atol=TOLERANCE)
        assert own.metrics == pytest.approx(other.metrics, rel=TOLERANCE)
        for name in ("cross_entropy_by_sentence", "correct_by_sentence"):
            np.testing.assert_allclose(getattr(own, name), getattr(other, name), rtol=TOLERANCE)
        assert (own.objective, own.optimality_gap) == pytest.approx(
            (other.objective, other.optimality_gap), rel=1e-3, abs=TOLERANCE
        )


def test_the_bound_on_smoothing_is_that_of_the_processor(checkpoints: dict[str, Path]) -> None:
    tokens = make_tokens([7, 3, 5, 1])
    tokens = replace(tokens, input_ids=tokens.input_ids % 30)
    plan = StorePlan({}, 64, 16, "float32", 64, divide(tokens.lengths, 64))
    found = {}
    for name in ("cpu", "mps"):
        with pretended("mps") if name == "mps" else nullcontext():
            encoder = AutoModel.from_pretrained(checkpoints["bert"]).eval().to(name)
            blocks = find_blocks(encoder)
            of_blocks = [constants(block) for block in blocks]
            found[name] = next(measure(encoder, blocks, of_blocks, tokens, plan, 0, True)).values
    np.testing.assert_allclose(found["mps"], found["cpu"], rtol=TOLERANCE)


@pytest.mark.slow
def test_what_heads_attend_to_is_that_of_the_processor(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    corpus = from_sentences("made up", make_sentences(30))
    request = Request(resolve_model(str(checkpoints["bert"])), corpus, (), batch_tokens=150)
    measures: list[Measure] = [Measure.of_blocks("profile", profile), attention_by_type({}), SIMILARITY]
    expected = accumulate(request, measures, tmp_path / "cpu", {"accelerator": "cpu"})
    with pretended("mps") as device:
        found = accumulate(request, measures, tmp_path / "mps", {"accelerator": "mps"})
    assert device.n_calls > 100
    for measured in measures:
        own, other = found[measured.name], expected[measured.name]
        assert own.names() == other.names()
        for name in own.names():
            kind, name = name.split("/")
            torch.testing.assert_close(getattr(own, kind)(name), getattr(other, kind)(name), rtol=1e-5, atol=1e-6)


def test_training_in_float64_is_refused_before_any_work(options: dict[str, Any], tmp_path: Path) -> None:
    own: dict[str, Any] = {"probe": {"solver": "adam"}, "trainer": {"accelerator": "mps", "precision": "64-true"}}
    with (
        pretended("mps"),
        pytest.raises(UserError, match=r"`trainer={.precision.: .64-true.}`: mps has no float64; .*cpu"),
    ):
        fit(**options, **own, cache=str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_accuracies_are_those_of_the_processor(checkpoints: dict[str, Path], tmp_path: Path, dtype: Dtype) -> None:
    model = "minilm" if find_spec(BUILTIN_PACKAGE) else str(checkpoints["bert"])
    runs = []
    dtypes: dict[str, Dtype] = {"cpu": "float32", "gpu": dtype}
    for accelerator, own in dtypes.items():
        run = fit(
            model=model, dtype=own, cache=str(tmp_path / accelerator), runs=str(tmp_path / "runs"), quiet=True,
            trainer={"accelerator": accelerator}, wandb={"mode": "disabled"},
        )  # fmt: skip
        runs.append([row["accuracy"] for row in run.accuracy])
    # Half precision changes the activations themselves.
    tolerance = 0.002 if dtype == "float32" else 0.005
    assert runs[1] == pytest.approx(runs[0], abs=tolerance)
