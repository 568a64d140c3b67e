"""The same results on a device without float64, as Apple's MPS is, and on a GPU, where there is one.

The device of `pretended_device` computes as the processor does, so what differs is where sums are taken in float64, and
perhaps the float32 operations that a library chooses for MPS: hence the tolerance of `TOLERANCE`, some rounding errors
of float32.
"""

from __future__ import annotations

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

from conftest import BARE, make_sentences
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
from probing.models.anatomy import examine
from probing.models.residual_stream import find_blocks
from probing.probes import solvers as midway_curvature
from probing.probes.solvers import ClassCurvature, OptimumValue, Penalty, Problem
from probing.probes.training import LayerFit, Lbfgs, Training, train_problems
from probing.studies.geometry import geometry
from probing.studies.geometry.smoothing_bound import constants, measure
from probing.text import from_sentences
from synthetic import LIGHTNING_WARNINGS, make_tokens

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TOLERANCE = 1e-6


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


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
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


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
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


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
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


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_the_bound_on_smoothing_is_that_of_the_processor(checkpoints: dict[str, Path]) -> None:
    tokens = make_tokens([7, 3, 5, 1])
    tokens = replace(tokens, input_ids=tokens.input_ids % 30)
    plan = StorePlan({}, 64, 16, "float32", 64, divide(tokens.lengths, 64))
    found = {}
    for name in ("cpu", "mps"):
        with pretended("mps") if name == "mps" else nullcontext():
            encoder = AutoModel.from_pretrained(checkpoints["bert"]).eval().to(name)
            anatomy = examine(encoder, 0)
            blocks = find_blocks(encoder, anatomy)
            of_blocks = [constants(block) for block in blocks]
            found[name] = next(measure(encoder, blocks, of_blocks, tokens, plan, 0, True)).values
    np.testing.assert_allclose(found["mps"], found["cpu"], rtol=TOLERANCE)


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
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


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_training_in_float64_is_refused_before_any_work(options: dict[str, Any], tmp_path: Path) -> None:
    own: dict[str, Any] = {"probe": {"solver": "adam"}, "trainer": {"accelerator": "mps", "precision": "64-true"}}
    with pretended("mps"), pytest.raises(UserError, match=r"`--trainer.precision 64-true`: mps has no float64; .*cpu`"):
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
        assert run is not None
        runs.append([row["accuracy"] for row in run.accuracy])
    # Half precision changes the activations themselves.
    tolerance = 0.002 if dtype == "float32" else 0.005
    assert runs[1] == pytest.approx(runs[0], abs=tolerance)
