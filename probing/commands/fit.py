"""`fit`: text in, ranked neurons and an accuracy curve out."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from probing.cache.corpora import extract_all, say_what_was_left_out
from probing.cli.option_values import Dtype, Layers, defaults, option_problems, plain
from probing.cli.options import ProbeOptions, WandbOptions, as_options
from probing.commands.folders import places, say_where
from probing.corpus.sides import read_corpora
from probing.data.control_names import chosen_controls
from probing.errors import refuse
from probing.models import layer_numbers
from probing.runs.folder import RunFolder
from probing.runs.run import Run, load_run, read_run
from probing.runs.tracked import tracking
from probing.runtime.stopwatch import Stopwatch
from probing.tables.columns import controls_of
from probing.tasks import load_task
from probing.tracking import resolve_mode


def fit(
    model: str = "minilm",
    layer: Layers = "all",
    revision: str | None = None,
    random_weights: bool = False,
    dtype: Dtype = "float32",
    corpus: str = "builtin",
    test_corpus: str | None = None,
    group_by: Literal["auto", "sentence", "document"] = "auto",
    max_length: int | None = None,
    batch_tokens: int | None = None,
    task: str = "position",
    task_args: dict[str, Any] | None = None,
    replicates: int = 5,
    controls: str | list[str] = "all",
    evidence: Literal["all", "none"] = "all",
    mdl: bool = False,
    transform: Literal["none", "clip", "whiten", "standardise", "center", "all_but_the_top"] = "none",
    seed: int = 0,
    runs: str = "runs",
    name: str | None = None,
    cache: str | None = None,
    quiet: bool = False,
    trainer: dict[str, Any] | None = None,
    probe: ProbeOptions = ProbeOptions(),
    wandb: WandbOptions = WandbOptions(),
) -> Run | None:
    """Fit a probe per layer on cached activations, split its logits by neuron, rank the neurons.

    Args:
        model: Alias (minilm, bert, roberta, distilbert, ...), hub id, or local folder.
        layer: One layer (6), several (0,3,6) or all; 0 is the embedding output.
        revision: Branch, tag or commit of the model on the hub.
        random_weights: Take the untrained twin: the same architecture, weights drawn with --seed.
        dtype: Of the forward pass and of what is cached.
        corpus: builtin, .txt (sentence a line), .conllu, .tsv, or .gz, hf:NAME?config=C&split=S&column=T, - (stdin).
        test_corpus: Test on this corpus, given like --corpus; the test part of --corpus then joins the training part.
        group_by: What intervals are over: sentence or document; auto is document where the corpus tells its documents
            (`# newdoc` in CoNLL-U, empty lines in .txt) and at least 20 are tested on.
        max_length: Longest tokenised sentence, special tokens included; the model's own limit by default.
        batch_tokens: Padded tokens in one forward pass, fixed when the cache entry is made.
        task: What is predicted, such as position.
        task_args: Options of the task, such as --task_args.special_tokens include.
        replicates: Bootstraps of the training sentences; a rank's range is over their probes and the run's own. 0 for
            none.
        controls: What accuracy is held against: all that say something of the task, none, or shuffled, token,
            permuted_positions (the model reads each sentence's tokens permuted), untrained, control_task.
        evidence: all also trains without each of the first neurons and under other penalties; none does not.
        mdl: Also measure how many bits the training labels take, encoded online with each layer's activations.
        transform: Train on transformed activations, fitted on training tokens, beside probes on them as they are; clip
            sets outliers of the mean to 0, whiten is ZCA.
        seed: Of the split, of permuted labels and tokens, of bootstraps, of adam's batches and of untrained weights.
        runs: Folder of runs.
        name: Name of this run; MODEL-TASK-YYYYMMDD-HHMMSS by default.
        cache: Folder of cached activations; $PROBING_CACHE or RUNS/cache by default.
        quiet: Result lines only, no tables and no progress.
        trainer: Arguments of Lightning's Trainer, such as --trainer.max_epochs 50.
        probe: How the probe is trained.
        wandb: Where and how to track the run in Weights & Biases.

    Returns:
        The finished run; None on ranks other than the first.
    """
    probe, wandb = as_options(ProbeOptions, probe, "probe"), as_options(WandbOptions, wandb, "wandb")
    config = plain(locals())
    from probing.runtime import terminal

    say = terminal.silence if quiet else terminal.say
    progress = terminal.show_progress(quiet)
    # Everything that can be refused is refused before any work, what is quick to check first.
    refuse(option_problems(probe, seed, max_length, batch_tokens, replicates))
    resolve_mode(wandb.mode)
    layer_numbers(layer)
    cached, place = places(cache, runs, name)
    token_task = load_task(task, task_args or {})
    wanted = chosen_controls(controls, token_task.ordinal)
    corpora, splits = read_corpora(corpus, test_corpus, seed, say)
    with terminal.quiet_libraries():
        from probing.data.preparation import control_sides, example_checks, goes_by_document, label_sides, origin
        from probing.evidence.by_position import accuracy_by_position
        from probing.evidence.retraining import Retraining, strengthened
        from probing.evidence.table import collect_evidence
        from probing.models import load_config, parse_layers, resolve_model
        from probing.page.build import build
        from probing.page.sources import source_of
        from probing.probes.online_code import online_code
        from probing.probes.options import penalised
        from probing.probes.training import layer_moments, train_controls, train_probes
        from probing.runs.results import Measured, write, write_summary
        from probing.runtime.distributed import is_main_process
        from probing.runtime.trainer import check_trainer_options
        from probing.transforms.affine import save
        from probing.transforms.of_examples import transform_all

        watch = Stopwatch()
        check_trainer_options(trainer or {}, probe.solver)
        source = resolve_model(model, revision)
        layers = parse_layers(layer, load_config(source).num_hidden_layers, model)

        extract = partial(
            extract_all, source, corpora, layers, cached, trainer or {}, say, progress, dtype=dtype,
            max_length=max_length, batch_tokens=batch_tokens,
        )  # fmt: skip
        by_document = goes_by_document(group_by, corpora[-1], splits[-1])
        weights_seed = seed if random_weights else None
        checks = example_checks(token_task, corpora, splits, probe, say)
        stores = extract(checks=checks, random_weights_seed=weights_seed)
        say_what_was_left_out(corpora, stores, say)
        sides = label_sides(stores, corpora, splits, token_task, by_document)
        others = control_sides(wanted, sides, corpora, extract, source, weights_seed, seed, say)
        fitted: dict[int, Any] = {}
        if transform != "none":
            sides, others, fitted = transform_all(transform, sides, others, layers, seed)
        watch.end("extract")

        folder = RunFolder(place, name, f"{source.short_name}-{task}") if is_main_process() else None
        with tracking(folder, wandb, config) as tracker:

            def bar(what: str) -> list[Any]:
                return [terminal.training_progress(what)] if progress else []

            moments = layer_moments(sides.train, layers)
            path, training = penalised(probe, seed, sides, layers, moments, trainer or {}, bar)
            fits = train_probes(
                sides, layers, training, trainer or {}, logger=tracker and tracker.logger,
                callbacks=[terminal.training_progress()] if progress else (),
                folder=str(folder.path) if folder else None, moments=moments, starts=path.weights if path else None,
            )  # fmt: skip
            watch.end("probe")
            held_against = train_controls(others, layers, training, trainer or {}, bar)
            codes = online_code(sides, layers, training, trainer or {}, seed, bar) if mdl else ()
            streamed = collect_evidence(sides.train, sides.test, layers, moments, len(sides.classes))
            at_optimum = probe.solver == "lbfgs" and all(fit.converged for fit in fits)
            if (replicates or evidence == "all") and not at_optimum:
                say("the probes are not at their optimum: they are not trained again for --replicates and --evidence")
                replicates, evidence = 0, "none"
            retraining = Retraining(sides, layers, fits, training, trainer or {}, bar, seed)
            found, again = strengthened(streamed, retraining, replicates, evidence == "all")
            weights = [fit.weight for fit in fits]
            positions = accuracy_by_position(sides, layers, weights) if sides.ordinal else ()
            if folder is None or tracker is None:
                return None
            watch.end("evidence")
            penalty = path.summary() if path else {"l2": probe.l2}
            measured = Measured(sides, fits, found, held_against, again, codes, penalty, transform, positions)
            written = write(folder.path, config, measured, source.short_name)
            watch.end("rank")
            cached_of = {side: origin(store) for side, store in (("train", stores[0]), ("test", stores[-1]))}
            summary = write_summary(folder.path, measured, written, cached_of, watch.timings())
            files = [*written.files, summary]
            if fitted:
                save(written_to := folder.path / "transform.safetensors", fitted)
                files.append(written_to)
            page = folder.path / "report.html"
            page.write_bytes(build(source_of(read_run(folder.path)), defaults(fit)))
            tracker.log_results(written.accuracy, written.neurons, written.figures, files, report=page)
        run = load_run(folder.finish())
    _report(run, tracker.where(run.folder), quiet)
    return run


def _report(run: Run, where: str | None, quiet: bool) -> None:
    """Print the tables, what may be concluded of each layer's top neuron, and where everything is."""
    from probing.evidence.by_position import position_line
    from probing.runtime import terminal
    from probing.statistics.intervals import scope
    from probing.tables import probes
    from probing.tables.conclusions import conclusion
    from probing.tables.geometry import transform_lines

    layers = [row["layer"] for row in run.accuracy]
    if quiet:
        for row in run.accuracy:
            print(probes.result_line(row, run.top(row["layer"], 5)))
    else:
        # A screen shows the last layer's ranking, and of the others what is to be said of the top; all are on disk.
        terminal.show(probes.neurons_table(run.top(layers[-1])), probes.accuracy_table(run.results["layers"]))
        if len(controls_of(run.accuracy)) > 1:
            terminal.show(probes.controls_table(run.accuracy))
        for line in probes.penalty_lines(run.results.get("penalty", {})):
            print(line)
        if line := position_line([row for row in run.positions if row["layer"] == layers[-1]]):
            print(line)
        if len(layers) > 1:
            print(f"The other layers' rankings are in {run.folder / 'neurons.csv'}.")
        for layer, fitted in zip(layers, run.results["layers"], strict=True):
            print(conclusion(run.top(layer, len(run.neurons)), run.config["task"]))
            if not fitted["converged"]:
                print(
                    f"Layer {layer}: the probe stopped up to {fitted['optimality_gap']:.1g} nats short of its optimum, "
                    "so this ranking may be the optimiser's rather than the data's."
                )
    if not quiet:
        print(scope(run.results, run.config["test_corpus"]))
    for line in transform_lines(run.transform, run.accuracy):
        print(line)
    say_where(run.folder, where)
