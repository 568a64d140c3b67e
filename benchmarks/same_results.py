"""Does a change of the code leave every result as it was? Runs all commands in two checkouts and compares their files.

    python benchmarks/same_results.py make WORK                   # tiny models and texts
    python benchmarks/same_results.py run WORK before CHECKOUT    # what a checkout writes from them
    python benchmarks/same_results.py run WORK after . [--renames FILE] [--only REGEX]
    python benchmarks/same_results.py compare WORK before after [--renames FILE]

A checkout runs with its own `.venv`, where it has one. Compared are the terminal's text, tables, tensors, pages,
figures as SVG, configuration, `results.json`, exports, and the names logged to W&B, without times and versions.

FILE is JSON, for a change that renames: `commands` and `options` (`{"--given": "--control_for"}`) translate the calls
of `run`; `tables`, `columns` (as whole words) and `texts` (as they are) translate the results of `before` in `compare`.

`compare` exits with 0 only if nothing differs and every table that the commands declare was written.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PROBE = "--probe.l2 1e-2 --probe.tolerance 1e-3"
_BARE = f"{_PROBE} --replicates 0 --controls none --evidence none"
_BERT, _TEXT = "--model data/bert", "--corpus data/text.txt"
# A line each: the name of a run, the command and its options. A name with `.html` is the page of a report, and `-` is
# for a command that takes no name. A line starts when the runs that it names are complete, LAST after all others.
CALLS = f"""
position fit {_BERT} {_TEXT} --layer 0,2 --mdl --verbose
again fit {_BERT} {_TEXT} --layer 1,2 --probe.l2 1e-2 --transform clip --replicates 2
gpt fit --model data/gpt2 {_TEXT} --layer 2 {_PROBE} --first_token exclude --replicates 0 --evidence none
upos fit {_BERT} --corpus data/train.conllu --task upos --layer 1,2 --control_for deprel {_PROBE} --replicates 2
heads fit {_BERT} {_TEXT} --site attention --layer 2 {_PROBE} --replicates 0
units fit {_BERT} {_TEXT} --site mlp --layer 1 {_BARE} --test_corpus data/other.txt
features fit {_BERT} {_TEXT} --site sae:data/dictionary {_PROBE} --replicates 0 --controls none
number fit {_BERT} --corpus data/numbers.jsonl --task sentence_label --task_args.numbers true --layer 2
value fit {_BERT} --corpus data/numerals.txt --task number_value --layer 1,2 --control_for number_digits --replicates 2
spans fit {_BERT} --corpus data/spans.jsonl --task spans --layer 1,2 {_PROBE} --replicates 2
adam fit {_BERT} {_TEXT} --layer 1 --probe.solver adam --probe.l2 1e-3 --replicates 0 --controls shuffled
bias fit {_BERT} --corpus data/labelled.csv --task sentence_label --layer 2 --probe.bias true {_PROBE} --replicates 2
sparse fit {_BERT} {_TEXT} --layer 1 --probe.l1 1e-3 {_PROBE} --replicates 0 --controls none --sort centred
raw fit {_BERT} {_TEXT} --layer 1 --probe.penalty_space raw --random_weights {_BARE}
words fit {_BERT} --corpus data/words.tsv --task label --layer 1 {_PROBE} --replicates 0
- rank runs/position --method contribution,anova,probeless --evaluate --erase --curves --k 2,5 --draws 3 --top 4
- rank runs/upos --k 2
compared compare runs/position runs/again --null_draws 3
matched compare runs/position runs/gpt --matching correlation --null_draws 3
geometry geometry {_BERT} {_TEXT} --smoothing_bound --norms --path --draws 3 --estimators all
elsewhere geometry {_BERT} {_TEXT} --fit_corpus data/other.txt --transforms whiten,clip --layer 2 --draws 2
inside geometry {_BERT} {_TEXT} --norms --path --definition argmin_share --draws 2 --transforms none
split position {_BERT} {_TEXT} --run runs/position
massive extremes {_BERT} {_TEXT}
fixed extremes {_BERT} {_TEXT} --definition argmin_share
large extremes --model data/massive {_TEXT}
neurons ablate {_BERT} {_TEXT} --neurons ranked --run runs/position --layer 0 --draws 3 --top 2 \
--kinds mean,direction,shuffled --retrain 1
named ablate {_BERT} {_TEXT} --neurons 3,5 --layer 1 --draws 3 --kinds zero,resample,translate --retrain 0 \
--readouts position,mlm
exchanged ablate --neurons ranked --run runs/upos --layer 1 --draws 2 --top 2 --kinds interchange --pairs data/pairs.tsv
zeroed ablate {_BERT} {_TEXT} --neurons outliers --definition argmin_share --draws 2
first geometry --model data/gpt2 {_TEXT} --first_token exclude
survey attention {_BERT} --corpus data/train.conllu --test_corpus data/test.conllu --run runs/position --parts \
classes,profile,tokens,words,rollout,similarity,relations,trees,position_heads,position_neurons
roles attention {_BERT} {_TEXT} --parts roles --roles data/roles.tsv --layer 2
fused attention {_BERT} --corpus data/train.conllu --parts fusion,attention_probe --layer 1,3
against attention {_BERT} {_TEXT} --against data/other --parts classes,profile
disabled ablate {_BERT} {_TEXT} --prune all --retrain 1 --readouts position,mlm --prune_share 0.3
rounded ablate {_BERT} {_TEXT} --quantise 8,4 --units layers --kinds skip --retrain 0
rules hierarchy {_BERT} --train_sentences 120 --test_sentences 40 --generalisation_sentences 60 --layer 0,2 {_PROBE}
masks cloze {_BERT}
reordered cloze {_BERT} --corpus data/train.conllu
sentences cloze data/sentences.tsv --score pll {_BERT} --corpus data/text.txt
decoder cloze data/sentences.tsv --score pll --model data/decoder --corpus data/text.txt
facts cloze --facts data/facts.jsonl {_BERT}
trained pretrain {_TEXT} --arms learned,none --sentences 30 --training.steps 8 --training.batch_size 8 \
--training.warm_up 2 --lengths 1,2
checkpoints checkpoints --checkpoints runs/trained/checkpoints/learned-seed0/step* {_TEXT} {_PROBE}
tuned finetune {_BERT} --corpus data/labelled.csv --seeds 1 --orders 2 --starts all --tuning.epochs 1 --verbose
recipe finetune {_BERT} --corpus data/labelled.csv --seeds 1 --orders 2 --starts pretrained --tuning.epochs 2
head ablate --readouts tuned=runs/tuned --units layers --kinds zero --retrain 0
recipes compare runs/tuned runs/recipe
misled triggers --run runs/tuned --length 2 --candidates 3 --rounds 1 --draws 3
changed tuning-effect --run runs/tuned --sentences 60 --measures maps,states,position,outliers,special
senses wic data/wic {_BERT}
similarity sts data/sts {_BERT} --pooling all
documents position-bias {_BERT} {_TEXT} --sentences 4 --documents 20 --top 3 --draws 3 --edits all --sts data/sts
decoded trees {_BERT} --corpus data/train.conllu --test_corpus data/test.conllu --controls all --layer 0,2 --seed 1
claims reproduce luo2021 --models data/bert {_TEXT} --claims 1-6 --runs alone
trials sweep data/sweep.yaml
- extract {_BERT} {_TEXT} --layer 1
arrays python
from_python python
"""
LAST = """
- cache ls
position.html report runs/position runs/again runs/compared
upos.html report runs/upos
number.html report runs/number
others.html report runs/geometry runs/split runs/massive runs/large runs/inside runs/fixed runs/neurons runs/named \
runs/zeroed runs/survey runs/roles runs/fused runs/against runs/disabled runs/rounded runs/rules runs/masks \
runs/reordered runs/trained runs/checkpoints runs/tuned runs/recipes runs/changed runs/senses runs/similarity \
runs/documents runs/decoded alone/claims
heads.html report runs/heads runs/features runs/survey
exports python
"""
# What the calls of `python` run, by name.
PROGRAMS = {
    "arrays": """
import numpy as np
from probing import ProbeClassifier, ProbeRegressor, probe
draw = np.random.default_rng(0)
x, groups = draw.normal(size=(900, 12)).astype("float32"), np.repeat(np.arange(90), 10)
y = (x[:, 3] + draw.normal(size=900) > 0).astype(int)
usual = dict(groups=groups, wandb={"mode": "offline"}, replicates=2, seed=1, figure_format="svg", runs="runs")
print(probe({"a": x, "b": x[:, ::-1].copy()}, y, name="of_classes", **usual))
print(probe(x, x[:, 5] + draw.normal(size=900), name="of_numbers", **usual))
probe(x[:300, :4], y[:300], quiet=True, replicates=0, evidence="none")
for estimator, target in ((ProbeClassifier(l2=1e-2), y), (ProbeRegressor(l2=1e-2), x[:, 5])):
    estimator.fit(x, target)
    print(sorted(vars(estimator)), estimator.coef_.tolist(), estimator.score(x, target))
""",
    "from_python": """
import json
from pathlib import Path
from probing import load_run
for name in ("position", "upos", "again"):
    run = load_run(f"runs/{name}")
    texts = [["the", "old", "tree"], ["grass"]] if name == "upos" else ["the old tree", "grass"]
    layer = run.layers[-1]
    first = run.neuron(layer, run.top(layer)[0]["neuron"])
    print(run, run.predict(texts), run.explain(texts), first, *run.conclusions(), run.top(layer), sep="\\n")
    print(json.dumps([run.predict(texts), first.positions, first.correlations, first.sentences], default=str))
""",
    "exports": """
from pathlib import Path
from probing import load_run
Path("exports").mkdir(exist_ok=True)
for path in sorted([*Path("runs").iterdir(), *Path("alone").iterdir()]):
    if (path / "results.json").is_file():
        run = load_run(path)
        Path(f"exports/{path.name}.md").write_text(run.card(), encoding="utf-8")
        formats = ("neuronpedia",) if path.name == "position" else ("headvis",) if path.name == "survey" else ()
        for format in ("latex", "csv", "parquet", *formats):
            run.export(format, f"exports/{path.name}-{format}")
        print(path.name, run._repr_html_() if hasattr(type(run), "_repr_html_") else run, sep="\\n")
""",
}


@dataclass(frozen=True)
class Call:
    """A call of a command: the name of its run, or `-`, and its words."""

    name: str
    words: list[str]

    @property
    def file(self) -> str:
        """Return the name of the file with the terminal's text."""
        return f"{self.name}-{self.words[0]}" if self.name != "-" else "-".join(self.words[:2]).replace("/", "_")

    def arguments(self, renames: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Return the arguments of the interpreter, with the new names of commands and options."""
        command, *words = self.words
        if command == "python":
            return ["-c", PROGRAMS[self.name]]
        takes_no_name = self.name == "-"
        if command == "report":
            words += ["--output", self.name]
        elif command != "cache":
            words += [] if command in ("extract", "sweep", "reproduce") else ["--figure_format", "svg"]
            words += [] if command == "extract" else ["--wandb.mode", "offline"]
            words += [] if takes_no_name else ["--name", self.name]
            words += [] if takes_no_name or "--runs" in words else ["--runs", "runs"]
            words += [] if command in ("rank", "cloze") else ["--cache", "cache"]
        words = [renames.get("options", {}).get(word, word) for word in words]
        return ["-m", "probing", renames.get("commands", {}).get(command, command), *words]


def calls(lines: str) -> list[Call]:
    """Return the calls that lines describe."""
    parts = [line.split() for line in lines.replace("\\\n", "").splitlines() if line]
    return [Call(name, words) for name, *words in parts]


def make(work: Path) -> None:
    """Make models and texts."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    from conftest import make_sentences
    from families import causal_lm, make_checkpoint, masked_lm
    from small_data import word_pairs, write_sts, write_wic

    data = work / "data"
    data.mkdir(parents=True)
    sentences = make_sentences(200)
    _with_outlier(masked_lm(data / "bert", "bert", sentences), 3)
    _with_outlier(masked_lm(data / "other", "bert", sentences), 5)
    _with_outlier(masked_lm(data / "massive", "bert", sentences), 3, -3000.0)
    make_checkpoint(data / "gpt2", "gpt2", sentences)
    causal_lm(data / "decoder", sentences)
    _write_dictionary(data / "dictionary", 16, 24)
    text = make_sentences(190, seed=372, longest=24)
    _write(data / "text.txt", text)
    _write(data / "other.txt", make_sentences(60, seed=8, longest=24))
    for name, part in (("train", text[:120]), ("test", text[120:])):
        _write(data / f"{name}.conllu", [_tree(line) for line in part])
    _write(data / "numbers.jsonl", [json.dumps({"text": line, "label": len(line.split()) + 0.5}) for line in text])
    _write(data / "spans.jsonl", [json.dumps({"text": line, "targets": _spans(line.split())}) for line in text])
    _write(data / "numerals.txt", [f"{line} {7 * i**2 % 5003:,}" for i, line in enumerate(text)])
    _write(data / "labelled.csv", ["text,label", *(f'"{one}",{"long" if len(one) > 60 else "short"}' for one in text)])
    _write(data / "words.tsv", ["".join(f"{word}\t{len(word)}\n" for word in line.split()) for line in text])
    long = [line for line in text if len(line.split()) > 6]
    _write(data / "pairs.tsv", [f"{line}\t{' '.join(reversed(line.split()))}" for line in long])
    _write(data / "sentences.tsv", [
        f"{line}\t{' '.join(reversed(line.split()))}\t{len(line.split()) % 2}" for line in long[:40]
    ])  # fmt: skip
    words = "token", "model", "probe", "neuron", "question"
    _write(data / "facts.jsonl", [
        json.dumps({"masked_sentences": [f"{line} [MASK] ."], "sub_label": line.split()[0], "obj_label": words[i % 5],
                    "predicate_id": f"P{i % 2}"}) for i, line in enumerate(long[:40])
    ])  # fmt: skip
    links = ("{0}\t1\tthing\t4\n{0}\t1\tplace\t3-5", "{0}\t0\tthing\t2")
    _write(data / "roles.tsv", [links[i % 2].format(line) for i, line in enumerate(long)])
    for i, part in enumerate(("train", "dev")):
        write_wic(data / "wic", part, word_pairs(40, i))
    write_sts(data / "sts")
    sweep = {
        "method": "grid", "metric": {"name": "best_accuracy", "goal": "maximize"},
        "parameters": {
            "probe": {"parameters": {"l2": {"values": [1e-3, 1e-2]}}}, "model": {"value": "data/bert"},
            "corpus": {"value": "data/text.txt"}, "layer": {"values": [1, 2]},
            "replicates": {"value": 0}, "controls": {"value": "none"}, "evidence": {"value": "none"},
            "figure_format": {"value": "svg"},
        },
    }  # fmt: skip
    (data / "sweep.yaml").write_text(json.dumps(sweep), encoding="utf-8")


def _spans(words: list[str]) -> list[dict[str, object]]:
    """Return spans of one or two words, labelled by the length of the first word."""
    return [{"span1": [i, i + 1 + i % 2], "label": "long" if len(words[i]) > 5 else "short"}
            for i in range(0, len(words) - 1, 2)]  # fmt: skip


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _tree(sentence: str) -> str:
    """Return a sentence in CoNLL-U in which each word but the first depends on the previous one."""
    rows = []
    for i, word in enumerate(sentence.split(), 1):
        tag, relation = ("NOUN", "VERB", "ADJ", "PROPN")[len(word) % 4], "root" if i == 1 else ("dep", "nmod")[i % 2]
        rows.append(f"{i}\t{word}\t_\t{tag}\t_\t_\t{i - 1}\t{relation}\t_\t_\n")
    return "".join(rows)


def _with_outlier(model: Path, neuron: int, bias: float = -30.0) -> None:
    """Give a neuron a bias in each LayerNorm that is far from the others', so that it is an outlier in all layers."""
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    for name in (name for name in weights if name.endswith("LayerNorm.bias") and ".predictions." not in name):
        weights[name][neuron] = bias
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def _write_dictionary(folder: Path, d_in: int, n_features: int) -> None:
    """Write a random sparse autoencoder of layer 2, in the layout of SAELens."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    draw = torch.Generator().manual_seed(0)
    decoder = torch.nn.functional.normalize(torch.randn(n_features, d_in, generator=draw))
    weights = {"W_enc": decoder.T.contiguous(), "W_dec": decoder, "b_enc": torch.zeros(n_features)}
    save_file({**weights, "b_dec": torch.zeros(d_in)}, folder / "sae_weights.safetensors")
    config = {
        "architecture": "standard", "d_in": d_in, "d_sae": n_features, "dtype": "float32",
        "apply_b_dec_to_input": False,
        "metadata": {"hook_name": "blocks.2.hook_resid_pre", "hook_head_index": None},
        "normalize_activations": "none", "model_from_pretrained_kwargs": {"center_writing_weights": False},
    }  # fmt: skip
    (folder / "cfg.json").write_text(json.dumps(config), encoding="utf-8")


def run(work: Path, label: str, checkout: Path, renames: Mapping[str, Mapping[str, str]], only: str = "") -> int:
    """Run the calls whose words match a pattern with the code of a checkout, and return how many failed."""
    place = work / label
    if not only:
        shutil.rmtree(place, ignore_errors=True)
    place.mkdir(exist_ok=True)
    if not (place / "data").exists():
        (place / "data").symlink_to(work / "data")
    shutil.copy(checkout / "tests" / "public_names.txt", place / "public_names.list")
    python = checkout.resolve() / ".venv" / "bin" / "python"
    interpreter = str(python) if python.exists() else sys.executable
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    environment |= {"PYTHONHASHSEED": "0", "MLFLOW_DISABLE_TELEMETRY": "true"}
    jobs: dict[str, Future[int]] = {}

    def finished(call: Call) -> int:
        for name in re.findall(r"runs/(\w+)", " ".join(call.words)):
            if call.name != name and name in jobs:
                jobs[name].result()
        for old in (place / "runs" / call.name, place / "runs" / f"{call.name}.partial"):
            shutil.rmtree(old, ignore_errors=True)
        done = subprocess.run(
            [interpreter, *call.arguments(renames)], cwd=place, env=environment, capture_output=True, encoding="utf-8",
            check=False,
        )  # fmt: skip
        (place / f"{call.file}.txt").write_text(done.stdout, encoding="utf-8")
        (place / f"{call.file}.err").write_text(done.stderr, encoding="utf-8")
        failure = f"\n{done.stderr[-2000:]}" if done.returncode else ""
        print(f"{label}: {call.name} {call.words[0]}: {done.returncode}{failure}", flush=True)
        return int(done.returncode != 0)

    failed = 0
    for group in (CALLS, LAST):
        with ThreadPoolExecutor(2) as pool:
            chosen = [call for call in calls(group) if re.search(only, f"{call.name} {' '.join(call.words)}")]
            futures = []
            for call in chosen:
                jobs[call.name if call.name != "-" else call.file] = future = pool.submit(finished, call)
                futures.append(future)
        failed += sum(future.result() for future in futures)
    return min(failed, 100)


def _without_times(text: str) -> str:
    """Return text without what differs from run to run."""
    text = re.sub(r"(offline-run-)?\d{8}_\d{6}-\w+", "RUN", text)
    text = re.sub(r"-\d{8}-\d{6}\b", "-DATE", text)
    text = re.sub(r"\d+(\.\d+)? (s|ms|min)\b", "TIME", text)
    return re.sub(r'(probing )\d+\.\d+\.\d+[^<"]*', r"\1VERSION", text)


def content(path: Path) -> str:
    """Return the content of a file as text, without times and versions."""
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
            kinds = {name: (str(tensor.dtype), tensor.shape) for name, tensor in tensors.items()}
            values = {name: tensor.tobytes().hex() for name, tensor in tensors.items()}
            return json.dumps([kinds, dict(sorted((file.metadata() or {}).items())), values], indent=1, default=str)
    if path.suffix == ".parquet":
        from pyarrow.parquet import read_table

        columns = read_table(path)
        return "\n".join(f"{field.name} {field.type} {columns[field.name].to_pylist()}" for field in columns.schema)
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.hex()
    if path.name == "results.json":
        results = json.loads(text)
        text = json.dumps({k: v for k, v in results.items() if k not in ("timings", "versions")}, indent=1)
    return _without_times(text)


def keys_of(folder: Path) -> str:
    """Return the names of what a run logged to W&B, and of its configuration, summary and artifacts."""
    sys.path[:0] = [str(ROOT / "tests")]
    from wandb_stand_in import read_offline_runs

    lines: list[str] = []
    for logged in read_offline_runs(folder):
        lines += sorted(f"history {key}" for key in {key for row in logged.history for key in row})
        lines += sorted(f"config {key}" for key in logged.config)
        lines += sorted(f"summary {key}" for key in logged.summary)
        lines += sorted(f"axis {key}: {axis}" for key, axis in logged.step_metrics.items())
        lines += [f"artifact {kind}: {file}" for _, kind, files in logged.artifacts for file in files]
    return "\n".join(lines)


def results_of(place: Path) -> dict[str, str]:
    """Return everything that is compared, by the name of its file."""
    results: dict[str, str] = {}
    folders = [path for name in ("runs", "alone", "exports") for path in (place / name).rglob("*")]
    for path in sorted([*place.glob("*.txt"), *place.glob("*.html"), *folders]):
        name = _without_times(str(path.relative_to(place)))
        if path.is_file() and not {"wandb", "checkpoints", "data"} & set(path.relative_to(place).parts[:-1]):
            results[name] = content(path).replace(str(place), "PLACE")
        elif path.name == "wandb" and path.is_dir():
            results[f"{name} (names)"] = keys_of(path.parent)
    return results


def translated(results: Mapping[str, str], renames: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return results of the code before a change with the new names of tables, columns and texts."""
    words = {**renames.get("tables", {}), **renames.get("columns", {})}
    pattern = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, sorted(words, key=len, reverse=True)))})(?!\w)")

    def renamed(text: str) -> str:
        text = pattern.sub(lambda match: words[match[1]], text) if words else text
        for old, new in renames.get("texts", {}).items():
            text = text.replace(old, new)
        return text

    return {renamed(name): renamed(text) for name, text in results.items()}


def in_words(results: Mapping[str, str]) -> dict[str, str]:
    """Return results with the terminal's text as words between single blanks: new names move columns and line ends."""
    return {
        name: " ".join(text.replace("─", " ").split()) if name.endswith(".txt") else text
        for name, text in results.items()
    }


def missing_tables(place: Path, renames: Mapping[str, Mapping[str, str]]) -> tuple[list[str], int]:
    """Return the tables that commands declare and no call wrote, and the number of declared tables."""
    listed = (place / "public_names.list").read_text(encoding="utf-8").splitlines()
    declared = sorted({line.split(".csv ")[0] for line in listed if ".csv " in line})
    written = set()
    for call in calls(CALLS):
        command = renames.get("commands", {}).get(call.words[0], call.words[0])
        for folder in ("runs", "alone"):
            written |= {f"{command}: {path.stem}" for path in (place / folder / call.name).glob("*.csv")}
    rankings = [path.stem for path in (place / "runs").glob("*/rankings/*.csv")]
    written |= {f"rank: {name}" for name in rankings} | {"rank: METHOD" for _ in rankings[:1]}
    return [name for name in declared if name not in written], len(declared)


def compare(work: Path, before: str, after: str, renames: Mapping[str, Mapping[str, str]], most: int = 40) -> int:
    """Print what differs between what two checkouts wrote, and return how many files differ and tables are missing."""
    old, new = results_of(work / before), results_of(work / after)
    if renames:
        old, new = translated(in_words(old), renames), in_words(new)
    n = 0
    for name in sorted({*old, *new}):
        a, b = (
            "\n".join(sorted(text.splitlines())) if text and name.endswith("(names)") else text
            for text in (old.get(name), new.get(name))
        )
        if a == b:
            continue
        n += 1
        print(f"== {name}: {'only after' if a is None else 'only before' if b is None else 'differs'}")
        if a is not None and b is not None:
            between = " " if renames and name.endswith(".txt") else "\n"
            sides = (text.replace("><", ">\n<").split(between) for text in (a, b))
            lines = difflib.unified_diff(*sides, lineterm="", n=0)
            print("\n".join(line[:240] for line in list(lines)[2 : 2 + most]))
    missing, n_tables = missing_tables(work / after, renames)
    kinds = Counter(Path(name).suffix or "names on W&B" for name in new)
    print(f"{n} of {len({*old, *new})} files differ: {', '.join(f'{k} {kind}' for kind, k in sorted(kinds.items()))}")
    print(f"{n_tables - len(missing)} of {n_tables} tables compared{''.join(f', not {name}' for name in missing)}")
    return min(n + len(missing), 100)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("make", "run", "compare"))
    parser.add_argument("work", type=Path)
    parser.add_argument("rest", nargs="*", help="LABEL CHECKOUT to run, two labels to compare")
    parser.add_argument(
        "--renames", type=Path, help="JSON file of renamed commands, options, tables, columns and texts"
    )
    parser.add_argument("--only", default="", help="run only the calls that match this regular expression")
    options = parser.parse_args(arguments)
    work = options.work.resolve()
    renames: dict[str, dict[str, str]] = (
        json.loads(options.renames.read_text(encoding="utf-8")) if options.renames else {}
    )
    if options.action == "make":
        make(work)
        return 0
    if len(options.rest) != 2:
        parser.error(f"{options.action} takes two arguments after WORK")
    first, second = options.rest
    if options.action == "run":
        return run(work, first, Path(second), renames, options.only)
    return compare(work, first, second, renames)


if __name__ == "__main__":
    sys.exit(main())
