"""`fit`: text in, ranked neurons and an accuracy curve out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from probing.cache import ActivationStore
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
    say_what_was_left_out,
    tracking,
)
from probing.corpus import Corpus, Split
from probing.errors import UserError, refuse
from probing.models import ModelSource, layer_numbers
from probing.options import ProbeOptions, WandbOptions, as_options
from probing.runs import Run, RunFolder, check_name, controls_of, load_run
from probing.tasks import Labels, TokenTask, load_task
from probing.wandb_mode import resolve_mode

if TYPE_CHECKING:
    from probing.examples import Sides


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
    controls: str | list[str] = "all",
    mdl: bool = False,
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
        controls: What accuracy is held against: all that say something of the task, none, or shuffled, token,
            permuted_positions, untrained, control_task.
        mdl: Also measure how many bits the training labels take, encoded online with each layer's activations.
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
        from probing.controls import chosen
        from probing.distributed import is_main_process
        from probing.mdl import online_code
        from probing.models import load_config, parse_layers, resolve_model
        from probing.ranking import collect_evidence
        from probing.results import Measured, write, write_summary
        from probing.solvers import Penalty
        from probing.training import Training, check_trainer_options, train_controls, train_probes

        start = time.perf_counter()
        wanted = chosen(controls, token_task)
        check_trainer_options(trainer or {}, probe.solver)
        source = resolve_model(model, revision)
        layers = parse_layers(layer, load_config(source).num_hidden_layers, model)

        extract = partial(
            extract_all, source, corpora, layers, cached, trainer or {}, say, progress, dtype=dtype,
            max_length=max_length, batch_tokens=batch_tokens,
        )  # fmt: skip
        weights_seed = seed if random_weights else None
        checks = _example_checks(token_task, corpora, splits, probe.solver, say)
        stores = extract(checks=checks, random_weights_seed=weights_seed)
        say_what_was_left_out(corpora, stores, say)
        sides = _sides(stores, corpora, splits, token_task)
        others = _control_sides(wanted, sides, corpora, extract, source, weights_seed, seed, say)
        extracted = time.perf_counter()

        folder = RunFolder(place, name, f"{source.short_name}-{task}") if is_main_process() else None
        with tracking(folder, wandb, config) as tracker:
            training = Training(
                Penalty(probe.l1, probe.l2), probe.penalty_space, probe.solver, probe.tolerance, probe.learning_rate,
                probe.batch_size, probe.patience, seed,
            )  # fmt: skip
            fits = train_probes(
                sides, layers, training, trainer or {}, logger=tracker and tracker.logger,
                callbacks=[terminal.training_progress()] if progress else (),
                folder=str(folder.path) if folder else None,
            )  # fmt: skip
            trained = time.perf_counter()
            held_against = train_controls(
                others, layers, training, trainer or {},
                lambda control: [terminal.training_progress(f"control {control}")] if progress else (),
            )  # fmt: skip
            codes = online_code(
                sides, layers, training, trainer or {}, seed,
                lambda block: [terminal.training_progress(f"code, block {block}")] if progress else (),
            ) if mdl else ()  # fmt: skip
            if folder is None or tracker is None:
                return None
            controlled = time.perf_counter()
            evidence = collect_evidence(
                sides.train, sides.test, layers, [fit.moments for fit in fits], len(sides.classes), seed
            )
            measured = Measured(sides, fits, evidence, held_against, codes)
            written = write(folder.path, config, measured, source.short_name)
            done = time.perf_counter()
            timings = {
                "extract_s": extracted - start,
                "probe_s": trained - extracted,
                "evidence_s": controlled - trained,
                "rank_s": done - controlled,
                "total_s": done - start,
            }
            cached_of = {side: _origin(store) for side, store in (("train", stores[0]), ("test", stores[-1]))}
            summary = write_summary(folder.path, measured, written, cached_of, timings)
            tracker.log_results(written.accuracy, written.neurons, written.figures, [*written.files, summary])
        run = load_run(folder.finish())
    _report(run, tracker.where(run.folder), quiet)
    return run


def _origin(store: ActivationStore) -> dict[str, Any]:
    return {name: store.header[name] for name in ("model", "revision", "corpus", "key", "versions")}


def _sides(
    stores: Sequence[ActivationStore],
    corpora: Sequence[Corpus],
    splits: Sequence[Sequence[Split]],
    task: TokenTask,
) -> Sides:
    """Return the labelled tokens of each side; with two corpora, the second is the test side."""
    from probing.examples import Sides, choose_classes, label

    classes = choose_classes(stores[0].tokens, corpora[0], task, splits[0])
    parts = {
        side: label(stores[part], corpora[part], task, splits[part], classes, side)
        for part in range(len(corpora))
        for side in _sides_of(part, len(corpora))
    }
    return Sides(parts["train"], parts["validation"], parts["test"], classes, task.ordinal)


def _control_sides(
    wanted: Sequence[str],
    sides: Sides,
    corpora: Sequence[Corpus],
    extract: Callable[..., list[ActivationStore]],
    source: ModelSource,
    weights_seed: int | None,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Sides]:
    """Return for each control that applies the examples that it is measured on, extracting what they need."""
    import torch

    from probing import controls
    from probing.anatomy import examine
    from probing.models import load_encoder

    made: dict[str, Sides] = {}
    encoder = load_encoder(source, torch.float32, weights_seed) if {"token", "permuted_positions"} & {*wanted} else None
    for name in wanted:
        if name == "shuffled":
            made[name] = controls.shuffled(sides, seed)
        elif name == "control_task":
            made[name] = controls.control_task(sides, corpora, seed)
        elif name == "token" and encoder is not None:
            made[name] = controls.token_identity(sides, encoder)
        elif name == "permuted_positions" and encoder is not None and examine(encoder).position_table is None:
            say(f"the control permuted_positions does not apply: {source.name} has no position table")
        elif name == "permuted_positions":
            stores = extract(random_weights_seed=weights_seed, permuted_positions_seed=seed)
            made[name] = controls.with_activations(sides, stores)
        elif weights_seed is not None:
            say("the control untrained does not apply: the model is the untrained twin")
        else:
            made[name] = controls.with_activations(sides, extract(random_weights_seed=seed))
    return made


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
        if len(controls_of(run.accuracy)) > 1:
            terminal.show(terminal.controls_table(run.accuracy))
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
