"""Options, columns, verdict, tables, charts and sentences of `pretrain`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from probing.cli.options import LARGEST, SMALLEST, Options, as_options, option
from probing.errors import flag, out_of_range
from probing.results import (
    Row,
    Schema,
    Table,
    View,
    grouped_table,
    in_brackets,
    layers_named,
    number,
    shown,
    shown_table,
    text,
    whole,
)
from probing.tables.figures import BY_STEP, Chart, Line, XAxis, in_panels
from probing.tables.schema import layer_column

# --------------------------------------------------------------------------------------------------------------------
# Options of `pretrain`: the shape of the encoder and how it is trained; help texts are read from here.
# --------------------------------------------------------------------------------------------------------------------

Size = Literal["tiny", "base"]
# The arm that predicts next tokens in place of masked ones.
CAUSAL_LM = "causal_lm"
PRETRAINING_ARMS = (
    "learned", "none", "constant", "causal", "sinusoidal", "rotary", "alibi", "relative", "disentangled", CAUSAL_LM,
    "pre_norm", "plain_norm",
)  # fmt: skip


@dataclass(frozen=True)
class EncoderOptions(Options):
    """The shape of the encoder and of its input; what is not given is that of the size."""

    n_layers: int | None = option(None, at_least=1)
    """Number of blocks: 3 (tiny) or 12 (base)."""
    d_model: int | None = option(None, at_least=2)
    """Width of the hidden states: 128 or 768."""
    n_heads: int | None = option(None, at_least=1)
    """Number of heads of a block: 4 or 12."""
    d_feedforward: int | None = option(None, at_least=1)
    """Width inside the MLP of a block: 512 or 3072."""
    vocabulary: int | None = option(None, at_least=60, at_most=2**31 - 1)
    """Number of word pieces, which are trained on the training text: 100 or 30,000."""
    lowercase: bool | None = None
    """Whether the text is lowercased: true or false."""
    row_length: int | None = option(None, at_least=4)
    """Number of tokens in a row of packed text: 16 or 512."""
    initial_sd: float | None = option(None, at_least=1e-6, at_most=10)
    """Standard deviation of the initial weights: 0.06 or 0.02."""
    dropout: float | None = option(None, at_least=0, at_most=0.99)
    """Dropout of hidden states and attention: 0 or 0.1."""


@dataclass(frozen=True)
class TrainingOptions(Options):
    """How the encoder is trained; what is not given is that of the size."""

    steps: int | None = option(None, at_least=1)
    """Number of steps of the optimiser (AdamW): 1,500 (tiny) or 200,000 (base)."""
    batch_size: int | None = option(None, at_least=1)
    """Number of rows in a batch, over all processes: 64 or 256."""
    learning_rate: float | None = option(None, at_least=SMALLEST, at_most=LARGEST)
    """Highest learning rate: 2e-3 or 1e-4."""
    warm_up: int | None = None
    """Number of steps in which the learning rate rises; then it falls linearly to 0: 150 or 10,000."""
    beta1: float | None = option(None, at_least=0, at_most=0.999999)
    """Decay rate of AdamW's running mean of the gradient: 0.9."""
    beta2: float | None = option(None, at_least=0, at_most=0.999999)
    """Decay rate of AdamW's running mean of the squared gradient: 0.98."""
    epsilon: float | None = option(None, at_least=SMALLEST, at_most=LARGEST)
    """Epsilon of AdamW: 1e-6."""
    weight_decay: float | None = option(None, at_least=0, at_most=LARGEST)
    """Weight decay of AdamW: 0.01."""
    masked: float | None = option(None, at_least=0.001, at_most=0.999)
    """Share of tokens that are predicted, in all arms but causal_lm: 0.15."""
    held_out_rows: int | None = option(None, at_least=1)
    """Maximum number of rows of held-out text on which the loss is measured: 1,000."""
    checkpoint_factor: float | None = option(None, at_least=1.05, at_most=LARGEST)
    """Each checkpoint has this many times the steps of the one before: 2."""
    save_every: int | None = option(None, at_least=1)
    """Number of steps between saved states, from which an interrupted run continues: 100 or 1,000."""


@dataclass(frozen=True)
class Encoder:
    """The shape of the encoder and of its input, as in `EncoderOptions`."""

    n_layers: int = 3
    d_model: int = 128
    n_heads: int = 4
    d_feedforward: int = 512
    # With more word pieces, or longer rows, the encoder stays a bag of words for longer.
    vocabulary: int = 100
    lowercase: bool = True
    row_length: int = 16
    # At .02 the encoder with positions does not leave the plateau of a bag of words within the steps; at .08 the first
    # loss is more than .3 above ln(vocabulary), by half the variance of the logits.
    initial_sd: float = 0.06
    dropout: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """How the encoder is trained, as in `TrainingOptions`."""

    steps: int = 1500
    batch_size: int = 64
    learning_rate: float = 2e-3
    warm_up: int = 150
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    masked: float = 0.15
    held_out_rows: int = 1000
    checkpoint_factor: float = 2.0
    save_every: int = 100


# The larger size is that of Luo, Kulmizev & Mao (2021), table 4.
_SIZES: dict[Size, tuple[Encoder, Recipe]] = {
    "tiny": (Encoder(), Recipe()),
    "base": (
        Encoder(12, 768, 12, 3072, 30_000, False, 512, 0.02, 0.1),
        Recipe(200_000, 256, 1e-4, 10_000, save_every=1000),
    ),
}


# In Python, a group of options may be a mapping; the parser of arguments sees only the group.
if TYPE_CHECKING:
    EncoderGroup: TypeAlias = EncoderOptions | Mapping[str, Any]
    TrainingGroup: TypeAlias = TrainingOptions | Mapping[str, Any]
else:
    EncoderGroup, TrainingGroup = EncoderOptions, TrainingOptions


def chosen_recipe(size: Size, encoder: EncoderGroup, training: TrainingGroup) -> tuple[Encoder, Recipe]:
    """Return the shape and the training of a size, with the user's changes."""
    shape, recipe = _SIZES[size]
    groups = as_options(EncoderOptions, encoder, "encoder"), as_options(TrainingOptions, training, "training")
    given = [{name: value for name, value in asdict(some).items() if value is not None} for some in groups]
    return replace(shape, **given[0]), replace(recipe, **given[1])


def row_multiples(lengths: int | list[int] | str | None) -> tuple[list[int], list[str]]:
    """Return the lengths in `--lengths`, ascending, in lengths of the training's rows, and problems with the option."""
    if lengths is None:
        return [], []
    parts = lengths.split(",") if isinstance(lengths, str) else [lengths] if isinstance(lengths, int) else lengths
    try:
        multiples = sorted({int(part) for part in parts})
    except ValueError:
        multiples = []
    if not multiples or multiples[0] < 1:
        return [], [f"`--lengths {lengths}` are no lengths; give whole numbers from 1 on, such as 1,2,4"]
    return multiples, []


def recipe_problems(shape: Encoder, recipe: Recipe) -> list[str]:
    """Return the problems with values that contradict each other; the ranges of each are declared."""
    problems = out_of_range("training.warm_up", recipe.warm_up, 0, recipe.steps)
    if shape.n_heads > 0 and shape.d_model % (2 * shape.n_heads):
        d_model, n_heads = flag("encoder.d_model", shape.d_model), flag("encoder.n_heads", shape.n_heads)
        problems.append(f"{d_model} is not a multiple of twice {n_heads}")
    return problems


Verdict = Literal["confirmed", "refuted", "unclear", "not testable"]


# By how many nats the arm with positions is to be better than the arm without them, and than frequencies of tokens.
BETTER_THAN_NONE, BETTER_THAN_UNIGRAM = 0.5, 1.0
# Least number of seeds.
SEEDS = 3
CLAIM = "Position embeddings cause outliers (Luo, Kulmizev & Mao 2021)"
# An outlier of the mean deviates by more than this, in sd; see `probing.statistics.moments`.
OUTLIER = 5.0
# What the loss is compared with: a model that knows these alone.
FREQUENCIES = "frequencies of tokens"
NEXT_FREQUENCIES = f"{FREQUENCIES}, {CAUSAL_LM}"
# An extrapolation over more doublings of the steps says nothing.
DOUBLINGS = 30

_ARM = text(
    "arm", "Position information of the encoder: learned (a trained table of embeddings), none, constant (every token "
    "gets the same position), causal (as none, but each token attends only to itself and earlier tokens), sinusoidal "
    "(a fixed table), rotary, alibi (attention scores fall with the distance), relative (a trained number for each "
    "distance) or disentangled (trained embeddings of distances). causal_lm is as causal and predicts the next token; "
    "pre_norm and plain_norm are as learned, with norms before the parts of a block, and with norms without gain and "
    "bias.",
)  # fmt: skip
_SEED = whole("seed", "Seed of the initial weights, the order of the text and the masks, the same for all arms.")
_STEP = whole("step", "Number of steps of the optimiser.")
_LOSS = number("loss", "Mean cross-entropy of masked tokens (causal_lm: of next tokens) in held-out text, in nats.")
_UNIGRAM = number("unigram_loss", "Loss of a model that predicts each token by its frequency alone.", FREQUENCIES)
_OUTLIERS = (
    whole("outlier_neuron", f"Neuron with the farthest mean, if this is beyond {OUTLIER:g} sd.", "outlier"),
    number("max_mean_sd", "Distance of the farthest mean of a neuron from the mean of all neurons' means, in standard "
           "deviations of these.", "farthest mean, sd", ".2f"),
)  # fmt: skip
_TOKEN = number("token_accuracy", "Accuracy of a probe of the token embedding alone.", "by the token alone")
ARMS = Schema("arms", "a row per arm, seed, checkpoint and layer", (
    _ARM, _SEED, _STEP, _LOSS, _UNIGRAM, layer_column(), *_OUTLIERS,
    number("argmax_share", "Share of the tokens in whose hidden state this neuron is the largest.", "largest in"),
    number("argmin_share", "Share of the tokens in whose hidden state this neuron is the smallest.", "smallest in"),
    number("position_accuracy", "Share of the test tokens whose position a linear probe predicts correctly."),
    _TOKEN,
    number("equivariance", "Largest difference between the states of a token in a row and in the permuted row, in root "
           "mean squares of the layer's states: 0, up to rounding, without position information.", form=".1e"),
))  # fmt: skip
LOSSES = Schema("losses", "a row per arm, seed and step at which a loss was noted", (
    _ARM, _SEED, _STEP,
    number("train_loss", "Mean training loss since the row before, in nats."),
    _LOSS, _UNIGRAM,
))  # fmt: skip
LENGTHS = Schema("lengths", "a row per arm, seed, length and layer, or a single one where the arm reads no such rows", (
    _ARM, _SEED, _STEP,
    whole("length", "Number of tokens in a row; the first length is usually that of the training.", "tokens"),
    _LOSS, _UNIGRAM, layer_column(), *_OUTLIERS,
    number("position_accuracy", "Accuracy of a linear probe of position, trained on texts of this length."),
    _TOKEN,
    text("reason", "Why the arm is not measured on rows of this length."),
), optional=True)  # fmt: skip

EVERY_LAYER = View(ARMS, (
    "arm", "seed", "layer", "max_mean_sd", "outlier_neuron", "argmax_share", "argmin_share", "position_accuracy",
    "token_accuracy", "equivariance",
), "Every arm, seed and layer after the last step")  # fmt: skip
# Meanings of other headings, of lines of charts and of the verdict.
TERMS = {
    "loss at first": "The loss before the first step.",
    FREQUENCIES: _UNIGRAM.meaning,
    NEXT_FREQUENCIES: "The same loss of next tokens, which are not only the masked ones.",
    "below it": "Loss by frequency minus the loss, in nats.",
    "an outlier is beyond": f"The limit of {OUTLIER:g} sd.",
    "largest equivariance": "Largest equivariance over the seeds.",
    "verdict": f"On the last checkpoints. Not testable unless learned is better than none by {BETTER_THAN_NONE:g} nats "
    f"and than the frequencies of tokens by {BETTER_THAN_UNIGRAM:g}, for every seed; refuted if none or constant has "
    f"an outlier above the embeddings; confirmed if learned has one for every seed, of at least {SEEDS}; not testable "
    "if learned has none; otherwise unclear.",
}

SENTENCES = {
    "arm": "{arm}: the held-out loss is {loss} nats, compared with {unigram} from token frequencies alone; the "
    "accuracy of position in layer {layer} is {position}, compared with {token} from the token alone; {outliers}.",
    "outliers": "outliers with {seeds} ({layers})",
    "no_outlier": "no outlier above the embeddings (the farthest mean is at {most} sd, the limit is {limit:g} sd)",
    "not_read": "{arms}, rows of {lengths} tokens: {reason}.",
    "verdict": "{claim}: {verdict}: {reason}.",
    "growth": "From step {first_step} on, the farthest mean of learned changes by {slope} sd for each doubling of the "
    "steps{interval}: {extrapolated}.",
    "slope_interval": "95% interval over seeds: {low} to {high}",
    "never": "at this rate, no neuron becomes an outlier",
    "too_slow": "at this rate, an outlier takes more than {doublings} doublings of the steps",
    "steps": "extrapolated, the farthest mean reaches {limit:g} sd after {steps:,.0f} steps{interval}",
    "steps_interval": "interval: {low:,.0f} to {high}",
}
# Reasons of the verdict, which `results.json` also has.
REASONS = {
    "arms": "the arms learned and none are needed, with the same seeds",
    "margin": "with seed {seed}, learned is better than {other} by {by:.2f} nats, and {margin:g} are needed",
    "refuted": "{arm} has an outlier with {seeds}",
    "no_outlier": "learned has no outlier either, at this size and after these steps",
    "some_seeds": "learned has an outlier with {seeds} alone",
    "few_seeds": "learned has an outlier and none has not, but {n} seeds are needed",
    "confirmed": "learned has an outlier with every seed, and none with no seed",
}


@dataclass(frozen=True)
class Judgement:
    """The verdict on the claim that position embeddings cause outliers, with its reason as a clause."""

    verdict: Verdict
    reason: str


def last_rows(rows: Table) -> Table:
    """Return the rows of the last checkpoint of each arm and seed."""
    last = {key: max(training.column("step")) for key, training in rows.by("arm", "seed").items()}
    return rows.where(lambda row: row["step"] == last[row["arm"], row["seed"]])


def judge(rows: Table) -> Judgement:
    """Return the verdict on the claim of Luo, Kulmizev & Mao (2021) that position embeddings cause outliers.

    It is testable if, after the last step and for every seed, `learned` is better than `none` by half a nat and than
    the frequencies of tokens by one. It is refuted if `none` or `constant` has an outlier above the embeddings for some
    seed, and confirmed if `learned` has one for every seed, of at least three. It is not testable if `learned` has none
    for any seed, and unclear otherwise.
    """
    end = last_rows(rows)
    learned, none = ({row["seed"]: row for row in end.where(arm=arm)} for arm in ("learned", "none"))
    if not learned or learned.keys() != none.keys():
        return Judgement("not testable", REASONS["arms"])
    for seed in sorted(learned):
        others = {
            "none": (none[seed]["loss"], BETTER_THAN_NONE),
            "the frequencies of tokens": (learned[seed]["unigram_loss"], BETTER_THAN_UNIGRAM),
        }
        for other, (loss, margin) in others.items():
            by = loss - learned[seed]["loss"]
            if not by >= margin:
                return Judgement("not testable", REASONS["margin"].format(seed=seed, other=other, by=by, margin=margin))
    for arm in ("none", "constant"):
        if seeds := seeds_with_outlier(end, arm):
            return Judgement("refuted", REASONS["refuted"].format(arm=arm, seeds=_seeds(seeds)))
    seeds = seeds_with_outlier(end, "learned")
    if not seeds:
        return Judgement("not testable", REASONS["no_outlier"])
    if len(seeds) < len(learned):
        return Judgement("unclear", REASONS["some_seeds"].format(seeds=_seeds(seeds)))
    if len(seeds) < SEEDS:
        return Judgement("unclear", REASONS["few_seeds"].format(n=SEEDS))
    return Judgement("confirmed", REASONS["confirmed"])


def seeds_with_outlier(rows: Table, arm: str) -> list[int]:
    """Return the seeds with which an arm has an outlier of the mean in a layer above the embeddings."""
    return sorted(rows.where(_is_outlier, arm=arm).values("seed"))


def _is_outlier(row: Row) -> bool:
    return bool(row["layer"] > 0 and row["max_mean_sd"] > OUTLIER)


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def tables(arms: Table, lengths: Table) -> list[Any]:
    """Return each arm after its last step, and on longer rows, over seeds."""
    read = lengths.where(layer=(max(filter(None, lengths.column("layer")), default=None), None))
    shown_tables = [
        _over_seeds(
            ARMS, last_rows(arms), "layer", "After the last step: mean over seeds (lowest to highest)",
            ("max_mean_sd", "position_accuracy", "token_accuracy"),
            {"largest equivariance": lambda rows: ARMS["equivariance"].show(max(rows, key=_equivariance))},
        )
    ]  # fmt: skip
    if read:
        title = "Rows longer than those of the training, after the last step, in the last layer"
        columns = "loss", "unigram_loss", "position_accuracy", "token_accuracy", "max_mean_sd"
        shown_tables.append(_over_seeds(LENGTHS, read, "length", title, columns))
    return shown_tables


def _equivariance(row: Row) -> float:
    return float(row["equivariance"])


def _over_seeds(
    schema: Schema, rows: Table, by: str, title: str, columns: Sequence[str],
    others: Mapping[str, Callable[[Table], str]] | None = None,
) -> Any:  # fmt: skip
    """Return a rich table with a row for each arm and value of `by`, and means over the seeds of these."""
    cells = {schema[column].words: partial(_range, column=column) for column in columns}
    return grouped_table(schema, rows.by("arm", by).values(), title, ("arm", by), {**cells, **(others or {})})


def _range(rows: Table, column: str) -> str:
    """Return the mean over seeds, with the lowest and the highest where they differ; empty without values."""
    values = [value for value in rows.column(column) if value is not None]
    if not values:
        return ""
    low, high = (shown(value, ".2f") for value in (min(values), max(values)))
    return shown(sum(values) / len(values), ".2f") + in_brackets(f"{low} to {high}" if low != high else "")


def more_tables(arms: Table) -> list[Any]:
    """Return the losses of each arm and seed, and every layer after the last step."""
    end = last_rows(arms)
    first = {key: training[0]["loss"] for key, training in arms.by("arm", "seed").items()}
    losses = [training[0] for training in end.by("arm", "seed").values()]
    beside = {
        "loss at first": lambda row: shown(first[row["arm"], row["seed"]], ".3f"),
        "below it": lambda row: shown(row["unigram_loss"] - row["loss"], ".3f"),
    }
    columns = "arm", "seed", "step", "loss", "unigram_loss"
    table = shown_table(ARMS, losses, f"Loss of {predicted_in(arms)} in held-out text, in nats", columns, beside)
    return [table, *EVERY_LAYER.tables(end)]


def conclusions(arms: Table, lengths: Table, growth: Mapping[str, Any] | None = None) -> list[str]:
    """Return the conclusions, a sentence for each question, with `growth` as in `results.json` if it was measured."""
    end, judgement = last_rows(arms), judge(arms)
    lines = [_of_arm(rows, arm) for arm, rows in end.by("arm").items()]
    for reason, rows in lengths.where(lambda row: bool(row.get("reason"))).by("reason").items():
        read = ", ".join(map(str, sorted(rows.values("length"))))
        lines.append(SENTENCES["not_read"].format(arms=", ".join(rows.values("arm")), lengths=read, reason=reason))
    lines.append(SENTENCES["verdict"].format(claim=CLAIM, verdict=judgement.verdict, reason=judgement.reason))
    if growth and not seeds_with_outlier(end, "learned"):
        lines.append(growth_line(growth))
    return lines


def _of_arm(rows: Table, arm: str) -> str:
    last = max(rows.column("layer"))
    columns = {"loss": "loss", "unigram": "unigram_loss", "position": "position_accuracy", "token": "token_accuracy"}
    cells = {slot: _range(rows.where(layer=last), column) for slot, column in columns.items()}
    if seeds := seeds_with_outlier(rows, arm):
        layers = layers_named(sorted(rows.where(_is_outlier).values("layer")))
        outliers = SENTENCES["outliers"].format(seeds=_seeds(seeds), layers=layers)
    else:
        most = max(rows.where(lambda row: row["layer"] > 0).column("max_mean_sd"), default=0.0)
        outliers = SENTENCES["no_outlier"].format(most=shown(most, ".1f"), limit=OUTLIER)
    return SENTENCES["arm"].format(arm=arm, layer=last, outliers=outliers, **cells)


def growth_line(growth: Mapping[str, Any]) -> str:
    """Return a sentence on the number of steps to an outlier at the measured growth."""
    ends = {end: growth[f"slope_{end}"] for end in ("low", "high")}
    interval = {end: shown(slope, ".2f") for end, slope in ends.items() if slope is not None}
    if growth["slope"] <= 0:
        extrapolated = SENTENCES["never"]
    elif growth["steps"] is None:
        extrapolated = SENTENCES["too_slow"].format(doublings=DOUBLINGS)
    else:
        high = "no upper end" if growth["steps_high"] is None else f"{growth['steps_high']:,.0f}"
        low = growth["steps_low"]
        between = "" if low is None else SENTENCES["steps_interval"].format(low=low, high=high)
        extrapolated = SENTENCES["steps"].format(limit=OUTLIER, steps=growth["steps"], interval=in_brackets(between))
    return SENTENCES["growth"].format(
        first_step=growth["first_step"], slope=shown(growth["slope"], "+.2f"), extrapolated=extrapolated,
        interval=in_brackets(SENTENCES["slope_interval"].format(**interval) if interval else ""),
    )  # fmt: skip


def predicted_in(rows: Table) -> str:
    """Return the kind of tokens that the arms predict."""
    return f"masked tokens ({CAUSAL_LM}: next tokens)" if CAUSAL_LM in rows.values("arm") else "masked tokens"


BY_LENGTH = XAxis(
    "length", lambda _: "tokens in a row", lambda lengths: range(len(lengths)), lambda lengths, _: [*map(str, lengths)]
)


def charts(arms: Table, lengths: Table, n_vocabulary: int) -> list[Chart]:
    """Return the losses over steps and by length, and outliers and positions by layer, a line for each arm and seed."""
    end = last_rows(arms)
    steps, layers = sorted(arms.values("step")), sorted(end.values("layer"))
    limit = Line("an outlier is beyond", layers, [OUTLIER] * len(layers))
    loss, predicted = "held-out loss, nats", predicted_in(arms)
    shown_charts = [
        Chart(
            "loss", f"prediction of {predicted}; a line for each seed",
            in_panels(_lines(arms, "loss", "step"), [*_frequencies(arms, steps)], "arms"), loss, x=BY_STEP,
            caption=f"Loss of {predicted} in held-out text, in nats, a line for each seed; a uniform guess has "
            f"ln {n_vocabulary:,} = {math.log(n_vocabulary):.2f}",
        ),
        Chart(
            "outliers", f"after the last step: an outlier is above {OUTLIER:g} sd",
            in_panels(_lines(end, "max_mean_sd"), [limit], "arms"), "farthest mean of a neuron, sd", from_zero=True,
            caption="Farthest mean of a neuron after the last step, in sd, by layer",
        ),
        Chart(
            "position", "after the last step: position predicted by a linear probe",
            in_panels(_lines(end, "position_accuracy"), what="arms"), "position accuracy", (0, 1),
            caption="Accuracy of position by a linear probe after the last step, by layer",
        ),
    ]  # fmt: skip
    if lines := _lines(lengths, "loss", "length"):
        title = "after the last step: rows longer than those of the training"
        shown_charts.append(Chart("lengths", title, in_panels(lines, what="arms"), loss, x=BY_LENGTH))
    return shown_charts


def _lines(rows: Table, column: str, x: str = "layer") -> list[Line]:
    """Return a line for each arm and seed, with a point for each x."""
    trainings = rows.where(lambda row: row.get(column) is not None).by("arm", "seed").items()
    points = {key: [of_x[0] for of_x in training.by(x).values()] for key, training in trainings}
    return [Line.of(of_x, column, arm, x=x, which=f"seed {seed}") for (arm, seed), of_x in points.items()]


def _frequencies(rows: Table, steps: Sequence[int]) -> Iterator[Line]:
    """Yield the losses by frequency: masked and next tokens are not quite equally frequent."""
    losses = {
        NEXT_FREQUENCIES if row["arm"] == CAUSAL_LM else FREQUENCIES: row["unigram_loss"] for row in rows
    }  # fmt: skip
    for name, loss in losses.items():
        yield Line(name, steps, [loss] * len(steps))
