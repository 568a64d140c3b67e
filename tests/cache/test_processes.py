"""Several processes and one cache: killed, waiting for each other, interrupted, and as ranks of one job."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fault_loop
from fault_loop import contents, extract_with_small_shards, in_two_ranks, processes
from probing.activations import ActivationStore
from probing.errors import UserError
from probing.runtime.processes import check_ranks, is_main_process

LAYERS = [0, 1, 2, 3]
SHARD_TOKENS = 300
# Long enough for a busy machine; nothing waits so long unless something is wrong.
PATIENCE_S = 600


@pytest.fixture(scope="module")
def uninterrupted(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """What an entry of the tiny BERT holds after an extraction that nobody disturbed, in a process of its own."""
    cache = tmp_path_factory.mktemp("uninterrupted")
    arguments = (str(checkpoints["bert"]), sentences, LAYERS, cache, SHARD_TOKENS)
    process = processes().Process(target=extract_with_small_shards, args=arguments)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    found = contents(cache)
    assert len(found) > 4 * 20  # many shards of four layers
    return found


def watched(events: Any, results: Any, disturb: Callable[..., None], *arguments: Any) -> None:
    """Extract in this process; send what was said, how many shards were extracted, and how it ended."""
    import signal

    import pytorch_lightning as pl

    # A shell that starts the tests in the background makes its children deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    said: list[str] = []
    extracted: list[int] = []

    def say(message: str) -> None:
        said.append(message)
        if "waiting for another process" in message:
            events.set()

    class Watch(pl.Callback):
        def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            disturb("start", events)

        def on_predict_batch_end(self, *args: Any, **keywords: Any) -> None:
            extracted.append(1)
            disturb("shard", events)

    end = "whole"
    try:
        extract: Callable[..., None] = extract_with_small_shards
        extract(*arguments, say=say, callbacks=[Watch()])
    except BaseException as error:
        end = type(error).__name__
    results.put((said, len(extracted), end))


def wait_for_the_other(moment: str, events: Any) -> None:
    """Hold the lock until another process has found it taken."""
    if moment == "start":
        assert events.wait(PATIENCE_S)


def let_be(moment: str, events: Any) -> None:
    """Disturb nothing."""


def die(moment: str, events: Any) -> None:
    """Die while the lock is held, one shard is whole and the next, extracted, may be half-written."""
    if moment == "shard" and events.is_set():
        os.kill(os.getpid(), signal.SIGKILL)
    if moment == "shard":
        events.set()


def interrupt(moment: str, events: Any) -> None:
    """Press Ctrl+C after a shard."""
    if moment == "shard":
        os.kill(os.getpid(), signal.SIGINT)


def tell_what_is_there(results: Any) -> None:
    """Send whether this process was forked with the program imported, and with all of it set aside."""
    import gc
    import sys

    results.put(("probing.studies.fit" in sys.modules, gc.get_freeze_count() > 100_000))


def test_processes_start_with_everything_imported_and_out_of_the_searches_for_garbage() -> None:
    context = processes()
    results = context.Queue()
    job = context.Process(target=tell_what_is_there, args=(results,))
    job.start()
    assert results.get(timeout=PATIENCE_S) == (True, True)
    job.join(PATIENCE_S)


@pytest.mark.slow
def test_two_processes_ask_at_once_and_one_extracts(
    checkpoints: dict[str, Path], sentences: list[str], uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    context = processes()
    waiting, results = context.Event(), context.Queue()
    arguments = (str(checkpoints["bert"]), sentences, LAYERS, tmp_path, SHARD_TOKENS)
    jobs = [context.Process(target=watched, args=(waiting, results, wait_for_the_other, *arguments)) for _ in range(2)]
    for job in jobs:
        job.start()
    (said_a, n_a, end_a), (said_b, n_b, end_b) = sorted((results.get(timeout=PATIENCE_S) for _ in jobs), key=len_said)
    for job in jobs:
        job.join(PATIENCE_S)
    assert (end_a, end_b) == ("whole", "whole")
    assert n_a > 20  # this one extracted every shard
    assert n_b == 0  # and this one read them
    assert said_a == []
    assert len(said_b) == 1
    assert str(next(tmp_path.glob("tiny-bert-*/"))) in said_b[0]
    assert contents(tmp_path) == uninterrupted


def len_said(result: tuple[list[str], int, str]) -> int:
    return len(result[0])


@pytest.mark.slow
def test_a_process_that_dies_with_the_lock_blocks_nobody_and_loses_nothing(
    checkpoints: dict[str, Path], sentences: list[str], uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    context = processes()
    arguments = (str(checkpoints["bert"]), sentences, LAYERS, tmp_path, SHARD_TOKENS)
    events, results = context.Event(), context.Queue()
    job = context.Process(target=watched, args=(events, results, die, *arguments))
    job.start()
    job.join(PATIENCE_S)
    assert job.exitcode == -signal.SIGKILL
    kept = {path: path.stat().st_ino for path in tmp_path.glob("*/layer_*/000000.safetensors")}
    assert len(kept) == len(LAYERS)
    assert not list(tmp_path.glob("*/layer_*/000002.safetensors"))
    after = context.Process(target=watched, args=(events, results, let_be, *arguments))
    after.start()
    said, _, end = results.get(timeout=PATIENCE_S)
    after.join(PATIENCE_S)
    assert (said, end) == ([], "whole")
    assert {path: path.stat().st_ino for path in kept} == kept
    assert contents(tmp_path) == uninterrupted


def test_ctrl_c_is_an_interruption_and_not_lightnings_exit(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    context = processes()
    events, results = context.Event(), context.Queue()
    arguments = (str(checkpoints["bert"]), sentences, LAYERS, tmp_path, SHARD_TOKENS)
    job = context.Process(target=watched, args=(events, results, interrupt, *arguments))
    job.start()
    _, n_extracted, end = results.get(timeout=PATIENCE_S)
    job.join(PATIENCE_S)
    assert (n_extracted, end) == (1, "KeyboardInterrupt")


@pytest.mark.slow
def test_no_fault_loses_anything_or_makes_a_wrong_table(capsys: pytest.CaptureFixture[str]) -> None:
    status = fault_loop.main(["--faults", "4", "--seed", "1"])
    said = capsys.readouterr().out
    assert status == 0, said
    assert re.search(r"4 faults in \d+ s: 0 things lost or wrong", said)


# --- ranks ---


def type_extract(args: list[str], shard_tokens: int | None) -> int:
    """Type `probing extract` in a rank; the second one is slow, so that the first has done its share long before."""
    from probing.__main__ import COMMANDS
    from probing.cli.commandline import run
    from probing.runtime.processes import is_main_process

    if shard_tokens:
        fault_loop.small_shards(shard_tokens)
    write = ActivationStore.write

    def write_slowly(self: ActivationStore, layer: int, shard: int, hidden_states: torch.Tensor) -> None:
        time.sleep(0 if is_main_process() else 0.03)
        write(self, layer, shard, hidden_states)

    ActivationStore.write = write_slowly  # type: ignore[method-assign]
    return run(COMMANDS, ["extract", *args])


def extract_in_two_ranks(model: Path, corpus: Path, cache: Path, shard_tokens: int | None) -> str:
    args = [
        "--model", str(model), "--corpus", str(corpus), "--batch_tokens", "256", "--cache", str(cache),
        "--trainer.accelerator", "cpu",
    ]  # fmt: skip
    first, second = in_two_ranks(type_extract, args, shard_tokens)
    assert (first.found, second.found) == (0, 0), first.error
    assert not second.out
    return first.out


@pytest.mark.slow
def test_two_ranks_give_the_bytes_of_one(
    checkpoints: dict[str, Path], sentences: list[str], uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    (corpus := tmp_path / "sentences.txt").write_text("\n".join(sentences), encoding="utf-8")
    said = extract_in_two_ranks(checkpoints["bert"], corpus, tmp_path / "cache", SHARD_TOKENS)
    assert said.count(f"tokens of {len(sentences)} sentences") == 1
    found = contents(tmp_path / "cache")
    shards = [name for name in uninterrupted if "layer_" in name]
    assert {name: found[name] for name in shards} == {name: uninterrupted[name] for name in shards}
    assert records(found) == records(uninterrupted)
    (manifest,) = (tmp_path / "cache").glob(f"*/{fault_loop.MANIFEST}")
    assert len(manifest.read_text(encoding="utf-8").splitlines()) == 1 + len(
        shards
    )  # no rank repeated the work of the other


def records(found: dict[str, bytes]) -> list[bytes]:
    """The manifest without its header, which names the corpus as it was typed."""
    (manifest,) = (content for name, content in found.items() if name.endswith(fault_loop.MANIFEST))
    return manifest.split(b"\n")[1:]


@pytest.mark.slow
def test_a_rank_that_is_left_without_a_shard_waits_for_the_other(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    extract_in_two_ranks(checkpoints["bert"], corpus_file, tmp_path, None)
    assert len(list(tmp_path.glob("*/layer_*/*.safetensors"))) == len(LAYERS)  # the corpus is one shard


# --- which rank is this ---


@pytest.mark.parametrize(
    ("variables", "main"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0"}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"RANK": "2", "LOCAL_RANK": "0"}, False),  # torchrun, second machine
        ({"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "3"}, True),
        ({"SLURM_PROCID": "0"}, True),
        ({"SLURM_PROCID": "1"}, False),
        ({"NODE_RANK": "1", "LOCAL_RANK": "0"}, False),  # Lightning's own launcher, second machine
        ({"NODE_RANK": "1"}, False),
    ],
)
def test_one_process_of_a_job_is_the_main_one(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], main: bool
) -> None:
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_main_process() is main


LIGHTNING = {"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, ""),
        ({"WORLD_SIZE": "2", "RANK": "0"}, ""),
        (LIGHTNING, ""),
        (TORCHRUN, ""),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}, ""),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "WORLD_SIZE=2 RANK=1 in the environment .* unset WORLD_SIZE, RANK."),
        ({"RANK": "1", "MASTER_ADDR": "a"}, "RANK=1 in the environment"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1 in the environment"),
        ({"TORCHELASTIC_RUN_ID": "x"}, "one is missing or no number"),
        ({**TORCHRUN, "WORLD_SIZE": "two"}, "one is missing or no number"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "0"}, "one is missing or no number"),
        ({"SLURM_NTASKS": "x"}, "one is missing or no number"),
    ],
)
def test_variables_that_an_earlier_job_has_left_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str
) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM")] + [*LIGHTNING, *TORCHRUN]:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if not words:
        check_ranks()
        return
    with pytest.raises(UserError, match=words):
        check_ranks()
