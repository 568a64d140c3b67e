"""Predictions of a run's probes for other text or arrays, and a run's description of a neuron."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations.source import report_dropped_text
from probing.data.arrays import activations_of_arrays
from probing.data.examples import Examples, HiddenStateSource, Sides, SpanVectors, pooled, read, span_vectors
from probing.errors import UserError
from probing.probes.neuron_profiles import Extremes, extremes, profile_rows
from probing.probes.solvers import centre_over_classes
from probing.probes.transforms import TransformedStore
from probing.registry import ACTIONS, load
from probing.results import (
    NamedLayer,
    Row,
    Table,
    cells_table,
    count,
    element,
    in_brackets,
    interval,
    joined,
    layer_cells,
    layers_named,
    listed,
    shown_table,
)
from probing.runs import refuse_several
from probing.runs.checks import read_transforms, reads_transformed
from probing.runs.finished import RunExtraction, open_runs, sides_of, source_of_run, width_of
from probing.runs.folder import read_tensor, reading
from probing.runs.places import cache_of, model_of, task_of
from probing.runtime import quiet_libraries, terminal
from probing.runtime.terminal import render
from probing.statistics import ranked
from probing.tables import neuron_name
from probing.tables.schema import CONTEXTS, EXPLANATIONS, NEURON_CLASSES, PREDICTIONS, PROFILES
from probing.text import Corpus, Split
from probing.text.columns import check_text
from probing.text.tasks import Labels, SentenceTask, Span, SpanTask, TokenTask, rows_of_spans
from probing.text.tokens import Tokens

if TYPE_CHECKING:
    from probing.runs.run import Run

# Classes that are shown at each end of the weights.
MOST_CLASSES = 5

# Most tokens of each end that can be asked for.
MOST_TOKENS = 10_000


class NeuronPage(Table):
    """A neuron's test tokens, as rows of `contexts.csv`, with its profile; a notebook shows all of it.

    Attributes:
        name: Index of the neuron for readers; of pairs of spans, its index in the layer and its span.
        profile: Mean, means by position, strongest correlations and share of the mean cosine, as in `profiles.csv`.
        classes: Weight and mean contribution by class; for numbers a single row without a class.
        ranks: The rows of `neurons.csv` of the neuron of this index, layer by layer.
    """

    def __init__(
        self, run: Run, layer: int, neuron: int, contexts: Sequence[Row], profile: Sequence[Row], classes: Table
    ) -> None:
        super().__init__(contexts, CONTEXTS)
        self.layer, self.neuron, self.classes = layer, neuron, classes
        self.profile = Table(profile, PROFILES)
        self.ranks = Table((row for row in run.neurons if row["neuron"] == neuron), run.neurons.schema)
        self._n_neurons = len(run.neurons) // len(self.ranks)
        self._names = {row["neuron"]: neuron_name(row) for row in run.neurons if row["layer"] == layer}
        self.name = self._names[neuron]

    @property
    def positions(self) -> Table:
        """The rows of `profile` that are means at a position; empty where examples are no tokens."""
        return self.profile.where(measure="position")

    @property
    def correlations(self) -> Table:
        """The rows of `profile` that are correlations with other neurons, the strongest first."""
        return self.profile.where(measure="correlation")

    @property
    def cosine_share(self) -> float | None:
        """The neuron's share of the mean cosine of two different test tokens; None where this cosine is about 0."""
        return next(iter(self.profile.where(measure="cosine_share").column("value")), None)

    def sentences(self) -> list[str]:
        """Return sentences on the neuron's rank, mean, share of the mean cosine and correlations."""
        sentences = [self._rank_sentence()]
        for row in self.profile.where(measure="mean"):
            n, between = count(row["n_test_tokens"], "test token"), interval(row, "value", " to ", ".3g")
            inside = in_brackets(between and f"95% interval {between}")
            sentences.append(f"Its mean activation over {n} is {row['value']:.3g}{inside}.")
        if (share := self.cosine_share) is not None:
            sentences.append(f"It makes {share:.1%} of the mean cosine of two different test tokens.")
        if others := [f"{self._names[row['index']]} ({row['value']:+.2f})" for row in self.correlations]:
            sentences.append(f"Its activations correlate most with those of the neurons {listed(others)}.")
        return sentences

    def _rank_sentence(self) -> str:
        """Return its rank in the layer, and the ranks of the neurons of the same index in the run's other layers."""
        (own,), others = self.ranks.where(layer=self.layer), self.ranks.where(lambda row: row["layer"] != self.layer)
        sentence = f"Neuron {self.name} of layer {self.layer} has rank {own['rank']} of {self._n_neurons}"
        if not others:
            return f"{sentence}."
        first = self.ranks.layers(lambda row: row["rank"] == 1)
        named = layers_named(first) if first else "no layer of the run"
        places = listed([f"{row['rank']} in layer {row['layer']}" for row in others])
        return f"{sentence}; the neuron of this index is first in {named}. Other ranks: {places}."

    def classes_table(self) -> Any:
        """Return the classes of the highest and of the lowest weights as a rich table, the highest first."""
        ordered = sorted(self.classes, key=lambda row: -row["weight"])
        rows, title = ordered, "Weight by class"
        if len(ordered) > 2 * MOST_CLASSES:
            rows = [*ordered[:MOST_CLASSES], *ordered[-MOST_CLASSES:]]
            title += f": the {MOST_CLASSES} highest and the {MOST_CLASSES} lowest of {len(ordered)}"
        return shown_table(NEURON_CLASSES, rows, title, ["class", "weight", "contribution"])

    def __repr__(self) -> str:
        tables = [shown_table(CONTEXTS, self, "Tokens on which it is highest and lowest")] if self else []
        if positions := self.positions:
            names = ["index", "value*", "n_test_tokens"]
            tables.append(shown_table(PROFILES, positions, "Mean activation by position", names))
        return "\n".join([*self.sentences(), terminal.render(*tables, self.classes_table())])

    def _repr_html_(self) -> str:
        shown: str = load(ACTIONS["neuron_block"])(self)
        return shown


def page_of(run: Run, layer: int, neuron: int, n: int) -> NeuronPage:
    """Return the page of any neuron of a run of text, from the hidden states of its test tokens."""
    width = width_of(run)
    if neuron not in range(width):
        raise UserError(f"`neuron={neuron}`: layer {layer} of {run.folder} has the neurons 0 to {width - 1}.")
    if n not in range(1, MOST_TOKENS + 1):
        raise UserError(f"`n={n}` is not allowed; use a whole number from 1 to {MOST_TOKENS}.")
    with quiet_libraries():
        sides, corpus = sides_and_text(run)
        neurons = {layer: [neuron]}
        contexts = contexts_of(extremes(sides.test, neurons, n), sides.test, corpus, sides.classes)
        profile = profile_rows(sides.test, neurons)
    return NeuronPage(run, layer, neuron, contexts, profile, _Weights(run).of(layer, neuron))


def sides_and_text(run: Run, only_cached: bool = False) -> tuple[Sides, Corpus]:
    """Return the examples of a run of text, from the cache or extracted again, and the corpus of its test part.

    With `only_cached`, raise UserError if they would have to be extracted.
    """
    (finished,) = open_runs([run], "index", run.moved)
    extract = RunExtraction(cache_of(run), {}, terminal.silence, only_cached)
    return sides_of(finished, extract), finished.corpora[-1]


class HiddenStates(NamedTuple):
    """Examples of a layer: hidden states, labels, and groups of examples that are not independent."""

    states: NDArray[np.float32]
    labels: NDArray[Any]
    groups: NDArray[np.int64]


def hidden_states_of(run: Run, layer: int, split: Split | None) -> HiddenStates:
    """Return a run's examples in a layer from the cache, of one split or of all."""
    if split is not None and split not in get_args(Split):
        raise UserError(f"`split={split!r}`: expected train, validation or test, or none for all of them.")
    with quiet_libraries():
        sides, _ = sides_and_text(run, only_cached=True)
        parts = [_arrays(getattr(sides, name), int(layer), sides) for name in ([split] if split else get_args(Split))]
    if run.config.get("test_corpus") and not split:  # its sentences are counted from 0, too
        *others, (states, labels, groups) = parts
        parts = [*others, (states, labels, groups + 1 + max(int(of.max()) for _, _, of in others))]
    return HiddenStates(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _arrays(examples: Examples, layer: int, sides: Sides) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    batches = list(read(examples, [layer]))
    states = torch.cat([batch.hidden_states[0] for batch in batches]).numpy()
    labels = examples.targets if examples.values is not None else sides.classes[examples.labels[examples.labels >= 0]]
    groups = examples.cluster_of_sentence()[torch.cat([batch.sentences for batch in batches]).numpy()]
    return states, labels, groups


def pages_of_first(run: Run) -> Iterator[NeuronPage]:
    """Yield the pages that a run of text has written of the first neurons of each layer, in order."""
    contexts, profiles = (rows.by("layer", "neuron") for rows in (run.contexts, run.profiles))
    weights = _Weights(run) if contexts else None
    for (layer, neuron), rows in contexts.items():
        assert weights is not None
        yield NeuronPage(run, layer, neuron, rows, profiles.get((layer, neuron), ()), weights.of(layer, neuron))


class _Weights:
    """Weights of a run's probes, centred over classes, and contributions by class."""

    def __init__(self, run: Run) -> None:
        self.run, self.weight = run, centre_over_classes(run.weight.double())
        with reading(run.folder):
            self.contribution = read_tensor(run.folder / "contributions.safetensors", "contribution")

    def of(self, layer: int, neuron: int) -> Table:
        at = self.run.layers.index(layer)
        labels: list[Any] = list(self.run.results["classes"])
        weights, contributions = (by_class[at, :, neuron].tolist() for by_class in (self.weight, self.contribution))
        about = {**layer_cells(layer), "neuron": neuron}
        named: list[dict[str, Any]] = [{"class": label} for label in labels] or [{}]
        rows = (
            {**about, **label, "weight": weight, "contribution": contribution}
            for label, weight, contribution in zip(named, weights, contributions, strict=True)
        )
        return Table(rows, NEURON_CLASSES)


@dataclass(frozen=True)
class Probes:
    """The probes of all of a run's layers, or of some.

    Args:
        run: The run.
        weight: Weight of each layer's probe on raw activations, shape (n_classes, d_model), by layer number.
        intercept: Intercept of each layer's probe, shape (n_classes,); empty for probes without an intercept.
    """

    run: Run
    weight: Mapping[int, Tensor]
    intercept: Mapping[int, Tensor] = field(default_factory=dict)

    def logits(self, layer: int, states: Tensor) -> Tensor:
        """Return the logits, shape (n, n_classes), of activations after `read`, shape (n, d_model)."""
        logits = states.to(self.weight[layer].dtype) @ self.weight[layer].T
        return logits + self.intercept[layer] if self.intercept else logits

    def read(self, store: HiddenStateSource) -> HiddenStateSource:
        """Return activations as the run's probes read them: transformed, centred, or unchanged."""
        if not reads_transformed(self.run.config):
            return store
        width = next(iter(self.weight.values())).shape[1]
        return TransformedStore(store, read_transforms(self.run.folder, list(self.weight), width))


# Returns, for each example of a layer, the rows that are made of it.
Reader = Callable[[Probes, int, Tensor], list[list[dict[str, Any]]]]


def of_texts(probes: Probes, texts: Any, reader: Reader | None = None) -> Table:
    """Return each layer's predictions for each token of the texts, or for each text if the task is of sentences.

    `texts` are sentences, or lists of words; `reader` makes the rows (predictions by default).
    """
    refuse_several("predict")
    corpus, model, task = _corpus(texts), model_of(probes.run), task_of(probes.run)
    with tempfile.TemporaryDirectory(prefix="probing-") as cache, quiet_libraries():
        source = source_of_run(probes.run, model, list(probes.weight), Path(cache), terminal.say, {})
        (store,) = source.read([corpus])
        report_dropped_text([corpus], [store.tokens], terminal.say)
        examples = _examples(probes, store, task, corpus)
        if isinstance(task, SpanTask):
            if not examples.n_tokens:
                raise UserError("`predict`: the task finds no span in the texts; give texts that have one.")
            described = _spans(task.spans_of(corpus), store.tokens, corpus)
        elif isinstance(task, SentenceTask):
            described = [{"sentence": i} for i in range(len(corpus.sentences))]
        else:
            described = _tokens(store.tokens, corpus, task.word_means)
        return _table(probes, examples, lambda row: described[row], reader)


def of_arrays(probes: Probes, activations: Any, reader: Reader | None = None) -> Table:
    """Return each layer's predictions for each row of arrays, for a run of arrays.

    `activations` is an array of shape (n_rows, d_model), or an array for each of the run's layers, by number or name;
    other layers or widths raise `UserError`. `reader` makes the rows (predictions by default).
    """
    store = activations_of_arrays(activations)
    known = {_key(layer): layer for layer in probes.weight}
    if unknown := [layer for layer in store.layers if _key(layer) not in known]:
        what = "name" if isinstance(next(iter(known)), str) else "number"
        raise UserError(
            f"`X`: layer {unknown[0]} is not in {probes.run.folder}, which has {', '.join(map(str, known))}; "
            f"give a dict of layer {what} and array."
        )
    store = store.of_layers({known[_key(layer)]: array for layer, array in store.layers.items()})
    d_model = next(iter(probes.weight.values())).shape[1]
    if store.plan.d_model != d_model:
        raise UserError(f"`X` has {store.plan.d_model} columns, and the probes of {probes.run.folder} read {d_model}.")
    of_layers = replace(probes, weight={layer: probes.weight[layer] for layer in store.layers})
    examples = Examples(of_layers.read(store), np.zeros(store.tokens.n_tokens, dtype=np.int32))
    return _table(of_layers, examples, lambda row: {"row": row}, reader)


def _key(layer: int) -> int | str:
    """Return the key of a layer: its name if it has a name, otherwise its number."""
    return layer.name if isinstance(layer, NamedLayer) else layer


def _corpus(texts: Any) -> Corpus:
    """Return texts as a corpus in which every text is a sentence, including repeated texts."""
    listed = [texts] if isinstance(texts, str) else texts
    if not isinstance(listed, list | tuple) or not listed:
        problem = "an empty one" if isinstance(listed, list | tuple) else f"a value of type {type(texts).__name__}"
        raise UserError(f"`predict` takes a list of sentences, and {problem} is given.")
    are_words = not isinstance(listed[0], str)
    for i, text in enumerate(listed):
        parts = text if are_words and isinstance(text, list | tuple) else [None if are_words else text]
        if not all(isinstance(part, str) for part in parts):
            raise UserError(
                f"`predict`: item {i} of the list, counted from 0, is {text!r:.60}; expected a sentence, or for every "
                "sentence the list of its words."
            )
        if not "".join(text).strip():
            raise UserError(f"`predict`: sentence {i} of the list, counted from 0, is empty; leave it out.")
        check_text("".join(text), f"`predict`: sentence {i} of the list, counted from 0,")
    if not are_words:
        return Corpus("the texts", tuple(" ".join(text.split()) for text in listed))
    words = tuple(tuple(" ".join(word.split()) for word in text) for text in listed)
    return Corpus("the texts", tuple(" ".join(filter(None, text)) for text in words), words=words)


def _examples(probes: Probes, store: HiddenStateSource, task: TokenTask, corpus: Corpus) -> Examples:
    """Return the tokens, words, spans or sentences that the task may label, as the run's probes read them."""
    tokens = store.tokens
    has_words = np.bincount(tokens.sentences[~tokens.special], minlength=tokens.n_sentences) > 0
    if isinstance(task, SentenceTask):
        store, taken = pooled(store, task, corpus), has_words
        if isinstance(store, SpanVectors):
            taken = store.has_tokens
    else:
        taken = labelled_tokens(task, tokens)
    return Examples(probes.read(store), np.where(taken, 0, -1).astype(np.int32), word_means=task.word_means)


def labelled_tokens(task: TokenTask, tokens: Tokens) -> NDArray[np.bool_]:
    """Return a mask of the tokens that the task may label, for text without labels."""
    if task.word_means:
        return tokens.first_pieces
    by_piece = {"first": tokens.first_pieces, "last": tokens.last_pieces}
    if (pieces := getattr(task, "pieces", None)) in by_piece:
        return by_piece[pieces]
    includes_special = getattr(task, "special_tokens", "exclude") == "include"
    return tokens.included if includes_special else ~tokens.special


def _tokens(tokens: Tokens, corpus: Corpus, are_words: bool) -> list[dict[str, Any]]:
    """Return the columns that identify each token; `token` is the word if words are read."""
    words = tokens.word_texts(corpus)
    columns = {
        "sentence": tokens.sentences, "position": tokens.positions,
        "token": words if are_words else tokens.piece_texts(corpus), "word": words, "word_index": tokens.words,
    }  # fmt: skip
    listed = zip(*(values.tolist() for values in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in listed]


def _spans(spans: Sequence[Span], tokens: Tokens, corpus: Corpus) -> list[dict[str, Any]]:
    """Return the columns that identify each (first) span: its sentence, the position of its first token, its text."""
    first = rows_of_spans(spans, tokens)[:, 1].tolist()
    return [
        {
            "sentence": span.sentence, "position": int(row - tokens.offsets[span.sentence]),
            "token": corpus.sentences[span.sentence][span.start : span.end],
        }
        for span, row in zip(spans, first, strict=True)
    ]  # fmt: skip


def _table(
    probes: Probes, examples: Examples, described: Callable[[int], Mapping[str, Any]], reader: Reader | None = None
) -> Table:
    """Return the rows of each example and layer; `described` maps its row in the store to identifying columns."""
    layers, rows, read_layer = list(probes.weight), Table((), PREDICTIONS), reader or predictions
    for batch in read(examples, layers):
        by_layer = [
            read_layer(probes, layer, states) for layer, states in zip(layers, batch.hidden_states, strict=True)
        ]
        for row, of_layers in zip(batch.rows.tolist(), zip(*by_layer, strict=True), strict=True):
            rows += [{**described(row), **prediction} for of_layer in of_layers for prediction in of_layer]
    return rows


def predictions(probes: Probes, layer: int, states: Tensor) -> list[list[dict[str, Any]]]:
    """Return for each example the most probable class, or the predicted number."""
    logits = probes.logits(layer, states)
    if (numbers := probes.run.results.get("numbers")) is not None:
        return [[{**layer_cells(layer), "predicted": number}] for number in (numbers["mean"] + logits[:, 0]).tolist()]
    probability, index = (largest.tolist() for largest in logits.double().softmax(1).max(1))
    labels = (probes.run.results["classes"][i] for i in index)
    return [
        [{**layer_cells(layer), "predicted": label, "probability": p}]
        for label, p in zip(labels, probability, strict=True)
    ]


def explanations(probes: Probes, layer: int, states: Tensor, n: int) -> list[list[dict[str, Any]]]:
    """Return for each example the prediction, and the `n` neurons that contribute most to its logit, for or against it.

    Weights are centred over classes, so that the contributions of all neurons, with the intercept if there is one, add
    up to the logit. `states` has shape (n_examples, d_model).
    """
    of_class, rows = probes.logits(layer, states).argmax(1), []
    contributions = centre_over_classes(probes.weight[layer].double())[of_class] * states.double()
    constants: list[dict[str, float]] = [{}] * len(states)
    if probes.intercept:
        intercept = centre_over_classes(probes.intercept[layer].double()[:, None])[of_class, 0]
        constants = [{"intercept": value} for value in intercept.tolist()]
    for (predicted,), contribution, constant in zip(
        predictions(probes, layer, states), contributions, constants, strict=True
    ):
        about = {**predicted, "logit": float(contribution.sum()) + sum(constant.values()), **constant}
        rows.append([
            {**about, "rank": rank, "neuron": neuron, "contribution": float(contribution[neuron])}
            for rank, neuron in ranked(contribution.abs().numpy())[:n]
        ])  # fmt: skip
    return rows


# Most examples of a layer that are shown; the rows have all.
SHOWN = 200


class Explanation(Table):
    """Rows as of `EXPLANATIONS`, consecutive for an example and layer; `texts` only if examples are whole texts.

    A notebook shows the tokens with their predictions, a terminal a table.
    """

    def __init__(self, rows: Sequence[Row], texts: Sequence[str] = ()) -> None:
        super().__init__(rows, EXPLANATIONS)
        self.texts = texts

    def examples(self) -> list[list[Row]]:
        """Return the rows of each example and layer, layer by layer."""
        ordered = sorted(self, key=lambda row: row["layer"])  # stable: examples stay in order
        return [list(rows) for _, rows in groupby(ordered, _example)]

    def _name(self, row: Row) -> str:
        """Return the name of an example: its characters, or the index of a row of arrays."""
        if "row" in row:
            return f"row {row['row']}"
        return str(row.get("token") or (self.texts[row["sentence"]] if self.texts else "(special)"))

    def __repr__(self) -> str:
        parts = []
        for layer, examples in groupby(self.examples(), lambda rows: rows[0]["layer"]):
            listed = list(examples)
            title = f"Layer {layer}: what is predicted, and the neurons that contribute most to it"
            headings = "", "predicted", "probability", "neurons"
            cells = [
                (self._name(rows[0]), _predicted(rows[0]), _probability(rows[0]), _neurons(rows))
                for rows in listed[:SHOWN]
            ]
            table = cells_table(title, headings, cells, ("", "predicted", "neurons"))
            if len(listed) > SHOWN:
                table.caption = f"the first {SHOWN} of {len(listed)}"
            parts.append(table)
        return render(*parts)

    def _repr_html_(self) -> str:
        parts = []
        for layer, of_layer in groupby(self.examples(), lambda rows: rows[0]["layer"]):
            parts.append(element("p", element("b", f"Layer {layer}")))
            listed = list(of_layer)[:SHOWN]
            for _, examples in groupby(listed, lambda rows: rows[0].get("sentence")):
                parts.append(element("p", *(self._marked(rows) for rows in examples), style="line-height:2.6"))
        return joined(*parts)

    def _marked(self, rows: Sequence[Row]) -> Any:
        """Return an example with its prediction, shaded by probability; its neurons show in a tooltip."""
        first = rows[0]
        shade = 0.45 * first.get("probability", 0)
        about = f"{_predicted(first)} {_probability(first)}: {_neurons(rows)}"
        ruby = element(
            "ruby", self._name(first), element("rt", _predicted(first)), title=about,
            style=f"background:rgb(31 119 180 / {shade:.2f});ruby-position:under;padding:0 .15em",
        )  # fmt: skip
        return joined(ruby, " ")


def _example(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("layer", "sentence", "position", "row"))


def _predicted(row: Row) -> str:
    return f"{row['predicted']:.4g}" if isinstance(row["predicted"], float) else str(row["predicted"])


def _probability(row: Row) -> str:
    return f"{row['probability']:.3f}" if "probability" in row else ""


def _neurons(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row['neuron']} ({row['contribution']:+.2f})" for row in rows)


def explained(probes: Probes, given: Any, are_arrays: bool, n: int) -> Explanation:
    """Return the `n` neurons that contribute most to each prediction; texts or arrays are as for `Run.predict`."""
    width = next(iter(probes.weight.values())).shape[1]
    if n not in range(1, width + 1):
        raise UserError(f"`n={n}` is not allowed; use a whole number from 1 to {width}, the number of neurons.")
    reader = partial(explanations, n=n)
    rows = of_arrays(probes, given, reader) if are_arrays else of_texts(probes, given, reader)
    are_whole = bool(rows) and "row" not in rows[0] and "position" not in rows[0]
    texts = ([given] if isinstance(given, str) else given) if are_whole else ()
    return Explanation(rows, [text if isinstance(text, str) else " ".join(text) for text in texts])


# --------------------------------------------------------------------------------------------------------------------
# Tokens in their context on which a neuron is highest and lowest.
# --------------------------------------------------------------------------------------------------------------------

# Most characters before a token and after it, and of a sentence that stands for itself.
AROUND, WHOLE = 40, 120


def contexts_of(extremes: Extremes, examples: Examples, corpus: Corpus, classes: Labels) -> list[dict[str, Any]]:
    """Return a row per layer, neuron, end and token, as in `contexts.csv`.

    `extremes` indexes `examples`, whose text is `corpus`; `classes` are labels, empty where numbers are predicted.
    """
    rows = []
    for (layer, end), (values, tokens) in extremes.by_end.items():
        columns = zip(extremes.neurons[layer], values.T.tolist(), tokens.T.tolist(), strict=True)
        for neuron, neuron_values, neuron_tokens in columns:
            for place, (value, token) in enumerate(zip(neuron_values, neuron_tokens, strict=True), start=1):
                label = _label(examples, token, classes)
                about = {"layer": layer, "neuron": neuron, "end": end, "place": place, "activation": value, **label}
                rows.append({**about, **in_context(examples, corpus, token, neuron)})
    order = {(layer, neuron): i for layer, numbers in extremes.neurons.items() for i, neuron in enumerate(numbers)}
    return sorted(rows, key=lambda row: (row["layer"], order[row["layer"], row["neuron"]], row["end"], row["place"]))


def _label(examples: Examples, token: int, classes: Labels) -> dict[str, Any]:
    """Return the true class of a token, or its number."""
    if examples.values is not None:
        return {"number": float(examples.values[examples.labels[token]])}
    return {"class": classes.tolist()[examples.labels[token]]}


def in_context(examples: Examples, corpus: Corpus, token: int, neuron: int = 0) -> Row:
    """Return the sentence of a token, its position, its characters and the characters around it.

    Where examples are sentences or spans, the whole sentence or span is the token; of a pair, the span that the neuron
    is of. `token` is a row in the store, for a word the row of its first piece.
    """
    tokens = examples.store.tokens
    sentence = int(tokens.sentences[token])
    text = corpus.sentences[sentence]
    if examples.pooling is not None and tokens.spans is None:
        return {"sentence": sentence, "before": "", "token": _shortened(text, WHOLE), "after": ""}
    position = token - int(tokens.offsets[sentence])
    if tokens.spans is None:  # rows of arrays
        return {"sentence": sentence, "position": position, "before": "", "token": "", "after": ""}
    start, stop = (int(end) for end in tokens.spans[token])
    if (vectors := span_vectors(examples.store)) is not None:
        start, stop = vectors.characters(token, neuron)
    if examples.word_means:
        rows = np.arange(token, int(tokens.offsets[sentence + 1]))
        stop = int(tokens.spans[rows[tokens.words[rows] == tokens.words[token]][-1], 1])
    before, after = text[:start], text[stop:]
    return {
        "sentence": sentence, **({"position": position} if examples.pooling is None else {}),
        "before": "…" * (len(before) > AROUND) + before[-AROUND:], "token": text[start:stop],
        "after": _shortened(after, AROUND),
    }  # fmt: skip


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
