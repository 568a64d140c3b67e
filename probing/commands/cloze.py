"""`cloze`: what does a model predict at a mask, and what does it lose in changed text?"""

from __future__ import annotations

from typing import Any

from probing.cli.choices import FIGURE_FORMAT, FigureFormat, figure_formats
from probing.cli.option_values import Model, Source, Tokenizer, number_problems, resolved
from probing.cli.options import WandbOptions
from probing.cli.python_calls import command
from probing.cli.shared_options import with_shared_help
from probing.commands.folders import keep_inputs, only_accelerator, places, say_results
from probing.corpus import load_corpus
from probing.errors import out_of_range, refuse
from probing.models import find_model
from probing.runs.diagnostics import Cloze
from probing.runs.folder import RunFolder
from probing.runs.loading import read_folder
from probing.runs.tracked import tracking
from probing.runtime.stopwatch import Stopwatch
from probing.tracking import resolve_mode


@command
@with_shared_help
@resolved
def cloze(
    config: dict[str, Any],
    file: str | None = None, model: Model = "minilm", revision: str | None = None, corpus: Source | None = None,
    tokens: int = 20_000, max_length: int | None = None, batch_tokens: int | None = None, seed: int = 0,
    runs: str = "runs", name: str | None = None, quiet: bool = False, trainer: dict[str, Any] | None = None,
    wandb: WandbOptions = WandbOptions(), tokenizer: Tokenizer = None, figure_format: FigureFormat = FIGURE_FORMAT,
) -> Cloze:  # fmt: skip
    """Ask a masked language model for the likelier of two words, and measure its loss in text that was changed.

    Args:
        file: File of word pairs, one per line: the text with [MASK], the better word, the worse word and a group,
            separated by tabs; may be given without `--file`. builtin stands for the forty pairs that come with the
            program; they are also used if neither --file nor --corpus is given.
        corpus: Text to change: builtin, a file (.txt with one sentence per line, .conllu, .tsv, .jsonl; also as .gz),
            hf:NAME?config=C&split=S&column=T, or - for standard input. Names and nouns are replaced in .conllu files.
        tokens: Maximum number of tokens of the corpus that are read; if it has more, sentences are drawn at random.
        batch_tokens: Maximum number of tokens in one forward pass, padding included.
        seed: Seed of every random draw: sentences, masked words, orders, and words that replace others.
        name: Name of this run; MODEL-cloze-YYYYMMDD-HHMMSS by default.
        trainer: Arguments of Lightning's Trainer, of which only --trainer.accelerator applies.

    Returns:
        What was found.
    """
    from probing.runtime import terminal

    say = terminal.silence if quiet else terminal.say
    refuse(number_problems(seed, max_length, batch_tokens) + out_of_range("tokens", tokens, 1))
    only_accelerator(trainer or {}, "this command")
    resolve_mode(wandb.mode)
    _, place = places(None, runs, name)
    with terminal.quiet_libraries():
        from probing.diagnostics.cloze.figures import write_figures
        from probing.diagnostics.cloze.minimal_pairs import BUILTIN, read_pairs
        from probing.diagnostics.cloze.predictor import Asked, Predictor, survey
        from probing.diagnostics.cloze.results import write

        watch = Stopwatch()
        file = BUILTIN if file is None and corpus is None else file
        pairs, n_repeated = ([], 0) if file is None else read_pairs(file)
        text = None if corpus is None else load_corpus(corpus)
        predictor = Predictor.of(find_model(model, revision, tokenizer), trainer or {})
        if n_repeated:
            say(f"{file}: {n_repeated} repeated pairs were left out")
        asked = Asked(pairs, f"cloze {file}", text, tokens, max_length, batch_tokens, seed)
        found = survey(predictor, asked, say)
        watch.end("measure")
        files = predictor.source
        folder = RunFolder(place, name, f"{files.short_name}-cloze")
        keep_inputs(config, files.name, folder)
        with tracking(folder, wandb, config) as tracker:
            formats = figure_formats(config["figure_format"])
            figures = write_figures(folder.path / "figures", found.tables, files.short_name, formats)
            watch.end("write")
            written = write(folder.path, config, found, files.fingerprint(), watch.timings())
            if tracker:
                tracker.log_results([], [], figures, written, found.tables, kind="cloze")
        made = read_folder(Cloze, folder.finish())
    say_results(made, tracker.where(made.folder) if tracker else None, quiet)
    return made
