"""The study `cloze`: predictions at a mask, between two words and in changed text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

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
from probing.models import find_model
from probing.runs import Result, Study, study_of
from probing.runs.call import Call
from probing.runtime import quiet_libraries
from probing.studies.cloze import tables
from probing.text import load_corpus


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
    tokens: int = option(20_000, at_least=1)
    """Maximum number of tokens of the corpus; if it has more, sentences are sampled at random."""
    _: KW_ONLY
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


@command(ClozeOptions)
def cloze(options: ClozeOptions) -> Result:
    """Compare a masked language model's probabilities of two words, and measure its loss on changed text.

    Returns:
        The results.
    """
    call = Call.of(study_of("cloze"), options)
    with quiet_libraries():
        from probing.studies.cloze.predictor import BUILTIN, ClozeConfig, Predictor, read_pairs, survey

        file = BUILTIN if options.file is None and options.corpus is None else options.file
        pairs, n_repeated = ([], 0) if file is None else read_pairs(file)
        text = None if options.corpus is None else load_corpus(options.corpus)
        predictor = Predictor.of(find_model(options.model, options.revision, options.tokenizer), options.trainer or {})
        if n_repeated:
            call.say(f"{file}: {n_repeated} repeated pairs were left out")
        cloze_config = ClozeConfig(
            pairs, f"cloze {file}", text, options.tokens, options.max_length, options.batch_tokens, options.seed
        )
        call.expect(bool(pairs) + (text is not None))
        output = survey(predictor, cloze_config, call.say)
        return call.write(predictor.source, lambda _: output)


class Cloze(Study):
    """Predictions at masks, and losses in changed text."""

    name, kind, title = "cloze", "predictions at masks", "Predictions at masks"
    function = "probing.studies.cloze:cloze"
    schemas = tables.CLOZE, tables.GROUPS, tables.CHANGES
    views = tables.VIEWS
    page = "small-studies.md#at-the-mask"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Shares by group, and losses.",
    }

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence for each group and each change."""
        return list(tables.conclusions(result.groups, result.changes))


STUDY = Cloze()
