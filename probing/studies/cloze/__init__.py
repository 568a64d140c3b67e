"""The study `cloze`: predictions at a mask, between two words and in changed text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal

from probing.cli.commandline import command
from probing.cli.options import (
    FIGURE_FORMAT,
    BatchOptions,
    FigureFormat,
    Model,
    Source,
    Tokenizer,
    Wandb,
    WandbOptions,
    option,
)
from probing.errors import flag
from probing.models import find_model
from probing.results import (
    CHANGED,
    COMPARED,
    Column,
    NamedLayer,
    Row,
    Schema,
    Table,
    View,
    count,
    estimate,
    estimated,
    number,
    sign_of_interval,
    text,
    whole,
)
from probing.runs import Result, Study, study_of
from probing.runs.call import Call
from probing.runtime import quiet_libraries
from probing.tables.figures import Chart, Line, Panel
from probing.tables.figures import by_name as names_axis
from probing.text import load_corpus

# What a change is compared with: the text as it is.
INTACT = "intact"

TEXTS = {
    INTACT: "unchanged",
    "words_shuffled": "words shuffled",
    "pairs_shuffled": "pairs shuffled",
    "name_replaced": "a name replaced",
    "noun_replaced": "a noun replaced",
}

_GROUP = text("group", "What the pairs are about; all is every pair.")

CLOZE = Schema("cloze", "a row per pair of words", (
    whole("line", "Line of the file, from 1."), _GROUP,
    text("text", "The text with its mask."),
    text("good", "The word that fits the text."), text("bad", "The word that does not fit."),
    number("good_log_probability", "Log probability of the good word at the mask, in nats."),
    number("bad_log_probability", "Log probability of the bad word, in nats."),
    number("difference", "Log probability of the good word minus that of the bad word.", form="+.3f"),
), optional=True)  # fmt: skip

GROUPS = Schema("groups", "a row for all pairs and for each group", (
    _GROUP,
    whole("n", "Number of pairs whose words are single pieces of the vocabulary.", "pairs"),
    whole("n_right", "Number of pairs whose good word has the higher probability."),
    Column("share", float, "Share of pairs whose good word has the higher probability at the mask; low, high: "
           "its exact binomial 95% interval.", "good more probable", ".3f", ""),
    estimate("clear_share", "Share of pairs whose good word is more probable by more than .01.", "by more than .01"),
    estimate("difference", "Mean difference of log probabilities, in nats.", "log p, good - bad", "+.3f"),
), optional=True)  # fmt: skip

CHANGES = Schema("changes", "a row per change of the text and what it is compared with", (
    text("condition", "What was changed in the text around the masked words.", "text", labels=TEXTS),
    text("against", "The text that it is compared with.", "compared with", labels=TEXTS),
    Column("loss", float, "Mean cross-entropy of the masked tokens, in nats; low, high: its 95% interval.", form=".3f",
           interval=""),
    number("baseline", "The loss of the same tokens in the text that it is compared with.", "baseline loss"),
    estimate("difference", "Increase of the loss, paired by sentence.", form="+.3f"),
    whole("n_sentences", "Number of sentences.", "sentences"), whole("n", "Number of their masked tokens.", "tokens"),
), optional=True)  # fmt: skip

# What whole sentences are compared by beside the model, and whether the good sentence should have more (1) or less.
BASELINES = {"unigrams": 1, "tokens": -1}

_PHENOMENON = text("phenomenon", "Phenomenon of the pairs; all is every pair.")

SENTENCE_PAIRS = Schema("sentence_pairs", "a row per pair of sentences", (
    whole("line", "Line of the file, from 1."), _PHENOMENON,
    text("good", "The good sentence."), text("bad", "The bad sentence."),
    *(number(f"{which}_log_probability", f"Log probability of the {which} sentence, in nats; of a masked model the "
             "pseudo-log-likelihood with the later pieces of a word masked.") for which in ("good", "bad")),
    number("difference", "Log probability of the good sentence minus that of the bad one.", form="+.3f"),
    *(number(f"{which}_unigrams", f"Log probability of the {which} sentence by the frequency of its tokens in a "
             "corpus, plus 1.") for which in ("good", "bad")),
    *(whole(f"{which}_tokens", f"Number of tokens of the {which} sentence without special tokens.")
      for which in ("good", "bad")),
), optional=True)  # fmt: skip

PHENOMENA = Schema("phenomena", "a row for all pairs of sentences and for each phenomenon", (
    _PHENOMENON, whole("n", "Number of pairs whose sentences have different tokens.", "pairs"),
    whole("n_right", "Number of pairs whose good sentence has the higher probability."),
    Column("share", float, "Share of pairs whose good sentence has the higher probability; low, high: its exact "
           "binomial 95% interval.", "accuracy", ".3f", ""),
    number("unigrams_share", "The same by the frequency of the tokens in a corpus; where the two sentences are equal, "
           "half a pair.", "token frequency"),
    estimate("above_unigrams", "Accuracy minus that of token frequency, paired.", "above frequency", "+.3f"),
    number("tokens_share", "The same if the sentence with fewer tokens is chosen.", "fewer tokens"),
    estimate("above_tokens", "Accuracy minus that of the number of tokens, paired.", "above length", "+.3f"),
), optional=True)  # fmt: skip

_RELATION = text("relation", "Relation of the facts; all is every fact.")

FACTS = Schema("facts", "a row per fact whose object is a single piece of the vocabulary", (
    whole("line", "Line of the file, from 1."), _RELATION,
    text("text", "The text with its mask."), text("subject", "The subject."), text("object", "The object."),
    number("log_probability", "Log probability of the object at the mask, in nats."),
    whole("rank", "Rank of the object among the vocabulary, from 1, without other objects that the file has for the "
          "text."),
    text("predicted_piece", "The most probable piece of the vocabulary."),
    text("most_frequent_object", "The most frequent object of the relation in the file."),
    whole("rank_without_subject", "Rank where the subject is replaced by one mask token; empty if the text does not "
          "have the subject as it is written."),
), optional=True)  # fmt: skip

FACT_RELATIONS = Schema("fact_relations", "a row for all facts and for each relation", (
    _RELATION, whole("n", "Number of facts whose object is a single piece of the vocabulary.", "facts"),
    whole("n_left_out", "Number of facts that are left out, such as those whose object has several pieces.",
          "left out"),
    estimate("precision_at_1", "Share of facts whose object has rank 1; exact binomial 95% interval.", "P@1"),
    estimate("precision_at_10", "Share of facts whose object has rank 10 or better.", "P@10"),
    estimate("reciprocal_rank", "Mean reciprocal rank.", "MRR"),
    whole("n_without_subject", "Number of facts whose text has the subject as it is written.", "with subject"),
    number("without_subject", "P@1 of these facts where the subject is replaced by one mask token.", "without subject"),
    estimate("above_without_subject", "P@1 of these facts minus that without the subject, paired.",
             "minus without subject", "+.3f"),
    number("most_frequent", "P@1 of the most frequent object of the relation in the file.", "most frequent object"),
    estimate("above_most_frequent", "P@1 minus that of the most frequent object, paired.",
             "minus most frequent", "+.3f"),
), optional=True)  # fmt: skip

# Stands for all groups in the column of groups.
EVERY = "all"

# Universal part of speech of the words that are replaced, by the name of the change.
REPLACED = {"name_replaced": "PROPN", "noun_replaced": "NOUN"}

VIEWS = (
    View(GROUPS, ("group", "n", "share*", "clear_share", "difference*"),
         "Probability of the good word at the mask, compared with the bad word"),
    View(CHANGES, ("condition", "n_sentences", "n", "loss", "against", "baseline", "difference*"),
         "Loss of masked words in nats"),
    View(PHENOMENA, ("phenomenon", "n", "share*", "unigrams_share", "above_unigrams*", "tokens_share",
                     "above_tokens*"), "Pairs whose good sentence is more probable"),
    View(FACT_RELATIONS, ("relation", "n", "n_left_out", "precision_at_1*", "precision_at_10*", "reciprocal_rank*"),
         "Rank of the objects of facts at the mask"),
    View(FACT_RELATIONS, ("relation", "precision_at_1", "n_without_subject", "without_subject",
                          "above_without_subject*", "most_frequent", "above_most_frequent*"),
         "P@1 compared with the text without its subject, and with the most frequent object"),
)  # fmt: skip

SENTENCES = {
    "group": "{group}: the good word is more probable in {n_right} of {pairs}, {share}: {verdict}.",
    "change": "With {change}, the loss of masked words changes from {baseline:.3f} to {loss:.3f} nats over "
    "{sentences}: difference {difference}, {verdict}.",
    "control": "With {change}, compared with {control}, the loss of masked words differs by {difference} nats over "
    "{sentences}: {verdict}.",
    "phenomenon": "{phenomenon}: the good sentence is more probable in {n_right} of {pairs}, {share}: {verdict}; "
    "compared with the frequency of tokens in {corpus} ({unigrams:.1%}), {above_unigrams}; with fewer tokens "
    "({tokens:.1%}), {above_tokens}.",
    "facts": "{relation}: the object is the most probable token in {precision} of {facts}; {baselines}.",
    "without_subject": "compared with the text without its subject ({value:.1%}), {verdict}",
    "most_frequent": "compared with the most frequent object of the relation ({value:.1%}), {verdict}",
}

_CHANCE = {1: "above chance", -1: "below chance", 0: "not distinguished from chance"}


def _named(rows: Table, column: str, every: str) -> Iterator[tuple[str, Row]]:
    """Yield rows with their names; the row of all only if there are several others."""
    for row in rows.where(lambda row: row[column] != EVERY or len(rows) > 2):
        yield every if row[column] == EVERY else row[column][:1].upper() + row[column][1:], row


def _compared(row: Row, name: str) -> str:
    return f"{estimated(row, name, '+.3f')}: {COMPARED[sign_of_interval(row, name)]}"


def of_sentences(phenomena: Table, corpus: str) -> Iterator[str]:
    """Yield a sentence for each phenomenon; `corpus` is the text whose tokens are counted."""
    for name, row in _named(phenomena, "phenomenon", "All pairs"):
        yield SENTENCES["phenomenon"].format(
            phenomenon=name, corpus=corpus, n_right=row["n_right"], pairs=count(row["n"], "pair"),
            share=estimated(row, "share", ".1%", ""), verdict=_CHANCE[sign_of_interval(row, than=0.5)],
            unigrams=row["unigrams_share"], tokens=row["tokens_share"],
            above_unigrams=_compared(row, "above_unigrams"), above_tokens=_compared(row, "above_tokens"),
        )  # fmt: skip


def of_facts(relations: Table) -> Iterator[str]:
    """Yield a sentence for each relation."""
    for name, row in _named(relations, "relation", "All facts"):
        compared = [
            SENTENCES[baseline].format(value=row[baseline], verdict=_compared(row, f"above_{baseline}"))
            for baseline in ("without_subject", "most_frequent")
            if baseline in row
        ]
        yield SENTENCES["facts"].format(
            relation=name, facts=count(row["n"], "fact"), precision=estimated(row, "precision_at_1", ".1%"),
            baselines="; ".join(compared),
        )  # fmt: skip


_CHARTS = (
    (PHENOMENA, {"share": "model", "unigrams_share": "token frequency", "tokens_share": "fewer tokens"},
     "pairs whose good sentence is more probable, beside baselines", "accuracy", 0.5),
    (FACT_RELATIONS, {"precision_at_1": "model", "without_subject": "without subject",
                      "most_frequent": "most frequent object"}, "objects of facts at the mask", "P@1", 0),
    (GROUPS, {"share": "share of pairs"}, "probability of good words, compared with bad words",
     "pairs whose good word is more probable", 0.5),
    (CHANGES, {"difference": "increase of the loss"}, "masked words in changed text",
     "increase of the loss of masked words (nats)", 0),
)  # fmt: skip


def charts(by_name: Mapping[str, Table]) -> list[Chart]:
    """Return a chart for each table of means; a row is named by its first column."""
    drawn = []
    for schema, columns, title, y, reference in _CHARTS:
        named, rows = schema.columns[0], by_name[schema.name]
        rows = rows.where(lambda row: row.get("against", INTACT) == INTACT and row.get("condition") != INTACT)
        placed = [row | {"place": NamedLayer(i, f"{named.show(row)} ({row['n']})")} for i, row in enumerate(rows)]
        lines = [
            replace(Line.of(placed, name, label, schema[name].interval, x="place"), kind="marks")
            for name, label in columns.items()
        ]
        limits, axis = (0, 1) if schema is not CHANGES else None, names_axis(named.words, named.words)
        drawn.append(Chart(schema.name, title, [Panel(lines)], y, limits, x=axis, reference=reference))
    return drawn


def conclusions(groups: Table, changes: Table) -> Iterator[str]:
    """Yield a sentence for each group, and for each change of the text."""
    for name, row in _named(groups, "group", "All pairs"):
        yield SENTENCES["group"].format(
            group=name, n_right=row["n_right"],
            pairs=count(row["n"], "pair"), share=estimated(row, "share", ".1%", ""),
            verdict=_CHANCE[sign_of_interval(row, than=0.5)],
        )  # fmt: skip
    for row in changes.where(lambda row: "against" in row):
        sentence = SENTENCES["change" if row["against"] == INTACT else "control"]
        yield sentence.format(
            change=TEXTS[row["condition"]], control=TEXTS[row["against"]], baseline=row["baseline"],
            loss=row["loss"], difference=estimated(row, "difference", "+.3f"),
            sentences=count(row["n_sentences"], "sentence"), verdict=CHANGED[sign_of_interval(row, "difference")],
        )  # fmt: skip


_TOKENS = 20_000


@dataclass(frozen=True)
class ClozeOptions(BatchOptions):
    """Options of `cloze`."""

    file: str | None = None
    """File of word pairs, one per line: the text with [MASK], the better word, the worse word and a group, separated by
    tabs; may be given without `--file`. builtin is the forty built-in pairs, the default if neither --file nor --corpus
    is given."""
    model: Model = "minilm"
    revision: str | None = None
    corpus: Source | None = None
    """Text to change: builtin, a file (.txt with one sentence per line, .conllu, .conll, .tsv, .csv, .jsonl; also as
    .gz), hf:NAME?config=C&split=S&column=T, or - for standard input. Names and nouns are replaced in .conllu files."""
    tokens: int = option(_TOKENS, at_least=1)
    """Maximum number of tokens of the corpus; if it has more, sentences are sampled at random."""
    _: KW_ONLY
    score: Literal["mask", "pll"] = "mask"
    """What is scored: mask is two words at a mask; pll is whole sentences, by the pseudo-log-likelihood of a masked
    model (within-word left to right) or the log-likelihood of a decoder. FILE then has the good sentence, the bad one
    and the phenomenon, separated by tabs, or BLiMP's JSON objects; and --corpus is the text whose tokens are counted
    for the baseline of token frequency, by default the built-in text."""
    facts: str | None = None
    """File of facts in LAMA's layout, a JSON object per line with `masked_sentences`, `sub_label`, `obj_label` and, if
    there are several relations, `predicate_id`: the rank of the object at the mask."""
    batch_tokens: int | None = None
    """Maximum number of tokens in one forward pass, including padding."""
    seed: int = 0
    """Seed of every random draw: sentences, masked words, orders and replacement words."""
    runs: str = "runs"
    name: str | None = None
    """Name of this run; default: MODEL-cloze-YYYYMMDD-HHMMSS."""
    quiet: bool = False
    verbose: bool = False
    trainer: dict[str, Any] | None = None
    """Arguments of Lightning's Trainer; only --trainer.accelerator and --trainer.logger are accepted."""
    wandb: Wandb = WandbOptions()
    tokenizer: Tokenizer = None
    figure_format: FigureFormat = FIGURE_FORMAT

    def problems(self) -> list[str]:
        """Return the problems with options that do not apply to whole sentences."""
        if self.score == "mask":
            return []
        given = {
            "facts": self.facts, "max_length": self.max_length,
            "tokens": None if self.tokens == _TOKENS else self.tokens,
        }  # fmt: skip
        problems = [
            f"{flag(name, value)} does not apply to {flag('score', 'pll')}, which scores whole sentences; leave one of "
            "the two out"
            for name, value in given.items()
            if value is not None
        ]
        if self.file is None:
            problems.append(f"{flag('score', 'pll')} needs a file of pairs of sentences; give it as `cloze FILE`")
        return problems


@command(ClozeOptions)
def cloze(options: ClozeOptions) -> Result:
    """Compare a language model's probabilities of words, facts or sentences, and measure its loss on changed text.

    Returns:
        The results.
    """
    call = Call.of(study_of("cloze"), options)
    with quiet_libraries():
        from probing.studies.cloze.predictor import BUILTIN, Predictor, read_pairs
        from probing.studies.cloze.sentences import read_sentence_pairs, sentence_survey
        from probing.studies.cloze.survey import read_facts, survey

        is_whole, inputs = options.score == "pll", (options.file, options.corpus, options.facts)
        file = BUILTIN if inputs == (None, None, None) else options.file
        flag_texts = {"pair": f"cloze {file}{' --score pll' * is_whole}", "fact": f"--facts {options.facts}"}
        items: dict[str, Any] = {}
        for noun, name, read in (
            ("pair", file, read_sentence_pairs if is_whole else read_pairs), ("fact", options.facts, read_facts),
        ):  # fmt: skip
            items[noun], n_repeated = ([], 0) if name is None else read(name, flag_texts[noun])
            if n_repeated:
                call.say(f"{name}: {n_repeated} repeated {noun}s were left out")
        corpus = "builtin" if is_whole and options.corpus is None else options.corpus
        text = None if corpus is None else load_corpus(corpus)
        source = find_model(options.model, options.revision, options.tokenizer)
        predictor = Predictor.of(source, options.trainer or {}, decoders=is_whole)
        if is_whole:
            assert text is not None
            call.expect(1)
            output = sentence_survey(
                predictor, items["pair"], flag_texts["pair"], text, options.batch_tokens, call.say
            )  # fmt: skip
        else:
            call.expect(sum(map(bool, items.values())) + (text is not None))
            output = survey(predictor, items, flag_texts, text, options, call.say)
        return call.write(predictor.source, lambda _: output)


class Cloze(Study):
    """Predictions at masks, and losses in changed text."""

    name, kind, title = "cloze", "predictions at masks", "Predictions at masks"
    function = "probing.studies.cloze:cloze"
    schemas = (
        CLOZE, GROUPS, CHANGES, SENTENCE_PAIRS, PHENOMENA, FACTS,
        FACT_RELATIONS,
    )  # fmt: skip
    views = VIEWS
    page = "small-studies.md#at-the-mask"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Shares by group, and losses.",
    }

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence for each phenomenon, group, relation and change."""
        counted = result.results.get("unigrams", {}).get("corpus", "a corpus")
        return [
            *of_sentences(result.phenomena, counted), *of_facts(result.fact_relations),
            *conclusions(result.groups, result.changes),
        ]  # fmt: skip

    def charts(self, result: Result) -> list[Chart]:
        """Return the shares by phenomenon, relation and group, and the increases of the loss."""
        return charts(result.by_name)


STUDY = Cloze()
