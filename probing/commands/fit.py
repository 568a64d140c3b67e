"""`fit`: text in, ranked neurons and an accuracy curve out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from probing.cache.tokens import Tokens
from probing.commands.shared import (
    Dtype,
    Layers,
    cache_folder,
    extract_all,
    number_problems,
    plain,
    read_corpora,
    runs_folder,
    tracking,
)
from probing.corpus import Corpus, Split
from probing.errors import UserError, refuse
from probing.models import layer_numbers
from probing.options import ProbeOptions, WandbOptions, as_options
from probing.runs import Run, RunFolder, check_name, load_run
from probing.tasks import Labels, TokenTask, load_task
from probing.wandb_mode import resolve_mode


def fit(
    model: str = "minilm",
    layer: Layers = "all",
    revision: str | None = None,
    random_weights: bool = False,
    dtype: Dtype = "float32",
    corpus: str = "builtin",
    test_corpus: str | None = None,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    task: str = "position",
    task_args: dict[str, Any] | None = None,
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
        corpus: builtin, .txt (a sentence a line), .conllu, also .gz, hf:NAME?config=C&split=S&column=T, or - (stdin).
        test_corpus: Test on this corpus, given like --corpus; the test part of --corpus then joins the training part.
        max_length: Longest tokenised sentence, special tokens included; the model's own limit by default.
        batch_tokens: Padded tokens in one forward pass, fixed when the cache entry is made.
        task: What is predicted, such as position.
        task_args: Options of the task, such as --task_args.special_tokens include.
        seed: Of the split, of permuted labels and bootstraps, of adam's batches and of untrained weights.
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
    from probing import terminal

    say = terminal.silence if quiet else terminal.say
    progress = terminal.show_progress(quiet)
    # Everything that can be refused is refused before any work, what is quick to check first.
    refuse(probe.problems() + number_problems(seed, max_length, batch_tokens))
    resolve_mode(wandb.mode)
    layer_numbers(layer)
    cached, place = cache_folder(cache, runs), runs_folder(runs)
    if name is not None:
        check_name(place, name)
    token_task = load_task(task, task_args or {})
    corpora, splits = read_corpora(corpus, test_corpus, seed, say)
    with terminal.quiet_libraries():
        from probing.distributed import is_main_process
        from probing.examples import choose_classes, label
        from probing.models import load_config, parse_layers, resolve_model
        from probing.ranking import collect_evidence
        from probing.results import Measured, write, write_summary
        from probing.solvers import Penalty
        from probing.training import Training, check_trainer_options, train_probes

        start = time.perf_counter()
        check_trainer_options(trainer or {}, probe.solver)
        source = resolve_model(model, revision)
        layers = parse_layers(layer, load_config(source).num_hidden_layers, model)

        stores = extract_all(
            source, corpora, layers, cached, trainer or {}, say, progress,
            _example_checks(token_task, corpora, splits, probe.solver, say), dtype=dtype, max_length=max_length,
            batch_tokens=batch_tokens, random_weights_seed=seed if random_weights else None,
        )  # fmt: skip
        extracted = time.perf_counter()
        classes = choose_classes(stores[0].tokens, corpora[0], token_task, splits[0])
        sides = {
            side: label(stores[part], corpora[part], token_task, splits[part], classes, side)
            for part in range(len(corpora))
            for side in _sides_of(part, len(corpora))
        }
        train, validation, test = sides["train"], sides["validation"], sides["test"]

        folder = RunFolder(place, name, f"{source.short_name}-{task}") if is_main_process() else None
        with tracking(folder, wandb, config) as tracker:
            training = Training(
                Penalty(probe.l1, probe.l2), probe.penalty_space, probe.solver, probe.tolerance, probe.learning_rate,
                probe.batch_size, probe.patience, seed,
            )  # fmt: skip
            fits = train_probes(
                train, validation, test, layers, classes, token_task.ordinal, training, trainer or {},
                logger=tracker and tracker.logger, callbacks=[terminal.training_progress()] if progress else (),
                folder=str(folder.path) if folder else None,
            )  # fmt: skip
            if folder is None or tracker is None:
                return None
            trained = time.perf_counter()
            evidence = collect_evidence(train, test, layers, [fit.moments for fit in fits], len(classes), seed)
            measured = Measured(sides, classes, fits, evidence)
            written = write(folder.path, config, measured, source.short_name)
            done = time.perf_counter()
            timings = {
                "extract_s": extracted - start,
                "probe_s": trained - extracted,
                "rank_s": done - trained,
                "total_s": done - start,
            }
            summary = write_summary(folder.path, measured, written, timings)
            tracker.log_results(written.accuracy, written.neurons, written.figures, [*written.files, summary])
        run = load_run(folder.finish())
    _report(run, tracker.where(run.folder), quiet)
    return run


def _example_checks(
    task: TokenTask,
    corpora: Sequence[Corpus],
    splits: Sequence[Sequence[Split]],
    solver: str,
    say: Callable[[str], None],
) -> list[Callable[[Tokens], None]]:
    """Return for each corpus what refuses its tokens where a side has no examples, and says how many are of no class.

    Known from the tokens alone, this is said before a model has read the corpus, which may take hours.
    """
    from probing.examples import choose_classes, class_of_tokens

    classes: Labels  # of the first corpus, which is checked first

    def check(tokens: Tokens, part: int) -> None:
        nonlocal classes
        if part == 0:
            classes = choose_classes(tokens, corpora[0], task, splits[0])
        for side in _sides_of(part, len(corpora)):
            labels, n_dropped = class_of_tokens(tokens, corpora[part], task, splits[part], classes, side)
            n = int((labels >= 0).sum())
            if not n and (solver == "adam" or side != "validation"):
                way_out = "give more sentences" + (" or another --test_corpus" if side == "test" else "")
                raise UserError(f"`--corpus`: no sentence of the {side} part has a token of any class; {way_out}.")
            if n_dropped:
                say(
                    f"{side}: {n_dropped} of {n + n_dropped} tokens are left out: their label is too rare to be a class"
                )

    return [partial(check, part=part) for part in range(len(corpora))]


def _sides_of(part: int, n_corpora: int) -> tuple[Split, ...]:
    """Return the sides that are read from a corpus: with two, the second is the test side."""
    if n_corpora == 1:
        return ("train", "validation", "test")
    return ("train", "validation") if part == 0 else ("test",)


def _report(run: Run, where: str | None, quiet: bool) -> None:
    """Print the tables, what may be concluded of each layer's top neuron, and where everything is."""
    from probing import terminal
    from probing.ranking import conclusion

    layers = [row["layer"] for row in run.accuracy]
    if quiet:
        for row in run.accuracy:
            print(terminal.result_line(row, run.top(row["layer"], 5)))
    else:
        # A screen shows the last layer's ranking, and of the others what is to be said of the top; all are on disk.
        terminal.show(terminal.neurons_table(run.top(layers[-1])), terminal.accuracy_table(run.results["layers"]))
        if len(layers) > 1:
            print(f"The other layers' rankings are in {run.folder / 'neurons.csv'}.")
        for layer, fitted in zip(layers, run.results["layers"], strict=True):
            print(conclusion(run.top(layer, 1), run.config["task"]))
            if not fitted["converged"]:
                print(
                    f"Layer {layer}: the probe stopped up to {fitted['optimality_gap']:.1g} nats short of its optimum, "
                    "so this ranking may be the optimiser's rather than the data's."
                )
    print(f"Results: {run.folder}" + (f"; on Weights & Biases: {where}" if where else ""))
