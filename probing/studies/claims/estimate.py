"""Estimates, made before a model reads anything, of the time that the runs for claims take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from probing.cache.source import Reading, Speed
from probing.cli.options import ProbeOptions, as_options
from probing.corpus.splits import splits_of
from probing.data.control_names import chosen_controls
from probing.data.controls import READ_AGAIN
from probing.data.labelling import choose_classes, class_of_tokens
from probing.disabling.probed_task import UNITS
from probing.models import load_config
from probing.studies.claims.planning import Need
from probing.studies.disable.pruning import N_RANDOM
from probing.studies.disable.weights import N_FILES
from probing.studies.finetune.options import STARTS, TuningOptions
from probing.studies.fit.estimate import Probes
from probing.tasks import load_task

# Floating-point operations per activation (tokens x layers x neurons) of each command, apart from reading the text, at
# the rate of matrix products. They come from runs of the built-in model on its corpus on a core of 150 GFLOP/s, and are
# accurate to a factor of two or three.
_OPERATIONS = {"geometry": 27e3, "attention": 87e3, "wic": 15e3, "sts": 15e3, "hierarchy": 105e3, "cloze": 150e3}
# Number of tokens of the sentences that a command generates itself, whatever the corpus is; and the maximum number of
# tokens of the corpus that a command reads by default.
_OWN_TOKENS, _MOST_TOKENS = {"hierarchy": 120_000}, {"disable": 20_000, "cloze": 20_000}
# Operations per activation that these options add.
_OF_OPTIONS = {"norms": 225e3, "path": 45e3}
# Share of the sentences of a text that are its test part.
_TESTED = 0.1
# Seconds of one training by its size: on a processor (tiny), and summed over the paper's four A100 GPUs (base).
_TRAINING_S = {"tiny": 100.0, "base": 4 * 35 * 3600.0}


def training_seconds(need: Need) -> float:
    """Return about how many processor seconds a training of encoders takes."""
    options: Mapping[str, Any] = need.options
    return _TRAINING_S[options["size"]] * options["seeds"] * len(str(options["arms"]).split(","))


def seconds(need: Need, defaults: Mapping[str, Any], reading: Reading, speed: Speed) -> float:
    """Estimate how many seconds a run takes, apart from reading the text into the cache.

    Args:
        need: The run.
        defaults: The defaults of the command's options.
        reading: The text that it reads.
        speed: This machine's rates.
    """
    options, size = {**defaults, **need.options}, reading.size
    n_tokens = _OWN_TOKENS.get(need.command, min(size.n_tokens, _MOST_TOKENS.get(need.command, size.n_tokens)))
    share = n_tokens / max(size.n_tokens, 1)
    forward_s = share * speed.forward_s(size)
    if need.command == "fit":
        probes, n_readings = _probes(options, reading)
        return n_readings * forward_s + probes.seconds(probes.measured_pass(), speed.rates["square"])
    if need.command == "disable":
        n_heads = int(getattr(load_config(reading.request.source), "num_attention_heads", 1))
        passes = _passes(options, speed.blocks.n_blocks, n_heads)
        return passes * (min(_TESTED, share) if need.is_of_run else share) * speed.forward_s(size)
    if need.command == "finetune":
        return _tunings(options, speed.blocks.n_blocks) * speed.forward_s(size)
    operations = _OPERATIONS[need.command] + sum(more for name, more in _OF_OPTIONS.items() if options.get(name))
    return operations * share * size.n_activations / speed.rates["square"]


def _passes(options: Mapping[str, Any], n_blocks: int, n_heads: int) -> float:
    """Return how many passes through all blocks a run of `disable` makes.

    A head, or a layer, is disabled in a pass through the later blocks, which are half of them on average. What is
    pruned together is in every block, and in half of the sentences.
    """
    pruned = "" if options["prune"] is False else str(options["prune"])
    of_units, of_weights = (pruned in ("True", "all") or name in pruned for name in ("units", "weights"))
    kinds = {"all": 4}.get(str(options["kinds"]), len(str(options["kinds"]).split(",")))
    n_units = {"heads": n_heads, "layers": 1}.get(str(options["units"]), n_heads + 1)
    found = kinds * n_blocks * n_units / 2
    found += len(UNITS) * (N_RANDOM + 2) / options["prune_share"] / 2 if of_units else 0
    return found + (N_FILES if of_weights else 0)


def _tunings(options: Mapping[str, Any], n_blocks: int) -> float:
    """Return how many passes over the text take as long as the trainings of a run of `finetune`.

    A step takes three times as long as its forward pass, and the training part is four fifths of the text. What is
    tested after each epoch, and the baselines, take as long as another epoch together.
    """
    tuning: Mapping[str, Any] = {**asdict(TuningOptions()), **_as_mapping(options["tuning"])}
    starts = len(STARTS) if options["starts"] == "all" else len(str(options["starts"]).split(","))
    layer = int(tuning["layer"])
    kept = (n_blocks + 1 + layer if layer < 0 else layer) / n_blocks
    return starts * options["seeds"] * options["orders"] * kept * (3 * 0.8 * tuning["epochs"] + 1)


def _as_mapping(group: Any) -> Mapping[str, Any]:
    return group if isinstance(group, Mapping) else asdict(group)


def _probes(options: Mapping[str, Any], reading: Reading) -> tuple[Probes, int]:
    """Return the probes of a run of `fit`, and how many more readings its controls take."""
    corpus, tokens = reading.request.corpus, reading.tokens
    task = load_task(options["task"], options["task_args"])
    splits = splits_of(corpus, options["seed"], options["group_by"])
    classes = choose_classes(tokens, corpus, task, splits)
    labels = class_of_tokens(tokens, corpus, task, splits, classes, "train").labels
    controls = chosen_controls(options["controls"], task.ordinal, False, not len(classes))
    probe = as_options(ProbeOptions, options["probe"], "probe")
    asked = Probes.asked(
        reading.request.layers, controls, options["replicates"], options["evidence"] == "all", options["mdl"], probe
    )
    size = reading.size
    known = replace(asked, n_tokens=int((labels >= 0).sum()), n_classes=max(len(classes), 1), d_model=size.width)
    return known, len(READ_AGAIN.keys() & set(controls))
