"""`fit`: text in, ranked neurons and an accuracy curve out; `extract` only fills the activation cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from probing.cache.store import cache_folder
from probing.cli.commandline import command, configured
from probing.cli.option_types import (
    FIGURE_FORMAT,
    Dtype,
    FigureFormat,
    FirstToken,
    Layers,
    Model,
    Probe,
    Source,
    Tokenizer,
    Wandb,
    defaults,
    figure_formats,
    number_problems,
    option_problems,
)
from probing.cli.options import ProbeOptions, WandbOptions, as_options, with_shared_help
from probing.corpus.splits import GroupBy, read_corpora
from probing.data.control_names import chosen_controls
from probing.errors import refuse
from probing.models import ModelSource, SiteName, layer_numbers, site_of
from probing.results.schema import layers_named
from probing.runs.call import keep_inputs, places, say_where, tracking
from probing.runs.folder import RunFolder
from probing.runs.run import Run, load_fit, read_run
from probing.runtime import terminal
from probing.runtime.machine import Stopwatch, quiet_libraries
from probing.runtime.processes import is_main_process
from probing.runtime.progress import Cost, expect, messages, stage
from probing.tables.columns import Order, controls_of
from probing.tasks import SentenceTask, TokenTask, described, load_task, predicts_numbers, reader_of, task_in_words
from probing.tasks.loading import HeldFixed
from probing.tracking import Tracker, resolve_mode

Transform = Literal["none", "clip", "whiten", "standardise", "center", "all_but_the_top"]


@configured
def fit(
    config: dict[str, Any],
    model: Model = "minilm", layer: Layers = "all", revision: str | None = None, random_weights: bool = False,
    dtype: Dtype = "float32", site: str = "residual", corpus: Source = "builtin", test_corpus: Source | None = None,
    group_by: GroupBy = "auto", max_length: int | None = None, batch_tokens: int | None = None,
    task: str | TokenTask = "position", task_args: dict[str, Any] | None = None, replicates: int = 5,
    controls: str | list[str] = "all", evidence: Literal["all", "none"] = "all", mdl: bool = False,
    rotations: int | None = None, transform: Transform = "none", seed: int = 0, runs: str = "runs",
    name: str | None = None, cache: str | None = None, quiet: bool = False, trainer: dict[str, Any] | None = None,
    probe: Probe = ProbeOptions(), wandb: Wandb = WandbOptions(), tokenizer: Tokenizer = None,
    figure_format: FigureFormat = FIGURE_FORMAT, first_token: FirstToken = "include", given: str | None = None,
    sort: Order = "contribution", verbose: bool = False,
) -> Run | None:  # fmt: skip
    """Fit a probe per layer on cached activations, split its logits by neuron, and rank the neurons.

    Args:
        site: What a neuron is: a coordinate of the hidden state (residual), a unit of the MLP inside block k after its
            activation function (mlp), a coordinate of a head's output inside block k (attention), or a feature of the
            sparse autoencoder in a folder (sae:FOLDER).
        task: What the probe predicts: the name of a task, such as position, or FILE.py:CLASS; in Python also an object.
        task_args: Options of the task, such as --task_args.special_tokens include.
        replicates: Number of probes trained on bootstrap samples of the training sentences; the range of a rank is over
            these probes and the run's own. 0 trains none.
        controls: Controls of the accuracy: all that apply to the task, none, or some of shuffled, token, untrained (a
            randomly initialised model), permuted_positions (sentences are read with their tokens permuted),
            control_task.
        evidence: Further evidence for the ranking: all retrains the probe without each of the first neurons and under
            other penalties, and compares neurons with directions; none does neither.
        mdl: Also measure the minimum description length of the training labels, in bits: they are encoded online.
        rotations: Number of random rotations whose directions neurons are compared with; 20 with --evidence all, or 0.
        transform: Transform of the activations that the probes are trained on, fitted on training tokens; probes on the
            untransformed activations are trained as well. clip sets neurons with an outlying mean to 0, whiten is ZCA.
        seed: Seed of every draw: split, shuffled labels, permuted tokens, bootstraps, batches, random initialisation.
        name: Name of this run; MODEL-TASK-YYYYMMDD-HHMMSS by default.
        trainer: Arguments of Lightning's Trainer, such as --trainer.max_epochs 50; or loggers beside W&B, some of
            csv, tensorboard and mlflow: --trainer.logger csv,mlflow.
        given: What is held fixed, because labels may go with it: token, a task, or a column of the corpus. Neurons are
            also compared among tokens with the same value, and a control has labels permuted among these.
        sort: Order of the neurons that are printed: contribution, or centred (without the neurons' means).
        verbose: Print all tables and sentences, layer by layer.

    Returns:
        The finished run; None on ranks other than the first.
    """
    probe, wandb = as_options(ProbeOptions, probe, "probe"), as_options(WandbOptions, wandb, "wandb")
    config |= described(task, task_args)
    say = messages(quiet)
    refuse(option_problems(probe, seed, max_length, batch_tokens, replicates, rotations))
    resolve_mode(wandb.mode)
    layer_numbers(layer)
    cached, place = places(cache, runs, name)
    token_task, fixed = load_task(task, task_args), HeldFixed.of(given)
    wanted = controls_of_call(controls, token_task, probe, trainer, mdl, given)
    text = read_corpora(corpus, test_corpus, seed, say, group_by, reader_of(token_task))
    with quiet_libraries():
        from probing.cache.source import ActivationSource
        from probing.data.labelling import n_heads_of
        from probing.runs.measuring import Asked, measure

        watch, weights_seed = Stopwatch(), seed if random_weights else None
        source = ActivationSource.of(
            model, revision, layer, trainer, probe.solver, cache=cached, dtype=dtype, max_length=max_length,
            batch_tokens=batch_tokens, random_weights_seed=weights_seed, say=say, site=site,
            tokenizer=tokenizer, without_first=first_token == "exclude",
        )  # fmt: skip
        asked = Asked(replicates, evidence == "all", mdl, transform, seed, extremes=True, n_rotations=rotations)
        sides, others, fitted, stores = _read(source, text, token_task, fixed, group_by, probe, wanted, asked, watch)
        folder = RunFolder(place, name, _usual_name(source, config)) if is_main_process() else None
        kept = keep_inputs(config, source.model.name, folder) if folder else []
        with tracking(folder, wandb, config) as tracker:
            measured = measure(
                sides, others, source.layers, probe, replace(asked, n_heads=n_heads_of(stores[0])), source.trainer,
                watch, say, tracker and tracker.logger, str(folder.path) if folder else None,
            )  # fmt: skip
            if folder is None or tracker is None:
                return None
            _write(folder.path, config, measured, fitted, stores, text[0][-1], source.model, watch, tracker, kept)
        run = load_fit(folder.finish())
    _report(run, tracker.where(run.folder), quiet, verbose, sort)
    return run


def _usual_name(source: Any, config: Mapping[str, Any]) -> str:
    return f"{source.model.short_name}-{config['task'].rpartition(':')[2]}"


def controls_of_call(
    controls: str | list[str], task: TokenTask, probe: ProbeOptions, trainer: dict[str, Any] | None, mdl: bool,
    given: str | None,
) -> list[str]:  # fmt: skip
    """Return the controls, once it is known that all options apply to what the task predicts."""
    numbers = predicts_numbers(task)
    refuse(probe.problems_with_numbers(trainer or {}, mdl) if numbers else probe.problems_with_trainer(trainer or {}))
    chosen = chosen_controls(controls, task.ordinal, isinstance(task, SentenceTask), numbers)
    return chosen if given is None else [*chosen, "given"]


def _read(
    source: Any, text: tuple[Any, Any], task: TokenTask, given: HeldFixed | None, group_by: GroupBy,
    probe: ProbeOptions, controls: Sequence[str], asked: Any, watch: Stopwatch,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Return the examples, those of each control, the fitted transforms, if any, and the activations of each corpus.

    Args:
        source: The `probing.cache.source.ActivationSource`; types that need torch are not imported here, since the
            parser of arguments imports whatever this file names.
        text: The corpora, and the side of each of their sentences.
        task: The task, which gives the labels.
        given: What is held fixed.
        group_by: The option's value.
        probe: How the probe is trained.
        controls: Names of the controls.
        asked: The `probing.runs.measuring.Asked` of the run.
        watch: Notes how long reading takes.
    """
    from probing.data.controls import READ_AGAIN, control_sides, source_of_control
    from probing.data.labelling import kept_features, read_sides, say_what_is_not_read
    from probing.probes.transforms import centred, transform_all
    from probing.studies.fit.estimate import announced, stages_of_probes

    there = [name for name in controls if name not in READ_AGAIN or source_of_control(name, source, asked.seed)]
    again = sum(name in READ_AGAIN for name in there)
    is_transformed = asked.transform != "none"  # and so is compared with probes of untransformed activations
    reads = [Cost("reading", 1), *[Cost("reading", again)] * bool(again), *[None] * (is_transformed + probe.bias)]
    held_against = [*there, *["untransformed"] * is_transformed]
    more = asked.n_replicates, asked.retraining, asked.codes
    announce = announced(source, text[0], controls, asked.seed, *more, probe)
    expect([*reads, *stages_of_probes(held_against, *more, probe, predicts_numbers(task))])
    say_what_is_not_read(text[0], task, source.say)
    sides, stores = read_sides(source, *text, task, probe, group_by, announce, given)
    source = replace(source, kept=kept_features(stores[0]))
    others, fitted = control_sides(controls, sides, text[0], source, asked.seed), None
    if is_transformed:
        with stage(f"transform of {layers_named(source.layers)}"):
            sides, others, fitted = transform_all(asked.transform, sides, others, source.layers, asked.seed)
    if probe.bias:
        with stage(f"means of {layers_named(source.layers)}"):
            sides, others, fitted = centred(sides, others, source.layers)
    watch.end("extract")
    return sides, others, fitted, stores


@stage("tables, figures and page")
def _write(
    folder: Path,
    config: Mapping[str, Any],
    measured: Any,
    fitted: Any,
    stores: Any,
    corpus: Any,
    model: ModelSource,
    watch: Stopwatch,
    tracker: Tracker,
    kept: Sequence[Path],
) -> None:
    """Write everything that was measured, with a page, and log it.

    Args:
        folder: The run's folder.
        config: The resolved configuration.
        measured: The `probing.runs.results.Measured` of the run.
        fitted: Transform of each layer, if activations were transformed or centred.
        stores: Activations of each corpus.
        corpus: The test corpus.
        model: The model.
        watch: Notes how long writing takes.
        tracker: Logs what is written.
        kept: Files that are written already.
    """
    from probing.data.labelling import origin
    from probing.page.build import build
    from probing.page.sources import source_of
    from probing.runs.places import read_from
    from probing.runs.results import write, write_summary

    formats = figure_formats(config["figure_format"])
    written = write(folder, config, measured, model.short_name, formats, corpus, fitted)
    watch.end("rank")
    cached_of = {side: origin(store) for side, store in (("train", stores[0]), ("test", stores[-1]))}
    noted = read_from(config, folder)
    files = [*kept, write_summary(folder, measured, written, cached_of, watch.timings(), noted)]
    page = folder / "report.html"
    page.write_bytes(build(source_of(read_run(folder)), defaults(fit)))
    written.log(tracker, files, page)


def _report(run: Run, where: str | None, quiet: bool, verbose: bool, sort: Order = "contribution") -> None:
    """Print the answer, the tables, what to distrust, and where the results are; with `verbose` all there is.

    If `quiet`, a line for each layer stands in place of the tables; sentences are the same.
    """
    from probing.tables import probes
    from probing.tables import probes as tables_probes
    from probing.tables.conclusions import bases_lines, leading

    rows, neurons, task = run.accuracy, run.neurons, task_in_words(run.config)
    verbose = verbose and not quiet
    said = tables_probes.answer(rows, neurons, task, run.results, run.config)
    layer = leading(rows)["layer"]
    if quiet:
        for row in rows:
            print(probes.result_line(row, run.top(row["layer"], 5, sort)))
    terminal.tell(*said)
    if not quiet:
        _show(run, layer, verbose, sort)
    if verbose:
        terminal.tell(*(sentence for sentence in run.conclusions() if sentence not in said))
    else:
        terminal.tell(*bases_lines([row for row in run.bases if row["layer"] == layer], task))
        terminal.tell(
            *tables_probes.distrust(rows, neurons, run.class_scores, task, run.results, run.config, run.basis)
        )
    terminal.tell(*probes.transform_lines(run.transform, rows))
    say_where(run.folder, where, "" if quiet or verbose else tables_probes.IN_FULL)


def _show(run: Run, layer: int, verbose: bool, sort: Order) -> None:
    """Print the tables of the leading layer, and of all layers; with `verbose` all there are."""
    from probing.tables import probes
    from probing.tables.conclusions import bases_table
    from probing.tables.probes import classes_table

    rows, neurons, scores = run.accuracy, run.neurons, run.scores_of(layer)
    removed = sum(bool(row.get("removed")) for row in run.top(layer, len(neurons)))
    ranked = probes.neurons_table(run.top(layer, by=sort), site_of(run.config), removed, sort, verbose)
    if verbose:
        terminal.show(ranked, probes.accuracy_table(run.results["layers"]))
        if scores:
            terminal.show(classes_table(scores))
        if {*controls_of(rows)} - {"majority"}:
            terminal.show(probes.controls_table(rows))
    else:
        terminal.show(ranked, *[probes.layers_table(rows, neurons, sort)] * (len(rows) > 1))
    if heads := [row for row in run.heads if row["layer"] == layer]:
        terminal.show(probes.heads_table(heads))
    if bases := [row for row in run.bases if row["layer"] == layer]:
        terminal.show(bases_table(bases))


@command
@with_shared_help
def extract(
    model: Model = "minilm", layer: Layers = "all", revision: str | None = None, random_weights: bool = False,
    dtype: Dtype = "float32", site: SiteName = "residual", corpus: Source = "builtin", max_length: int | None = None,
    batch_tokens: int | None = None,
    seed: int = 0, runs: str = "runs", cache: str | None = None, quiet: bool = False,
    trainer: dict[str, Any] | None = None,
    tokenizer: Tokenizer = None,
) -> Path:  # fmt: skip
    """Cache the hidden states of a corpus, from which `fit` reads them.

    Args:
        layer: Layers to read: one (6), several (0,3,6 or 3-6), the last (-1) or all; layer 0 is the embedding output,
            which only the residual stream has.
        site: What is cached: hidden states (residual), units of the MLP inside block k after its activation function
            (mlp), or outputs of its heads (attention). Features (sae:FOLDER) are computed from hidden states.
        seed: Seed of the weights of a randomly initialised model.
        runs: Folder of runs, in which the cache is by default.
        quiet: Print the result line and warnings only.

    Returns:
        The folder of the cache entry.
    """
    from probing.cache.source import ActivationSource, say_what_was_left_out
    from probing.corpus import load_corpus
    from probing.runtime.processes import is_main_process

    problems = number_problems(seed, max_length, batch_tokens)
    if trainer and "logger" in trainer:
        problems.append("`--trainer.logger` does not apply: `extract` makes no run that could be logged; leave it out")
    refuse(problems)
    layer_numbers(layer)
    cached = cache_folder(cache, runs)
    say = messages(quiet)
    with quiet_libraries():
        source = ActivationSource.of(
            model, revision, layer, trainer, cache=cached, dtype=dtype, max_length=max_length,
            batch_tokens=batch_tokens, random_weights_seed=seed if random_weights else None, say=say,
            site=site, tokenizer=tokenizer,
        )  # fmt: skip
        corpora = [load_corpus(corpus)]
        expect([None])
        (store,) = source.read(corpora)
        say_what_was_left_out(corpora, [store.tokens], say)
    if is_main_process():
        read = f"{store.plan.n_tokens} tokens of {store.tokens.n_sentences} sentences"
        print(f"{read}, layers {source.layers}: {store.folder}")
    return store.folder
