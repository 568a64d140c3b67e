"""The study `cloze`: predictions at a mask, between two words and in changed text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
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
from probing.runs import Result, Study, study_of
from probing.runs.call import Call
from probing.runtime import quiet_libraries
from probing.studies.cloze import tables
from probing.tables.figures import Chart
from probing.text import load_corpus

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
        from probing.studies.cloze.facts import read_facts
        from probing.studies.cloze.predictor import BUILTIN, Predictor, read_pairs
        from probing.studies.cloze.sentences import read_sentence_pairs, sentence_survey
        from probing.studies.cloze.survey import ClozeConfig, survey

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
            cloze_config = ClozeConfig(
                items, flag_texts, text, options.tokens, options.max_length, options.batch_tokens, options.seed
            )
            call.expect(sum(map(bool, items.values())) + (text is not None))
            output = survey(predictor, cloze_config, call.say)
        return call.write(predictor.source, lambda _: output)


class Cloze(Study):
    """Predictions at masks, and losses in changed text."""

    name, kind, title = "cloze", "predictions at masks", "Predictions at masks"
    function = "probing.studies.cloze:cloze"
    schemas = (
        tables.CLOZE, tables.GROUPS, tables.CHANGES, tables.SENTENCE_PAIRS, tables.PHENOMENA, tables.FACTS,
        tables.FACT_RELATIONS,
    )  # fmt: skip
    views = tables.VIEWS
    page = "small-studies.md#at-the-mask"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Shares by group, and losses.",
    }

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence for each phenomenon, group, relation and change."""
        counted = result.results.get("unigrams", {}).get("corpus", "a corpus")
        return [
            *tables.of_sentences(result.phenomena, counted), *tables.of_facts(result.fact_relations),
            *tables.conclusions(result.groups, result.changes),
        ]  # fmt: skip

    def charts(self, result: Result) -> list[Chart]:
        """Return the shares by phenomenon, relation and group, and the increases of the loss."""
        return tables.charts(result.by_name)


STUDY = Cloze()
