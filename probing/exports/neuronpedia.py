"""The first neurons of a run in the layout of Neuronpedia's exports, from which a server of it imports dashboards.

A folder `MODEL/LAYER-SET` has `model.jsonl`, `release.jsonl`, `sourceset.jsonl` and `source.jsonl`, and batches of
`features` and `activations` as compressed JSON lines. Fields that only a dictionary of features has (its vectors,
logits and histograms) are left out, and so are explanations.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probing.corpus import Corpus
from probing.data.examples import Examples
from probing.errors import UserError
from probing.models.layers import site_of
from probing.results.schema import Row
from probing.runs.neuron_page import sides_and_text
from probing.runs.run import Run, of_text
from probing.runtime.libraries import quiet_libraries
from probing.tasks import short_name

LEFT_OUT = (
    "explanations", "vector", "neg_str", "pos_str", "frac_nonzero", "topkCosSimIndices", "neuron_alignment_indices",
    "correlated_features_indices", "freq_hist_data_bar_heights", "logits_hist_data_bar_heights", "decoder_weights_dist",
)  # fmt: skip


def write_neuronpedia(run: Run, folder: Path) -> Mapping[str, Any]:
    """Write the first neurons of each layer, with the sentences of the tokens on which they are highest and lowest.

    Raises:
        UserError: If the run has no such tokens, or its model or corpus has changed.
    """
    contexts = of_text(run).contexts
    if not contexts:
        raise UserError(
            f"`export`: `{run.folder}` has no contexts.csv, of a run of text by this version; repeat the run."
        )
    with quiet_libraries():
        sides, corpus = sides_and_text(run)
    if sides.test.pooling is not None:
        raise UserError(f"`export`: examples of `{run.folder}` are whole sentences, and `neuronpedia` shows tokens.")
    model, name = _named(str(run.config["model"])), _named(f"{short_name(run.config)}-{site_of(run.config)}")
    for layer in run.layers:
        rows = [row for row in contexts if row["layer"] == layer]
        source = f"{int(layer)}-{name}"
        place = folder / model / source
        activations = list(_activations(sides.test, corpus, int(layer), rows, {"modelId": model, "layer": source}))
        _lines(place / "features" / "batch-0.jsonl.gz", _features(run, layer, activations, model, source))
        _lines(place / "activations" / "batch-0.jsonl.gz", activations)
        for what, described in _described(run, model, name, source).items():
            _lines(place / f"{what}.jsonl", [described])
    return {"neurons": len({(row["layer"], row["neuron"]) for row in contexts}), "left_out": LEFT_OUT}


def _named(text: str) -> str:
    """Return a name of letters, digits and hyphens, of the last part of a path."""
    return re.sub(r"[^a-z0-9.]+", "-", Path(text).name.lower()).strip("-.") or "run"


def _described(run: Run, model: str, name: str, source: str) -> dict[str, dict[str, Any]]:
    release = f"{model}-{name}"
    about = f"Neurons that linear probes of {short_name(run.config)} read, highest contribution first"
    shown, text = {"visibility": "PUBLIC"}, run.config.get("test_corpus") or run.config["corpus"]
    return {
        "model": {"id": model, "displayName": model, "displayNameShort": model, "instruct": False},
        "release": {"name": release, "description": about, "descriptionShort": about, "urls": []},
        "sourceset": {"modelId": model, "name": name, "releaseName": release, "description": about, **shown},
        "source": {
            "id": source, "modelId": model, "setName": name, "dataset": _named(str(text)),
            "num_prompts": run.results["n_sentences"]["test"], **shown,
        },
    }  # fmt: skip


def _features(run: Run, layer: int, activations: Sequence[Row], model: str, source: str) -> Iterator[dict[str, Any]]:
    """Yield a feature for each neuron, in the order of the ranking."""
    highest: dict[str, float] = {}
    for row in activations:
        highest[row["index"]] = max(row["maxValue"], highest.get(row["index"], row["maxValue"]))
    hook = f"blocks.{int(layer) - 1}.hook_resid_post" if site_of(run.config) == "residual" and layer else None
    for index, value in highest.items():
        others = [
            row for row in run.profiles
            if (row["layer"], row["neuron"], row["measure"]) == (layer, int(index), "correlation")
        ]  # fmt: skip
        yield {
            "modelId": model, "layer": source, "index": index, "maxActApprox": value, "hasVector": False,
            "hookName": hook,
            "correlated_neurons_indices": [row["index"] for row in others],
            "correlated_neurons_pearson": [row["value"] for row in others],
        }  # fmt: skip


def _activations(
    examples: Examples, corpus: Corpus, layer: int, rows: Sequence[Row], about: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the activations of each neuron on all tokens of each sentence, each sentence once, in the order of rows."""
    store = examples.store
    offsets = store.tokens.offsets
    asked = list(dict.fromkeys((row["neuron"], row["sentence"]) for row in rows))
    found: dict[tuple[int, int], list[float]] = {}
    for shard in store.plan.shards:
        here = range(shard.first_sentence, shard.first_sentence + shard.n_sentences)
        if not (own := [pair for pair in asked if pair[1] in here]):
            continue
        states, start = store.read(layer, shard.index), store.shard_tokens(shard).start
        for neuron, sentence in own:
            values = states[offsets[sentence] - start : offsets[sentence + 1] - start, neuron]
            found[neuron, sentence] = values.float().tolist()
    for neuron, sentence in asked:
        seen = found[neuron, sentence]
        yield {
            **about, "id": f"{about['layer']}-{neuron}-{sentence}", "index": str(neuron),
            "tokens": _tokens(examples, corpus, sentence), "values": seen,
            "maxValue": max(seen), "maxValueTokenIndex": int(np.argmax(seen)), "minValue": min(seen),
            "dataIndex": str(sentence), "dataSource": "corpus",
        }  # fmt: skip


def _tokens(examples: Examples, corpus: Corpus, sentence: int) -> list[str]:
    """Return the tokens of a sentence as they stand in it, with the blank before them; special ones by name."""
    tokens, text, end, named = examples.store.tokens, corpus.sentences[sentence], 0, []
    for row in range(*tokens.offsets[[sentence, sentence + 1]].tolist()):
        start, stop = (0, 0) if tokens.spans is None else tokens.spans[row].tolist()
        if start == stop:
            named.append(tokens.added_texts.get(int(tokens.input_ids[row]), "(special)"))
            continue
        blank = text[max(end, start - 1) : start]
        named.append((blank if blank.isspace() else "") + text[start:stop])
        end = stop
    return named


def _lines(path: Path, rows: Any) -> None:
    """Write JSON lines, compressed if the path says so; the same rows give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode("utf-8")
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
