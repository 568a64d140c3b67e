"""Nothing that is downloaded, typed or read is run; nothing is written elsewhere; no secret is written anywhere.

That a manifest leads out of its cache entry is tested with the store, names of runs with the other bad input.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import probing
from conftest import BARE_ARGS
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.models import load_config, load_encoder, load_tokenizer, resolve_model
from probing.runs.loading import load_run
from probing.tracking import resolve_mode
from wandb_stand_in import WandbServer

QUICK = ["--layer", "1", "--trainer.max_epochs", "2", "--task_args.min_count", "5", "--quiet", *BARE_ARGS]


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    """A folder that what must not run would make."""
    return tmp_path / "evidence"


# --- pickle ---


class Malicious:
    """Unpickled without care, it leaves a folder behind."""

    def __init__(self, evidence: Path) -> None:
        self.evidence = evidence

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.evidence),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
@pytest.mark.parametrize("container", ["zip", "bare pickle"])
def test_a_malicious_pickle_is_refused_and_not_run(
    tiny_model: Callable[..., Path], evidence: Path, container: str
) -> None:
    folder = tiny_model("bert")
    (folder / "model.safetensors").unlink()
    weights = folder / "pytorch_model.bin"
    if container == "zip":
        torch.save({"embeddings": Malicious(evidence)}, weights)
    else:
        weights.write_bytes(pickle.dumps({"embeddings": Malicious(evidence)}))
    with pytest.raises(UserError, match=r"cannot be loaded as safetensors or with weights_only.*save_pretrained"):
        load_encoder(resolve_model(str(folder)))
    assert not evidence.exists()
    pickle.loads(pickle.dumps(Malicious(evidence)))
    assert evidence.exists()  # the trap works


def test_the_older_format_is_read_as_weights_only(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model("bert")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    asked, loading = [], torch.load

    def spy(*args: Any, **keywords: Any) -> Any:
        asked.append(keywords.get("weights_only"))
        return loading(*args, **keywords)

    monkeypatch.setattr(torch, "load", spy)
    load_encoder(resolve_model(str(folder)))
    assert asked == [True]


# --- code from outside ---


@pytest.fixture
def their_code(tiny_model: Callable[..., Path], evidence: Path) -> Path:
    """A checkpoint with code beside it."""
    folder = tiny_model("bert")
    (folder / "theirs.py").write_text(f"import os\nos.mkdir({str(evidence)!r})\n", encoding="utf-8")
    return folder


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def test_code_that_comes_with_a_model_is_not_run(their_code: Path, evidence: Path) -> None:
    auto_map = {"AutoConfig": "theirs.Config", "AutoModel": "theirs.Model"}
    change(their_code / "config.json", model_type="theirs", auto_map=auto_map)
    with pytest.raises(UserError, match=r"own-bert-0` needs code from its repository, which is never run here"):
        load_config(resolve_model(str(their_code)))
    assert not evidence.exists()


def test_where_a_family_is_known_its_own_code_is_taken(their_code: Path, evidence: Path) -> None:
    change(their_code / "config.json", auto_map={"AutoConfig": "theirs.Config", "AutoModel": "theirs.Model"})
    auto_map = {"AutoTokenizer": ["theirs.Tokenizer", "theirs.FastTokenizer"]}
    change(their_code / "tokenizer_config.json", auto_map=auto_map)
    source = resolve_model(str(their_code))
    assert type(load_encoder(source)).__module__.startswith("transformers.")
    assert type(load_tokenizer(source)).__module__.startswith("transformers.")
    assert not evidence.exists()


@pytest.mark.parametrize("other", [{}, {"tokenizer_class": "Theirs"}, {"tokenizer_class": "os.system"}])
def test_code_that_comes_with_a_tokenizer_is_not_run(their_code: Path, evidence: Path, other: dict[str, str]) -> None:
    auto_map = {"AutoTokenizer": ["theirs.Tokenizer", "theirs.FastTokenizer"]}
    change(their_code / "tokenizer_config.json", auto_map=auto_map, **other)
    try:
        tokenizer = load_tokenizer(resolve_model(str(their_code)))
    except UserError:
        pass
    else:
        assert type(tokenizer).__module__.startswith("transformers.")
    assert not evidence.exists()


@pytest.fixture
def module(evidence: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that leaves a folder behind when it is imported."""
    (tmp_path / "overheard.py").write_text(
        f"import os\nos.mkdir({str(evidence)!r})\nclass Probe: pass\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "overheard"
    sys.modules.pop("overheard", None)


TAGS = [
    "!!python/object/apply:os.mkdir [EVIDENCE]",
    "!!python/object/new:os.mkdir [EVIDENCE]",
    "!!python/object/apply:os.mkdir {args: [EVIDENCE]}",
    "!!python/object:overheard.Probe {}",
    "!!python/name:overheard.Probe",
    "!!python/module:overheard",
]
PATHS = ["{class_path: overheard.Probe}", "{class_path: overheard.Probe, init_args: {a: 1}}", "overheard.Probe"]
PLACES = [
    "seed",
    "layer",
    "corpus",
    "probe",
    "probe.l2",
    "trainer",
    "trainer.strategy",
    "task",
    "task_args",
    "task_args.x",
]


@pytest.mark.slow
@pytest.mark.parametrize("place", [*PLACES, "unknown"])
def test_a_file_of_options_makes_no_objects_and_imports_nothing(
    place: str, module: str, evidence: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in TAGS + PATHS:
        path = tmp_path / "options.yaml"
        path.write_text(f"{place}: {value}\n".replace("EVIDENCE", str(evidence)), encoding="utf-8")
        assert run(COMMANDS, ["fit", "--config", str(path), "--runs", str(tmp_path / "runs")]) == 2, value
        assert not evidence.exists()
        assert module not in sys.modules
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_what_is_typed_makes_no_objects_and_imports_nothing(
    place: str, module: str, evidence: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in TAGS + PATHS:
        typed = f"--{place}={value}".replace("EVIDENCE", str(evidence))
        assert run(COMMANDS, ["fit", typed, "--runs", str(tmp_path / "runs")]) == 2, value
        assert not evidence.exists()
        assert module not in sys.modules
    assert "Traceback" not in capsys.readouterr().err


def test_the_traps_for_objects_work(module: str, evidence: Path) -> None:
    for tag in (TAGS[0], TAGS[3]):
        yaml.unsafe_load(tag.replace("EVIDENCE", str(evidence)))
        assert evidence.exists()
        evidence.rmdir()


def test_the_configuration_of_a_run_makes_no_objects(tmp_path: Path, evidence: Path) -> None:
    (tmp_path / "results.json").write_text("{}", encoding="utf-8")
    (tmp_path / "config.yaml").write_text(f"seed: !!python/object/apply:os.mkdir [{evidence}]\n", encoding="utf-8")
    with pytest.raises(UserError, match="is damaged"):
        load_run(tmp_path)
    assert not evidence.exists()


# --- paths ---


@pytest.mark.slow
def test_no_name_leads_out_of_the_folder_of_runs(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    for name in ("$(mkdir evidence) ..", "-rf *", "..hidden", "a\nb"):
        (tmp_path / name).symlink_to(checkpoints["bert"])
    (tmp_path / "deep" / "tiny").mkdir(parents=True)
    model = ["--corpus", str(corpus_file), "--wandb.mode", "disabled", *QUICK]
    outside = {path for path in tmp_path.rglob("*") if place not in path.parents}
    for name in ("../$(mkdir evidence) ..", "../-rf *", "../..hidden", "../a\nb", "../deep/tiny/../../..hidden"):
        assert run(COMMANDS, ["fit", "--model", name, *model]) == 0
    assert {path for path in tmp_path.rglob("*") if place not in path.parents} == outside
    assert [path.name for path in place.iterdir()] == ["runs"]
    made = {path.name for path in (place / "runs").iterdir()} | {path.name for path in (place / "runs/cache").iterdir()}
    assert all(re.fullmatch(r"\w[\w.-]*", name) for name in made)


def test_a_link_in_the_place_of_a_partial_run_is_not_followed(
    checkpoints: dict[str, Path],
    corpus_file: Path,
    tmp_path: Path,
    evidence: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    evidence.mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine.partial").symlink_to(evidence)
    model = ["--model", str(checkpoints["bert"]), "--corpus", str(corpus_file), "--wandb.mode", "disabled", *QUICK]
    assert run(COMMANDS, ["fit", *model, "--runs", str(tmp_path / "runs"), "--name", "mine"]) == 2
    assert "`--name mine`" in capsys.readouterr().err
    assert not list(evidence.iterdir())


# --- secrets ---


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["offline", "online"])
def test_no_secret_is_printed_written_or_passed_to_a_process(
    mode: str,
    checkpoints: dict[str, Path],
    corpus_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    secrets = {"WANDB_API_KEY": "5ec7e7" * 6 + "abcd", "HF_TOKEN": "hf_TheSecretOfTheHub", "AWS_SECRET": "a-w-s-secret"}
    started: list[str] = []
    start = subprocess.Popen.__init__

    def spy(self: Any, args: Any, *others: Any, **keywords: Any) -> None:
        started.append(repr(args))
        start(self, args, *others, **keywords)

    monkeypatch.setattr(subprocess.Popen, "__init__", spy)
    with WandbServer() as server:
        for variable, value in {**server.environment, **secrets}.items():
            monkeypatch.setenv(variable, value)
        assert resolve_mode("auto") == "online"  # the key is found
        model = ["--model", str(checkpoints["bert"]), "--corpus", str(corpus_file), "--wandb.mode", mode]
        assert run(COMMANDS, ["fit", *model, *QUICK, "--runs", str(tmp_path / "runs"), "--name", "mine"]) == 0
    assert bool(server.runs) == (mode == "online")
    said = capfd.readouterr()
    assert "Results:" in said.out
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert started  # the client's background process
    texts = {"out": said.out.encode(), "err": said.err.encode(), "processes": repr(started).encode()}
    texts |= {str(path): path.read_bytes() for path in files}
    for name, secret in secrets.items():
        for form in (secret.encode(), base64.b64encode(secret.encode()), base64.b64encode(f"api:{secret}".encode())):
            assert [place for place, text in texts.items() if form in text] == [], name


# --- the source ---

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for folder in ("probing", "tasks") for path in (ROOT / folder).rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
    "yaml.load_all", "pickle.load", "pickle.loads",
}  # fmt: skip
# Keywords that may have one value only, in these calls or in all.
KEYWORDS = {"trust_remote_code": False, "shell": False, "allow_pickle": False, "weights_only": True}


def findings(source: str) -> list[str]:
    """Return what in a file could run what it reads."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            found += [name] if name in FORBIDDEN_CALLS else []
            found += [
                f"{keyword}={ast.unparse(value)}"
                for keyword, value in keywords.items()
                if keyword in KEYWORDS and not (isinstance(value, ast.Constant) and value.value is KEYWORDS[keyword])
            ]
            if name in ("torch.load", "load_from_checkpoint") and "weights_only" not in keywords:
                found.append(f"{name} without weights_only")
            if name.endswith(".from_pretrained") and "trust_remote_code" not in keywords:
                found.append(f"{name} without trust_remote_code=False")
    return found


@pytest.mark.slow
def test_no_source_file_could_run_what_it_reads() -> None:
    found = {str(path): findings(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=careless)",
        "yaml.load(text, Loader=yaml.Loader)",
        "eval(text)",
        "exec(text)",
        "subprocess.run(text, shell=True)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
        "AutoModel.from_pretrained(path)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_what_is_looked_for_is_found(line: str) -> None:
    assert findings(line)


# What opens a file, or makes objects of a text. `probing.runtime.files` looks at what it is before.
OPENS = re.compile(
    r"open|((?!webbrowser).+\.)(open|read_text|read_bytes)"
    r"|(np|numpy)\.(load|memmap|fromfile|loadtxt|genfromtxt|open_memmap)|torch\.load|json\.loads?"
    r"|yaml\.(safe_load|load|compose)(_all)?|(safetensors\..*)?(safe_open|load_file)|(h5py\.)?File"
    r"|(zipfile\.)?ZipFile|(tarfile\.)?TarFile|(datasets\.)?load_(from_disk|dataset|dataset_builder)"
    r"|.+\.from_pretrained|shutil\.copy(file|2|tree)?|.+\.(memory_map|ParquetFile|read_table)"
    r"|(pd|pandas)\.read_\w+"
)
CHECKS = {"regular", "stored", "checked", "_checked", "_checked_folder", "files_of", "json.dumps"}
# What is opened in another way, and why.
EXCEPTIONS = {
    ("runtime/files.py", "open"): "the one place where files are opened",
    ("runtime/files.py", "os.open"): "the same",
    ("runtime/files.py", "json.loads"): "behind the count of levels, and of a file written just before",
    ("runtime/__init__.py", "limit.read_text"): "a file of the system, of a fixed name",
    ("runtime/trainer.py", "cpuinfo.read_text"): "a file of the system, of a fixed name",
    ("cli/commandline.py", "os.open"): "the null device",
    ("activations/store.py", "os.open"): "synchronised after it was written",
    ("activations/store.py", "json.loads"): "of a line that was written here",
    ("models/loading.py", "json.loads"): "of a tokenizer that is there",
    ("page/build.py", "files('probing.page').joinpath(name).read_text"): "a file of this package",
    ("studies/cloze/predictor.py", "files(__package__).joinpath('pairs.tsv').read_text"): "a file of this package",
    ("studies/claims/claim.py", "(_folder() / f'{name}.yaml').read_text"): "a file of this package",
    ("studies/claims/claim.py", "yaml.safe_load"): "the same",
    ("cli/arguments.py", "yaml.compose"): "behind the count of values",
    ("runtime/files.py", "path.open"): "written just before",
    ("runtime/terminal.py", "os.open"): "the null device",
    ("runtime/files.py", "zipfile.ZipFile"): "of a file that is open",
    ("activations/reading.py", "archive.open"): "a member of an archive that is open",
    ("activations/contents.py", "zarr.open"): "every file in the folder was looked at before",
    ("text/files.py", "datasets.load_dataset_builder"): "its files are looked at before any is read",
    ("text/files.py", "pandas.read_csv"): "one of those files",
}


def opened_unseen(source: str) -> list[str]:
    """Return the calls in a file that open what was not looked at."""
    tree, found = ast.parse(source), []
    looked_at = {
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_checked(node.value)
        for target in node.targets
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not OPENS.fullmatch(name := ast.unparse(node.func)):
            continue
        given = [*node.args[:1], *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
        words = {ast.unparse(one).strip("'") for one in [*node.args, *(word.value for word in node.keywords)]}
        is_written = name.endswith("open") and bool({"w", "wb", "a+b"} & words)
        is_seen = any(_is_checked(one) or ast.unparse(one) in looked_at for one in given)
        if not (is_written or is_seen):
            found.append(name)
    return found


def _is_checked(node: ast.AST) -> bool:
    """Whether an expression, or what is in it, is what one of the checks returns."""
    calls = (ast.unparse(inside.func) for inside in ast.walk(node) if isinstance(inside, ast.Call))
    return any(name in CHECKS or name.rpartition(".")[2] in CHECKS for name in calls)


@pytest.mark.slow
def test_every_file_is_opened_by_the_function_that_looks_at_it() -> None:
    package = ROOT / "probing"
    found = {
        (path.relative_to(package).as_posix(), name)
        for path in package.rglob("*.py")
        for name in opened_unseen(path.read_text(encoding="utf-8"))
    }
    assert found == {*EXCEPTIONS}


@pytest.mark.parametrize(
    "line",
    [
        "open(path)", "open(path, 'rb')", "path.open()", "path.read_text()", "path.read_bytes()", "np.load(path)",
        "safe_open(path, 'pt')", "load_file(path)", "h5py.File(path, 'r')", "torch.load(path)", "gzip.open(path)",
        "zipfile.ZipFile(path)", "zarr.open(path)", "load_from_disk(path)", "pandas.read_csv(path)",
        "AutoModel.from_pretrained(path)", "shutil.copyfile(path, to)", "json.loads(path)", "yaml.safe_load(path)",
        "yaml.load(path, Loader=SafeLoader)", "os.open(path, os.O_RDONLY)", "io.open(path)", "json.load(path)",
        "np.memmap(path)", "(folder / path).read_text()",
    ],
)  # fmt: skip
def test_what_opens_a_file_is_seen(line: str) -> None:
    assert opened_unseen(line)
    assert not opened_unseen(line.replace("path", "regular(path, folder)"))


def test_the_sources_are_those_that_are_used() -> None:
    used = Path(probing.__file__).parent
    own = [path for path in SOURCES if path.is_relative_to(ROOT / "probing")]
    assert len(own) > 30
    assert [path for path in own if (used / path.relative_to(ROOT / "probing")).read_bytes() != path.read_bytes()] == []
