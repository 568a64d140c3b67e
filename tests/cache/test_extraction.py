"""From sentences to stored activations: the right rows, only what is missing, nothing damaged, nothing half-written."""

from __future__ import annotations

import errno
import gc
import platform
import re
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from conftest import N_LAYERS
from families import FAMILIES as ALL_FAMILIES
from families import few_quickly, untouched
from probing import activations as cache_module
from probing.activations import ActivationStore, Request, activations, store
from probing.activations import store as cache_store
from probing.activations.extraction import n_readers, share_out, trainer_keywords
from probing.errors import RunError, UserError
from probing.models import load_tokenizer, resolve_model
from probing.models.anatomy import Anatomy
from probing.models.examination import with_the_same_weights
from probing.runtime import give_back_memory
from probing.text import from_sentences

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.

CPU = {"accelerator": "cpu"}
SHARD_TOKENS = 400


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a small corpus many shards."""
    monkeypatch.setattr(cache_store, "SHARD_BYTES", 0)
    monkeypatch.setattr(cache_store, "MIN_SHARD_TOKENS", SHARD_TOKENS)


@pytest.fixture
def request_for(checkpoints: dict[str, Path], sentences: list[str]) -> Callable[..., Request]:
    """Ask for layers of a tiny model over the first 40 sentences, in batches of a few sentences."""

    def ask(layers: list[int], family: str = "bert", model: Path | None = None, **options: Any) -> Request:
        source = resolve_model(str(model or checkpoints[family]))
        return Request(source, from_sentences("made up", sentences[:40]), layers, **{"batch_tokens": 150, **options})

    return ask


@pytest.fixture(scope="module")
def extracted(checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: Any) -> Path:
    """A cache with layers 0, 1 and 2 of the tiny BERT; copied before it is changed."""
    cache = tmp_path_factory.mktemp("extracted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_store, "SHARD_BYTES", 0)
        patch.setattr(cache_store, "MIN_SHARD_TOKENS", SHARD_TOKENS)
        source = resolve_model(str(checkpoints["bert"]))
        activations(Request(source, from_sentences("made up", sentences[:40]), [0, 1, 2], batch_tokens=150), cache, CPU)
    return cache


@pytest.fixture
def cache(extracted: Path, tmp_path: Path) -> Path:
    return shutil.copytree(extracted, tmp_path / "cache")


def shards_on_disk(cache: Path) -> dict[str, tuple[int, int, bytes]]:
    """Inode, time of change and content of every shard."""
    found = {}
    for path in cache.glob("*/layer_*/*"):
        status = path.stat()
        found[f"{path.parent.name}/{path.name}"] = (status.st_ino, status.st_mtime_ns, path.read_bytes())
    return found


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Let two batches be worked on at once, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    assert n_readers(torch.device("cpu")) == 2
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def no_extraction(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **keywords: Any) -> None:
        raise AssertionError("nothing was missing, yet the model was loaded")

    monkeypatch.setattr(cache_module, "load_encoder", refuse)


# --- the right rows ---


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("family", few_quickly(ALL_FAMILIES))
@torch.inference_mode()
def test_cached_rows_are_the_plain_forward_pass_sentence_by_sentence(
    request_for: Callable[..., Request], tmp_path: Path, family: str
) -> None:
    layers = list(range(N_LAYERS[family] + 1))
    request = request_for(layers, family)
    stored = activations(request, tmp_path / "cache", CPU)
    assert len(stored.plan.shards) > 2
    model = untouched(request.source.folder)
    tokenizer = load_tokenizer(request.source)
    rows = {k: torch.cat([stored.read(k, shard.index) for shard in stored.plan.shards]) for k in layers}
    seen = 0
    for sentence, text in enumerate(request.corpus.sentences):
        input_ids = tokenizer(text, return_tensors="pt")["input_ids"]
        alone = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        states = model(**alone, output_hidden_states=True).hidden_states
        own = slice(seen, seen + len(states[0][0]))
        # The label of a row: its sentence, its token and its position in it.
        assert (stored.tokens.sentences[own] == sentence).all()
        assert stored.tokens.input_ids[own].tolist() == alone["input_ids"][0].tolist()
        assert stored.tokens.positions[own].tolist() == list(range(len(states[0][0])))
        for layer in layers:
            # Alone or padded in a batch, the same sums in another order: 1e-4 is hundreds of roundings.
            assert_close(rows[layer][own], states[layer][0], rtol=1e-4, atol=1e-4)
        seen = own.stop
    assert seen == stored.plan.n_tokens == len(rows[0])


def test_no_model_is_left_in_memory_behind_an_extraction(
    request_for: Callable[..., Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[weakref.ref[Any]] = []

    def load(*args: Any) -> Any:
        found = load_encoder(*args)
        loaded.append(weakref.ref(found))
        return found

    load_encoder = cache_module.load_encoder
    monkeypatch.setattr(cache_module, "load_encoder", load)
    gc.disable()  # as it may not come by in a command of many corpora
    try:
        activations(request_for([0, 1]), tmp_path, CPU)
        assert len(loaded) == 1
        assert loaded[0]() is None
    finally:
        gc.enable()


def test_batches_of_another_size_give_the_same_activations(request_for: Callable[..., Request], tmp_path: Path) -> None:
    few = activations(request_for([2], batch_tokens=1), tmp_path / "few", CPU)
    many = activations(request_for([2], batch_tokens=10**6), tmp_path / "many", CPU)
    for shard in few.plan.shards:
        assert_close(few.read(2, shard.index), many.read(2, shard.index), rtol=1e-4, atol=1e-4)  # as above


def test_batches_worked_on_at_once_have_the_bytes_of_one_after_the_other(
    request_for: Callable[..., Request], tmp_path: Path
) -> None:
    before, found = torch.get_num_threads(), []
    for n in (1, 3):
        torch.set_num_threads(n)
        try:
            activations(request_for([0, 1, 2]), tmp_path / str(n), CPU)
        finally:
            torch.set_num_threads(before)
        found.append(contents(tmp_path / str(n)))
    assert found[0] == found[1]


@pytest.mark.usefixtures("two_threads")
def test_a_reader_that_fails_ends_the_others_and_is_heard() -> None:
    readers = [(torch.nn.Identity(), Anatomy(None, 1, True)) for _ in range(2)]
    begun, failed = [], threading.Event()

    def extract(reader: torch.nn.Module, anatomy: Anatomy, batch: int) -> None:
        begun.append(batch)
        if reader is readers[1][0]:
            failed.set()
            raise IndexError("out of range")
        assert failed.wait(10)
        time.sleep(0.05)

    with pytest.raises(IndexError, match="out of range"):
        share_out(extract, readers, range(20))
    assert sorted(begun) == [0, 1]


@pytest.mark.parametrize(("threads", "expected"), [(1, 1), (2, 2), (3, 3), (5, 1), (6, 3), (16, 4)])
def test_readers_divide_the_threads_evenly(monkeypatch: pytest.MonkeyPatch, threads: int, expected: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert n_readers(torch.device("cpu")) == expected
    assert n_readers(torch.device("cuda")) == 1


def test_a_second_reader_runs_the_same_weights_and_hooks_of_its_own(checkpoints: dict[str, Path]) -> None:
    encoder = untouched(checkpoints["bert"])
    copy = with_the_same_weights(encoder)
    assert [p.data_ptr() for p in copy.parameters()] == [p.data_ptr() for p in encoder.parameters()]
    assert not {id(module) for module in copy.modules()} & {id(module) for module in encoder.modules()}


@pytest.mark.slow
def test_bfloat16_is_computed_and_stored_as_such(request_for: Callable[..., Request], tmp_path: Path) -> None:
    half = activations(request_for([2], dtype="bfloat16"), tmp_path / "cache", CPU)
    whole = activations(request_for([2]), tmp_path / "cache", CPU)
    assert half.folder != whole.folder
    assert half.read(2, 0).dtype == torch.bfloat16
    difference = (half.read(2, 0).float() - whole.read(2, 0)).abs().mean()
    assert 0 < difference < 0.05  # see test_models: some ten roundings to 8 bits


def test_nothing_is_drawn_from_the_generator_of_the_process(
    request_for: Callable[..., Request], tmp_path: Path
) -> None:
    before = torch.get_rng_state()
    activations(request_for([2], max_length=9), tmp_path / "cache", CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_randomly_initialised_model_is_another_entry_with_other_activations(
    request_for: Callable[..., Request], tmp_path: Path
) -> None:
    found = [
        activations(request_for([2], random_weights_seed=seed), tmp_path / "cache", CPU) for seed in (None, 0, 1, 0)
    ]
    assert len({entry.folder for entry in found}) == 3
    assert found[1].folder == found[3].folder
    assert not any(torch.allclose(a.read(2, 0), b.read(2, 0), atol=0.1) for a, b in pairwise(found))


def test_sentences_are_cut_where_asked(request_for: Callable[..., Request], tmp_path: Path) -> None:
    stored = activations(request_for([0], max_length=9), tmp_path / "cache", CPU)
    assert stored.tokens.lengths.max() == 9
    assert 0 < stored.tokens.n_truncated < 40


@pytest.mark.parametrize("max_length", [-1, 0, 1, 2, 129])
def test_a_length_that_the_model_does_not_take_is_refused_with_the_range(
    request_for: Callable[..., Request], tmp_path: Path, max_length: int
) -> None:
    with pytest.raises(UserError, match=rf"`--max_length {max_length}`: .*tiny-bert takes 3 to 128 tokens"):
        activations(request_for([0], max_length=max_length), tmp_path / "cache", CPU)
    assert not list((tmp_path / "cache").glob("tiny*/"))


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        {"max_length": 20},
        {"random_weights_seed": 0},
        {"corpus": from_sentences("made up", ["Another corpus."])},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_that_changes_the_values_is_in_the_key(
    request_for: Callable[..., Request], change: dict[str, Any]
) -> None:
    request = request_for([0])
    assert replace(request, **change).key() != request.key()


def test_layers_and_batches_are_not_in_the_key(request_for: Callable[..., Request]) -> None:
    assert request_for([0, 1], batch_tokens=7).key() == request_for([2]).key()


# --- only what is missing ---


def test_what_is_there_is_not_extracted_again(
    request_for: Callable[..., Request], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shards_on_disk(cache)
    no_extraction(monkeypatch)
    activations(request_for([0, 1, 2]), cache, CPU)
    activations(request_for([1], batch_tokens=64), cache, CPU)
    assert shards_on_disk(cache) == before


def test_more_layers_later_are_written_beside_the_old_ones(request_for: Callable[..., Request], cache: Path) -> None:
    before = shards_on_disk(cache)
    assert len(before) > 9
    stored = activations(request_for([1, 3]), cache, CPU)
    after = shards_on_disk(cache)
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[0] for name in after.keys() - before.keys()} == {"layer_03"}
    assert stored.layers() == [0, 1, 2, 3]


def test_layers_added_later_have_the_bytes_of_layers_asked_for_together(
    request_for: Callable[..., Request], cache: Path, tmp_path: Path
) -> None:
    activations(request_for([3]), cache, CPU)
    activations(request_for([0, 1, 2, 3]), tmp_path / "together", CPU)
    assert contents(cache) == contents(tmp_path / "together")


def contents(cache: Path) -> dict[str, bytes]:
    return {name: content for name, (_, _, content) in shards_on_disk(cache).items()}


def test_nothing_half_written_is_left(cache: Path) -> None:
    assert not list(cache.rglob("*.partial-*"))
    assert {path.suffix for path in cache.rglob("*") if path.is_file()} == {".safetensors", ".jsonl", ".lock"}


def test_using_activations_keeps_them_from_being_pruned(request_for: Callable[..., Request], cache: Path) -> None:
    import os

    (entry,) = cache.glob("tiny-bert-*/")
    for path in (entry, entry / store.MANIFEST):
        os.utime(path, (1000, 1000))
    activations(request_for([0]), cache, CPU)
    assert os.stat(entry).st_mtime > 1e9


# --- damage ---


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [flip_a_bit, Path.unlink], ids=["a bit flipped", "deleted"])
def test_a_damaged_shard_is_named_and_mended_to_the_same_bytes(
    request_for: Callable[..., Request], cache: Path, damage: Callable[[Path], Any]
) -> None:
    before = shards_on_disk(cache)
    damaged = next(cache.glob("*/layer_01/000002.safetensors"))
    damage(damaged)
    said: list[str] = []
    stored = activations(request_for([0, 1, 2]), cache, CPU, said.append)
    assert said == [f"{damaged} is damaged or missing: extracting it again"]
    assert contents(cache) == {name: content for name, (_, _, content) in before.items()}
    # Only that one was written.
    after = shards_on_disk(cache)
    assert [name for name in before if after[name] != before[name]] == ["layer_01/000002.safetensors"]
    assert stored.damaged([0, 1, 2]) == []


def test_damage_in_a_layer_that_is_not_asked_for_is_left_for_those_who_ask(
    request_for: Callable[..., Request], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_a_bit(next(cache.glob("*/layer_01/000002.safetensors")))
    no_extraction(monkeypatch)
    assert activations(request_for([0, 2]), cache, CPU).damaged([1]) == [(1, 2)]


@pytest.mark.parametrize("name", [store.MANIFEST, store.TOKENS])
def test_an_entry_without_a_sound_plan_is_made_anew_with_the_same_bytes(
    request_for: Callable[..., Request], cache: Path, name: str
) -> None:
    before = contents(cache)
    (path,) = cache.glob(f"*/{name}")
    path.write_bytes(path.read_bytes()[30:])
    said: list[str] = []
    activations(request_for([0, 1, 2]), cache, CPU, said.append)
    assert len(said) == 1
    assert "the cache entry is damaged and is made again" in said[0]
    assert name in said[0]
    assert contents(cache) == before


# --- refusals ---


def poisoned_model(folder: Path, sentences: list[str], value: float) -> tuple[Path, int]:
    """Make the embedding of one token not finite; return the folder and the only one of the sentences that has it."""
    tokenizer = load_tokenizer(resolve_model(str(folder)))
    ids = [set(tokenizer(text)["input_ids"]) for text in sentences[:40]]
    token, sentence = next(
        (token, sentence)
        for sentence in range(25, 40)
        for token in sorted(ids[sentence])
        if sum(token in other for other in ids) == 1
    )
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][token, 3] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder, sentence


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), "float32"), (float("inf"), "bfloat16")])
def test_activations_that_are_not_finite_are_refused_with_layer_and_sentence(
    tiny_model: Callable[..., Path],
    request_for: Callable[..., Request],
    tmp_path: Path,
    sentences: list[str],
    value: float,
    dtype: str,
) -> None:
    folder, sentence = poisoned_model(tiny_model("bert"), sentences, value)
    request = request_for([1, 2], model=folder, dtype=dtype)
    with pytest.raises(RunError, match=rf"layer 1 .* not finite in sentence {sentence} of .*--dtype {dtype}; extract"):
        activations(request, tmp_path / "cache", CPU)
    (entry,) = (tmp_path / "cache").glob("own-bert-0-*/")
    stored = ActivationStore(entry)
    bad = next(s.index for s in stored.plan.shards if s.first_sentence <= sentence < s.first_sentence + s.n_sentences)
    assert bad > 0
    assert {shard for _, shard in stored.records()} == set(range(bad))
    assert stored.damaged([1, 2]) == []
    assert not list(entry.rglob("*.partial-*"))


def test_states_that_a_model_keeps_in_float32_are_stored_in_the_dtype_asked_for(
    request_for: Callable[..., Request], tmp_path: Path
) -> None:
    half = activations(request_for([0, 3], "t5", dtype="float16"), tmp_path / "half", CPU)
    single = activations(request_for([0, 3], "t5"), tmp_path / "single", CPU)
    for layer in (0, 3):
        assert half.read(layer, 0).dtype == torch.float16
        torch.testing.assert_close(half.read(layer, 0).float(), single.read(layer, 0), rtol=0.02, atol=0.05)


def full_disk(*args: Any, **keywords: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_keeps_finished_shards_and_says_what_to_do(
    request_for: Callable[..., Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    request = request_for([0, 1, 2])

    def until_full(tensors: dict[str, torch.Tensor], path: Path, metadata: Any = None) -> None:
        if len(written) == 4:
            path.write_bytes(b"half")
            raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")
        written.append(path)
        path.write_bytes(safetensors.torch.save(tensors))

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", until_full)
        with pytest.raises(UserError, match=r"No space left.*finished shards are kept: make room.*--cache"):
            activations(request, tmp_path / "cache", CPU)
    kept = shards_on_disk(tmp_path / "cache")
    assert len(kept) == 4
    assert not list((tmp_path / "cache").rglob("*.partial-*"))
    assert activations(request_for([0, 1, 2]), tmp_path / "cache", CPU).damaged([0, 1, 2]) == []
    after = shards_on_disk(tmp_path / "cache")
    assert {name: after[name] for name in kept} == kept


def test_a_disk_that_is_full_from_the_start_leaves_no_entry(
    request_for: Callable[..., Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_sync", full_disk)
    with pytest.raises(UserError, match=r"No space left.*make room.*--cache"):
        activations(request_for([0]), tmp_path / "cache", CPU)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] in ([], [".lock"])


def test_a_cache_that_cannot_be_made_is_refused_with_the_option(
    request_for: Callable[..., Request], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"`--cache .*file/cache` cannot be written \(Not a directory\); name a writable folder"
    ):
        activations(request_for([0]), tmp_path / "file" / "cache", CPU)


def test_a_newer_entry_is_refused_and_kept(
    request_for: Callable[..., Request], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shards_on_disk(cache)
    monkeypatch.setattr(store, "FORMAT", cache_store.FORMAT - 1)
    with pytest.raises(RunError, match="newer version of probing"):
        activations(request_for([0]), cache, CPU)
    assert shards_on_disk(cache) == before


# --- Lightning's options ---


def test_of_the_trainers_options_those_of_a_forward_pass_are_used(
    request_for: Callable[..., Request], tmp_path: Path
) -> None:
    options = {**CPU, "max_epochs": 3, "gradient_clip_val": 1.0, "devices": 1, "strategy": "auto"}
    assert trainer_keywords(options) == {**CPU, "devices": 1, "strategy": "auto"}
    assert activations(request_for([0]), tmp_path / "cache", options).layers() == [0]


def test_callbacks_see_every_shard_that_is_extracted(request_for: Callable[..., Request], cache: Path) -> None:
    import pytorch_lightning as pl

    class Count(pl.Callback):
        def __init__(self) -> None:
            self.shards: list[int] = []

        def on_predict_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: int, *rest: Any) -> None:
            self.shards.append(batch)

    next(cache.glob("*/layer_02/000001.safetensors")).unlink()
    count = Count()
    activations(request_for([2]), cache, CPU, callbacks=[count])
    assert count.shards == [1]


def test_the_caller_gets_the_tokens_with_the_activations(extracted: Path) -> None:
    (entry,) = extracted.glob("tiny-bert-*/")
    stored = ActivationStore(entry)
    for shard in stored.plan.shards:
        rows = shard.rows(stored.tokens)
        assert stored.read(0, shard.index).shape == (rows.stop - rows.start, stored.plan.d_model)
        sentences = np.unique(stored.tokens.sentences[rows])
        assert sentences.tolist() == list(range(shard.first_sentence, shard.first_sentence + shard.n_sentences))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep memory by other rules")
def test_what_threads_have_freed_is_given_back_to_the_system() -> None:
    def anonymous_mib() -> float:
        found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))
        assert found
        return int(found[1]) / 1024

    def work() -> torch.Tensor:
        pieces = [torch.ones(25_000) for _ in range(800)]  # 76 MiB, each too small to be mapped by itself
        return pieces[-1]  # holds the heap that the others leave free

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(work).result()
    before = anonymous_mib()
    give_back_memory()
    assert anonymous_mib() < before - 50
    assert (held == 1).all()
