"""`reproduce`: what a paper claims, measured on the models at hand, with a verdict for each claim."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from probing.cli.commandline import configured
from probing.cli.option_types import Wandb, defaults
from probing.cli.options import WandbOptions, as_options
from probing.corpus import load_corpus
from probing.errors import UserError
from probing.runs.call import Call
from probing.runs.folder import RunFolder
from probing.runs.loading import load_run
from probing.runs.study import Result, study_of
from probing.runtime import terminal
from probing.runtime.machine import quiet_libraries
from probing.runtime.processes import interrupt_behind
from probing.runtime.progress import BRIEF, Cost, expect
from probing.studies.claims.tables import plan_tables

# The commands whose runs claims may need.
COMMANDS = ("fit", "geometry", "attention", "disable", "hierarchy", "cloze", "wic", "sts", "pretrain", "finetune")
# The options that name data which files of claims ask for.
DATA = ("other_corpus", "third_corpus", "wic", "sts", "static", "labels", "pairs", "roles", "untuned", "cloze")


@configured
def reproduce(
    config: dict[str, Any],
    paper: str | None = None, models: str | list[str] | None = None, claims: int | str | list[int | str] = "all",
    corpus: str = "builtin", other_corpus: str | None = None, third_corpus: str | None = None,
    wic: str | None = None, sts: str | None = None, static: str | None = None, labels: str | None = None,
    pairs: str | None = None, roles: str | None = None, untuned: str | None = None, cloze: str | None = None,
    dry_run: bool = False, runs: str = "runs", name: str | None = None, cache: str | None = None, quiet: bool = False,
    wandb: Wandb = WandbOptions(),
) -> Result | None:  # fmt: skip
    """Measure what a paper claims on the models at hand, and give a verdict on each claim.

    Args:
        paper: The paper: bertology, kovaleva2019, luo2021 or shi2022; may be given without --paper.
        models: Models to measure: aliases, hub ids or local folders, as for --model; NAME=FOLDER says that a folder
            holds a model of the paper, such as bert=FOLDER; pretrain-tiny and pretrain-base are encoders that are
            trained here, with position embeddings and without. By default the built-in model and those models of the
            paper that are on this machine; other models of the paper are downloaded if you name them. For a model that
            is not one of the paper's, the table says analogue and gives no verdict on the paper.
        claims: Numbers of the claims, such as 19-28,31; all by default.
        other_corpus: Another text, given like --corpus, for claims about held-out text and about several texts.
        third_corpus: A third text, for claims about several texts.
        wic: Folder of the WiC data set, for claims about word senses, given as to `wic`.
        sts: Folder with STS12 to STS16, STS-B and SICK, for claims about similarity, given as to `sts`.
        static: File of word vectors in GloVe's format, for claims about static vectors.
        labels: Sentences with labels, such as SST-2, for claims about supervised tasks and tuned models: a table, a
            .jsonl file or a data set, as for `fit --task sentence_label`; without it, models are tuned to tell the
            position of a token from the end of its sentence.
        pairs: File of pairs of sentences, for claims about heads that read two sentences, given as to `attention`.
        roles: Role links, for claims about semantic roles, given as to `attention`; without them, the subjects and
            objects of a treebank are taken.
        untuned: Pretrained model from which the models were fine-tuned, for claims about what fine-tuning changes,
            given as --against to `attention`; without it, the models are tuned here.
        cloze: File of pairs of words at a mask, for claims about negation and agreement, given as to `cloze`; without
            it, the forty pairs that come with the program.
        dry_run: Only say which runs are needed and which of them are there, with an estimate of time and disk.
        runs: Folder of runs. Runs with the same settings that are in it are read, and the others are made there.
        name: Name of the table's folder; PAPER-YYYYMMDD-HHMMSS by default.

    Returns:
        The table of claims; None for a dry run.
    """
    from probing.studies.claims.claim import chosen_claims, read_paper
    from probing.studies.claims.measures import MEASURES
    from probing.studies.claims.planning import Given, split_models

    paper = _checked(paper, corpus, other_corpus, third_corpus, labels, pairs, roles)
    wanted = chosen_claims(claims, of := read_paper(paper, MEASURES))
    wandb = as_options(WandbOptions, wandb, "wandb")
    call = Call.of(study_of("reproduce"), config, name, replace(wandb, group=wandb.group or paper))
    text, named = load_corpus(corpus), None if models is None else split_models(models)
    with quiet_libraries():
        from probing.studies.claims.planning import rows_of
        from probing.studies.claims.session import carry_out, plan
        from probing.studies.claims.tables import measured_claims

        given = Given(corpus, {name: config[name] for name in DATA} | {"size": None})
        usual = {name: defaults(study_of(name).command) for name in COMMANDS}
        planned = plan(of, wanted, named, given, text, usual, call.place, call.cached if dry_run else None)
        if dry_run:
            terminal.show(*plan_tables(planned))
            return None
        common = {"runs": runs, "cache": str(call.cached), "quiet": quiet, "wandb": replace(call.wandb, name=None)}
        expect([*(Cost("run", one.seconds) if one.seconds else None for one in planned.to_run), BRIEF])
        with _continuable(call.place):
            made, folders = carry_out(planned, partial(_make, common), load_run, call.say)
        call.watch.end("run")
        rows = rows_of(wanted, made, of)
        config["models"] = list(planned.models)
        folder = RunFolder(call.place, name, paper, figures=False)
        return call.write_into(folder, lambda _: measured_claims(rows, of, folders))


def _checked(paper: str | None, *texts: str | None) -> str:
    """Return the name of the paper; refuse none, and texts that several runs could not read."""
    from probing.studies.claims.claim import papers

    if not paper:
        raise UserError(f"`reproduce` takes a paper: {', '.join(papers())}.")
    if "-" in texts:
        raise UserError("`-`: several runs read the text, and standard input can be read only once; give a file.")
    return paper


@contextlib.contextmanager
def _continuable(place: Path) -> Iterator[None]:
    """Say after an interrupt how to go on."""
    try:
        yield
    except BaseException as error:
        if interrupt := interrupt_behind(error):
            left = f"finished runs are in {place}, and the same command goes on with the others"
            raise type(interrupt)("; ".join([*map(str, interrupt.args), left])) from None
        raise


def _make(common: Mapping[str, Any], name: str, options: Mapping[str, Any]) -> Path:
    """Make a run of a command and return its folder; its tables are on disk and not shown."""
    function = study_of(name).command
    own = defaults(function)
    with contextlib.redirect_stdout(io.StringIO()):
        made = function(**{**{option: value for option, value in common.items() if option in own}, **options})
    folder: Path = made.folder
    return folder
