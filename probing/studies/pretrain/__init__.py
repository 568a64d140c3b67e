"""The study `pretrain`: small encoders from scratch, with and without position embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from probing.cli.commandline import configured
from probing.cli.option_types import FIGURE_FORMAT, FigureFormat, Source, Wandb, chosen
from probing.cli.options import WandbOptions
from probing.errors import out_of_range
from probing.page.charts import LOOKS, SHARES, YAxis, line_chart
from probing.page.terms import ACCURACY, BY_TOKEN
from probing.results import Html, element, table
from probing.runs import Result, SectionPlace, Study, Terms, framed, section_of, study_of
from probing.runs.call import Call, Measured
from probing.runs.folder import check_several, continuable, folder_of_trainings, free_name
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.studies.pretrain import tables
from probing.studies.pretrain.tables import (
    ARMS,
    BETTER_THAN_NONE,
    BETTER_THAN_UNIGRAM,
    FREQUENCIES,
    LENGTHS,
    LOSSES,
    NEXT_FREQUENCIES,
    OUTLIER,
    PRETRAINING_ARMS,
    SEEDS,
    EncoderGroup,
    EncoderOptions,
    Row,
    Size,
    TrainingGroup,
    TrainingOptions,
    chosen_recipe,
    frequencies_of,
    is_outlier,
    last_rows,
    predicted_in,
    recipe_problems,
    row_multiples,
    trainings_of,
)
from probing.tables.figures import BY_LAYER, BY_STEP, Line, XAxis
from probing.text import load_corpus
from probing.tracking import Tracker


@configured
def pretrain(
    config: dict[str, Any],
    corpus: Source = "builtin", arms: str | list[str] = "learned,none", seeds: int = 1, size: Size = "tiny",
    sentences: int = 1000, lengths: int | list[int] | str | None = None, seed: int = 0, runs: str = "runs",
    name: str | None = None, cache: str | None = None, quiet: bool = False, trainer: dict[str, Any] | None = None,
    encoder: EncoderGroup = EncoderOptions(), training: TrainingGroup = TrainingOptions(),
    wandb: Wandb = WandbOptions(), figure_format: FigureFormat = FIGURE_FORMAT,
) -> Result | None:  # fmt: skip
    """Pretrain encoders that differ only in their position information, and measure outliers in their checkpoints.

    Args:
        corpus: Text to learn from; a tenth of its documents is held out, or a tenth of its sentences if it marks fewer
            than 20 documents. Given as builtin, a file (.txt with one sentence per line, .conllu, .conll, .tsv, .csv,
            .jsonl; also as .gz), hf:NAME?config=C&split=S&column=T, or - for standard input.
        arms: Sources of position information: all, or some of learned (a trained table of embeddings), none, constant
            (every token gets the same position), causal (as none, but each token attends only to itself and earlier
            tokens), sinusoidal (a table of sines that is not trained), rotary (queries and keys rotated by the
            position), alibi (attention scores that fall with the distance), relative (a trained number for each
            distance and head, as in T5), disentangled (trained embeddings of distances, as in DeBERTa), causal_lm (as
            causal, but predicts the next token instead of masked tokens), pre_norm (learned, with norms before the
            parts of a block; in all other arms they follow), plain_norm (learned, with norms without gain and bias).
        seeds: Number of trainings of each arm, with seeds from --seed on.
        size: Shape of the encoder and its training, which --encoder and --training change: tiny trains in minutes on a
            CPU; base follows Luo, Kulmizev & Mao (2021).
        sentences: Maximum number of held-out sentences on which checkpoints are measured.
        lengths: Lengths of rows that each arm reads after the last step, in multiples of the training length, such as
            1,2,4; default: none.
        seed: Seed of the split of the text and of measurement samples, and first seed of the trainings: initial
            weights, order of the text, masks.
        name: Name of this run; default: pretrain-SIZE-YYYYMMDD-HHMMSS. A killed run of this name is continued.
        cache: Folder of activations while a checkpoint is measured; default: $PROBING_CACHE or RUNS/cache.
        trainer: Arguments of Lightning's Trainer, such as --trainer.devices 2, --trainer.precision bf16-mixed or
            --trainer.accumulate_grad_batches 4.
        encoder: Shape of the encoder and of its input, where it differs from --size.
        training: How the encoder is trained, where this differs from --size.

    Returns:
        The tables of the run; None except in the rank-zero process.
    """
    shape, recipe = chosen_recipe(size, encoder, training)
    numbers = [*out_of_range("seeds", seeds, 1, 1000), *out_of_range("sentences", sentences, 10)]
    multiples, problems = row_multiples(lengths)
    config |= {"encoder": asdict(shape), "training": asdict(recipe)}
    # An unfinished run of the name is continued, so that whether the name is taken is found later.
    call = Call.of(study_of("pretrain"), config, None, wandb, [*numbers, *problems, *recipe_problems(shape, recipe)])
    selected = chosen("--arms", arms, PRETRAINING_ARMS)
    text = load_corpus(corpus)
    with quiet_libraries():
        from probing.runtime.trainer import Places, check_trainer_options
        from probing.studies.pretrain import training as steps
        from probing.studies.pretrain.results import study_output

        check_trainer_options(trainer or {}, "pretraining")
        check_several(trainer or {}, name is not None)
        named = name or free_name(call.place, f"pretrain-{size}")
        folder = folder_of_trainings(call.place, named, config, {"corpus": text})
        jobs = [steps.TrainingJob(arm, number) for number in range(seed, seed + seeds) for arm in selected]
        plan = steps.RunPlan(jobs, shape, recipe, sentences, seed, trainer or {})
        first = is_main_process()
        call.expect(len(jobs) + 2 + bool(multiples))
        written = Places(folder.path, first)
        with continuable(folder, first):
            rows = steps.packed_text(text, plan, written)

            def measure(tracker: Tracker | None) -> Measured | None:
                logger = tracker.logger if tracker else None
                losses = steps.train_all(rows, plan, written, logger)
                layers = steps.measure_all(rows, plan, written, call.cached, losses, call.say)
                tables = {"arms": layers, "losses": losses}
                if multiples:
                    tables["lengths"] = steps.measure_lengths(rows, plan, multiples, written, call.cached)
                return study_output(tables, text, config["corpus"], rows) if first else None

            return call.carry_out(folder if first else None, measure)


PRETRAINING: Terms = {
    "arm": "What tells the encoder positions: learned (a table that is trained), none, constant (every token is told "
    "the same position), causal (none, but attention to earlier tokens alone), sinusoidal (a fixed table), rotary, "
    "alibi (scores fall with the distance), relative (a trained number for each distance) or disentangled (trained "
    "embeddings of distances). causal_lm is as causal and predicts the next token; pre_norm and plain_norm are as "
    "learned, with norms before the parts of a block, and with norms without gain and bias.",
    "seed": "Seed of the initial weights, the order of the text and the masks, the same for all arms.",
    "steps": "Number of steps of the optimiser.",
    "loss at first": "The loss before the first step.",
    "loss": "Mean cross-entropy of masked tokens in held-out text (causal_lm: of the next), in nats, after the last "
    "step.",
    FREQUENCIES: "The loss of a model that knows how often each token occurs and nothing else.",
    NEXT_FREQUENCIES: "The same loss of next tokens, which are not only the masked ones.",
    "tokens": "Number of tokens in a row; the first length is usually that of the training.",
    "below it": "How many nats the loss is below that.",
    "verdict": f"On the last checkpoints. Not testable unless learned is better than none by {BETTER_THAN_NONE:g} nats "
    f"and than the frequencies of tokens by {BETTER_THAN_UNIGRAM:g}, for every seed; refuted if none or constant has "
    f"an outlier above the embeddings; confirmed if learned has one for every seed, of at least {SEEDS}; not testable "
    "if learned has none; otherwise unclear.",
    "layer": ACCURACY["layer"],
    "farthest mean, sd": "How far the mean of the farthest neuron is from the mean of all neurons' means, in standard "
    "deviations of these.",
    "outlier": f"The neuron with that mean, if it is beyond {OUTLIER:g} sd.",
    "an outlier is beyond": f"The limit of {OUTLIER:g} sd.",
    "largest in": "Share of the tokens in whose hidden state this neuron is the largest.",
    "smallest in": "Share of the tokens in whose hidden state it is the smallest.",
    "position accuracy": "Share of the test tokens whose position a linear probe predicts correctly.",
    "by the token alone": BY_TOKEN,
    "equivariance": "Largest difference between the states of a token in a row that is read as it is and permuted, in "
    "root mean squares of the layer's states: 0, up to rounding, where nothing tells positions.",
}


def pretraining_section(result: Result, anchor: str) -> Html:
    """Return the losses of the experiment, and outliers and positions by layer after the last step."""
    end = last_rows(result.arms)
    return section_of(
        result,
        anchor,
        _losses(result),
        element("div", _means(end), _positions(end), class_="panels"),
        *framed(result.tables()),
        element("details", element("summary", "Every arm, seed and layer after the last step"), _every_layer(end)),
    )


def _losses(result: Result) -> Html:
    """Return the held-out loss over the steps as a chart and numbers, with the loss of the frequencies of tokens."""
    lines, body, unigrams = [], [], {}
    for (arm, seed), rows in trainings_of(result.arms).items():
        losses = {row["step"]: row["loss"] for row in rows}
        steps = sorted(losses)
        lines.append(Line(arm, steps, [losses[step] for step in steps], which=f"seed {seed}"))
        first, last, unigram = losses[steps[0]], losses[steps[-1]], rows[0]["unigram_loss"]
        unigrams[frequencies_of(arm)] = unigram
        body.append([arm, seed, steps[-1], *(f"{loss:.3f}" for loss in (first, last, unigram, unigram - last))])
    steps = sorted({row["step"] for row in result.arms})
    references = [Line(name, steps, [loss] * len(steps)) for name, loss in unigrams.items()]
    size = result.results["n_vocabulary"]
    title = (
        f"Loss of {predicted_in(result.arms)} in held-out text, in nats, a line for each seed; a uniform guess has ln "
    )
    title += f"{size:,} = {math.log(size):.2f}"
    head = ["arm", "seed", "steps", "loss at first", "loss", FREQUENCIES, "below it"]
    charts = _charts(lines, references, title, BY_STEP, _up([*lines, *references]))
    return element("figure", element("figcaption", title), *charts, table(head, body))


def _up(lines: Sequence[Line], from_zero: bool = False) -> YAxis:
    return YAxis.of((value for line in lines for value in line.values), from_zero)


def _charts(
    lines: Sequence[Line], references: Sequence[Line], title: str, across: XAxis = BY_LAYER, up: YAxis = SHARES
) -> list[Html]:  # fmt: skip
    """Return one chart, or several with the same axes where there are more arms than looks of lines."""
    arms = list(dict.fromkeys(line.label for line in lines))
    most = LOOKS - len(references)
    groups = [arms[first : first + most] for first in range(0, len(arms), most)]
    return [
        line_chart([*(line for line in lines if line.label in group), *references], title, across, up)
        for group in groups
    ]


def _means(end: Sequence[Row]) -> Html:
    """Return the farthest mean by layer, with the distance beyond which it is an outlier."""
    layers = sorted({row["layer"] for row in end})
    lines, limit = _by_layer(end, "max_mean_sd"), Line("an outlier is beyond", layers, [OUTLIER] * len(layers))
    title = "Farthest mean of a neuron after the last step, in sd, by layer"
    charts = _charts(lines, [limit], title, up=_up([*lines, limit], from_zero=True))
    return element("figure", element("figcaption", title), *charts)


def _positions(end: Sequence[Row]) -> Html:
    """Return the accuracy of position by layer."""
    title = "Accuracy of position by a linear probe after the last step, by layer"
    return element("figure", element("figcaption", title), *_charts(_by_layer(end, "position_accuracy"), [], title))


def _by_layer(end: Sequence[Row], column: str) -> list[Line]:
    """Return a line for each arm and seed."""
    return [
        Line(arm, [row["layer"] for row in rows], [row[column] for row in rows], which=f"seed {seed}")
        for (arm, seed), rows in trainings_of(end).items()
    ]


def _every_layer(end: Sequence[Row]) -> Html:
    head = [
        "arm", "seed", "layer", "farthest mean, sd", "outlier", "largest in", "smallest in", "position accuracy",
        "by the token alone", "equivariance",
    ]  # fmt: skip
    body: list[list[Any]] = [
        [
            arm, seed, row["layer"], f"{row['max_mean_sd']:.2f}",
            f"neuron {row['outlier_neuron']}" if is_outlier(row) else "none",
            *(f"{row[name]:.3f}" for name in ("argmax_share", "argmin_share", "position_accuracy", "token_accuracy")),
            f"{row['equivariance']:.1e}",
        ]
        for (arm, seed), rows in trainings_of(end).items()
        for row in rows
    ]  # fmt: skip
    return table(head, body)


class Pretrain(Study):
    """The study of encoders that differ only in their information on positions."""

    name, kind = "pretrain", "pretraining with and without positions"
    title = "Encoders with and without positions"
    function = "probing.studies.pretrain:pretrain"
    in_several_processes = True
    schemas = ARMS, LOSSES, LENGTHS
    page = "pretraining.md"
    files: ClassVar[Mapping[str, str]] = {
        "checkpoints/ARM-seedN/stepNNNN/": "Each checkpoint, an ordinary model folder.",
        "figures/": "Losses, farthest means and positions; with `--lengths`, losses by length.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the last checkpoints."""
        return tables.tables(result.by_name)

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions on each arm, and the verdict."""
        return tables.conclusions(result.by_name, result.results["growth"])

    def about(self, result: Result) -> str:
        """Return the title of a page."""
        return "encoders with and without positions"

    def section(self, result: Result, place: SectionPlace) -> Html:
        """Return the losses, and outliers and positions by layer after the last step."""
        return pretraining_section(result, place.anchor)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        return {self.title: PRETRAINING}


STUDY = Pretrain()
