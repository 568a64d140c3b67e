"""Does a change of the code leave every result as it was? Runs each command in two checkouts and compares its files.

    python benchmarks/same_results.py make WORK                  # tiny models and texts, made once
    python benchmarks/same_results.py run WORK before CHECKOUT   # what a checkout writes of them
    python benchmarks/same_results.py run WORK after .
    python benchmarks/same_results.py compare WORK before after

Compared are the terminal's text, tables, tensors, configuration, `results.json`, the pages that `report` makes, and the
names of what is logged to W&B. Times and versions are left out. The exit status of `compare` is the number of commands
whose results differ, at most 100.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The options of most commands, told apart by their first letters.
_USUAL = "--wandb.mode offline --runs runs --cache cache"
_PROBE = "--probe.l2 1e-3 --probe.tolerance 1e-3"
_BERT = "--model data/bert"
# A line each: the name of the run, the command and its options; the name `-` stands for commands that take none.
COMMANDS = f"""
position fit {_BERT} --corpus data/text.txt --layer 0,2 --mdl
again fit {_BERT} --corpus data/text.txt --layer 1,2 --probe.l2 1e-2 --transform clip
gpt fit --model data/gpt2 --corpus data/text.txt --layer 2 {_PROBE} --first_token exclude --replicates 0
upos fit {_BERT} --corpus data/train.conllu --task upos --layer 2 --given token {_PROBE}
heads fit {_BERT} --corpus data/text.txt --site attention --layer 2 {_PROBE}
number fit {_BERT} --corpus data/numbers.jsonl --task sentence_label --task_args.numbers true --layer 2
- rank runs/position --method contribution,anova,probeless --evaluate --erase --curves --k 2,5 --draws 3 --top 4
compared compare runs/position runs/again --null_draws 3
geometry geometry {_BERT} --corpus data/text.txt --smoothing_bound --norms --path --interventions --draws 3
neurons geometry {_BERT} --corpus data/text.txt --interventions --from_run runs/position --layer 0 --draws 3 --top 2 \
--kind mean,direction --transforms none --retrain 1
first geometry --model data/gpt2 --corpus data/text.txt --first_token exclude
survey attention {_BERT} --corpus data/train.conllu --test_corpus data/test.conllu --run runs/position --parts \
classes,profile,tokens,words,rollout,similarity,relations,trees,position_heads,position_neurons
against attention {_BERT} --corpus data/text.txt --against data/other --parts classes,profile
disabled disable {_BERT} --corpus data/text.txt --prune --retrain 1 --readouts position,mlm
rules hierarchy {_BERT} --train_sentences 120 --test_sentences 40 --generalisation_sentences 60 --layer 0,2 {_PROBE}
masks cloze {_BERT}
changed cloze {_BERT} --corpus data/train.conllu
trained pretrain --corpus data/text.txt --arms learned,none --sentences 30 --training.steps 8 --training.batch_size 8 \
--training.warm_up 2
checkpoints series --checkpoints runs/trained/checkpoints/learned-seed0/step* --corpus data/text.txt {_PROBE}
senses wic data/wic {_BERT}
similarity sts data/sts {_BERT} --pooling all
weighed embeddings {_BERT} --corpus data/text.txt --sentences 4 --documents 20 --top 3 --draws 3 --edits all
claims reproduce luo2021 --models data/bert --corpus data/text.txt --claims 1-6
trials sweep data/sweep.yaml
- extract {_BERT} --corpus data/text.txt --layer 1
- cache ls
position_page report runs/position runs/again runs/compared
one_page report runs/upos
numbers_page report runs/number
other_page report runs/geometry runs/neurons runs/survey runs/against runs/disabled runs/rules runs/masks runs/changed \
runs/trained runs/checkpoints runs/senses runs/weighed runs/claims
heads_page report runs/heads runs/survey
"""


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the name of what each command writes, and its words."""
    for line in COMMANDS.replace("\\\n", "").strip().splitlines():
        name, command, *words = line.split()
        if command not in ("report", "cache"):
            options = _USUAL.split("--")[1:]
            takes = {"rank": "wc", "extract": "c", "cloze": "wr"}.get(command, "wrc")
            words += [word for option in options if option[0] in takes for word in f"--{option}".split()]
        if name != "-":
            words += ["--output", f"{name}.html"] if command == "report" else ["--name", name]
        yield name, [command, *words]


def make(work: Path) -> None:
    """Make models and texts."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    from conftest import make_sentences
    from downstream_data import word_pairs, write_sts, write_wic
    from families import make_checkpoint, masked_lm
    from report_runs import treebank

    data = work / "data"
    data.mkdir(parents=True)
    sentences = make_sentences(200)
    _with_outlier(masked_lm(data / "bert", "bert", sentences), 3)
    _with_outlier(masked_lm(data / "other", "bert", sentences), 5)
    make_checkpoint(data / "gpt2", "gpt2", sentences)
    text = make_sentences(190, seed=372, longest=24)
    (data / "text.txt").write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    for name, part in (("train", text[:120]), ("test", text[120:])):
        tagged, tags = treebank(part).splitlines(), ("NOUN", "VERB", "ADJ", "PROPN")
        lines = [line.replace("\tX\t", f"\t{tags[i % 4]}\t") for i, line in enumerate(tagged)]
        (data / f"{name}.conllu").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    rows = [json.dumps({"text": line, "label": len(line.split()) + 0.5}) for line in text]
    (data / "numbers.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    for i, part in enumerate(("train", "dev")):
        write_wic(data / "wic", part, word_pairs(40, i))
    write_sts(data / "sts")
    sweep = {
        "method": "grid", "metric": {"name": "best_accuracy", "goal": "maximize"},
        "parameters": {
            "probe": {"parameters": {"l2": {"values": [1e-3, 1e-2]}}}, "model": {"value": "data/bert"},
            "corpus": {"value": "data/text.txt"}, "layer": {"values": [1, 2]},
            "replicates": {"value": 0}, "controls": {"value": "none"}, "evidence": {"value": "none"},
        },
    }  # fmt: skip
    (data / "sweep.yaml").write_text(json.dumps(sweep), encoding="utf-8")


def _with_outlier(model: Path, neuron: int) -> None:
    """Give a neuron a bias in the LayerNorm of the embeddings that is far from those of the others."""
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("embeddings.LayerNorm.bias"))
    weights[name][neuron] = -30.0
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def run(work: Path, label: str, checkout: Path, only: str = "") -> None:
    """Run the commands whose words match a pattern with the code of a checkout."""
    place = work / label
    place.mkdir(exist_ok=True)
    if not (place / "data").exists():
        (place / "data").symlink_to(work / "data")
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    for i, (name, words) in enumerate(commands()):
        if not re.search(only, f"{name} {' '.join(words)}"):
            continue
        for old in (place / "runs" / name, place / "runs" / f"{name}.partial"):
            if name != "-":
                shutil.rmtree(old, ignore_errors=True)
        done = subprocess.run(
            [sys.executable, "-m", "probing", *words],
            cwd=place,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        (place / f"{i:02}-{words[0]}.txt").write_text(done.stdout, encoding="utf-8")
        (place / f"{i:02}-{words[0]}.err").write_text(done.stderr, encoding="utf-8")
        print(f"{label}: {name} {words[0]}: {done.returncode}", flush=True)
        if done.returncode:
            print(done.stderr[-2000:], flush=True)


def plain(path: Path) -> str | bytes:
    """Return the content of a file without what differs from run to run."""
    if path.suffix == ".safetensors":  # the order of its metadata is random
        from safetensors import safe_open

        with safe_open(path, "numpy") as file:
            tensors = {name: file.get_tensor(name).tobytes() for name in sorted(file.keys())}
            return repr((tensors, sorted((file.metadata() or {}).items()))).encode()
    if path.suffix in (".png", ".pdf"):
        return path.read_bytes()
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.name == "results.json":
        found = json.loads(text)
        for name in ("timings", "versions"):
            found.pop(name, None)
        return json.dumps(found, indent=1)
    text = re.sub(r"(offline-run-)?\d{8}_\d{6}-\w+", "RUN", text)
    text = re.sub(r"\d+(\.\d+)? (s|ms|min)\b", "TIME", text)
    return re.sub(r'(probing )0\.1\.0[^<"]*', r"\1VERSION", text)


def keys_of(folder: Path) -> str:
    """Return the names of what a run logged to W&B, and of its configuration, summary and artifacts."""
    sys.path[:0] = [str(ROOT / "tests")]
    from wandb_reader import read_offline_runs

    lines: list[str] = []
    for one in read_offline_runs(folder):
        lines += sorted(f"history {key}" for key in {key for row in one.history for key in row})
        lines += sorted(f"config {key}" for key in one.config)
        lines += sorted(f"summary {key}" for key in one.summary)
        lines += sorted(f"axis {key}: {axis}" for key, axis in one.step_metrics.items())
        lines += [f"artifact {kind}: {sorted(files)}" for _, kind, files in one.artifacts]
    return "\n".join(lines)


def files_of(place: Path) -> dict[str, str | bytes]:
    """Return everything that is compared, by name."""
    found: dict[str, str | bytes] = {}
    for path in sorted([*place.glob("*.txt"), *place.glob("*.html"), *(place / "runs").rglob("*")]):
        name = str(path.relative_to(place))
        if not path.is_file() or "/wandb/" in name or "/checkpoints/" in name or path.suffix == ".svg":
            continue
        found[name] = plain(path)
    for folder in sorted((place / "runs").rglob("wandb")):
        found[f"{folder.relative_to(place)} (names)"] = keys_of(folder.parent)
    return found


def compare(work: Path, before: str, after: str, most: int = 40) -> int:
    """Print what differs between what two checkouts wrote, and return the number of files that do."""
    old, new = files_of(work / before), files_of(work / after)
    n = 0
    for name in sorted({*old, *new}):
        if (a := old.get(name)) == (b := new.get(name)):
            continue
        n += 1
        print(f"== {name}: {'only after' if a is None else 'only before' if b is None else 'differs'}")
        if isinstance(a, str) and isinstance(b, str):
            cut = [one.replace("><", ">\n<") if name.endswith(".html") else one for one in (a, b)]
            lines = difflib.unified_diff(*(one.splitlines() for one in cut), lineterm="", n=0)
            print("\n".join(line[:240] for line in list(lines)[2 : 2 + most]))
    print(f"{n} of {len({*old, *new})} differ")
    return min(n, 100)


def main() -> int:
    """Do what the arguments say."""
    action, work, *rest = sys.argv[1:]
    place = Path(work).resolve()
    if action == "make":
        make(place)
    elif action == "run":
        run(place, rest[0], Path(rest[1]), *rest[2:3])
    else:
        return compare(place, *rest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
