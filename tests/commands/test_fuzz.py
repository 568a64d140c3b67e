"""Whatever is in a corpus, options, activations, a model's folder or a hub's answer: it is read or refused.

The suite tries a few dozen, always the same; `pytest -m fuzz` tries two thousand others, with `--hypothesis-seed N`
the same ones again.
"""

from __future__ import annotations

import io
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import probing
from conftest import make_sentences
from damaged_runs import HostileHub, damaged_activations, damaged_model, ended, make_few, write_activations
from loopback_hub import loopback_hub
from probing.__main__ import COMMANDS
from probing.activations import ActivationStore
from probing.cli.arguments import option_types
from probing.cli.commandline import run
from probing.errors import UserError
from probing.runs.loading import load_run
from probing.studies.fit import fit

MODELS = ("bert", "gpt2", "t5")
MANY = 100


def try_many(n: int, check: Callable[..., None], **strategies: st.SearchStrategy[Any]) -> None:
    """Check `n` examples: the same ones each time, unless they are many."""
    options = settings(
        max_examples=n,
        derandomize=n < MANY,
        print_blob=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    options(given(**strategies)(check))()


@contextmanager
def new_folder() -> Iterator[Path]:
    """Work in a folder of its own."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        yield Path(place)


def ending(args: list[str], place: Path) -> int:
    """Fit with some options; return the exit status when all else is as that status says."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = run(COMMANDS, ["fit", *args, "--quiet", "--wandb.mode", "disabled"])
    # A quiet command still says what a reader needs to trust the results, such as what was left out.
    lines = err.getvalue().splitlines()
    assert all(line.isprintable() and "Traceback" not in line for line in lines)
    runs = [path for path in place.glob("runs/*") if path.name != "cache"]
    if status == 0:
        (made,) = runs
        assert load_run(made).accuracy
        assert not any(line.startswith("probing fit: ") for line in lines)
        assert "Results:" in out.getvalue()
    else:
        assert status in (1, 2)
        (line,) = (line for line in lines if line.startswith("probing fit: "))
        assert line == lines[-1]
        assert line.endswith(".")
        assert out.getvalue() == ""
    if status == 2:
        assert not runs
        # What was refused after the extraction, such as a training that diverged, leaves what it can go on from.
        for entry in place.glob("runs/cache/*/"):
            store = ActivationStore(entry)
            assert store.layers()
            assert not store.damaged(store.layers())
    return status


@pytest.fixture(scope="module")
def models(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for family in MODELS:
        (folder / family).symlink_to(checkpoints[family])
    return folder


# --- corpora ---

# With these, whatever else there is, each side of the split has examples.
KNOWN = make_sentences(25, longest=6)
ALPHABETS = [
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from("\0\x01\x07\b\t\v\f\x1b\x1c\x1f\x7f\x85\xa0\xad\u200b\u200d\u202e\u2028\u2029\ufeff\ufffe\uffff"),
    st.sampled_from(".,;:!?-_()[]{}<>/\\|@#$%^&*+=~`'\"…—«»"),
    st.sampled_from("😀🏳️‍🌈👩‍👩‍👧‍👦🇫🇷🙂🫠💥"),
    st.sampled_from("abcdefgh äßçñøİıſﬁ中文字ひらがな한국어العربيةעברית"),
    st.sampled_from(["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "</s>", "<pad>", "<|endoftext|>", "▁", "Ġ", "##a"]),
]
LINES = st.one_of(st.sampled_from(KNOWN), *(st.text(alphabet, max_size=40) for alphabet in ALPHABETS[:-1]))
LINES |= st.lists(ALPHABETS[-1], max_size=6).map(" ".join)
HUGE = st.builds(str.__mul__, st.text(st.one_of(*ALPHABETS[:-1]), min_size=1, max_size=5), st.integers(1, 20_000))
ENDS = st.sampled_from(["\n", "\n", "\r\n", "\r", "\u2028", "\x85", "\n\n", "\f", "\n\0"])
TEXTS = st.builds(
    lambda end, *parts: end.join([line for part in parts for line in part]),
    ENDS,
    st.sampled_from([[], KNOWN, KNOWN]),
    st.lists(LINES, max_size=20),
    st.lists(HUGE, max_size=1),
)
CODINGS = st.sampled_from(
    ["utf-8", "utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-7", "cp1252", "shift-jis"]
)
CORPORA = st.one_of(
    st.builds(lambda text, coding: text.encode(coding, errors="ignore"), TEXTS, CODINGS),
    st.builds(lambda text, junk: text.encode() + junk, TEXTS, st.binary(max_size=5)),
    st.binary(max_size=300),
)


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, pytest.param(900, marks=pytest.mark.fuzz)])
def test_any_corpus_makes_a_run_or_is_refused(n: int, models: Path) -> None:
    ended: Counter[int] = Counter()

    def check(corpus: bytes, model: str, min_count: int, max_length: int) -> None:
        with new_folder() as place:
            (place / "corpus.txt").write_bytes(corpus)
            args = ["--model", str(models / model), "--corpus", "corpus.txt", "--max_length", str(max_length)]
            args += ["--layer", "1", "--trainer.max_epochs", "2", "--task_args.min_count", str(min_count)]
            ended[ending(args, place)] += 1

    lengths, counts = st.sampled_from([3, 8, 20, 128]), st.integers(1, 3)
    try_many(n, check, corpus=CORPORA, model=st.sampled_from(MODELS), min_count=counts, max_length=lengths)
    assert {0, 2} <= set(ended)
    print(f"corpora by exit status: {dict(ended)}")


# --- files of options ---

OPTIONS = [*option_types(fit), "probe", "wandb"]
NO_OPTIONS = [
    "", ".", "a b", "probe.", "--layer", "layr", "config", "help", "class_path", "probe.l2.x", "__class__", "<<", "0",
]  # fmt: skip
INNER = [
    "max_epochs", "max_time", "devices", "strategy", "accelerator", "precision", "num_nodes", "deterministic",
    "callbacks", "max_epoch", "logger", "l1", "l2", "min_count", "mode", "tags", "class_path", "init_args",
]  # fmt: skip
WORDS = [
    "all", "none", "0,1", "1e-3", "lbfgs", "adam", "float16", "tiny", "builtin", "-", "~", "yes", "../x", "/dev/null",
]  # fmt: skip
NUMBERS = st.integers(-3, 5) | st.integers() | st.floats() | st.sampled_from([2**63, 10**30, 1e308, 1e-308])
SCALARS = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.text(max_size=12), st.dates(), st.binary(max_size=4), st.sampled_from(WORDS)
)
VALUES = st.recursive(
    SCALARS,
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(INNER) | st.text(max_size=3), part, max_size=4)
    ),
    max_leaves=6,
)
MAPPINGS = st.dictionaries(st.sampled_from(OPTIONS) | st.sampled_from(NO_OPTIONS) | st.text(max_size=4), VALUES)
# Pieces of YAML, most of which do not fit together.
PIECES = [
    "layer", "seed", "probe", "trainer", "model", ": ", ": ", ": ", "\n", "\n", "  ", "- ", "[", "]", "{", "}", ", ",
    "&a ", "*a", "<<: *a", "!!python/object/apply:os.mkdir [evidence]", "!!python/name:os.mkdir", "!!binary ", "!!set ",
    "!!int ", "!!float ", "!!timestamp ", "!!omap ", "!!str ", "!mine ", "? ", "| ", "> ", "'", '"', "# ", "---\n",
    "...\n", "%YAML 1.2\n", "\t", "1", "2", "x", "2001-99-99", "0o9", ".nan", "1_0", "0x", "1:2", "~", "=", "<<", "\0",
    "\ud800",
]  # fmt: skip
DOCUMENTS = st.one_of(
    MAPPINGS.map(lambda options: yaml.dump(options)),
    MAPPINGS.map(lambda options: yaml.safe_dump(options, allow_unicode=True, default_flow_style=True)),
    st.lists(st.sampled_from(PIECES), max_size=20).map("".join),
    st.text(max_size=40).map("layer: {}".format),
).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=60)


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, pytest.param(800, marks=pytest.mark.fuzz)])
def test_any_file_of_options_is_taken_or_refused_before_any_work(
    n: int, models: Path, corpus_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What passes every check is stopped where the work begins: it might ask for a thousand processes."""

    def stop(*args: Any, **options: Any) -> None:
        raise UserError("all is well.")

    monkeypatch.setattr("probing.activations.source.ActivationSource.read", stop)
    usual = ["--model", str(models / "bert"), "--corpus", str(corpus_file)]

    def check(document: bytes, also: bool) -> None:
        with new_folder() as place:
            (place / "options.yaml").write_bytes(document)
            # The command line goes before the file: without it, a corpus or a model of the file's own counts.
            assert ending(["--config", "options.yaml", *(usual if also else [])], place) == 2
            assert [path.name for path in place.iterdir()] == ["options.yaml"]

    try_many(n, check, document=DOCUMENTS, also=st.booleans())


def mostly(good: st.SearchStrategy[Any], *bad: Any) -> st.SearchStrategy[Any]:
    """Good values with a few bad ones among them."""
    return st.integers(0, 19).flatmap(lambda chance: st.sampled_from(bad) if chance == 0 else good)


def number(low: float, high: float) -> st.SearchStrategy[Any]:
    return mostly(st.floats(low, high) | st.sampled_from([low, high]), 0, -1, float("nan"), float("inf"), "x", None)


def some(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=strategies)


PROBE = {
    "l1": number(0, 1),
    "l2": number(1e-30, 1e30),
    "tolerance": number(1e-30, 1),
    "penalty_space": mostly(st.sampled_from(["sd", "rms", "raw"]), "sdd"),
}
PROBE_OF_ADAM = {
    "learning_rate": number(1e-30, 1e30),
    "batch_size": mostly(st.sampled_from([50, 10**20]), 0, 1.5),
    "patience": mostly(st.sampled_from([1, 10**20]), 0),
}
TRAINER = {
    "max_epochs": mostly(st.integers(1, 3), 0, -2, 1.5),
    "max_time": mostly(st.sampled_from(["00:00:01:00", {"seconds": 30}]), "00:00:00:00", "soon", {"seconds": -1}, 3),
    "deterministic": mostly(st.sampled_from([True, False, "warn"]), "x"),
    "enable_checkpointing": st.booleans(),
    "accelerator": mostly(st.sampled_from(["cpu", "auto"]), "abacus"),
    "devices": mostly(st.sampled_from([1, "1", "auto"]), 0, "x"),
}
TRAINER_OF_ADAM = {
    "gradient_clip_val": number(0, 10),
    "min_epochs": mostly(st.integers(0, 2), -1),
    "accumulate_grad_batches": mostly(st.integers(1, 3), 0),
    "limit_train_batches": mostly(st.integers(1, 3), 0, 0.5),
    "limit_val_batches": mostly(st.integers(0, 3), 0.5),
    "check_val_every_n_epoch": mostly(st.integers(1, 3), 0),
    "precision": mostly(st.sampled_from([32, 64, "bf16-mixed", "16-true"]), "x"),
}
SHARED = {
    "layer": mostly(st.sampled_from([0, 1, "0,2", [1, 2], "all"]), [], "3,9", -1),
    "random_weights": st.booleans(),
    "dtype": st.sampled_from(["float32", "bfloat16", "float16"]),
    "max_length": mostly(st.integers(5, 12), 0, 1, 10**10),
    "batch_tokens": mostly(st.sampled_from([1, 100, 10**18]), 0),
    "seed": mostly(st.integers(0, 2**63 - 1), -1, 2**63),
    "task_args": some(
        min_count=mostly(st.integers(1, 6), 0, -1),
        max_position=mostly(st.integers(2, 6), 0),
        special_tokens=mostly(st.sampled_from(["include", "exclude"]), "x"),
    ),
}
SENSIBLE = st.one_of(
    some(**SHARED, probe=some(**PROBE), trainer=some(**TRAINER)),
    some(
        **SHARED,
        probe=some(**PROBE, **PROBE_OF_ADAM).map(lambda probe: {**probe, "solver": "adam"}),
        trainer=some(**TRAINER, **TRAINER_OF_ADAM),
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, pytest.param(300, marks=pytest.mark.fuzz)])
def test_any_options_of_the_right_kind_make_a_run_or_are_refused(n: int, models: Path, sentences: list[str]) -> None:
    ended: Counter[int] = Counter()

    def check(options: dict[str, Any], model: str) -> None:
        with new_folder() as place:
            (place / "corpus.txt").write_text("\n".join(sentences[:40]), encoding="utf-8")
            options = {**options, "trainer": {"max_epochs": 2, **options.get("trainer", {})}}
            (place / "options.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
            args = ["--config", "options.yaml", "--model", str(models / model), "--corpus", "corpus.txt"]
            ended[ending(args, place)] += 1

    try_many(n, check, options=SENSIBLE, model=st.sampled_from(MODELS))
    assert 0 in ended
    print(f"options by exit status: {dict(ended)}")


# What reads a damaged copy, and how it was damaged.
Damaged = tuple[str, Callable[[], object]]


def try_damages(n: int, place: Path, make: Callable[[Path, random.Random], Damaged]) -> Counter[str]:
    """Damage `n` copies and read each; what is neither read nor refused by a sentence fails with its seed."""
    counts: Counter[str] = Counter()
    for seed in range(n):
        folder, draw = place / str(seed), random.Random(seed)
        folder.mkdir()
        how, read = make(folder, draw)
        try:
            said = ended(read)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {how}") from error
        counts["refused" if said else "read"] += 1
        shutil.rmtree(folder)
    print(dict(counts))
    return counts


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n", [100, pytest.param(2000, marks=pytest.mark.fuzz)])
def test_damaged_activations_are_read_or_refused(n: int, tmp_path: Path) -> None:
    write_activations(tmp_path / "valid")
    counts = try_damages(n, tmp_path, lambda place, draw: damaged_activations(tmp_path / "valid", place, draw))
    assert min(counts["refused"], counts["read"]) > n / 10


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n", [pytest.param(10, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.fuzz)])
def test_damaged_models_are_read_or_refused(n: int, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    counts = try_damages(n, tmp_path, lambda place, draw: damaged_model(checkpoints["bert"], place, draw))
    assert min(counts["refused"], counts["read"]) > n / 10


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HostileHub]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between its tries
    with loopback_hub(HostileHub) as opened:
        yield opened


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n", [pytest.param(20, marks=pytest.mark.slow), pytest.param(500, marks=pytest.mark.fuzz)])
def test_answers_of_a_hub_are_taken_or_refused(
    n: int, checkpoints: dict[str, Path], corpus_file: Path, hub: HostileHub, tmp_path: Path
) -> None:
    run = make_few(checkpoints["bert"], corpus_file, tmp_path / "runs")["fit"]
    probing.load_run(run).push("some/run", endpoint=hub.address)

    def make(place: Path, draw: random.Random) -> Damaged:
        how = hub.damage(draw)
        return how, lambda: probing.pull("some/run", place / "run", endpoint=hub.address)

    counts = try_damages(n, tmp_path, make)
    assert not list(tmp_path.glob("*/.run.*"))
    assert counts["refused"] > counts["read"] > 0
