"""The same commands on a GPU, where there is one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from probing import fit
from probing.cli.option_types import Dtype
from probing.models import BUILTIN_PACKAGE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


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
