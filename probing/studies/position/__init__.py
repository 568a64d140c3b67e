"""The study `position`: the part of hidden states that is position, its directions, and the neurons that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import (
    FirstToken,
    Folder,
    OutputOptions,
    RunOptions,
    Source,
    SpecialTokens,
    StatesOptions,
    defaults,
)
from probing.errors import UserError
from probing.results import layers_named
from probing.runs import Result, Study, Terms, study_of
from probing.runs.call import Call, Measurements
from probing.runs.loading import read_as_run
from probing.runs.run import Run, load_fit, of_text
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.studies.position import tables
from probing.tables.figures import Chart

# Options whose values are those of `--run`, where it is given.
OF_RUN = ("model", "revision", "random_weights", "corpus", "max_length")


@dataclass(frozen=True)
class PositionOptions(OutputOptions, RunOptions, StatesOptions):
    """Options of `position`."""

    corpus: Source = "builtin"
    max_length: int | None = None
    batch_tokens: int | None = None
    special_tokens: SpecialTokens = "exclude"
    """Whether special tokens are split, too."""
    run: Folder | None = None
    """Finished run of `fit` whose ranking of neurons is compared with the position part; its model and corpus are then
    used (--corpus and --model give their new locations if they have moved)."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: folds, rotations, orders of tokens and random initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-position-YYYYMMDD-HHMMSS."""
    first_token: FirstToken = "include"


@command(PositionOptions)
def position(options: PositionOptions) -> Result | None:
    """Split hidden states into mean, position, context and rest, and find where the position part is.

    Its amount, directions and shape are measured, and whether it is in neurons or in directions.

    Returns:
        The measurements; None except in the rank-zero process.
    """
    call = Call.of(study_of("position"), options)
    config, run = call.config, None
    if config["run"] is not None:
        run = of_text(load_fit(config["run"]))
        read_as_run(run, f"--run {config['run']}", config, defaults(position), OF_RUN)
    with quiet_libraries():
        from probing.data.labelling import origin
        from probing.probes.outliers import read_text_to_measure
        from probing.studies.position.survey import PositionSample, check_position, survey_position

        source, special_tokens = call.source(tokenizer=options.tokenizer), config["special_tokens"]
        ranking = {} if run is None else _ranking(run, source.layers, source.config.hidden_size)
        call.expect(2)
        _, (store,) = read_text_to_measure(source, config, partial(check_position, special_tokens=special_tokens))
        call.watch.end("extract")
        if not is_main_process():
            return None

        def measure(_: Path) -> Measurements:
            rows = survey_position(PositionSample(store, special_tokens, config["seed"]), source.layers, ranking)
            return Measurements(
                {name: of for name, of in rows.items() if of}, {"cache": {"measured": origin(store)}},
                tables.curves(rows["position_split"]),
            )  # fmt: skip

        return call.write(source.model, measure)


def _ranking(run: Run, layers: Sequence[int], d_model: int) -> dict[int, list[int]]:
    """Return all neurons of the layers that a run ranks, by rank; raise a `UserError` if it ranks none of them."""
    both = [layer for layer in layers if layer in run.layers]
    if not both:
        raise UserError(
            f"`--run {run.folder}` ranks the neurons of {layers_named(run.layers)}, and none of these is among "
            f"{layers_named(layers)}; give other layers, or another run."
        )
    return {layer: [row["neuron"] for row in run.top(layer, d_model)] for layer in both}


class Position(Study):
    """The study of the position part of hidden states."""

    name, kind, title = "position", "position", "Position"
    function = "probing.studies.position:position"
    in_several_processes = True
    schemas = tables.SCHEMAS
    page = "geometry.md#where-position-lives"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Shares of the variance, the position part along its directions, and shares in few neurons.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the position part's share, its shape and its neurons."""
        return tables.position_tables(result.by_name)

    def charts(self, result: Result) -> list[Chart]:
        """Return the shares of the variance by layer, and those of the position part in a few neurons."""
        return tables.position_charts(result.by_name)

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence for each question."""
        return tables.position_conclusions(result.by_name)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        return {self.title: tables.TERMS}


STUDY = Position()
