"""What cannot be done is refused in one sentence, whatever it is, and leaves nothing behind."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch

from conftest import BARE_ARGS
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.models import source

USUAL = {
    "fit": [
        "--model",
        "tiny",
        "--corpus",
        "sentences.txt",
        "--quiet",
        "--wandb.mode",
        "disabled",
        *(arg for arg in BARE_ARGS if "l2" not in arg),  # what is typed would go before what is in a file
    ],
    "extract": ["--model", "tiny", "--corpus", "sentences.txt", "--quiet"],
    "wic": ["--model", "tiny", "--quiet", "--wandb.mode", "disabled"],
    "sts": ["--model", "tiny", "--quiet", "--wandb.mode", "disabled"],
}
# Too many levels of mappings in mappings for any program to follow.
DEEP = "trainer:\n" + "".join(f"{' ' * level}a:\n" for level in range(1, 200)) + " " * 200 + "b: 1\n"
# Ten times nine values, each nine times the one before: 3.5 billion.
LAUGHS = "a0: &a0 [1]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(10))

FILES: dict[str, str | bytes] = {
    "latin.txt": "the first\nthe cafe\u0301 caf\u00e9\n".encode("latin1", errors="ignore"),
    "utf16.txt": "the token".encode("utf-16"),
    **{
        name: "the token\n".encode("utf-16-le")  # without a byte-order mark
        for name in ("utf16le.txt", "wic-utf16/train.data.txt", "sts-utf16/sts-test.csv")
    },
    "empty.txt": "",
    "blank.txt": " \n\t\n\u2028\ufeff\n",
    "bom.txt": b"\xef\xbb\xbf",
    "control.txt": "\x01\n\x02\x03\n\0\n",
    "few.txt": "the token\nthe layer reads\n",
    "same.txt": "the token reads the layer\n" * 50,
    "words.csv": "the,token\n",
    "labels.tsv": "the\tDT\ntoken\n",
    "typos.yaml": "layr: 3\nsed: 4\nprobe: {l3: 1}\nwandb: {tag: [a]}\n",
    "types.yaml": "seed: many\nlayer: {a: 1}\nquiet: 3\ncorpus: 7\nprobe: {l2: strong}\nwandb: {tags: [{a: 1}]}\n",
    "null.yaml": "corpus: null\nmodel: null\nseed: 1\n",
    "group.yaml": "probe: 3\nlayer: 1\n",
    "list.yaml": "- 1\n- 2\n",
    "text.yaml": "layer six\n",
    "empty.yaml": "# nothing\n",
    "broken.yaml": "layer: 3\nseed: [1\nname: x\n",
    "tab.yaml": "probe:\n\tl2: 1\n",
    "binary.yaml": b"\xff\xfe\x00layer",
    "nul.yaml": b"layer: \0\n",
    "nul-name.yaml": 'corpus: "a\\0b"\nname: "a\\0b"\nlayer: 1\n',
    "twice.yaml": "layer: 3\nseed: 1\nlayer: 2\n",
    "two.yaml": "layer: 3\n---\nlayer: 2\n",
    "self.yaml": "trainer: &a {b: *a}\n",
    "self-list.yaml": "layer: &a [*a]\n",
    "laughs.yaml": f"{LAUGHS}trainer: {{x: *a10}}\n",
    "deep.yaml": DEEP,
    "timestamp.yaml": "seed: !!timestamp\n",
    "alias.yaml": "layer: *nowhere\n",
    "object.yaml": "seed: !!python/object/apply:os.getpid []\n",
    "class.yaml": "probe: {class_path: antigravity.Probe}\n",
    "keys.yaml": "1: 2\n? null\n: 3\n",
    "nan.yaml": "probe: {l1: .nan, l2: .nan, tolerance: .inf, learning_rate: -.inf, patience: 0}\n",
    "inside.yaml": "config: typos.yaml\nlayer: 1\n",
    "options.yaml": "trainer: {max_epoch: 3, devicess: 2, callbacks: []}\n",
    "task.yaml": "task_args: {min_cuont: 3, special_token: include, min_count: x}\n",
    "wic/train.data.txt": "layer\tN\t1-1\tthe layer reads\tthe layer writes\n" * 2,
    "cut/train.data.txt": "layer\tN\t3-1\tand so the layer reads\tthe layer writes\n",
    "cut/train.gold.txt": "T\n",
    "cut/dev.data.txt": "layer\tN\t1-1\tthe layer reads\tthe layer writes\n",
    "cut/dev.gold.txt": "T\n",
    "wic/train.gold.txt": "T\nF\n",
    "wic/dev.data.txt": "layer\tN\t1-1\tthe layer reads\tthe layer writes\n",
    "wic/dev.gold.txt": "T\n",
    "wic/test.data.txt": "layer\tN\t1-9\tthe layer reads\tthe layer writes\n",
    "wic/test.gold.txt": "T\n",
    "sts/sts-dev.csv": "".join(f"a\tb\tc\td\t{i}\tthe layer {i}\tthe token {i}\n" for i in range(4)),
    "sts-train/sts-train.csv": "".join(f"a\tb\tc\td\t{i}\tthe layer {i}\tthe token {i}\n" for i in range(4)),
    "vectors.txt": "the 1 2\nlayer 3\n",
}


def changed(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda content: {**content, **changes}


# Copies of the tiny checkpoint in which one file is replaced, changed, or removed.
BROKEN: dict[str, tuple[str, Any]] = {
    "no-weights": ("model.safetensors", None),
    "empty-weights": ("model.safetensors", b""),
    "garbage-weights": ("model.safetensors", b"garbage" * 100),
    "endless-header": ("model.safetensors", struct.pack("<Q", 2**60)),
    "no-config": ("config.json", None),
    "null-config": ("config.json", b"null"),
    "half-config": ("config.json", b"{"),
    "no-tokenizer": ("tokenizer.json", None),
    "list-tokenizer": ("tokenizer.json", b"[]"),
    "their-code": ("config.json", changed(model_type="theirs", auto_map={"AutoConfig": "theirs.Config"})),
    "text-width": ("config.json", changed(hidden_size="wide")),
    "odd-width": ("config.json", changed(hidden_size=15)),
    "no-blocks": ("config.json", changed(num_hidden_layers=-1)),
    "no-heads": ("config.json", changed(num_attention_heads=0)),
    "odd-function": ("config.json", changed(hidden_act="nonesuch")),
    "other-vocabulary": ("config.json", changed(vocab_size=5)),
    "more-blocks": ("config.json", changed(num_hidden_layers=10)),
    "no-room": ("tokenizer_config.json", changed(model_max_length=2)),
    "text-room": ("tokenizer_config.json", changed(model_max_length="much")),
}


@pytest.fixture(scope="module")
def desk(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory, sentences: list[str]
) -> Path:
    """A folder with a checkpoint, a corpus, and much that is broken."""
    desk = tmp_path_factory.mktemp("desk")
    shutil.copytree(checkpoints["bert"], desk / "tiny")
    shutil.copy(corpus_file, desk / "sentences.txt")
    for name, content in FILES.items():
        (desk / name).parent.mkdir(exist_ok=True)
        (desk / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for name, (file, content) in BROKEN.items():
        path = shutil.copytree(desk / "tiny", desk / name) / file
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content if isinstance(content, bytes) else json.dumps(content(load(path))).encode())
    (desk / "folder").mkdir()
    (desk / "runs" / "there").mkdir(parents=True)
    (desk / "runs" / "half.partial").mkdir()
    (desk / "runs" / "link").symlink_to("nowhere")
    (desk / "runs" / "away").symlink_to(tmp_path_factory.getbasetemp())
    return desk


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def belongings(folder: Path) -> dict[Path, int]:
    """All that is in a folder and when files were last changed; locks and the folders that hold them are no trace."""
    found = {path: path.stat().st_mtime_ns if path.is_file() else 0 for path in folder.rglob("*") if path.exists()}
    return {path: time for path, time in found.items() if path.suffix != ".lock" and path.name not in ("runs", "cache")}


@pytest.fixture
def refusal(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[list[str]], str]:
    """Type a command in that folder; return what it says, when it is refused as it should be."""
    monkeypatch.chdir(desk)
    capsys.readouterr()

    def type_it(words: list[str]) -> str:
        command, *args = words
        before = belongings(desk)
        status = run(COMMANDS, [*command.split(), *USUAL.get(command, []), *args])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert status == 2, (status, said)
        assert said.out == ""
        *messages, line = said.err.splitlines()
        assert not [message for message in messages if message.startswith("probing")]
        owner, _, sentence = line.partition(": ")
        assert owner in ("probing", f"probing {command}")
        assert sentence.endswith(".")
        assert not re.search(r"[.!?]\)? +[A-Z]", sentence), "more than one sentence"
        assert sentence.isprintable()
        assert belongings(desk) == before
        return sentence

    return type_it


CANNOT_BE_EMPTY = (
    "name", "corpus", "test_corpus", "model", "revision", "layer", "runs", "cache", "task", "dtype", "seed",
    "wandb.project",
)  # fmt: skip
NOT_WITH_ADAM = (
    "accumulate_grad_batches 0", "accumulate_grad_batches x", "limit_train_batches 0", "limit_val_batches 0.5",
    "check_val_every_n_epoch 0", "gradient_clip_val -1", "precision x",
)  # fmt: skip
NO_NAMES = ("../there", "/tmp/there", "a/b", ".hidden", "..", "x.partial", "-x", "x" * 300)

# What is typed, variables before it as in a shell; then words of the answer, the first of them what is at fault.
CASES: list[tuple[str, ...]] = [
    # commands
    ("fitt", "`fitt`", "did you mean `fit`?", "cache prune"),
    ("extarct --layer 3", "`extarct`", "did you mean `extract`?"),
    ("'cache lss'", "`cache lss`", "did you mean `cache ls`?"),
    ("cache", "`cache`", "cache verify"),
    ("--layer 3", "`--layer 3`", "commands are fit"),
    ("columns acuracy", "`columns acuracy`", "did you mean `accuracy`?"),
    # options
    ("fit --layr 6", "`--layr` is not an option of fit", "did you mean `--layer`?"),
    ("fit --layr 6 --sed=3 --probe.l3 1", "`--layr`", "`--sed`", "`--seed`", "`--probe.l3`", "`--probe.l2`"),
    ("fit --mod tiny", "`--mod`", "did you mean `--model`?"),
    ("fit --device cuda", "`--device` is not an option of fit", "did you mean `--trainer.accelerator`?"),
    ("fit --batch-size 8", "`--batch_size`", "did you mean `--probe.batch_size` or `--batch_tokens`?"),
    ("fit --project mine --lr 1", "`--wandb.project`", "`--probe.learning_rate`"),
    ("wic --lr 1", "`--lr` is not an option of wic."),
    ("fit --task pos", "did you mean `upos`?"),
    ("fit --no-quiet", "`--no_quiet`", "did you mean `--quiet`?"),
    ("fit --Layer 1", "`--Layer`", "`--layer`"),
    ("fit tiny", "`tiny` is not an option", "two hyphens"),
    ("fit --layer 1 2", "`2` is not an option", "lists are written 0,3,6"),
    ("fit -x", "`-x` is not an option"),
    ("fit --", "`--` is not an option"),
    ("fit --seed", "`--seed`: expected a whole number"),
    ("fit --quiet maybe", "`--quiet maybe`: expected true or false"),
    ("fit --random_weights=2", "`--random_weights 2`: expected true or false"),
    ("fit --dtype float8", "`--dtype float8`: expected float32, bfloat16 or float16"),
    ("fit --probe.solver lbfg", "`--probe.solver lbfg`: expected lbfgs or adam"),
    ("fit --probe.penalty_space=sdd", "`--probe.penalty_space sdd`", "sd, rms or raw"),
    ("fit --probe strong", "`--probe strong`", "probe.l2, probe.penalty_space"),
    ("fit --probe \"{'l2': 1, 'l9': 2}\"", "`--probe.l9` is not an option"),
    ("fit --trainer fast", "`--trainer fast`: expected names with values"),
    ("fit --task_args [1]", "`--task_args [1]`: expected names with values"),
    ("fit --wandb.mode sometimes", "`--wandb.mode sometimes`", "auto, online, offline or disabled"),
    ("fit --wandb.tag one", "`--wandb.tag` is not an option", "`--wandb.tags`"),
    ("WANDB_MODE=sometimes fit --wandb.mode auto", "WANDB_MODE is 'sometimes'", "correct it or remove it"),
    *((f"fit --{name}=", f"`--{name}` is empty", "leave it out") for name in CANNOT_BE_EMPTY),
    ("fit --trainer=", "`--trainer`: expected names with values"),
    ("extract --layr 6", "`--layr` is not an option of extract", "`--layer`"),
    ("extract --task position", "`--task` is not an option of extract"),
    # numbers
    ("fit --seed -1", "`--seed -1` is out of range", "0 to"),
    ("fit --seed 1.5", "`--seed 1.5`: expected a whole number"),
    (f"fit --seed {2**63}", f"`--seed {2**63}` is out of range"),
    ("extract --seed -1", "`--seed -1` is out of range"),
    ("fit --max_length 0", "`--max_length 0` is out of range"),
    ("fit --max_length 2", "`--max_length 2`", "tiny takes 3 to 128 tokens"),
    ("fit --max_length 100000", "`--max_length 100000`", "tiny takes 3 to 128 tokens"),
    ("fit --max_length nan", "`--max_length nan`: expected a whole number"),
    ("extract --max_length 129", "`--max_length 129`", "3 to 128"),
    ("fit --batch_tokens 0", "`--batch_tokens 0` is out of range"),
    ("extract --batch_tokens -5", "`--batch_tokens -5` is out of range"),
    ("fit --batch_tokens 1e3", "`--batch_tokens 1e3`: expected a whole number"),
    ("fit --probe.l1 -1", "`--probe.l1 -1.0` is out of range"),
    ("fit --probe.l1 nan", "`--probe.l1 nan`: expected a number"),
    ("fit --probe.l1 1e308", "`--probe.l1 1e+308` is out of range"),
    ("fit --probe.l2 0", "`--probe.l2 0.0` is out of range", "above 0, without which the distance"),
    ("fit --probe.l2 inf", "`--probe.l2 inf`: expected a number"),
    ("fit --probe.l2 1e-308", "`--probe.l2 1e-308` is out of range"),
    ("fit --probe.tolerance -1", "`--probe.tolerance -1.0` is out of range"),
    ("fit --probe.learning_rate 0", "`--probe.learning_rate 0.0` is out of range"),
    ("fit --probe.batch_size 0 --probe.patience 0", "`--probe.batch_size 0` is out", "`--probe.patience 0` is out"),
    ("fit --config nan.yaml", "`--probe.l1 nan`", "`--probe.l2 nan`", "tolerance inf`", "rate -inf`", "patience 0`"),
    ("fit --task_args.min_count 0", "`--task_args.min_count 0` is out of range", "at least 1"),
    ("fit --task_args.min_count -3 --task_args.max_position -1", "`--task_args.min_count -3`", "max_position -1`"),
    ("fit --task_args.min_count many", "`--task_args.min_count many`: expected a whole number"),
    ("cache prune --unused_days -1", "`--unused_days -1.0` is out of range", "at least 0"),
    ("cache prune --unused_days nan", "`--unused_days nan`: expected a number"),
    # files of options
    ("fit --config missing.yaml", "`--config missing.yaml` cannot be read", "No such file"),
    ("fit --config folder", "`--config folder` cannot be read", "directory"),
    ("fit --config=", "`--config`: expected the path"),
    ("fit --config typos.yaml", "`layr` in typos.yaml", "`layer`", "`sed`", "`probe.l3`", "`wandb.tag`"),
    ("fit --config typos.yaml --layr 3", "`layr` in typos.yaml", "`--layr` is not an option"),
    ("fit --config types.yaml", "`seed: many`", "`layer: {'a': 1}`", "`quiet: 3`", "`corpus: 7`", "`probe.l2: strong`"),
    ("fit --config null.yaml", "`corpus: null` in null.yaml: expected text", "`model: null`"),
    ("fit --config group.yaml", "`probe: 3` in group.yaml", "probe.l1"),
    ("fit --config list.yaml", "`--config list.yaml` holds no options", "`layer: 6`"),
    ("fit --config text.yaml", "`--config text.yaml` holds no options"),
    ("fit --config empty.yaml", "`--config empty.yaml` holds no options"),
    ("fit --config sentences.txt", "`--config sentences.txt`"),
    ("fit --config broken.yaml", "`--config broken.yaml` is not YAML", "line 3"),
    ("fit --config tab.yaml", "`--config tab.yaml` is not YAML", "line 2"),
    ("fit --config binary.yaml", "`--config binary.yaml` is not YAML", "not UTF-8"),
    ("fit --config nul.yaml", "`--config nul.yaml` is not YAML", "#x0000"),
    ("fit --config nul-name.yaml", "`corpus: a\\x00b` in nul-name.yaml: expected text", "`name: a\\x00b`"),
    ("fit --config twice.yaml", "`--config twice.yaml` has more than one `layer`"),
    ("fit --config two.yaml", "`--config two.yaml`", "another document"),
    ("fit --config self.yaml", "`--config self.yaml`", "refers to itself"),
    ("fit --config self-list.yaml", "`--config self-list.yaml`", "refers to itself"),
    (
        "fit --config laughs.yaml",
        "`--config laughs.yaml` is not YAML that can be read",
        "more than 10,000 values",
    ),
    ("fit --config deep.yaml", "`--config deep.yaml` is not YAML that can be read", "more than 100 levels"),
    ("fit --config alias.yaml", "`--config alias.yaml`", "undefined alias"),
    ("fit --config timestamp.yaml", "`--config timestamp.yaml` is not YAML"),
    ("fit --trainer '!!timestamp'", "`--trainer !!timestamp`: expected names with values"),
    ("fit --config object.yaml", "`--config object.yaml`", "os.getpid"),
    ("fit --config class.yaml", "`probe.class_path` in class.yaml is not an option"),
    ("fit --config keys.yaml", "`1` in keys.yaml is not an option", "`None` in keys.yaml"),
    ("fit --config inside.yaml", "`config` in inside.yaml is not an option"),
    ("fit --config task.yaml", "`--task_args.min_cuont`", "`--task_args.min_count`", "special_token`", "min_count x`"),
    # layers
    ("fit --layer first", "`--layer first` is not a layer", "a range such as 3-6, -1 for the last, or all"),
    ("fit --layer 1.5", "`--layer 1.5` is not a layer"),
    ("fit --layer 3-1", "`--layer 3-1` is not a layer"),
    ("fit --layer 0,,1", "`--layer 0,,1` is not a layer"),
    ("fit --layer []", "`--layer []` is not a layer"),
    ("fit --layer 9", "`--layer 9`", "tiny has layers 0 (embeddings) to 3, so not 9"),
    ("fit --layer -9", "`--layer -9`", "so not -9"),
    ("extract --layer 0,4", "`--layer 0,4`", "so not 4"),
    # models
    ("fit --model no-such-model", "`--model no-such-model` is not on this machine", "offline, `--model minilm` works"),
    ("fit --model minilmm", "`--model minilmm` is not on this machine, and the hub was not asked", "$HF_HUB_OFFLINE"),
    ("fit --model 'minilm '", "`--model minilm ` is neither", "did you mean `minilm`?"),
    ("fit --model a/b/c", "`--model a/b/c` is neither an alias, a folder, nor a hub id", "aliases are minilm, bert"),
    ("fit --model 'a b'", "`--model a b` is neither"),
    ("fit --model bert --revision v0", "`--model bert --revision v0` is not on this machine"),
    ("fit --revision v0", "`--revision v0`", "`--model tiny` is a local folder"),
    (f"fit --model {'long' * 100}", "`--model longlong"),
    ("fit --model sentences.txt", "`--model sentences.txt`", "aliases are"),
    ("fit --model folder", "`--model folder`", "no config.json"),
    ("fit --model no-config", "`--model no-config`", "no config.json"),
    ("fit --model null-config", "`--model null-config`", "not one that transformers reads"),
    ("fit --model half-config", "`--model half-config`", "JSON"),
    ("fit --model their-code", "`--model their-code` needs code from its repository, which is never run here"),
    ("extract --model their-code", "`--model their-code` needs code from its repository"),
    ("fit --model no-tokenizer", "`--model no-tokenizer`", "tokenizer.save_pretrained"),
    ("fit --model list-tokenizer", "`--model list-tokenizer`: its tokenizer cannot be loaded"),
    ("fit --model no-weights", "`--model no-weights` has no model.safetensors", "`--random_weights`"),
    ("extract --model no-weights", "`--model no-weights` has no model.safetensors"),
    ("fit --model empty-weights", "`--model empty-weights`", "cannot be loaded as safetensors or with weights_only"),
    ("fit --model garbage-weights", "`--model garbage-weights`", "cannot be loaded as safetensors"),
    ("fit --model endless-header", "`--model endless-header`", "cannot be loaded as safetensors"),
    ("fit --model more-blocks", "`--model more-blocks`", "its weights lack"),
    ("fit --model other-vocabulary", "`--model other-vocabulary`: its tokenizer gives `", "has vectors for ids 0 to 4"),
    ("fit --model text-width", "`--model text-width`", "'hidden_size'"),
    ("fit --model odd-width", "`--model odd-width`", "no model can be built", "(15)"),
    ("fit --model odd-width --random_weights", "`--model odd-width`", "no model can be built"),
    ("fit --model no-blocks", "`--model no-blocks`", "-1 blocks"),
    ("fit --model no-heads", "`--model no-heads`", "no model can be built"),
    ("fit --model odd-function", "`--model odd-function`", "no model can be built"),
    ("fit --model no-room", "`--model no-room` takes 2 tokens", "no room for a word"),
    ("fit --model text-room", "`--model text-room`", "tokenizer_config.json"),
    # corpora
    ("fit --corpus missing.txt", "`--corpus missing.txt` cannot be read", "no such file", "`builtin`"),
    ("fit --corpus folder", "`--corpus folder` cannot be read", "is a directory"),
    ("fit --corpus sentences.txt/x.txt", "`--corpus sentences.txt/x.txt` cannot be read", "not a directory"),
    (f"fit --corpus {'long' * 100}", "`--corpus longlong", "too long"),
    ("fit --corpus words.csv", "`--corpus words.csv`", ".csv"),
    ("fit --corpus buitlin", "`--corpus buitlin`"),
    ("fit --corpus 'a\nb\x1b[31m.txt'", "`--corpus a b\\x1b[31m.txt` cannot be read"),
    ("fit --corpus latin.txt", "`--corpus latin.txt` is not UTF-8", "line 2", "iconv"),
    ("fit --corpus utf16.txt", "`--corpus utf16.txt` is not UTF-8", "line 1", "iconv -f utf-16 "),
    (
        "fit --corpus utf16le.txt",
        "`--corpus utf16le.txt` is not UTF-8",
        "(line 1, byte 0)",
        "iconv -f utf-16 ",
    ),
    ("wic wic-utf16", "`wic wic-utf16/train.data.txt` is not UTF-8", "iconv"),
    ("sts sts-utf16", "`sts sts-utf16/sts-test.csv` is not UTF-8", "iconv"),
    ("cloze utf16le.txt", "`cloze utf16le.txt` is not UTF-8", "iconv"),
    ("attention --pairs utf16le.txt", "`--pairs utf16le.txt` is not UTF-8", "iconv"),
    ("attention --roles utf16le.txt", "`--roles utf16le.txt` is not UTF-8", "iconv"),
    ("fit --corpus empty.txt", "`--corpus empty.txt` holds no sentence"),
    ("extract --corpus empty.txt", "`--corpus empty.txt` holds no sentence"),
    ("fit --corpus bom.txt", "`--corpus bom.txt` holds no sentence"),
    ("fit --corpus control.txt", "`--corpus`", "no sentence is longer than one token"),
    ("fit --corpus few.txt", "`--corpus`", "0 classes", "lower the bar with `--task_args.min_count`"),
    ("fit --corpus same.txt", "`--corpus`", "0 classes"),
    ("fit --task_args.min_count 10000", "`--task_args.min_count`", "training sentences leave 0 classes"),
    ("fit --max_length 3", "`--corpus`", "all labels", "are 1", "a probe needs two"),
    ("fit --test_corpus missing.txt", "`--test_corpus missing.txt` cannot be read"),
    ("fit --test_corpus latin.txt", "`--test_corpus latin.txt` is not UTF-8", "line 2"),
    ("fit --test_corpus sentences.txt", "`--test_corpus sentences.txt` holds every sentence"),
    ("fit --corpus - --test_corpus -", "`--test_corpus -`", "read only once"),
    # tasks
    ("fit --task colour", "`--task colour` is not installed", "tasks are column, deprel, label, number_digits"),
    ("fit --task positoin", "`--task positoin`", "did you mean `position`?"),
    ("fit --task_args.special_tokens some", "`--task_args.special_tokens some`: expected exclude or include"),
    ("fit --task upos", "`--corpus sentences.txt`", "column upos", "has none", "give a .conllu file"),
    ("fit --task column", "`--task column` needs the column's name"),
    ("fit --task upos --task_args.pieces middle", "`--task_args.pieces middle`: expected first, last or mean"),
    ("fit --corpus labels.tsv", "`--corpus labels.tsv`: line 2 has 1 column", "'token'"),
    ("fit --task_args.a.b 3", "`--task_args.a.b` is not an option of the task position", "max_position"),
    # word senses and similarity of sentences
    ("wic", "`wic` takes the folder of the WiC data set"),
    ("wic wic", "`wic wic`: every sentence of train is in dev too"),
    ("wic missing", "`wic missing/train.data.txt` cannot be read (no such file or directory)", "hf:NAME"),
    ("wic wic sts", "`wic` takes one folder, and 2 are given"),
    ("wic wic --part test", "line 1 of test is not a pair (there is no word 9 in a sentence of 3)"),
    ("wic wic --part train", "`--part train`: expected dev or test"),
    ("wic wic --transforms clip,whitn", "`--transforms whitn` is not one of clip,", "did you mean `whiten`?"),
    ("wic wic --definition layer_norm", "`--definition layer_norm`: expected argmin_share,"),
    ("wic wic --components 0", "`--components 0` is out of range"),
    ("wic wic --components 17", "`--components 17` is out of range: expected 1 to 16"),
    ("wic wic --layer 9", "`--layer 9`", "tiny has layers 0 (embeddings) to 3"),
    ("wic cut --max_length 3", "`--max_length`: of cut train, no pair keeps its word"),
    ("wic wic --trainer.max_epoch 1", "`--trainer.max_epoch` is not an argument"),
    ("wic wic --name there", "`--name there`", "runs are never changed"),
    ("sts", "`sts` takes a folder with STS12 to STS16"),
    ("sts missing", "`sts missing` cannot be read (no such file or directory)"),
    ("sts wic", "`sts wic` cannot be read (there are no pairs of sentences in it)"),
    ("sts sts sts", "STS-B dev was found twice"),
    ("sts sts-train", "these are training parts only; give dev or test parts too"),
    ("sts sts --pooling max", "`--pooling max` is not one of mean, mean_special, cls, first_last, all"),
    ("sts sts --static missing.txt", "`--static missing.txt` cannot be read (No such file or directory)"),
    ("sts sts --static vectors.txt", "`--static vectors.txt`: line 2 is not a word followed by 2 numbers"),
    ("sts sts --fit_on missing.txt", "`--fit_on missing.txt` cannot be read"),
    ("sts sts sts-train", "`--fit_on train`: all its sentences occur in the sets that are evaluated"),
    ("sts 'hf:x?split=test'", "`sts hf:x?split=test`: all splits and columns are read, so leave split= out"),
    # Lightning's options
    ("fit --trainer.max_epoch 1", "`--trainer.max_epoch` is not an argument", "did you mean `--trainer.max_epochs`?"),
    ("fit --config options.yaml", "`--trainer.max_epoch`", "`--trainer.devices`?", "`--trainer.callbacks` cannot be"),
    ("fit --trainer.gradient_clip_val 1", "`--trainer.gradient_clip_val` cannot be used with the solver lbfgs"),
    ("extract --trainer.precision 16", "`--trainer.precision` cannot be used"),
    ("fit --trainer.max_epochs 0", "`--trainer.max_epochs 0` allows no pass"),
    ("fit --trainer.max_epochs 1.5", "`--trainer.max_epochs 1.5`: expected a whole number"),
    ("fit --trainer.max_epochs nan", "`--trainer.max_epochs nan`: expected a whole number"),
    ("fit --trainer.max_epochs -7", "`--trainer.max_epochs -7` is out of range"),
    ("fit --trainer.max_time soon", "`--trainer.max_time soon`: Lightning refuses it", "DD:HH:MM:SS"),
    ("fit --trainer.max_time -1", "`--trainer.max_time -1`: expected DD:HH:MM:SS"),
    ("fit --trainer.max_time 00:00:00:00", "`--trainer.max_time 00:00:00:00` leaves no time"),
    ("fit --trainer.accelerator abacus", "`--trainer.accelerator abacus`: Lightning refuses it"),
    ("fit --trainer.devices 0 --trainer.max_epochs 3", "`--trainer.devices 0`: Lightning refuses it"),
    ("fit --trainer.strategy warp", "`--trainer.strategy warp`: expected auto or ddp"),
    ("fit --trainer.num_nodes 0", "`--trainer.num_nodes 0`: Lightning refuses it"),
    ("fit --trainer.deterministic maybe", "`--trainer.deterministic maybe`: expected true or false"),
    *((f"fit --probe.solver adam --trainer.{what}", f"`--trainer.{what}`") for what in NOT_WITH_ADAM),
    # names and folders
    *((f"fit --name {name}", f"`--name {name}` is not a plain name inside runs") for name in NO_NAMES),
    ("fit --name there", "`--name there`", "runs are never changed"),
    ("fit --name half", "`--name half`", "under way or was interrupted"),
    ("fit --name link", "`--name link`", "exists"),
    ("fit --name away", "`--name away`", "exists"),
    ("fit --runs sentences.txt", "`--runs sentences.txt` is no folder"),
    ("fit --runs sentences.txt/below", "`--runs sentences.txt/below` is no folder"),
    (f"fit --runs {'long' * 100}", "`--runs longlong", "too long"),
    ("fit --runs /dev/null", "`--runs /dev/null` is no folder"),
    ("fit --cache sentences.txt", "`--cache sentences.txt` is no folder", "a file"),
    ("extract --cache sentences.txt/x", "`--cache sentences.txt/x` is no folder"),
    ("fit --runs '\udcff'", "`--runs \\udcff` is no name in UTF-8; name another"),
    ("fit --name 'a\ud83d'", "`--name a\\ud83d` has one half of a character, a lone surrogate ('\\ud83d')"),
    ("fit --corpus 'a\ud83d'", "`--corpus a\\ud83d` has one half of a character"),
    ("fit --wandb.group 'a\ud83d'", "`--wandb.group a\\ud83d` has one half of a character"),
    ("fit --task_args.column 'a\ud83d'", "`--task_args.column a\\ud83d` has one half of a character"),
    ("PROBING_CACHE=sentences.txt fit", "`PROBING_CACHE=sentences.txt` is no folder"),
    ("PROBING_CACHE=sentences.txt 'cache ls'", "`PROBING_CACHE=sentences.txt` is no folder"),
    ("cache ls --cache sentences.txt", "`--cache sentences.txt` is no folder"),
    ("cache prune --cache sentences.txt --yes", "`--cache sentences.txt` is no folder"),
    ("cache verify --cache missing", "`--cache missing` is no folder"),
    ("cache verify --cach missing", "`--cach` is not an option of cache verify", "did you mean `--cache`?"),
    ("cache ls runs", "`runs` is not an option"),
    ("cache prune --yes maybe", "`--yes maybe`: expected true or false"),
]


def test_there_are_many_cases_and_none_twice() -> None:
    lines = [line for line, *_ in CASES]
    assert len(set(lines)) == len(lines) > 150


@pytest.mark.parametrize(("line", "words"), [(line, words) for line, *words in CASES], ids=[c[0][:60] for c in CASES])
def test_what_cannot_be_done_is_refused_in_one_sentence(
    line: str, words: list[str], refusal: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = shlex.split(line)
    while "=" in typed[0] and not typed[0].startswith("-"):
        monkeypatch.setenv(*typed.pop(0).split("=", 1))
    if typed[0] == "cache" and len(typed) > 1:
        typed[:2] = [" ".join(typed[:2])]
    sentence = refusal(typed)
    for word in words:
        assert word in sentence


def test_what_is_wrong_with_the_arguments_is_said_before_anything_heavy_is_imported(desk: Path) -> None:
    lines = [
        "--layr 3",
        "--layer first",
        "--name ../x",
        "--name there",
        "--corpus empty.txt",
        "--seed -1",
        "--task colour",
        "--controls tokens",
    ]
    code = (
        "import sys; from probing.__main__ import COMMANDS; from probing.cli.commandline import run\n"
        f"print([run(COMMANDS, ['fit', *line.split()]) for line in {lines}])\n"
        "print({'torch', 'transformers', 'pytorch_lightning', 'wandb'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, cwd=desk, capture_output=True, encoding="utf-8", check=True).stdout
    assert shown.splitlines() == [str([2] * len(lines)), "set()"]


class Unreadable(io.BytesIO):
    def read(self, *args: Any) -> bytes:
        raise IsADirectoryError(errno.EISDIR, "Is a directory")


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        (None, "cannot be read"),
        (SimpleNamespace(buffer=Unreadable()), "cannot be read (Is a directory)"),
        (SimpleNamespace(buffer=io.BytesIO(b"")), "holds no sentence"),
        (SimpleNamespace(buffer=io.BytesIO(b"the token\n\xff\n")), "is not UTF-8 (line 2"),
    ],
    ids=["closed", "a folder", "empty", "not UTF-8"],
)
def test_standard_input_that_is_no_corpus_is_refused(
    stdin: Any, words: str, refusal: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    assert f"`--corpus -` {words}" in refusal(["fit", "--corpus", "-"])


# --- disks ---


def full_disk(*args: Any, **keywords: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def safetensors_on_a_full_disk(tensors: Any, path: Path, *args: Any, **keywords: Any) -> None:
    Path(path).write_bytes(b"half")
    raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("target", "patch"),
    [
        ("safetensors.numpy.save_file", safetensors_on_a_full_disk),
        ("safetensors.torch.save_file", safetensors_on_a_full_disk),
        ("probing.activations.store._sync", full_disk),
        ("probing.activations.store.ActivationStore._append", full_disk),
    ],
)
@pytest.mark.parametrize("command", ["fit", "extract"])
def test_a_full_disk_while_extracting_says_what_to_do(
    command: str, target: str, patch: Any, refusal: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, patch)
    sentence = refusal([command, "--layer", "0"])
    assert re.search(r"No space left .*make room, or name another folder with `--cache`", sentence)


@pytest.fixture
def cached(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A cache that holds layer 0, so that a run goes on to its results."""
    monkeypatch.chdir(desk)
    assert run(COMMANDS, ["extract", *USUAL["extract"], "--layer", "0", "--cache", "cached"]) == 0
    capsys.readouterr()
    return desk / "cached"


@pytest.mark.parametrize(
    "target",
    [
        "probing.results.write_csv",
        "probing.runs.results.write_figures",
        "yaml.safe_dump",
        "probing.runs.results.versions",
        "safetensors.torch.save_file",
    ],
)
def test_a_full_disk_while_writing_results_leaves_no_run(
    cached: Path, target: str, refusal: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, safetensors_on_a_full_disk if "save_file" in target else full_disk)
    sentence = refusal(["fit", "--layer", "0", "--cache", "cached", "--trainer.max_epochs", "2", *BARE_ARGS])
    assert re.search(r"`--runs runs`: the results could not be written \(.*No space left.*make room", sentence)


@contextmanager
def nobody() -> Iterator[None]:
    """Be a user without rights; root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_weights_that_may_not_be_read_are_refused(
    desk: Path, tmp_path: Path, refusal: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open
    source._digest.cache_clear()  # what was read before is not opened again

    def guarded(path: Any, *args: Any, **keywords: Any) -> int:
        if str(path).endswith("model.safetensors"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *args, **keywords)

    monkeypatch.setattr(os, "open", guarded)
    assert "`--model tiny`: tiny/model.safetensors cannot be read (Permission denied)" in refusal(["fit"])


@pytest.mark.parametrize(("option", "words"), [("--runs", "is read-only for you"), ("--cache", "(Permission denied)")])
def test_a_folder_that_may_not_be_written_is_refused(
    desk: Path, option: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with tempfile.TemporaryDirectory() as place:  # not below pytest's own folder, which is closed to others
        shutil.copytree(desk / "tiny", Path(place, "tiny"))
        shutil.copy(desk / "sentences.txt", place)
        Path(place, "tiny", "model.safetensors").chmod(0o644)
        locked, mine = Path(place, "locked"), Path(place, "mine")
        locked.mkdir()
        mine.mkdir()
        mine.chmod(0o777)
        for folder in (Path(place), locked):
            folder.chmod(0o555)
        monkeypatch.chdir(place)
        with nobody():
            status = run(COMMANDS, ["fit", *USUAL["fit"], "--runs", "mine", option, "locked"])
        Path(place).chmod(0o755)
        said = capsys.readouterr()
        assert (status, said.out) == (2, "")
        assert f"`{option} locked` cannot be written" in said.err
        assert words in said.err
        assert not list(locked.iterdir())
        assert not list(mine.iterdir())
