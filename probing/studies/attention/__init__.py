"""The study `attention`: a survey of the attention heads of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import (
    BatchOptions,
    CorpusOptions,
    Dtype,
    FirstToken,
    Folder,
    Layers,
    Model,
    OutputOptions,
    RunOptions,
    Source,
    StatesOptions,
    chosen,
    defaults,
    layer_numbers,
)
from probing.errors import UserError, about_option, refuse
from probing.models import find_model, load_tokenizer
from probing.results import Html
from probing.runs import Result, SectionPlace, Study, Terms, study_of
from probing.runs.call import Call
from probing.runs.loading import Tuned, is_tuned, read_as_tuned, tuned_of
from probing.runs.run import load_fit, of_text
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.studies.attention import tables
from probing.studies.attention.conclusions import conclusions
from probing.tables.figures import Chart, Drawings

_ALONE = ["`--as_published` needs another checkpoint, given as --against MODEL"]


@dataclass(frozen=True)
class AttentionOptions(OutputOptions, RunOptions, BatchOptions, CorpusOptions, StatesOptions):
    """Options of `attention`."""

    layer: Layers = "all"
    """Layers whose heads are reported: one (6), several (0,3,6 or 3-6), the last (-1) or all; layer k is block k,
    counted from 1."""
    dtype: Dtype = "float32"
    """Precision of the forward pass."""
    test_corpus: Source | None = None
    """Treebank on which relations and trees are tested, given like --corpus; default: the test split of --corpus."""
    pairs: str | None = None
    """Sentence pairs that replace --corpus, each pair as one input: a file with two sentences on each line, separated
    by a tab."""
    roles: str | None = None
    """Role links to follow: a file with lines text TAB predicate TAB role TAB filler, where predicate and filler are
    word numbers from 0, such as 3 or 3-4; or framenet:FOLDER. Default: the subjects and objects of a treebank."""
    against: Model | None = None
    """Another checkpoint with the same tokenizer (an alias, a hub id or a local folder), whose heads, hidden states and
    parameters are compared with those of --model in the part change."""
    as_published: bool = False
    """With --against, also compare the heads as in the code of Kovaleva et al. (2019): by maps of 200 x 200 tokens,
    including rows of padding, over the first 1,000 sentences."""
    run: Folder | None = None
    """Folder of a run of fit on position, with the same model: find heads that attend to a fixed offset, and measure
    whether they read the neurons that the run ranks first. Or folder of a run of finetune, or one of its checkpoints:
    the tuned model replaces --model and is compared with its untuned start, on the run's text."""
    parts: str | list[str] = "all"
    """Parts of the survey: all, or some of classes, profile, tokens, words, rollout, similarity, relations, trees,
    roles, change (with --against), position_heads and position_neurons (with --run), first_token (with --first_token
    exclude), attention_probe and fusion. The last two are slow and not included in all. Parts that need missing columns
    of the corpus are skipped unless you name them."""
    _: KW_ONLY
    seed: int = 0
    """Seed of the bootstrap of sentences, of random initialisation and of the corpus split."""
    name: str | None = None
    """Name of this run; default: MODEL-attention-YYYYMMDD-HHMMSS."""
    cache: str | None = None
    """Folder of cached sums; default: $PROBING_CACHE or RUNS/cache."""
    first_token: FirstToken = "include"


@command(AttentionOptions)
def attention(options: AttentionOptions) -> Result | None:
    """Survey the attention heads of a model: the pattern of each head, its distance and the tokens it attends to.

    Returns:
        The survey; None except in the rank-zero process.
    """
    call = Call.of(study_of("attention"), options)
    config, against = call.config, options.against
    ranked: str | None = config["run"]
    if ranked is not None and is_tuned(ranked):
        against, ranked = _start_of(tuned_of(ranked, f"--run {ranked}"), config), None
    refuse(_ALONE * (options.as_published and against is None))
    with quiet_libraries():
        from probing.activations.source import report_dropped_text
        from probing.heads.parts import measurable, measure, n_stages
        from probing.studies.attention.figures import study_output

        names, by_name = _part_names(
            options.parts, against is not None, ranked is not None, options.first_token == "exclude"
        )
        source = call.source(tokenizer=options.tokenizer)
        layers = source.blocks(layer_numbers(options.layer))
        read = _read(config["corpus"], config["test_corpus"], options.pairs, options.seed, call.say)
        survey = _head_survey(source, layers, read, options, config, against, ranked)
        available_parts, lacking = measurable(survey, names, by_name)
        call.expect(n_stages(survey, available_parts))
        tables, stores = measure(survey, available_parts, call.cached, source.trainer, call.say)
        call.watch.end("measure")
        if not is_main_process():
            return None
        report_dropped_text([survey.request.corpus], [survey.tokens], call.say)
        _report_missing_parts(lacking, call.say)
        parts_and_lacks = [part.name for part in available_parts], lacking
        return call.write(source.model, lambda folder: study_output(tables, survey, stores, *parts_and_lacks))


def _head_survey(
    source: Any, layers: Sequence[int], read: tuple[list[Any], list[Any]], options: AttentionOptions,
    config: dict[str, Any], against: Any, run: str | None,
) -> Any:  # fmt: skip
    """Return the `HeadSurvey`: a model and its text, and the comparisons."""
    from probing.heads.roles import read_role_links
    from probing.heads.survey import HeadSurvey

    corpora, splits = read
    request, *test = (source.request(text) for text in corpora)
    return HeadSurvey.of(
        request,
        layers,
        options.seed,
        test=test[0] if test else None,
        splits=splits,
        role_links=read_role_links(options.roles) if options.roles else None,
        against=None if against is None else _against(against, source, corpora[0], config),
        as_published=options.as_published,
        run=None if run is None else _ranked(run, request),
        source=source,
        without_first=config["first_token"] == "exclude",
    )


def _start_of(tuned: Tuned, config: dict[str, Any]) -> Any:
    """Return the baseline of a tuned model (--against or its starting point), and update the configuration."""
    if tuned.are_pairs:
        raise UserError(
            f"`{tuned.flag_text}`: its model was tuned on pairs, and the text of such a run is not read here; give "
            f"`--model {tuned.checkpoint} --against {tuned.config['model']}`, and a text."
        )
    read_as_tuned(tuned, config, defaults(attention))
    config["against"] = tuned.config["model"] if config["against"] is None else config["against"]
    return config["against"]


def _part_names(
    parts: str | list[str], is_compared: bool, has_run: bool, without_first: bool
) -> tuple[list[str], bool]:
    """Return the names of the requested parts, and whether the user named them."""
    from probing.heads.parts import NAMES, OF_AGAINST, OF_FIRST, OF_RUNS, USUAL

    if parts not in ("all", ["all"]):
        return list(dict.fromkeys([*chosen("--parts", parts, NAMES), *OF_AGAINST * is_compared])), True
    return [*USUAL, *OF_FIRST * without_first, *OF_AGAINST * is_compared, *OF_RUNS * has_run], False


def _against(model: Any, source: Any, corpus: Any, config: dict[str, Any]) -> Any:
    """Return the `SurveyedCheckpoint` to compare with, and put its name into the configuration.

    It may be a model object, which then has the same tokenizer; it is never initialised randomly.
    """
    from probing.heads.survey import SurveyedCheckpoint

    with about_option("--against"):
        other_model = find_model(model, None, None if isinstance(model, str) else load_tokenizer(source.model))
    config["against"] = other_model.name
    return SurveyedCheckpoint(replace(source, model=other_model, random_weights_seed=None).request(corpus))


def _read(corpus: Any, test_corpus: Any, pairs: str | None, seed: int, say: Any) -> tuple[list[Any], list[Any]]:
    """Read the pairs, which have no splits, or the corpora with the splits of their sentences."""
    from probing.text import read_corpora, read_pairs

    if pairs is None:
        return read_corpora(corpus, test_corpus, seed, say)
    corpus_options = {"corpus": None if corpus == "builtin" else corpus, "test_corpus": test_corpus}
    if option := next((name for name, value in corpus_options.items() if value is not None), None):
        raise UserError(
            f"`--pairs {pairs}` and `--{option}`: a survey reads pairs or single sentences; give one of the two."
        )
    return [read_pairs(pairs)], []


def _report_missing_parts(lacking: Mapping[str, str], say: Any) -> None:
    for lack in dict.fromkeys(lacking.values()):
        parts = [part for part, part_lack in lacking.items() if part_lack == lack]
        begin = f"the parts {', '.join(parts)} are left out: they need" if len(parts) > 1 else (
            f"the part {parts[0]} is left out: it needs"
        )  # fmt: skip
        say(f"{begin} {lack}")


def _ranked(run: str, request: Any) -> Any:
    from probing.heads.survey import PositionRun

    return PositionRun.of(of_text(load_fit(run)), request.key(), request.source.name)


class Attention(Study):
    """A survey of attention heads."""

    name, kind, title = "attention", "survey of attention heads", "Attention heads"
    function = "probing.studies.attention:attention"
    in_several_processes = True
    schemas = tables.SCHEMAS
    views = tables.VIEWS
    page = "attention.md"
    files: ClassVar[Mapping[str, str]] = {
        "examples.safetensors": "The maps of all heads in up to six short sentences, among which is a map of each "
        "class where there is one: `attention/0`, `attention/1`, ... (layers, heads, from, to), float16, which keeps "
        "three digits; its metadata are JSON: `layers`; `sentences`, each with its index in the corpus (`sentence`,"
        " from 0), `tokens`, which of them are `special`, `words`, the index of each token's word "
        "(`word_of_token`, -1 for special tokens) and of a treebank the `arcs` (dependent, head, relation; "
        "words from 0); `classes`, a map of each class: index of the sentence among these (`example`, from "
        "0), `layer, head`, and `share` of this head's maps that are of the class. Absent if no sentence has "
        "at most 12 words and 16 tokens.",
        "figures/": "`classes`, `entropy`, `relations` (layer by head), `special_tokens` (by layer), "
        "`position_neurons` (of three heads), `examples` (a map of each class); with `--against`, `change` (layer by "
        "head), `change_by_layer`; with `--parts fusion`, `fusion`.",
    }

    def charts(self, result: Result) -> list[Chart]:
        """Return the attention to special tokens, the change of maps, the neurons of heads, and fused layers."""
        return tables.charts(result.by_name, self._against(result))

    def drawings(self, result: Result) -> Drawings:
        """Return the maps of heads, and an attention map of each class."""
        from probing.studies.attention.figures import drawings

        return drawings(result, [self.figure_prefix(result), self._against(result)])

    def _against(self, result: Result) -> str:
        """Return the name of the other checkpoint."""
        return Path(str(result.config.get("against"))).name

    def tables(self, result: Result) -> list[Any]:
        """Return the tables of the survey."""
        return tables.tables(result.by_name)

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence for each question."""
        is_causal = result.results.get("model", {}).get("is_causal", False)
        return conclusions(result.by_name, is_causal)

    def section(self, result: Result, place: SectionPlace) -> Html:
        """Return a map of all heads, example sentences of each, and the tables of the terminal."""
        from probing.studies.attention.section import survey_section

        return survey_section(result, place)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.studies.attention.section import terms_of_survey

        return terms_of_survey(result)


STUDY = Attention()
