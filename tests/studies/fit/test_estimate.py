"""What `fit` says before it starts, and what it refuses because it does not fit in memory."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import BARE_ARGS
from probing.__main__ import COMMANDS
from probing.cache import Request, activations
from probing.cache.source import Reading, Size, Speed
from probing.cli.commandline import run
from probing.cli.options import ProbeOptions
from probing.corpus import from_sentences
from probing.errors import UserError
from probing.models import resolve_model
from probing.models.loading import Blocks
from probing.runtime import machine as memory
from probing.runtime.progress import duration
from probing.studies.fit import estimate
from probing.studies.fit.estimate import Estimate, Probes
from synthetic import LIGHTNING_WARNINGS

pytestmark = [pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS]


@pytest.fixture(scope="module")
def request_of(checkpoints: dict[str, Path], sentences: list[str]) -> Request:
    return Request(resolve_model(str(checkpoints["bert"])), from_sentences("made up", sentences[:40]), [0, 1, 2])


def test_what_is_cached_is_neither_read_nor_written_again(request_of: Request, tmp_path: Path) -> None:
    before = Reading.of(request_of, tmp_path)
    speed = Speed(Blocks.of(request_of_config(request_of)), {"square": 1e3, "widen": 1e3, "narrow": 1e3})
    assert before.missing == 1
    assert before.missing_bytes == before.size.n_bytes
    assert before.seconds(speed) > 0
    store = activations(replace(request_of, layers=[0]), tmp_path, {"accelerator": "cpu"})
    part = Reading.of(request_of, tmp_path)
    assert part.missing == pytest.approx(2 / 3)
    assert part.seconds(speed) == pytest.approx(2 / 3 * before.seconds(speed))
    activations(request_of, tmp_path, {"accelerator": "cpu"})
    after = Reading.of(request_of, tmp_path)
    assert (after.missing, after.missing_bytes, after.seconds(speed), after.memory_bytes()) == (0, 0, 0, 0)
    # Every activation is written, and little else.
    written = sum(path.stat().st_size for path in store.folder.rglob("*.safetensors") if path.parent != store.folder)
    assert 1 <= written / after.size.n_bytes < 1.2


def request_of_config(request: Request) -> object:
    from probing.models import load_config

    return load_config(request.source)


def test_a_forward_pass_counts_every_weight_of_the_blocks_that_are_run(request_of: Request, tmp_path: Path) -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(request_of.source.folder)
    reading = Reading.of(request_of, tmp_path)
    lengths = reading.tokens.lengths.astype(np.int64)
    n_weights = sum(weight.numel() for weight in model.encoder.parameters() if weight.dim() == 2)
    n_blocks, d_model = len(model.encoder.layer), model.config.hidden_size
    operations = 2 * n_weights * lengths.sum() + 4 * n_blocks * d_model * (lengths**2).sum()
    speed = Speed(Blocks.of(model.config), {"square": 1e6, "widen": 1e6, "narrow": 1e6})
    assert speed.forward_s(reading.size) * 1e6 * 0.5 == pytest.approx(operations)
    # Half of the blocks for half of the time.
    half = replace(reading, request=replace(request_of, layers=[0, n_blocks // 2]))
    assert half.seconds(speed) == pytest.approx(n_blocks // 2 / n_blocks * speed.forward_s(reading.size))


def test_the_rates_are_of_this_machine(request_of: Request) -> None:
    speed = Speed.measure(request_of, {"accelerator": "cpu"})
    assert set(speed.rates) == {"square", "widen", "narrow"}
    assert all(1e6 < value < 1e15 for value in speed.rates.values())


def test_the_pass_that_is_timed_is_that_of_the_probe() -> None:
    narrow, wide = Probes(2048, 1, 4, 32), Probes(2048, 1, 64, 512)
    assert 0 < narrow.measured_pass() < wide.measured_pass()  # of 256 times the products


PROBES = Probes(10_000, 13, 60, 768, 3, 5, True)


@pytest.mark.parametrize("more", [{"n_layers": 26}, {"n_replicates": 50}, {"n_tokens": 20_000}, {"n_controls": 6}])
def test_time_grows_with_what_is_asked_for(more: dict[str, Any]) -> None:
    assert replace(PROBES, **more).seconds(1e-6, 1e11) > PROBES.seconds(1e-6, 1e11)


@pytest.mark.parametrize(
    "more", [{"n_layers": 26}, {"n_replicates": 50}, {"d_model": 1536}, {"n_classes": 600, "n_replicates": 50}]
)
def test_memory_grows_with_width_layers_classes_and_replicates(more: dict[str, Any]) -> None:
    changed: Probes = replace(PROBES, **more)
    assert sum(changed.memory().values()) > sum(PROBES.memory().values())


def test_options_say_which_probes_are_trained() -> None:
    probe = ProbeOptions()
    some = Probes.asked([0, 6], ["shuffled", "token", "control_task"], 5, True, False, probe)
    assert (some.n_layers, some.n_controls, some.chooses, some.is_adam) == (2, 6, True, False)
    bare = Probes.asked([0, 6], [], 0, False, False, replace(probe, l2=1e-2))
    assert bare.n_passes < some.n_passes
    assert Probes.asked([0], [], 0, False, False, replace(probe, solver="adam")).is_adam


def test_what_does_not_fit_in_memory_is_refused_with_what_to_do(
    request_of: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading.of(request_of, tmp_path)
    found = Estimate([reading], replace(PROBES, n_replicates=500), tmp_path)
    for enough in (None, 10**12):
        monkeypatch.setattr(memory, "memory_bytes", lambda enough=enough: enough)
        found.check_memory()
    monkeypatch.setattr(memory, "memory_bytes", lambda: 24 * 10**9)
    with pytest.raises(UserError, match=r"need about \d+.\d GB of memory and this machine has 24.0 GB; .*--replicates"):
        found.check_memory()
    Estimate([reading], PROBES, tmp_path).check_memory()
    monkeypatch.setattr(memory, "memory_bytes", lambda: 10**8)
    with pytest.raises(UserError, match="fewer layers at a time with `--layer`"):
        Estimate([reading], replace(PROBES, n_replicates=0, retrains=False), tmp_path).check_memory()


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(estimate.os, "getloadavg", lambda: (9.6, 1.0, 1.0), raising=False)
    assert estimate.busy() == " (it takes longer now: the load is 10 on 2 cores)"
    monkeypatch.setattr(estimate.os, "getloadavg", lambda: (1.5, 9.0, 9.0), raising=False)
    assert estimate.busy() == ""


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "1 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h")])
def test_durations_are_said_in_two_digits(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_sizes_count_bytes_of_the_dtype(request_of: Request) -> None:
    lengths = np.array([3, 5], dtype=np.int32)
    size = Size.of(lengths, replace(request_of, dtype="bfloat16"))
    width = Blocks.of(request_of_config(request_of)).d_model
    assert (size.n_tokens, size.token_pairs, size.n_bytes) == (8, 34, 8 * 3 * width * 2)
    mlp = Size.of(lengths, replace(request_of, site="mlp"))
    assert mlp.width == Blocks.of(request_of_config(request_of)).d_mlp


def test_fit_says_what_a_large_run_takes_and_refuses_one_without_memory(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    corpus = tmp_path / "text.txt"
    corpus.write_text("".join(f"{sentence}\n" for sentence in sentences[:60]), encoding="utf-8")
    places = ["--cache", str(tmp_path / "cache"), "--runs", str(tmp_path / "runs"), "--wandb.mode=disabled"]
    args = ["fit", "--model", str(checkpoints["bert"]), "--corpus", str(corpus), *places, *BARE_ARGS, "--layer=1"]
    with monkeypatch.context() as small:
        small.setattr(memory, "memory_bytes", lambda: 2**20)
        assert run(COMMANDS, args) == 2
    err = capsys.readouterr().err
    assert "this machine has 0.0 GB" in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("*tiny*"))
    assert not list((tmp_path / "cache").glob("*/manifest.jsonl"))  # refused before anything was read
    monkeypatch.setattr(estimate, "LARGE", 0)
    assert run(COMMANDS, [*args, "--name", "a"]) == 0
    said = capsys.readouterr().err
    assert re.search(
        r"about \d+ s with nothing else on this machine.*: .* for 1 reading .* and .* for the probes; 0.0 GB", said
    )
    assert run(COMMANDS, [*args, "--name", "b"]) == 0
    again = capsys.readouterr().err
    assert "activations are cached" in again
    assert "reading" not in again


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rates_are_of_the_gpu_where_one_is_used(request_of: Request) -> None:
    on_cpu, on_gpu = (Speed.measure(request_of, {"accelerator": name}).rates["widen"] for name in ("cpu", "gpu"))
    assert on_gpu != on_cpu
