"""What a run knows of one neuron: its tokens, means by position, weights, correlations, and ranks in all layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from probing.corpus import Corpus
from probing.data.examples import Sides
from probing.errors import UserError
from probing.evidence.neuron_profiles import extremes, profile_rows
from probing.probes.objective import centre_over_classes
from probing.results.rows import Table
from probing.results.schema import Row, layer_cells, layers_named, shown_table
from probing.runs.checks import read_tensor, reading
from probing.runs.results import contexts_of
from probing.runtime import terminal
from probing.runtime.machine import quiet_libraries
from probing.tables.schema import (
    CONTEXTS,
    NEURON_CLASSES,
    PROFILES,
    classes_table,
    positions_of,
    positions_table,
    profile_sentences,
    rank_sentence,
)

if TYPE_CHECKING:
    from probing.runs.run import Run

# Most tokens of each end that can be asked for.
MOST_TOKENS = 10_000


class NeuronPage(Table):
    """A neuron's test tokens, as rows of `contexts.csv`, and all else that is known of it; a notebook shows all of it.

    Attributes:
        layer: Number of the layer.
        neuron: Index of the neuron.
        profile: Its mean, means by position, strongest correlations and share of the mean cosine, as in
            `profiles.csv`.
        classes: Its weight and mean contribution by class; of numbers one row without a class.
        ranks: The row of `neurons.csv` of the neuron of this index, layer by layer.
    """

    def __init__(
        self, run: Run, layer: int, neuron: int, contexts: Sequence[Row], profile: Sequence[Row], classes: Table
    ) -> None:
        super().__init__(contexts, CONTEXTS)
        self.layer, self.neuron, self.classes = layer, neuron, classes
        self.profile = Table(profile, PROFILES)
        self.ranks = Table((row for row in run.neurons if row["neuron"] == neuron), run.neurons.schema)
        self._n_neurons = len(run.neurons) // len(self.ranks)

    @property
    def positions(self) -> Table:
        """The rows of `profile` that are means at a position; empty where examples are no tokens."""
        return Table(positions_of(self.profile), PROFILES)

    @property
    def correlations(self) -> Table:
        """The rows of `profile` that are correlations with other neurons, the strongest first."""
        return Table((row for row in self.profile if row["measure"] == "correlation"), PROFILES)

    @property
    def cosine_share(self) -> float | None:
        """Its share of the mean cosine of two different test tokens; None where that is about 0."""
        return next((row["value"] for row in self.profile if row["measure"] == "cosine_share"), None)

    def sentences(self) -> list[str]:
        """Return what is said of it: its rank, its mean, its share of the mean cosine and its correlations."""
        return [rank_sentence(self.layer, self.neuron, self.ranks, self._n_neurons), *profile_sentences(self.profile)]

    def __repr__(self) -> str:
        tables = [shown_table(CONTEXTS, self, "Tokens on which it is highest and lowest")] if self else []
        if self.positions:
            tables.append(positions_table(self.profile))
        return "\n".join([*self.sentences(), terminal.render(*tables, classes_table(self.classes))])

    def _repr_html_(self) -> str:
        shown: str = import_module("probing.page.run").neuron_block(self)  # the page stands above
        return shown


def page_of(run: Run, layer: int, neuron: int, n: int) -> NeuronPage:
    """Return what a run of text knows of any neuron, from the hidden states of its test tokens.

    Raises:
        UserError: If the run has no such layer or neuron, or its model or corpus has changed.
    """
    from probing.runs.finished import width_of

    layers, width = run.layers, width_of(run)
    if layer not in layers:
        raise UserError(f"`layer={layer}`: {run.folder} has {layers_named(layers)}.")
    if neuron not in range(width):
        raise UserError(f"`neuron={neuron}`: layer {layer} of {run.folder} has the neurons 0 to {width - 1}.")
    if n not in range(1, MOST_TOKENS + 1):
        raise UserError(f"`n={n}` is not allowed; use a whole number from 1 to {MOST_TOKENS}.")
    with quiet_libraries():
        sides, corpus = sides_and_text(run)
        asked = {layer: [neuron]}
        contexts = contexts_of(extremes(sides.test, asked, n), sides.test, corpus, sides.classes)
        profile = profile_rows(sides.test, asked)
    return NeuronPage(run, layer, neuron, contexts, profile, _Weights(run).of(layer, neuron))


def sides_and_text(run: Run) -> tuple[Sides, Corpus]:
    """Return the examples of a run of text, from the cache or extracted again, and the corpus that it was tested on.

    Raises:
        UserError: If its model or corpus has changed.
    """
    from probing.runs.finished import Extraction, open_runs, sides_of
    from probing.runs.places import cache_of

    (finished,) = open_runs([run], "index", run.moved)
    return sides_of(finished, Extraction(cache_of(run), {}, terminal.silence)), finished.corpora[-1]


def pages_of_first(run: Run) -> Iterator[NeuronPage]:
    """Yield what a run of text has written of the first neurons of each layer, layer by layer and in their order.

    Raises:
        UserError: If the run is damaged.
    """
    contexts, profiles = _by_neuron(run.contexts), _by_neuron(run.profiles)
    weights = _Weights(run) if contexts else None
    for at, own in contexts.items():
        assert weights is not None
        yield NeuronPage(run, *at, own, profiles.get(at, ()), weights.of(*at))


def _by_neuron(rows: Sequence[Row]) -> dict[tuple[int, int], list[Row]]:
    found: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["layer"], row["neuron"]), []).append(row)
    return found


class _Weights:
    """The weights of a run's probes, and contributions by class.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.weight = run, centre_over_classes(run.weight.double())
        with reading(run.folder):
            self.contribution = read_tensor(run.folder / "contributions.safetensors", "contribution")

    def of(self, layer: int, neuron: int) -> Table:
        """Return a row per class."""
        at = self.run.layers.index(layer)
        labels: list[Any] = list(self.run.results["classes"])
        weights, contributions = (own[at, :, neuron].tolist() for own in (self.weight, self.contribution))
        about = {**layer_cells(layer), "neuron": neuron}
        named: list[dict[str, Any]] = [{"class": label} for label in labels] or [{}]
        rows = (
            {**about, **label, "weight": weight, "contribution": contribution}
            for label, weight, contribution in zip(named, weights, contributions, strict=True)
        )
        return Table(rows, NEURON_CLASSES)
