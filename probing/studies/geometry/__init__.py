"""The study `geometry`: outlier dimensions, anisotropy, over-smoothing and the sources of outliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from probing.cli.commandline import command
from probing.cli.options import (
    Definition,
    FirstToken,
    OutlierOptions,
    OutputOptions,
    RunOptions,
    Source,
    SpecialTokens,
    StatesOptions,
    chosen,
    option,
)
from probing.errors import out_of_range, refuse
from probing.models import load_encoder, load_tokenizer
from probing.registry import ACTIONS, load
from probing.results import Html
from probing.runs import Result, SectionPlace, Study, Terms, folded, framed, section_of, study_of
from probing.runs.call import Call, Measurements
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.studies.geometry import inside, tables
from probing.tables.figures import Chart, Drawings
from probing.tables.heads import first_token_conclusions, first_token_tables


@dataclass(frozen=True)
class GeometryOptions(OutputOptions, RunOptions, OutlierOptions, StatesOptions):
    """Options of `geometry`."""

    corpus: Source = "builtin"
    fit_corpus: Source | None = None
    """Corpus, given like --corpus, on which outliers are identified and transforms are fitted; default: --corpus."""
    max_length: int | None = None
    batch_tokens: int | None = None
    special_tokens: SpecialTokens = "exclude"
    """Whether special tokens are included in the measurements; outliers are always reported both without and with
    them."""
    transforms: str | list[str] = "all"
    """Transforms to compare with the untransformed states: all, none, or some of clip, whiten, standardise, center,
    all_but_the_top."""
    definition: Definition = "mean_profile"
    """Definition of the outliers that are clipped; outliers by all five definitions are reported."""
    clip_to: Literal["zero", "mean"] = "zero"
    """Value of clipped neurons: zero, or mean as a control."""
    draws: int = option(10, at_least=0, at_most=1000)
    """Number of random sets of as many other neurons as outliers, for comparison."""
    whitening: Literal["pca", "zca"] = "pca"
    """Kind of whitening: pca, or zca, which rotates whitened vectors back; both give the same cosines."""
    components: int | None = None
    shrinkage: float = option(0.0, at_least=0, at_most=1)
    """Weight, from 0 to 1, with which whitening shrinks the covariance towards a multiple of the identity, useful with
    few tokens."""
    top: int | None = option(None, at_least=0)
    """Number of principal directions that all_but_the_top removes; default: d_model / 100."""
    estimators: str | list[str] = "none"
    """Published estimators of the mean cosine to report in addition to the exact value: all, none, or some of e19, lkm,
    tvs."""
    smoothing_bound: bool = False
    """Also run the model to measure, for every sentence, how much each block changes the distance between tokens, with
    an upper bound: every term of Theorem 2 of Shi et al. (2022). Post-LN models only."""
    norms: bool = False
    """Also split the mean output of each outlier in every norm of every block into terms. Then set the outliers' gains
    and biases to the mean of the other neurons', and measure the outliers, how well probes decode positions, and the
    loss of masked words again."""
    path: bool = False
    """Also follow outliers along the residual stream, from the embeddings through the outputs and norms of the blocks,
    on the first token and on words."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: tokens, neurons, sentences and random initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-geometry-YYYYMMDD-HHMMSS."""
    first_token: FirstToken = "include"


@command(GeometryOptions)
def geometry(options: GeometryOptions) -> Result | None:
    """Find outlier dimensions, and measure anisotropy before and after clipping, whitening and other transforms.

    Returns:
        The measurements; None except in the rank-zero process.
    """
    call = Call.of(study_of("geometry"), options)
    config = call.config
    with quiet_libraries():
        from probing.interventions.outliers import OutlierModel
        from probing.probes.outliers import read_text_to_measure
        from probing.studies.geometry.norms import check, measure_inside
        from probing.studies.geometry.survey import study_output, survey

        source = call.source(tokenizer=options.tokenizer)
        plan, d_model = _plan(config), source.config.hidden_size
        refuse([
            *out_of_range("components", config["components"], 1, d_model),
            *out_of_range("top", config["top"], 0, d_model - 1),
        ])  # fmt: skip
        selected = {"smoothing": config["smoothing_bound"], "norms": config["norms"], "path": config["path"]}
        check(source.model, [f"--{name}" for name in ("norms", "path") if selected[name]])
        call.expect(2 + sum(selected.values()))
        text, stores = read_text_to_measure(source, config)
        call.watch.end("extract")
        if not is_main_process():
            return None

        def measure(folder: Path) -> Measurements:
            model, store = source.model, stores[0]
            # The model, whose parameters are measured, and its tokenizer, which tells punctuation.
            encoder, model_tokenizer = load_encoder(model, source.random_weights_seed), load_tokenizer(model)
            surveyed = survey(store, stores[-1], source.layers, encoder, model_tokenizer, plan)
            if missing := surveyed.not_applicable:
                source.say(
                    f"{model.name} has no {', '.join(missing)} in the width of its hidden states: not applicable"
                )
            outlier_model = OutlierModel(
                model, encoder, model_tokenizer, store, text, surveyed.clipped, plan.special_tokens,
                source.random_weights_seed is None, plan.n_draws, plan.seed, source.say,
            )  # fmt: skip
            return study_output(surveyed, measure_inside(folder, outlier_model, selected), stores)

        return call.write(source.model, measure)


def _plan(config: Mapping[str, Any]) -> Any:
    from probing.probes.transforms import KINDS, Fitting
    from probing.studies.geometry.layers import ESTIMATORS
    from probing.studies.geometry.survey import GeometryPlan

    names = ("clip_to", "whitening", "components", "shrinkage", "top")
    return GeometryPlan(
        config["special_tokens"], chosen("--transforms", config["transforms"], KINDS, "none"), config["definition"],
        Fitting(*(config[name] for name in names)), config["draws"],
        chosen("--estimators", config["estimators"], ESTIMATORS, "none"), config["seed"],
    )  # fmt: skip


class Geometry(Study):
    """The study of outlier dimensions, anisotropy and the similarity of tokens, and of outliers inside the model."""

    name, kind, title = "geometry", "geometry", "Geometry"
    function = "probing.studies.geometry:geometry"
    in_several_processes = True
    schemas = tables.SCHEMAS
    page = "geometry.md"
    files: ClassVar[Mapping[str, str]] = {
        "transforms/KIND.safetensors": "The fitted transforms.",
        "figures/": "Mean cosine, outliers and similarity by layer, and what was measured inside the model.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the measurements."""
        return [*tables.tables(result), *self._on_request(result)]

    def charts(self, result: Result) -> list[Chart]:
        """Return the charts of the layers, of what explains outliers, and of the bound of smoothing."""
        explained = result.explained.where(kind="outlier")
        of_outliers = [tables.explained_chart(result.explained, result.outliers)] if explained else []
        bound = [inside.smoothing_chart(result.smoothing)] if result.smoothing else []
        return [*tables.charts(result.geometry), *of_outliers, *bound]

    def drawings(self, result: Result) -> Drawings:
        """Return the mean vectors of layers, and what was measured inside the model."""
        from probing.studies.geometry.figures import drawings

        return drawings(result.by_name, self.figure_prefix(result))

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence for each question."""
        clipped = {int(layer): neurons for layer, neurons in result.results["clipped"].items()}
        return [
            *tables.conclusions(result, clipped), *first_token_conclusions(result.first_token),
            *inside.inside_conclusions(result.by_name),
        ]  # fmt: skip

    def more_tables(self, result: Result) -> list[Any]:
        """Return all measures of each layer by transform, and the outliers."""
        return tables.more_tables(result)

    def _on_request(self, result: Result) -> list[Any]:
        return [*first_token_tables(result.first_token), *inside.inside_tables(result.by_name)]

    def section(self, result: Result, place: SectionPlace) -> Html:
        """Return the conclusions, the charts of the layers, their measures, and what is measured on request."""
        charts = load(ACTIONS["charts_html"])(tables.charts(result.geometry))
        more = [*folded(self.more_tables(result)), *framed(self._on_request(result))]
        return section_of(result, place.anchor, *charts, *more)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.page.terms import TRANSFORMS

        of_transforms = {words: TRANSFORMS[transform] for transform, words in tables.TRANSFORMS.items()}
        return {self.title: {**of_transforms, **tables.TERMS, **inside.INSIDE_TERMS}}


STUDY = Geometry()
