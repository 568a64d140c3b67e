"""The study `attention`: a survey of the attention heads of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.option_types import Dtype, FirstToken, Folder, Layers, Model, Source, chosen
from probing.cli.options import BatchOptions, CorpusOptions, OutputOptions, RunOptions, StatesOptions, defaults
from probing.errors import UserError, about_option, refuse
from probing.models import find_model, layer_numbers, load_tokenizer
from probing.results import Column, Html, Schema, View, estimate, label_of_class, number, text, whole
from probing.runs import Result, SectionPlace, Study, Terms, study_of
from probing.runs.call import Call
from probing.runs.loading import Tuned, is_tuned, read_as_tuned, tuned_of
from probing.runs.run import load_fit, of_text
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.tables import heads, position_heads
from probing.tables.figures import Chart
from probing.tables.heads import causal_conclusions
from probing.tables.schema import HEAD, block, value

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
    """Role links to follow: a file with lines text TAB predicate TAB role TAB filler, with words counted from 0, such
    as 3 or 3-4, or framenet:FOLDER. Default: the subjects and objects of a treebank."""
    against: Model | None = None
    """Another checkpoint of the model, an alias, a hub id or a local folder with the same tokenizer, whose heads,
    hidden states and parameters are compared with those of --model: the part change."""
    as_published: bool = False
    """With --against, also compare the heads as in the code of Kovaleva et al. (2019): by maps of 200 x 200 tokens,
    including rows of padding, over the first 1,000 sentences."""
    run: Folder | None = None
    """Folder of a run of fit on position, with the same model: find the heads that attend to a fixed offset, and
    measure whether they read the neurons that the run ranks first. Or the folder of a run of finetune, or of one of
    its checkpoints, which then replaces --model and is compared with the model that it was tuned from, on the run's
    text."""
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
        survey = _head_survey(
            source, layers, read, config, options.seed, options.roles, against, options.as_published, ranked
        )
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
    source: Any, layers: Sequence[int], read: tuple[list[Any], list[Any]], config: dict[str, Any], seed: int,
    roles: str | None, against: Any, as_published: bool, run: str | None,
) -> Any:  # fmt: skip
    """Return the `HeadSurvey`: a model and its text, and the comparisons."""
    from probing.heads.roles import read_role_links
    from probing.heads.subject import HeadConfig, HeadSurvey

    corpora, splits = read
    request, *test = (source.request(text) for text in corpora)
    head_config = HeadConfig(
        test=test[0] if test else None,
        splits=splits,
        roles=read_role_links(roles) if roles else None,
        against=None if against is None else _against(against, source, corpora[0], config),
        as_published=as_published,
        run=None if run is None else _ranked(run, request),
        source=source,
        without_first=config["first_token"] == "exclude",
    )
    return HeadSurvey.of(request, layers, seed, head_config)


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
    from probing.heads.subject import SurveyedCheckpoint

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
    from probing.heads.subject import PositionRun

    return PositionRun.of(of_text(load_fit(run)), request.key(), request.source.name)


_N = whole("n", "Number of sentences that are measured; with `--pairs`, of pairs.")

_MEASURE = text("measure", "The measure.")

_TO = text("to", "Type of the tokens that receive the attention, if the measure has one.")

_P = number("p_value", "p-value, corrected for the rows that are tested together.")

HEADS = Schema("heads", "a row per head, measure and type of tokens", (
    block(), HEAD, _MEASURE, _TO, value("Its value"), _N,
), optional=True)  # fmt: skip

ATTENTION_LAYERS = Schema("attention_layers", "a row per layer, measure and type of tokens, as means over heads", (
    block(), _MEASURE, _TO, value("Its value"), _N,
), optional=True)  # fmt: skip

ATTENTION_CLASSES = Schema("attention_classes", "a row per head and factor of the thresholds", (
    block("Number of the block; in rows with `all`, the share of each class among the maps of all heads."), HEAD,
    number("factor", "Factor of the thresholds: 1, 0.75 or 1.25.", form=".2f"),
    number("v", "Mean of the vertical score over maps."),
    number("d", "Mean of the diagonal score over maps."),
    number("b", "Mean of the block score over maps, with `--pairs`."),
    number("b_moved", "Mean of the block score with the boundary of each pair moved."),
    Column("class", label_of_class, "Class of most of the head's maps."),
    Column("share", float, "Share of its maps that are of this class; low, high: its 95% interval.", interval=""),
    _N,
    number("class_entropy", "Entropy of the classes of its maps, in nats."),
    estimate("share_moved", "Share of block maps with the boundary moved."),
), optional=True)  # fmt: skip

ROLLOUT = Schema("rollout", "a row per layer, kind of token and measure", (
    block("Layer whose vectors are traced."),
    text("query", "Tokens whose vectors are traced: words or special tokens."),
    text("measure", "self, special_tokens, previous, next, others, distance or entropy."),
    value("Its value"), _N,
    number("uniform", "The value under uniform attention."),
), optional=True)  # fmt: skip

SIMILARITY = Schema("similarity", "a row per measure and pair of heads or of layers", (
    text("measure", "jensen_shannon of two heads, or cosine, cosine_of_means, cosine_matched of two layers."),
    block(), HEAD,
    whole("other_layer", "Number of the other block."),
    whole("other_head", "Number of the other head."),
    value("Its value"), whole("n", "Number of queries, of cosines of sentences."),
), optional=True)  # fmt: skip

_RELATION = text("relation", "Dependency relation.")

_QUERY = text("query", "Side of the arc that attends: dependent or head; selected on the training part.", "from")

_COUNTS = (
    whole("n_train", "Number of arcs, words or examples of the training part."),
    whole("n_test", "Number of arcs or words of the test part."),
)

_OF_RELATION = (
    number("train", "Accuracy on the training part."),
    estimate("test", "Accuracy on the test part.", "accuracy"),
    whole("offset", "The best fixed offset.", form="+d"),
    number("offset_train", "Accuracy of the offset on the training part."),
    estimate("offset_test", "Accuracy of the offset on the test part.", "its accuracy"),
    estimate("difference", "Accuracy of the head minus accuracy of the offset.", form="+.3f"),
    _P,
    number(
        "difference_permuted",
        "Mean difference if syntactic heads are permuted among a sentence's dependents: also "
        "found by a head that attends to words which head many others.",
        "if permuted",
        "+.3f",
    ),
    number(
        "p_permuted",
        "p-value that the difference is larger than with permuted syntactic heads, corrected.",
        "p beyond permuted",
    ),
)

_UNTRAINED = estimate("untrained", "Accuracy of a randomly initialised model.", "randomly initialised")

RELATIONS = Schema("relations", "a row per dependency relation", (
    _RELATION, *_COUNTS, _QUERY, block("Block of the head, chosen on train."), HEAD, *_OF_RELATION, _UNTRAINED,
), optional=True)  # fmt: skip

HEAD_RELATIONS = Schema("head_relations", "a row per head, with its best relation", (
    block(), HEAD, _RELATION, _QUERY, *_COUNTS, *_OF_RELATION,
), optional=True)  # fmt: skip

TREES = Schema("trees", "a row per head, and of the probe of all heads", (
    text("measure", "uuas of a head's trees, or uas of the probe of all heads.", labels={
        "uuas": "edges in the tree of the selected head", "uas": "syntactic heads by a probe of all attention heads",
    }),
    block("Number of the block; `all` for the probe."), HEAD,
    text("chosen", "yes for the best head on train."),
    *_COUNTS,
    number("train", "Accuracy on the training part."),
    estimate("test", "Accuracy on the test part.", "accuracy"),
    estimate("baseline", "Accuracy of the best simple tree."),
    estimate("difference", "Accuracy minus accuracy of the baseline."),
    _P, _UNTRAINED,
    whole("offset", "Offset of the baseline of the probe."),
    number("optimality_gap", "By how many nats, at most, the probe's objective is above its minimum.", form=".1e"),
), optional=True)  # fmt: skip

ROLES = Schema("roles", "a row per role, side that attends and head", (
    text("role", "Semantic role; all for all links together."),
    text("query", "Side that attends: predicate or filler."),
    block(), HEAD,
    Column("score", float, "Mean attention of linked words; low, high: its 95% interval.", interval=""),
    number("unlinked", "Mean of similar unlinked pairs of other sentences."),
    number("z", "Distance of the score from the mean of unlinked pairs, in standard deviations of the draws."),
    number("p_value", "p-value against draws of all links of a predicate together."),
    whole("n", "Number of links that are compared."),
    whole("n_unmatched", "Number of links without similar unlinked pairs."),
), optional=True)  # fmt: skip

CHANGE = Schema("change", "with `--against`, a row per measure and head, layer or matrix", (
    text("measure", "cosine, jensen_shannon, hidden_states or parameters; as published also cosine_as_published."),
    text("of", "same, other heads, other sentences, other tokens, or the name of a matrix."),
    block(), HEAD, value("Its value"), whole("n", "Number of sentences, or of tokens, of the mean."),
), optional=True)  # fmt: skip

FUSION = Schema("fusion", "with `--parts fusion`, a row per task, fusion of layers and measure", (
    text("task", "upos, deprel or position."),
    text("fusion", "layer for a single one, equal, max, concat or gate."),
    text("measure", "accuracy, difference, cosine or weight."),
    block("Number of the layer."),
    text("chosen", "yes for the best layer on validation sentences."),
    text("against", "Baseline of a difference: last layer, best layer or equal."),
    value("Its value"), _P,
    whole("n_train", "Number of training examples."),
    whole("n", "Number of test examples, of cosines of sentences."),
    number("optimality_gap", "By how many nats, at most, the objective is above its minimum.", form=".1e"),
    text("converged", "Whether the training of the fusion ended: yes or no."),
), optional=True)  # fmt: skip

_OFFSET = whole("offset", "Offset that the head attends to, chosen on training sentences.")


def _beside(of: str, what: str) -> tuple[Column, ...]:
    return (
        number(of, f"{what} of the neurons' use with the run's contributions."),
        number(f"{of}_heads", "Mean of this correlation over the other heads of the block."),
        number(f"{of}_heads_p", "p-value by rank."),
        number(f"{of}_bases", "Mean of this correlation over random bases."),
        number(f"{of}_bases_p", "p-value by rank."),
    )


POSITION_HEADS = Schema("position_heads", "with `--run`, a row per head", (
    block(), HEAD, _OFFSET,
    text("position_head", "Whether it is a position head: yes or no."),
    estimate("mass", "Attention at the offset."),
    estimate("word_mass", "Attention at the offset, among words alone."),
    estimate("hit", "Share of queries whose largest attention is at the offset."),
    estimate("told", "With the words permuted, attention to the word at the offset in the permuted order."),
    estimate("told_true", "With the words permuted, attention to the word at the offset in the original order."),
    whole("n", "Number of sentences."),
    estimate("contrast", "Score of the key at the offset minus the mean score of all words, in logits."),
    estimate("position_part", "Part of the contrast that comes from position, in logits."),
    estimate("bias_part", "Part of the contrast that comes from a bias of relative positions, in logits."),
    *_beside("spearman", "Spearman's correlation"),
    *_beside("partial", "Spearman's partial correlation"),
), optional=True)  # fmt: skip

POSITION_NEURONS = Schema("position_neurons", "a row per position head, and per clearest head, and neuron", (
    block(), HEAD, _OFFSET,
    whole("rank", "Rank by use."), whole("neuron", "Index of the neuron."),
    number("use", "How much the head's position part uses the neuron, in logits."),
    number("by_query", "Part of the query."), number("by_key", "Part of the key."),
    number("position_part", "Sum of both parts."),
    number("contribution", "Contribution in the run."),
    number("contribution_centred", "Centred contribution in the run."),
    number("eta_squared", "Eta squared in the run."),
    number("sd_of_positions", "Standard deviation of the neuron's means by position."),
    number("sd_of_steps", "Standard deviation of the differences of these means between neighbouring positions."),
), optional=True)  # fmt: skip


def _fixed_columns(of: str, what: str) -> tuple[Column, ...]:
    return (
        number(of, f"{what} in the intact model."),
        number(f"{of}_held", "The same with the neurons replaced by their mean."),
        number(f"{of}_random", "The same, mean of random sets."),
        number(f"{of}_random_p", "p-value compared with these sets, by rank."),
        number(f"{of}_matched", "The same, mean of sets matched in standard deviation."),
        number(f"{of}_matched_p", "p-value compared with these sets, by rank."),
    )


POSITION_REMOVAL = Schema("position_removal", "a row per position head, ranking and number of neurons", (
    block(), HEAD, _OFFSET,
    text("ranking", "Ranking whose first neurons are replaced by their mean."),
    whole("k", "Number of neurons."), text("neurons", "The neurons."),
    *_fixed_columns("contrast", "Contrast of the word at the offset, in logits,"),
    *_fixed_columns("word_mass", "Attention at the offset among words"),
), optional=True)  # fmt: skip

# Tables of the page.
VIEWS = (
    View(
        RELATIONS,
        ("relation", "n_test", "query", "layer", "head", "test*", "offset", "offset_test", "difference*", "p_value",
         "difference_permuted", "p_permuted", "untrained"),
        "Dependency relations: the best head, selected on the training part, compared with the best fixed offset",
    ),
    View(
        TREES, ("measure", "layer", "head", "test*", "baseline", "p_value", "untrained"),
        "Trees: the baseline is the chain of neighbours for edges, and the best fixed offset for syntactic heads",
        where={"chosen": ("yes", None)},
    ),
)  # fmt: skip

SCHEMAS = (
    HEADS, ATTENTION_LAYERS, ATTENTION_CLASSES, ROLLOUT, SIMILARITY, RELATIONS, HEAD_RELATIONS, TREES, ROLES, CHANGE,
    FUSION, POSITION_HEADS, POSITION_NEURONS, POSITION_REMOVAL,
)  # fmt: skip


class Attention(Study):
    """A survey of attention heads."""

    name, kind, title = "attention", "survey of attention heads", "Attention heads"
    function = "probing.studies.attention:attention"
    in_several_processes = True
    schemas = SCHEMAS
    views = VIEWS
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
        """Return the attention to special tokens, and the change of maps."""
        return heads.charts(result.by_name, Path(str(result.config.get("against"))).name)

    def tables(self, result: Result) -> list[Any]:
        """Return the tables of the survey."""
        return heads.tables(result.by_name) + position_heads.tables(result.by_name)

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence for each question."""
        is_causal = result.results.get("model", {}).get("is_causal", False)
        lines = heads.conclusions(result.by_name) + causal_conclusions(is_causal, result.heads)
        return lines + position_heads.conclusions(result.by_name)

    def section(self, result: Result, place: SectionPlace) -> Html:
        """Return a map of all heads, example sentences of each, and the tables of the terminal."""
        from probing.studies.attention.section import survey_section

        return survey_section(result, place)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.studies.attention.section import terms_of_survey

        return terms_of_survey(result)


STUDY = Attention()
