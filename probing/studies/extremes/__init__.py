"""The study `extremes`: massive activations, attention sinks, and what heads read of outliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import (
    Definition,
    OutlierOptions,
    OutputOptions,
    RunOptions,
    Source,
    SpecialTokens,
    StatesOptions,
)
from probing.models import load_encoder, load_tokenizer
from probing.runs import Result, Study, Terms, study_of
from probing.runs.call import Call, Measurements
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.studies.extremes import tables
from probing.tables.figures import Chart


@dataclass(frozen=True)
class ExtremesOptions(OutputOptions, RunOptions, OutlierOptions, StatesOptions):
    """Options of `extremes`."""

    corpus: Source = "builtin"
    fit_corpus: Source | None = None
    max_length: int | None = None
    batch_tokens: int | None = None
    special_tokens: SpecialTokens = "exclude"
    """Whether special tokens are included where outliers are identified; large values are sought on all tokens."""
    definition: Definition = "mean_profile"
    """Definition of the outliers that are fixed in queries and keys."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: sentences, matched neurons and random initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-extremes-YYYYMMDD-HHMMSS."""


@command(ExtremesOptions)
def extremes(options: ExtremesOptions) -> Result | None:
    """Find massive activations and attention sinks, and measure what heads attend to without outliers.

    For each kind of token, it measures its attention and what this adds to the residual stream.

    Returns:
        The measurements; None except in the rank-zero process.
    """
    call = Call.of(study_of("extremes"), options)
    config, seed = call.config, call.config["seed"]
    with quiet_libraries():
        from probing.data.labelling import origin
        from probing.models.anatomy import examine
        from probing.models.residual_stream import find_parameters
        from probing.probes.outliers import find_outliers, read_text_to_measure
        from probing.studies.extremes.survey import measure_extremes, read_attention

        source = call.source(tokenizer=options.tokenizer)
        call.expect(5)
        text, stores = read_text_to_measure(source, config)
        attention = read_attention(source, text, stores[0], seed)
        call.watch.end("extract")
        if not is_main_process():
            return None

        def measure(_: Path) -> Measurements:
            encoder, tokenizer = load_encoder(source.model, source.random_weights_seed), load_tokenizer(source.model)
            parameters = find_parameters(encoder, examine(encoder, tokenizer.pad_token_id or 0))
            outliers = find_outliers(stores[-1], source.layers, parameters, config)
            rows = measure_extremes(source, stores[0], attention, outliers.chosen, outliers.rows, seed)
            rows = {name: of for name, of in rows.items() if of}
            results = {
                "cache": {"measured": origin(stores[0]), "fitted": origin(stores[-1])},
                "outliers": {str(layer): neurons for layer, neurons in outliers.chosen.items()},
            }
            return Measurements(rows, results)

        return call.write(source.model, measure)


class Extremes(Study):
    """The study of large values, attention sinks, and heads without outliers in queries and keys."""

    name, kind, title = "extremes", "extremes", "Massive activations and attention sinks"
    function = "probing.studies.extremes:extremes"
    in_several_processes = True
    schemas = tables.SCHEMAS
    page = "geometry.md#massive-activations-and-sinks"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Largest values by layer and kind of token, and attention to kinds of tokens by block.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return large values, the course of large neurons, sinks, and heads without outliers."""
        return tables.tables(result.by_name)

    def charts(self, result: Result) -> list[Chart]:
        """Return large values by layer, and attention sinks by block."""
        return tables.charts(result.by_name)

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence or two for each question."""
        return tables.conclusions(result.by_name)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        return {self.title: tables.TERMS}


STUDY = Extremes()
