"""Finished runs opened again: their model, their corpus, their activations, and their rankings sentence by sentence."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import safe_open

from probing.cache.tokens import LONGEST, tokenize
from probing.commands.shared import extract_all, read_corpora
from probing.comparison import Pair, Ranked, Readings, compare_pair, cross_moments, rank_on_sentences
from probing.corpus import Corpus
from probing.errors import RunError, UserError
from probing.examples import label as label_tokens
from probing.models import ModelSource, length_limits, load_config, load_tokenizer, resolve_model
from probing.runs import Run
from probing.tasks import load_task

Say = Callable[[str], None]


@dataclass(frozen=True)
class Extraction:
    """What every extraction of a comparison has in common."""

    cache: Path
    trainer: Mapping[str, Any]
    say: Say
    progress: bool

    def readings(self, run: Run, source: ModelSource, corpus: Corpus) -> Readings:
        """Return what a run's model made of a corpus, in the run's layers."""
        config, layers = run.config, [row["layer"] for row in run.accuracy]
        # What was repeated in the corpus, the run itself has said.
        quiet = replace(corpus, n_repeated=0)
        (store,) = extract_all(
            source, [quiet], layers, self.cache, self.trainer, self.say, self.progress, dtype=config["dtype"],
            max_length=config["max_length"], batch_tokens=config["batch_tokens"],
            random_weights_seed=config["seed"] if config["random_weights"] else None,
        )  # fmt: skip
        if corpus.words is not None:
            return Readings(store, store.tokens, layers)
        # Each tokenizer has words of its own in running text; those between blanks are the same for all.
        tokenizer = load_tokenizer(source)
        longest = config["max_length"] or min(length_limits(source, tokenizer)[1], LONGEST)
        tokens = tokenize(tokenizer, corpus.sentences, longest, [text.split() for text in corpus.sentences])
        return Readings(store, tokens, layers)


def source_of(run: Run) -> ModelSource:
    """Return the files of a run's model."""
    return resolve_model(run.config["model"], run.config["revision"])


def labels_of(made: Sequence[Run], sources: Sequence[ModelSource]) -> list[str]:
    """Name each run by its model, or by its folder where two have the same."""
    names = [source.short_name for source in sources]
    return names if len(set(names)) == len(names) else [run.folder.name for run in made]


def _is_same_model(a: Run, b: Run) -> bool:
    keys = [run.results["cache"]["test"]["key"] for run in (a, b)]
    return keys[0]["model"] == keys[1]["model"] and keys[0]["random_weights_seed"] == keys[1]["random_weights_seed"]


def _matching_of(matching: str, a: Run, b: Run) -> Literal["index", "correlation"]:
    if matching == "auto":
        return "index" if _is_same_model(a, b) else "correlation"
    return "index" if matching == "index" else "correlation"


def check_matching(matching: str, sources: Sequence[ModelSource]) -> None:
    """Refuse to match neurons of different widths by their index.

    Raises:
        UserError: If that was asked for.
    """
    widths = {source.name: load_config(source).hidden_size for source in sources}
    if matching == "index" and len(set(widths.values())) > 1:
        found = ", ".join(f"{name} has {width}" for name, width in widths.items())
        raise UserError(
            f"`--matching index`: neurons of one index need models of one width, and {found}; use correlation."
        )


def ranked_of(run: Run, source: ModelSource, label: str, extract: Extraction, seed: int) -> Ranked:
    """Rank a run's neurons again from its probe, its test sentences one by one.

    Raises:
        UserError: If model or corpus are no longer what they were.
        RunError: If the ranking does not come out as the run has it.
    """
    config = run.config
    if "-" in (config["corpus"], config["test_corpus"]):
        raise UserError(f"`{run.folder}` read standard input, which is gone; repeat it with the text in a file.")
    corpora, splits = read_corpora(config["corpus"], config["test_corpus"], config["seed"], lambda message: None)
    before = run.results["cache"]["test"]["key"]
    is_trained = not config["random_weights"]
    if corpora[-1].fingerprint != before["corpus"] or source.fingerprint(weights=is_trained) != before["model"]:
        raise UserError(
            f"`{run.folder}`: its model or corpus has changed since; repeat the run, "
            f"for example with `fit --config {run.folder / 'config.yaml'}`."
        )
    readings = extract.readings(run, source, corpora[-1])
    task = load_task(config["task"], config["task_args"])
    test = label_tokens(readings.store, task, splits[-1], np.array(run.results["classes"]), "test")
    with safe_open(run.folder / "probe.safetensors", "pt") as file:
        ranked = rank_on_sentences(label, file.get_tensor("weight"), test, readings.layers, seed)
    for i, layer in enumerate(ranked.layers):
        stored = {row["neuron"]: row["contribution"] for row in run.neurons if row["layer"] == layer}
        if not np.allclose([stored[n] for n in range(ranked.d_model)], ranked.scores[i], rtol=1e-3, atol=1e-6):
            raise RunError(
                f"{run.folder}: the contributions of layer {layer} are not those of its probe; repeat the run"
            )
    return ranked


def pairs_of(
    made: Sequence[Run],
    sources: Sequence[ModelSource],
    ranked: Sequence[Ranked],
    extract: Extraction,
    matching: str,
    assignment: Literal["one_to_one", "many_to_one"],
    top: int,
    seed: int,
) -> dict[tuple[int, int], Pair]:
    """Compare every run with every later one, matched on the sentences of the earlier one's corpus."""
    pairs = {}
    for i, j in itertools.combinations(range(len(made)), 2):
        config = made[i].config
        corpus = read_corpora(config["corpus"], config["test_corpus"], config["seed"], lambda message: None)[0][0]
        moments = cross_moments(*(extract.readings(made[at], sources[at], corpus) for at in (i, j)))
        how = _matching_of(matching, made[i], made[j])
        pairs[i, j] = compare_pair(ranked[i], ranked[j], moments, how, assignment, top, seed)
        if how == "index" and not pairs[i, j].related:
            extract.say(
                f"{ranked[i].label} and {ranked[j].label}: neurons of one index go together no more than any two do, "
                "so these models hardly share a lineage and neuron i of one is not neuron i of the other; "
                "`--matching correlation` finds which belong together"
            )
    return pairs
