"""`attention`: what the heads of a model do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from probing.cli.commandline import configured
from probing.cli.option_types import (
    FIGURE_FORMAT,
    Dtype,
    FigureFormat,
    FirstToken,
    Folder,
    Layers,
    Model,
    Source,
    Tokenizer,
    Wandb,
    chosen,
    defaults,
)
from probing.cli.options import WandbOptions
from probing.errors import UserError, about_option
from probing.models import find_model, layer_numbers
from probing.runs.call import Call
from probing.runs.run import load_fit, of_text
from probing.runs.study import Result, study_of
from probing.runs.tuned import Tuned, is_tuned, read_as_tuned, tuned_of
from probing.runtime.machine import quiet_libraries
from probing.runtime.processes import is_main_process

_ALONE = ["`--as_published` needs another checkpoint, given as --against MODEL"]


@configured
def attention(
    config: dict[str, Any],
    model: Model = "minilm", layer: Layers = "all", revision: str | None = None, random_weights: bool = False,
    dtype: Dtype = "float32", corpus: Source = "builtin",
    test_corpus: Source | None = None, pairs: str | None = None, roles: str | None = None,
    against: Model | None = None, as_published: bool = False, run: Folder | None = None, parts: str | list[str] = "all",
    max_length: int | None = None, batch_tokens: int | None = None, seed: int = 0, runs: str = "runs",
    name: str | None = None, cache: str | None = None, quiet: bool = False, trainer: dict[str, Any] | None = None,
    wandb: Wandb = WandbOptions(), tokenizer: Tokenizer = None, figure_format: FigureFormat = FIGURE_FORMAT,
    first_token: FirstToken = "include",
) -> Result | None:  # fmt: skip
    """Find what the heads of a model do: which pattern each follows, how far it reaches, which tokens it attends to.

    Args:
        layer: Layers whose heads are reported: one (6), several (0,3,6 or 3-6), the last (-1) or all; layer k is block
            k, counted from 1.
        dtype: Precision of the forward pass.
        test_corpus: Treebank on which relations and trees are tested, given like --corpus; without it, they are tested
            on the test part of --corpus.
        pairs: Pairs of sentences to read in place of --corpus, each pair as one input: a file with two sentences on
            each line, separated by a tab.
        roles: Role links to follow: a file with lines text TAB predicate TAB role TAB filler, whose words are counted
            from 0, such as 3 or 3-4, or framenet:FOLDER; without it, the subjects and objects of a treebank.
        against: Another checkpoint of the model, an alias, a hub id or a local folder with the same tokenizer, to
            compare its heads, hidden states and parameters with those of --model: the part change.
        as_published: With --against, also compare the heads as the code of Kovaleva et al. (2019) does: by maps of
            200 x 200 tokens, which include rows of padding, over the first 1,000 sentences.
        run: Folder of a run of fit on position, of the same model. With it, find the heads that attend to a fixed
            offset, and measure whether they read the neurons that the run ranks first. Or that of a run of finetune, or
            of a checkpoint in it, which is then read in place of --model and compared with the model that it was tuned
            from, on the run's own text.
        parts: Parts of the survey: all, or some of classes, profile, tokens, words, rollout, similarity, relations,
            trees, roles, change (with --against), position_heads and position_neurons (with --run), first_token (with
            --first_token exclude), attention_probe and fusion. The last two take long and are not among all. Parts that
            need columns which the corpus does not have are left out, unless they are named.
        seed: Seed of the bootstrap of the sentences, of random initialisation, and of the split of the corpus.
        name: Name of this run; MODEL-attention-YYYYMMDD-HHMMSS by default.
        cache: Folder of cached sums; $PROBING_CACHE or RUNS/cache by default.

    Returns:
        The survey; None on ranks other than the first.
    """
    ranked: str | None = config["run"]
    if ranked is not None and is_tuned(ranked):
        against = _start_of(tuned_of(ranked, f"--run {ranked}"), config)
        ranked, corpus, test_corpus = None, config["corpus"], config["test_corpus"]
    call = Call.of(study_of("attention"), config, name, wandb, _ALONE * (as_published and against is None))
    with quiet_libraries():
        from probing.cache.source import say_what_was_left_out
        from probing.heads.parts import measurable, measure, n_stages
        from probing.studies.attention.results import measured

        names, by_name = _wanted(parts, against is not None, ranked is not None, first_token == "exclude")
        source = call.source(tokenizer=tokenizer)
        layers, read = source.blocks(layer_numbers(layer)), _read(corpus, test_corpus, pairs, seed, call.say)
        subject = _subject(source, layers, read, config, seed, roles, against, as_published, ranked)
        there, left_out = measurable(subject, names, by_name)
        call.expect(n_stages(subject, there))
        tables, stores = measure(subject, there, call.cached, source.trainer, call.say)
        call.watch.end("measure")
        if not is_main_process():
            return None
        say_what_was_left_out([subject.request.corpus], [subject.tokens], call.say)
        _say_which_parts_were_left_out(left_out, call.say)
        told = [part.name for part in there], left_out
        return call.write(source.model, lambda folder: measured(tables, subject, stores, *told))


def _subject(
    source: Any, layers: Sequence[int], read: tuple[list[Any], list[Any]], config: dict[str, Any], seed: int,
    roles: str | None, against: Any, as_published: bool, run: str | None,
) -> Any:  # fmt: skip
    """Return the `probing.heads.subject.Subject`: a model and its text, and what they are compared with.

    Args:
        source: The model.
        layers: The layers to report.
        read: The corpora, and the sides of their sentences.
        config: The run's configuration, in which another checkpoint is named.
        seed: Seed of the bootstrap.
        roles: File or folder of role links, if there is one.
        against: Another checkpoint, if there is one.
        as_published: Whether padded maps are compared with it, too.
        run: Folder of a run on position, if there is one.
    """
    from probing.heads.role_files import read_role_links
    from probing.heads.subject import Asked, Subject

    corpora, splits = read
    request, *test = (source.request(text) for text in corpora)
    asked = Asked(
        test=test[0] if test else None,
        splits=splits,
        roles=read_role_links(roles) if roles else None,
        against=None if against is None else _against(against, source, corpora[0], config),
        as_published=as_published,
        run=None if run is None else _ranked(run, request),
        source=source,
        without_first=config["first_token"] == "exclude",
    )
    return Subject.of(request, layers, seed, asked)


def _start_of(tuned: Tuned, config: dict[str, Any]) -> Any:
    """Return what a tuned model is compared with: --against, or what it was tuned from; note what is read.

    Raises:
        UserError: If an option contradicts the run, or its text has changed or is gone.
    """
    if tuned.are_pairs:
        raise UserError(
            f"`{tuned.typed}`: its model was tuned on pairs, and the text of such a run is not read here; give "
            f"`--model {tuned.checkpoint} --against {tuned.config['model']}`, and a text."
        )
    read_as_tuned(tuned, config, defaults(attention))
    config["against"] = tuned.config["model"] if config["against"] is None else config["against"]
    return config["against"]


def _wanted(parts: str | list[str], is_compared: bool, has_run: bool, without_first: bool) -> tuple[list[str], bool]:
    """Return the names of the parts that are wanted, and whether the user named them.

    Args:
        parts: As typed.
        is_compared: Whether there is another checkpoint to compare with.
        has_run: Whether there is a run whose ranking is compared.
        without_first: Whether the first token is left out, whose attention is then measured apart.
    """
    from probing.heads.parts import NAMES, OF_AGAINST, OF_FIRST, OF_RUNS, USUAL

    if parts not in ("all", ["all"]):
        return list(dict.fromkeys([*chosen("--parts", parts, NAMES), *OF_AGAINST * is_compared])), True
    return [*USUAL, *OF_FIRST * without_first, *OF_AGAINST * is_compared, *OF_RUNS * has_run], False


def _against(model: Any, source: Any, corpus: Any, config: dict[str, Any]) -> Any:
    """Return the `probing.heads.subject.Checkpoint` that the model is compared with.

    Args:
        model: Name or folder of the other checkpoint, or the model itself, which then has the same tokenizer.
        source: The model, with the settings of its forward pass; only the model itself is initialised randomly.
        corpus: The corpus.
        config: The run's configuration, in which an object is named.
    """
    from probing.heads.subject import Checkpoint
    from probing.models import load_tokenizer

    with about_option("--against"):
        found = find_model(model, None, None if isinstance(model, str) else load_tokenizer(source.model))
    config["against"] = found.name
    return Checkpoint(replace(source, model=found, random_weights_seed=None).request(corpus))


def _read(corpus: Any, test_corpus: Any, pairs: str | None, seed: int, say: Any) -> tuple[list[Any], list[Any]]:
    """Read what the model is to read: the pairs, which have no sides, or the corpora with the sides of sentences.

    Raises:
        UserError: If both are given, or one cannot be read.
    """
    from probing.corpus.splits import read_corpora, read_pairs

    if pairs is None:
        return read_corpora(corpus, test_corpus, seed, say)
    given = {"corpus": None if corpus == "builtin" else corpus, "test_corpus": test_corpus}
    if option := next((name for name, value in given.items() if value is not None), None):
        raise UserError(
            f"`--pairs {pairs}` and `--{option}`: a survey reads pairs or single sentences; give one of the two."
        )
    return [read_pairs(pairs)], []


def _say_which_parts_were_left_out(left_out: Mapping[str, str], say: Any) -> None:
    for lack in dict.fromkeys(left_out.values()):
        parts = [part for part, own in left_out.items() if own == lack]
        begin = f"the parts {', '.join(parts)} are left out: they need" if len(parts) > 1 else (
            f"the part {parts[0]} is left out: it needs"
        )  # fmt: skip
        say(f"{begin} {lack}")


def _ranked(run: str, request: Any) -> Any:
    """Return the `probing.heads.subject.PositionRun` of a folder."""
    from probing.heads.subject import PositionRun

    return PositionRun.of(of_text(load_fit(run)), request.key(), request.source.name)
