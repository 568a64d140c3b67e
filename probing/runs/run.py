"""Runs of `fit` and `probe`, read from a folder that is complete or visibly partial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.errors import UserError, in_python
from probing.models import site_of, what_is_a_neuron
from probing.results import (
    Html,
    Row,
    Schema,
    Table,
    as_read,
    element,
    joined,
    label_of_class,
    layers_named,
    read_csv,
    with_named_layer,
)
from probing.runs import Result, study_of
from probing.runs.checks import check_parts
from probing.runs.folder import kind_of, read_json, read_tensor, read_yaml, reading
from probing.tables import Order, has_intercept, ordered
from probing.tables.schema import CLASS_SCORES, NUMBER_TABLES, TABLES

if TYPE_CHECKING:
    from torch import Tensor

    from probing.runs.predictions import Explanation, HiddenStates, NeuronPage, Probes
    from probing.text import GroupBy, Split


class Run(Result):
    """A finished run of `fit` or `probing.probe`: results whose probes can be used.

    Args:
        folder: Folder of the run.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        accuracy: A dict per layer, as in `accuracy.csv`.
        neurons: A dict per layer and neuron in ranked order, as in `neurons.csv`.
        others: Other tables by name; those that are missing are read from the folder when they are needed.
    """

    METHODS = (*Result.METHODS, "top", "neuron", "predict", "explain", "hidden_states")

    def __init__(
        self, folder: Path, config: dict[str, Any], results: dict[str, Any], accuracy: Table, neurons: Table,
        others: Mapping[str, Table] | None = None,
    ) -> None:  # fmt: skip
        tables = {"accuracy": accuracy, "neurons": neurons, **(others or {})}
        super().__init__(study_of("fit"), folder, config, results, tables)
        self._unread = {schema.name: schema for schema in self.study.schemas if schema.name not in tables}
        # Texts that have moved, as `load_run(folder, corpus=...)` names them.
        self.moved: Sequence[Any] = ()

    def __getattr__(self, name: str) -> Table:
        unread: dict[str, Schema] = vars(self).get("_unread", {})
        if name in unread:
            self.by_name[name] = self._read(unread[name])
            del unread[name]
        return super().__getattr__(name)

    def _read(self, schema: Schema) -> Table:
        """Return a table that not every run has; empty if it is not in the folder."""
        path = self.folder / f"{schema.name}.csv"
        if not path.exists():
            return Table((), schema)
        with reading(self.folder):
            rows = with_labels(read_csv(path, schema), schema, self.results["classes"])
            check_parts(rows, schema, self.layers, self.results["classes"])
        return rows

    @property
    def layers(self) -> list[int]:
        """The layers that have a probe, ascending."""
        return [row["layer"] for row in self.accuracy]

    def scores_of(self, layer: int) -> Table:
        """Return the scores of each class in a layer; empty where classes are numbers, see `positions`."""
        rows = [row for row in self.class_scores if row["layer"] == layer and "within_one" not in self.accuracy[0]]
        return Table(rows, CLASS_SCORES)

    def neuron(self, layer: int | str, neuron: int, n: int = 10) -> NeuronPage:
        """Return the page of a neuron; the hidden states are read from the cache, or extracted again.

        Args:
            layer: Number or name of the layer.
            neuron: Index of the neuron.
            n: Number of tokens at each end.

        Returns:
            Rows as in `contexts.csv`: the test tokens of its highest activations, then of its lowest, with the text
            around them. Attributes are `profile`, `classes` and `ranks`; a notebook shows all of it.

        Raises:
            UserError: If there is no such layer or neuron, the run is of arrays, or its model or corpus has changed.
        """
        from probing.runs.predictions import page_of

        return page_of(of_text(self), self._numbered(layer), neuron, n)

    def hidden_states(self, layer: int | str, split: Split | None = None) -> HiddenStates:
        """Return the examples of the run from its cache, as its probes read them: for other tools, or for `probe`.

        Args:
            layer: Number or name of the layer.
            split: `train`, `validation` or `test`; by default all of them, in this order.

        Returns:
            A tuple `states, labels, groups` of arrays: float32 of shape (n_examples, d_model); the label of each
            example; and the number of its sentence, or document where documents are kept together, which no two splits
            share.

        Raises:
            UserError: If the cache of the run is gone, the run is of arrays, there is no such layer or split, or the
                model or the corpus has changed.
        """
        from probing.runs.predictions import hidden_states_of

        return hidden_states_of(of_text(self), self._numbered(layer), split)

    @property
    def weight(self) -> Tensor:
        """Weights of the probes on raw activations, shape (n_layers, n_classes, d_model), as in `probe.safetensors`.

        The logits of layer `accuracy[i]["layer"]` are hidden_states @ weight[i].T, for the labels in
        `results["classes"]`. Where numbers are predicted, there is a single row, and the prediction is that product
        plus `results["numbers"]["mean"]`.
        """
        with reading(self.folder):
            return read_tensor(self.folder / "probe.safetensors", "weight")

    @property
    def intercept(self) -> Tensor | None:
        """Intercepts of the probes, shape (n_layers, n_classes), of a run with `--probe.bias`; None without.

        They are added to the logits of activations that `transform.safetensors` has centred.
        """
        is_fitted = has_intercept(self.config) and not self.is_of_numbers
        with reading(self.folder):
            return read_tensor(self.folder / "probe.safetensors", "intercept") if is_fitted else None

    def predict(self, texts: Any) -> Table:
        """Return each layer's predictions for other text, read as the run read its text.

        Args:
            texts: Sentences, or for each sentence the list of its words; for a run of `probing.probe`, activations as
                it takes them: an array of shape (n_rows, d_model), or an array for each layer number or name.

        Returns:
            For each token that the task may label and each layer a dict with `sentence` (the index in `texts`),
            `position` (in the tokenised sentence, special tokens included), `token` (its characters, or the word where
            the task reads whole words), `word`, `word_index`, `layer`, `predicted` (a label) and its `probability`.
            Sentences are cut at the run's `max_length`. For a task of whole sentences, `sentence` alone identifies a
            prediction; for arrays `row`. Where numbers are predicted, `predicted` is a number without probability.

        Raises:
            UserError: If the run's model or task is gone or has changed, or these are no texts or arrays.
        """
        from probing.runs.predictions import of_arrays, of_texts

        return of_arrays(self._probes(), texts) if self.is_of_arrays else of_texts(self._probes(), texts)

    def explain(self, texts: Any, layer: int | str | None = None, n: int = 5) -> Explanation:
        """Return the predictions for other text, and the neurons that contribute most to each.

        The contribution of a neuron is weight x activation to the logit of the predicted class, with weights centred
        over classes, so that the contributions of all neurons, with the intercept if there is one, add up to the logit.
        It is exact; it does not show that the model itself uses the neuron.

        Args:
            texts: Texts or arrays, as `predict` takes them.
            layer: Number of the layer, or its name where arrays have names; all of the run's by default.
            n: Number of neurons of each example.

        Returns:
            A table with the columns of `predict`, and `logit`, `rank`, `neuron` and `contribution`; a notebook shows
            the predictions on the text.

        Raises:
            UserError: As `predict`, and if the run has no such layer.
        """
        from probing.runs.predictions import explained

        return explained(self._probes(layer), texts, self.is_of_arrays, n)

    def _numbered(self, layer: int | str) -> int:
        """Return the run's layer of a number, also as text, or of a name; -1 is the last, as of `--layer`."""
        numbers = dict(enumerate(self.layers, -len(self.layers))) | {int(known): known for known in self.layers}
        names = {str(k): known for k, known in numbers.items()} | {str(known): known for known in self.layers}
        known = numbers.get(layer) if isinstance(layer, int) else names.get(str(layer))
        if known is None:
            raise UserError(f"{in_python('layer', layer)}: {self.folder} has {layers_named(self.layers)}.")
        return known

    def _probes(self, layer: int | str | None = None) -> Probes:
        """Return the probes of all layers, or of a single layer."""
        from probing.runs.predictions import Probes

        weight = dict(zip(self.layers, self.weight, strict=True))
        if layer is not None:
            weight = {(numbered := self._numbered(layer)): weight[numbered]}
        intercepts = {} if self.intercept is None else dict(zip(self.layers, self.intercept, strict=True))
        return Probes(self, weight, intercepts)

    @property
    def split_by(self) -> GroupBy:
        """The unit that the split preserves: `document` or `sentence` (also of versions that do not record it)."""
        return "document" if self.results.get("split_by") == "document" else "sentence"

    @property
    def test_sentences(self) -> list[str]:
        """The sentences that the probes were tested on, in the order of the corpus, which is read again."""
        from probing.runs.places import texts_of

        corpora, splits, _ = texts_of(of_text(self), self.moved)
        pairs = zip(corpora[-1].sentences, splits[-1], strict=True)
        return [sentence for sentence, side in pairs if side == "test"]

    def top(self, layer: int | str, n: int = 10, by: Order = "contribution") -> Table:
        """Return the first `n` neurons of a layer, by number or name, ranked by contribution or centred contribution.

        Raises:
            UserError: If the run does not have that layer.
        """
        layer = self._numbered(layer)
        ranked_rows = ordered([row for row in self.neurons if row["layer"] == layer], by)
        return Table(ranked_rows[:n], self.neurons.schema)

    @property
    def transform(self) -> str:
        """The transform of the hidden states that the probes read; `none` in runs of the first versions."""
        transform: str = self.config.get("transform", "none")
        return transform

    @property
    def is_of_arrays(self) -> bool:
        """Whether `probing.probe` computed the run from arrays that are not on disk."""
        return "arrays" in self.config

    @property
    def is_of_numbers(self) -> bool:
        """Whether the probes predict numbers, and not classes."""
        return "numbers" in self.results

    def _repr_html_(self) -> str:
        from probing.tables.conclusions import leading, why_leading

        offers = self._offers().split("\n")
        texts = (what_is_a_neuron(site_of(self.config)), why_leading(self.accuracy), *offers, str(self.folder))
        paragraphs = (element("p", text) for text in texts if text)
        layer = leading(self.accuracy)["layer"]
        return joined(Html(self.accuracy._repr_html_()), Html(self.top(layer)._repr_html_()), *paragraphs)


def load_fit(folder: str | Path) -> Run:
    """Read a finished run of `fit` or `probe`; raise `UserError` if the folder has none."""
    folder = Path(folder)
    if kind := kind_of(folder, "`fit`"):
        raise UserError(f"`{folder}` holds a {kind}; give the folder of a run that `fit` wrote.")
    return read_run(folder)


def of_text(run: Run) -> Run:
    """Return the run; raise `UserError` if it was computed from arrays, which no model can read again."""
    if run.is_of_arrays:
        raise UserError(
            f"`{run.folder}` was made by `probing.probe` from arrays, which are not kept; expected a run of `fit`, "
            "whose model can read its text again."
        )
    return run


def with_labels(rows: Table, schema: Schema, classes: Sequence[int | str]) -> Table:
    """Return rows as read, with labels of the type in `classes` (text or integer)."""
    columns = [column.name for column in schema.columns if column.type is label_of_class]
    labels = {str(label): label for label in classes} | {"": ""}
    return Table(({**row, **{name: labels[row[name]] for name in columns if name in row}} for row in rows), schema)


Documents = tuple[dict[str, Any], dict[str, Any]]


def read_documents(folder: Path, check: Callable[..., None] = lambda config, results: None) -> Documents:
    """Return the configuration and the results of a run, after their check; layers know their names."""
    config, results = read_yaml(folder / "config.yaml"), read_json(folder / "results.json")
    check(config, results)
    results["layers"] = [with_named_layer(row) for row in results["layers"]]
    return config, results


def run_of(folder: Path, tables: Mapping[str, Sequence[Row]]) -> Run:
    """Return a run that this process has written; its rows are those of `tables` and are not read from the folder."""
    config, results = read_documents(folder)
    others = {
        schema.name: with_labels(as_read(tables.get(schema.name, ()), schema), schema, results["classes"])
        for schema in (NUMBER_TABLES if "numbers" in results else TABLES)
    }
    return Run(folder, config, results, others.pop("accuracy"), others.pop("neurons"), others)


def read_run(folder: Path) -> Run:
    """Read a run whose tables are all written, also in a folder that is not renamed yet."""
    with reading(folder):
        run = study_of("fit").read(folder)
    assert isinstance(run, Run)
    return run
