"""Commands called from Python, with values as Python has them, and which files of figures they write."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

import probing
from conftest import BARE, ROOT, make_sentences
from probing import Run, WandbOptions, attention, compare, fit, rank, report, sweep
from probing.__main__ import COMMANDS
from probing.activations import ActivationStore
from probing.cli.arguments import option_types
from probing.cli.commandline import load_command, without_validation
from probing.cli.commandline import run as run_command
from probing.cli.options import ProbeOptions
from probing.errors import UserError
from probing.runs.loading import load_run
from probing.studies.fit import extract
from probing.studies.geometry import geometry

pytestmark = pytest.mark.slow

Fit = Callable[..., Any]
NO_WANDB = WandbOptions(mode="disabled")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def quick(checkpoints: dict[str, Path], corpus_file: Path, folder: Path) -> Fit:
    """`fit` on a tiny model and corpus without evidence; options go before."""

    def run(**options: Any) -> Any:
        usual: dict[str, Any] = {
            "model": checkpoints["bert"], "corpus": corpus_file, "layer": 1, "quiet": True,
            "wandb": {"mode": "disabled"}, **BARE,
        }  # fmt: skip
        return fit(**{**usual, **options})

    return run


def nothing_written(folder: Path) -> bool:
    return not list(folder.iterdir())


# --- values ---


def test_paths_numbers_of_numpy_and_text_for_numbers_are_those_of_the_command_line(
    quick: Fit, checkpoints: dict[str, Path], corpus_file: Path, folder: Path
) -> None:
    plain = quick(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), seed=3, layer=[0, 1], runs="runs", name="plain",
        probe=ProbeOptions(l2=1e-3), wandb=WandbOptions(mode="disabled"),
    )  # fmt: skip
    run = quick(
        seed=np.int64(3), layer=np.array([0, 1]), runs=folder / "runs", name=Path("as-python-has-them"),
        cache=Path("runs/cache"), probe={"l2": "1e-3"}, replicates=np.int32(0),
    )  # fmt: skip
    assert run.neurons == plain.neurons
    assert run.folder == folder / "runs" / "as-python-has-them"
    written = yaml.safe_load((run.folder / "config.yaml").read_text(encoding="utf-8"))
    assert written["seed"] == 3
    assert written["probe"] == plain.config["probe"]
    assert {name for name in written if written[name] != plain.config[name]} == {"runs", "cache"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"wandb": "disabled"}, "wandb.job_type, as in wandb={'mode': ...}"),
        ({"probe": {"l2": "strong"}}, '`probe.l2="strong"`: expected a number or auto'),
        ({"probe": {"l3": 1}}, "`probe.l3` is not an option of fit (did you mean `probe.l2`?)"),
        ({"probe": 3}, "`probe=3`: expected some of probe.l1"),
        ({"seed": "many"}, '`seed="many"`: expected a whole number'),
        ({"seed": np.float64(1.5)}, "`seed=1.5`: expected a whole number"),
        ({"seed": None}, "`seed=None`: expected a whole number"),
        ({"seed": -1}, "`seed=-1` is out of range"),
        ({"quiet": "maybe"}, '`quiet="maybe"`: expected true or false'),
        ({"trainer": "fast"}, '`trainer="fast"`: expected names with values'),
        ({"layer": {"a": 1}}, "`layer={'a': 1}`: expected a whole number"),
        ({"corpus": 7}, "`corpus=7`: expected text"),
        ({"corpus": ["one sentence", 7]}, "`corpus`: item 1 of the list, counted from 0, is 7"),
        ({"corpus": []}, "holds no sentence"),
        ({"corpus": "nosuch.csv"}, '`corpus="nosuch.csv"` cannot be read'),
        ({"corpus": {"a": 1}}, "`corpus={'a': 1}`: expected text"),
        (
            {"corpus": (text for text in ("a", "b"))},
            "`corpus` is of type generator: expected a name, a path, or a list",
        ),
        ({"model": object()}, "`model` is of type object: expected a name, the path of a folder, or a PreTrained"),
        ({"tokenizer": object()}, "`tokenizer` belongs to a model that is an object"),
        ({"seed": "many", "replicates": 1.5}, 'expected a whole number; `seed="many"`: expected a whole'),
        ({"seed": "many", "replicates": -1, "layer": "3-1"}, 'a whole number; `layer="3-1"` is not a layer'),
        ({"seed": "many", "replicates": -1, "layer": "3-1"}, "`replicates=-1` is out of range"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # an object would show its address
)
def test_what_cannot_be_is_refused_in_one_sentence_before_any_work(
    options: dict[str, Any], words: str, quick: Fit, folder: Path
) -> None:
    with pytest.raises(UserError) as refused:
        quick(**options)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert nothing_written(folder)


def test_several_folders_are_a_list(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^`compare` takes folders as a list: `compare\(\['runs/A', 'runs/B'\]\)`\.$"):
        compare("runs/A", Path("runs/B"))  # type: ignore[arg-type]


def test_an_argument_that_does_not_exist_is_a_mistake_of_the_program(quick: Fit) -> None:
    with pytest.raises(
        TypeError, match=r"^fit\(\) got an unexpected keyword argument 'sed' \(did you mean `seed`\?\)$"
    ):
        quick(sed=3)
    with pytest.raises(
        TypeError, match=r"'sed' .*; `layer=\"six\"` is not a layer: .*; `replicates=-1` is out of range"
    ):
        quick(sed=3, layer="six", replicates=-1)
    with pytest.raises(
        TypeError, match=r"'device' \(did you mean `trainer.accelerator`\?\); got an .*'x'; `seed=\"y\"`: exp"
    ):
        quick(device="cuda", x=1, seed="y")
    with pytest.raises(TypeError, match=r"^fit\(\) multiple values for argument 'model'$"):
        fit("bert", model="bert")  # type: ignore[misc]


def test_results_stand_for_their_folder(quick: Fit, folder: Path) -> None:
    first, second = quick(name="a"), quick(name="b", seed=1)
    assert os.fspath(first) == str(first.folder)
    assert load_run(first).config == first.config
    assert rank(first, method="weight", quiet=True).folder == first.folder / "rankings"
    both = compare([first, second], null_draws=1, quiet=True, wandb=NO_WANDB)
    assert list(both.results["runs"].values()) == [str(first.folder), str(second.folder)]
    assert report(both).is_file()
    heads = attention(model=first.config["model"], run=first, parts="position_neurons", quiet=True, wandb=NO_WANDB)
    assert heads.config["run"] == str(first.folder)


def test_the_public_names_are_those_that_a_prompt_completes() -> None:
    shown = [name for name in dir(probing) if not name.startswith("__")]
    assert {"fit", "probe", "load_run", "compare", "UserError", "Run"} <= set(shown)
    assert all(getattr(probing, name) is not None for name in shown)
    assert not {"annotations", "TYPE_CHECKING", "Any"} & set(shown)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_called_so(name: str) -> None:
    called = load_command(COMMANDS[name])
    assert without_validation(called) is not called  # the command line has checked its arguments already
    options = inspect.signature(called).parameters
    text = next(option for option in ("cache", "output", "runs", "table") if option in options)
    with pytest.raises(UserError, match=rf"`{text}=3\.5`: expected text"):
        called(**{text: 3.5})


def test_a_deterministic_run_leaves_the_algorithms_of_a_notebook_as_they_were(
    quick: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A command line, which has a process of its own elsewhere, may have changed it in this one.
    torch.set_deterministic_debug_mode("default")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    quick(trainer={"accelerator": "cpu", "deterministic": True})
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    with pytest.raises(UserError, match="max_epochs"):
        quick(trainer={"accelerator": "cpu", "deterministic": True, "max_epochs": 0})
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


# --- sentences ---


def test_a_list_of_sentences_is_a_corpus_and_the_run_keeps_it(quick: Fit, corpus_file: Path, folder: Path) -> None:
    sentences = corpus_file.read_text(encoding="utf-8").splitlines()
    from_file, run = quick(name="file"), quick(name="list", corpus=tuple(sentences))
    assert run.neurons == from_file.neurons
    assert run.results["cache"] == from_file.results["cache"]  # the same entry
    assert run.config["corpus"] == "runs/list/corpus.txt"
    assert Path(run.config["corpus"]).read_text(encoding="utf-8") == corpus_file.read_text(encoding="utf-8")
    again = fit(**{**run.config, "name": "again"})
    assert again.neurons == run.neurons
    assert rank(run.folder, method="anova").rankings["anova"]


def test_both_corpora_may_be_lists(quick: Fit) -> None:
    sentences = make_sentences(200)
    run = quick(name="lists", corpus=sentences[:150], test_corpus=["a  sentence\nover lines", *sentences[150:]])
    assert Path("runs/lists/test_corpus.txt").read_text(encoding="utf-8").startswith("a sentence over lines\n")
    assert run.config["test_corpus"] == "runs/lists/test_corpus.txt"


def test_geometry_takes_lists_too(checkpoints: dict[str, Path], folder: Path) -> None:
    sentences = make_sentences(60)
    measured = geometry(
        checkpoints["bert"], 1, corpus=sentences, fit_corpus=sentences[:30], transforms="none", name="g",
        quiet=True, wandb={"mode": "disabled"},
    )  # fmt: skip
    assert len((measured.folder / "fit_corpus.txt").read_text(encoding="utf-8").splitlines()) == 30
    assert (
        yaml.safe_load((measured.folder / "config.yaml").read_text(encoding="utf-8"))["corpus"] == "runs/g/corpus.txt"
    )


# --- models ---


def load(checkpoint: Path, kind: Any = AutoModel) -> dict[str, Any]:
    return {"model": kind.from_pretrained(checkpoint), "tokenizer": AutoTokenizer.from_pretrained(checkpoint)}


@pytest.mark.parametrize(
    ("family", "kind"), [("bert", AutoModel), ("bert", AutoModelForMaskedLM), ("t5", AutoModel), ("bart", AutoModel)]
)
def test_a_model_as_an_object_gives_what_its_folder_gives(
    family: str, kind: Any, checkpoints: dict[str, Path], corpus_file: Path, folder: Path
) -> None:
    objects = load(checkpoints[family], kind)
    objects["model"].train()
    kept = {name: tensor.clone() for name, tensor in objects["model"].state_dict().items()}
    there = ActivationStore(extract(checkpoints[family], [0, 2], corpus=corpus_file, quiet=True))
    here = ActivationStore(extract(**objects, layer=[0, 2], corpus=corpus_file, quiet=True))
    assert here.folder != there.folder
    for layer in (0, 2):
        for shard in range(len(there.plan.shards)):
            assert np.array_equal(here.read(layer, shard), there.read(layer, shard))
    assert objects["model"].training
    assert all(torch.equal(tensor, kept[name]) for name, tensor in objects["model"].state_dict().items())


def test_the_cache_tells_weights_and_tokenizers_apart(checkpoints: dict[str, Path], folder: Path) -> None:
    objects = load(checkpoints["bert"])
    sentences = make_sentences(30)

    def entry(**others: Any) -> Path:
        return extract(**{**objects, "layer": 0, "corpus": sentences, "quiet": True, **others})

    first = entry()
    objects["tokenizer"](sentences, padding=True, truncation=True, max_length=5)  # as the user may call it meanwhile
    objects["model"](
        **objects["tokenizer"](sentences[:2], padding=True, return_tensors="pt"), output_hidden_states=True
    )
    assert entry() == first
    assert entry(random_weights=True) != first
    with torch.no_grad():
        objects["model"].encoder.layer[0].output.dense.weight[0, 0] += 1e-3
    assert (second := entry()) != first
    objects["tokenizer"].model_max_length = 7
    assert entry() not in (first, second)


def test_the_run_says_what_the_model_was(quick: Fit, checkpoints: dict[str, Path], folder: Path) -> None:
    objects = load(checkpoints["bert"])
    run = quick(name="object", **objects, controls="untrained")
    named = quick(name="named", controls="untrained")
    assert run.config["model"].startswith("object:BertModel@")
    assert len(run.config["model"]) == len("object:BertModel@") + 16
    assert "tokenizer" not in run.config
    assert run.neurons == named.neurons
    assert run.accuracy[0]["untrained_accuracy"] == named.accuracy[0]["untrained_accuracy"]
    assert load_run(run.folder).config == run.config
    again = fit(**{**run.config, "name": "again", **objects})
    assert again.config["model"] == run.config["model"]
    for repeated in (lambda: fit(**{**run.config, "name": "no"}), lambda: rank(run.folder)):
        with pytest.raises(UserError, match=r"`model=.object:BertModel@.*` was an object.*`save_pretrained`"):
            repeated()


def scaled(module: Any, inputs: Any, output: Any) -> Any:
    return output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda o: o.pop("tokenizer"), r"`model` is a BertModel: give its tokenizer too"),
        (lambda o: o.update(tokenizer="bert"), r"`tokenizer` is of type str: expected a fast tokenizer"),
        (lambda o: o.update(revision="v1"), r"`revision=v1`: `model` is an object, which has no revisions"),
        (lambda o: o.update(model=o["model"].to("meta")), r"some weights of the BertModel are not in memory"),
        (lambda o: o["model"].encoder.register_forward_hook(scaled), r"a hook on `encoder` may change"),
        (lambda o: o["model"].resize_token_embeddings(9), r"the BertModel has embeddings for 9: give the model's own"),
        (lambda o: o.update(model=torch.nn.Linear(2, 2)), r"`model` is of type Linear: expected a name"),
        (lambda o: o.update(layer=9), r"`layer=9`: object:BertModel@\w+ has layers 0 \(embeddings\) to 3"),
    ],
    ids=["no tokenizer", "a name", "revision", "meta", "hook", "another vocabulary", "no model", "layer"],
)
def test_objects_that_cannot_be_used_are_refused_before_any_work(
    change: Callable[[dict[str, Any]], Any], words: str, quick: Fit, checkpoints: dict[str, Path], folder: Path
) -> None:
    objects = load(checkpoints["bert"])
    change(objects)
    with pytest.raises(UserError, match=words):
        quick(**objects)
    assert nothing_written(folder)


FIGURE_FORMAT_NO_WANDB = {"mode": "disabled"}
# What the commands that draw take beside the option, to be refused for nothing else.
DRAWING = {
    "fit": [], "rank": ["no-run"], "compare": ["a", "b"], "sweep": [str(ROOT / "conf" / "sweeps" / "layers.yaml")],
    "attention": [], "ablate": [], "pretrain": [], "finetune": [], "tuning-effect": [], "triggers": [],
    "checkpoints": [], "hierarchy": [], "cloze": [], "geometry": [], "position": [], "extremes": [], "wic": [],
    "sts": [], "position-bias": [], "trees": ["--corpus=builtin"], "export figures": ["no-run"],
}  # fmt: skip


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix in (".png", ".pdf", ".svg")}


@pytest.fixture(scope="module")
def run(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    options: dict[str, Any] = {
        **BARE,
        "wandb": FIGURE_FORMAT_NO_WANDB,
        "layer": [1, 2],
        "quiet": True,
        "figure_format": "svg",
    }
    return fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(tmp_path_factory.mktemp("r")), **options
    )


def test_a_run_has_its_figures_in_that_format_and_its_page_as_always(run: Run) -> None:
    assert files(run.folder / "figures") == {
        f"{name}.svg" for name in ("accuracy", "positions", "confusions", "top_neurons", "neuron_map")
    }
    assert "<svg" in (run.folder / "report.html").read_text(encoding="utf-8")
    assert load_run(run.folder).config["figure_format"] == "svg"


def test_other_commands_write_what_is_asked_for(run: Run, tmp_path: Path, corpus_file: Path) -> None:
    common: dict[str, Any] = {"quiet": True, "wandb": FIGURE_FORMAT_NO_WANDB}
    ranked = rank(str(run.folder), layer=1, curves=True, k=[4], draws=1, figure_format=["pdf", "svg"], **common)
    assert files(ranked.folder) == {"curves_01.pdf", "curves_01.svg"}
    pair = [str(run.folder), str(run.folder)]
    compared = compare(pair, null_draws=2, runs=str(tmp_path), figure_format="pdf", **common)
    assert files(compared.folder / "figures") == {"agreement.pdf", "accuracy.pdf"}
    measured = geometry(
        model=run.config["model"], corpus=str(corpus_file), layer=[1, 2], transforms="none", draws=1,
        runs=str(tmp_path), cache=str(run.folder.parent / "cache"), figure_format="png", **common,
    )  # fmt: skip
    drawn = files(measured.folder / "figures")
    assert {"outliers.png", "anisotropy.png"} <= drawn
    assert {Path(name).suffix for name in drawn} == {".png"}


def test_a_sweep_draws_itself_in_that_format(run: Run, tmp_path: Path, corpus_file: Path) -> None:
    (file := tmp_path / "s.yaml").write_text(
        "method: grid\nparameters:\n  layer: {values: [1, 2]}\n  probe.l2: {value: 0.01}\n", encoding="utf-8"
    )
    made = sweep(
        str(file), fit={"model": run.config["model"], "corpus": str(corpus_file)}, runs=str(tmp_path / "runs"),
        cache=str(run.folder.parent / "cache"), quiet=True, wandb={"mode": "disabled"}, figure_format="svg",
    )  # fmt: skip
    assert files(made.folder / "figures") == {"sweep.svg"}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_format_is_refused_before_any_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = option_types(without_validation(load_command(COMMANDS[name])))
    draws = "figure_format" in options
    assert draws == (name in DRAWING)
    if draws:
        monkeypatch.chdir(tmp_path)
        off = ["--wandb.mode=disabled"] * ("wandb.mode" in options)
        assert run_command(COMMANDS, [*name.split(), *DRAWING[name], "--figure_format=png,gif", *off]) == 2
        error = capsys.readouterr().err
        assert f"probing {name}: `--figure_format gif` is not one of png, pdf, svg, all; give one or more" in error
        assert list(tmp_path.iterdir()) == []
