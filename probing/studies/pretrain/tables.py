"""Columns, verdict, tables and sentences of `pretrain`, for files and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from probing.cli.options import as_options
from probing.errors import out_of_range
from probing.results import Schema, in_brackets, number, text, whole
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
class EncoderOptions:
    """The shape of the encoder and of its input; what is not given is that of the size.

    Args:
        n_layers: Number of blocks: 3 (tiny) or 12 (base).
        d_model: Width of the hidden states: 128 or 768.
        n_heads: Number of heads of a block: 4 or 12.
        d_feedforward: Width inside the MLP of a block: 512 or 3072.
        vocabulary: Number of word pieces, which are trained on the training text: 100 or 30,000.
        lowercase: Whether the text is lowercased: true or false.
        row_length: Number of tokens in a row of packed text: 16 or 512.
        initial_sd: Standard deviation of the initial weights: 0.06 or 0.02.
        dropout: Dropout of hidden states and attention: 0 or 0.1.
    """

    n_layers: int | None = None
    d_model: int | None = None
    n_heads: int | None = None
    d_feedforward: int | None = None
    vocabulary: int | None = None
    lowercase: bool | None = None
    row_length: int | None = None
    initial_sd: float | None = None
    dropout: float | None = None


@dataclass(frozen=True)
class TrainingOptions:
    """How the encoder is trained; what is not given is that of the size.

    Args:
        steps: Number of steps of the optimiser (AdamW): 1,500 (tiny) or 200,000 (base).
        batch_size: Number of rows in a batch, over all processes: 64 or 256.
        learning_rate: Highest learning rate: 2e-3 or 1e-4.
        warm_up: Number of steps in which the learning rate rises; then it falls linearly to 0: 150 or 10,000.
        beta1: Decay rate of AdamW's running mean of the gradient: 0.9.
        beta2: Decay rate of AdamW's running mean of the squared gradient: 0.98.
        epsilon: Epsilon of AdamW: 1e-6.
        weight_decay: Weight decay of AdamW: 0.01.
        masked: Share of tokens that are predicted, in all arms but causal_lm: 0.15.
        held_out_rows: Maximum number of rows of held-out text on which the loss is measured: 1,000.
        checkpoint_factor: Each checkpoint has this many times the steps of the one before: 2.
        save_every: Number of steps between saved states, from which an interrupted run continues: 100 or 1,000.
    """

    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    warm_up: int | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    weight_decay: float | None = None
    masked: float | None = None
    held_out_rows: int | None = None
    checkpoint_factor: float | None = None
    save_every: int | None = None


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
    """Return the problems with values that are out of range or contradict each other."""
    problems = []
    for name in ("n_layers", "n_heads", "d_feedforward"):
        problems += out_of_range(f"encoder.{name}", getattr(shape, name), 1)
    problems += out_of_range("encoder.d_model", shape.d_model, 2)
    problems += out_of_range("encoder.vocabulary", shape.vocabulary, 60, 2**31 - 1)
    problems += out_of_range("encoder.row_length", shape.row_length, 4)
    problems += out_of_range("encoder.initial_sd", shape.initial_sd, 1e-6, 10)
    problems += out_of_range("encoder.dropout", shape.dropout, 0, 0.99)
    for name in ("steps", "batch_size", "held_out_rows", "save_every"):
        problems += out_of_range(f"training.{name}", getattr(recipe, name), 1)
    for name in ("learning_rate", "epsilon"):
        problems += out_of_range(f"training.{name}", getattr(recipe, name), 1e-30, 1e30)
    for name in ("beta1", "beta2"):
        problems += out_of_range(f"training.{name}", getattr(recipe, name), 0, 0.999999)
    problems += out_of_range("training.weight_decay", recipe.weight_decay, 0, 1e30)
    problems += out_of_range("training.masked", recipe.masked, 0.001, 0.999)
    problems += out_of_range("training.checkpoint_factor", recipe.checkpoint_factor, 1.05, 1e30)
    problems += out_of_range("training.warm_up", recipe.warm_up, 0, recipe.steps)
    if not problems and shape.d_model % (2 * shape.n_heads):
        problems.append(
            f"`--encoder.d_model {shape.d_model}` is not a multiple of twice `--encoder.n_heads {shape.n_heads}`"
        )
    return problems


Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]
Verdict = Literal["confirmed", "refuted", "unclear", "not testable"]


# By how many nats the arm with positions is to be better than the arm without them, and than frequencies of tokens.
BETTER_THAN_NONE, BETTER_THAN_UNIGRAM = 0.5, 1.0
# Least number of seeds.
SEEDS = 3
CLAIM = "Position embeddings cause outliers (Luo, Kulmizev & Mao 2021)"
# An outlier of the mean deviates by more than this, in sd; see `probing.statistics.moments`.
OUTLIER = 5.0
# Most arms whose lines are told apart in one chart.
MOST_ARMS = 6
# What the loss is compared with: a model that knows these alone.
FREQUENCIES = "frequencies of tokens"
NEXT_FREQUENCIES = f"{FREQUENCIES}, {CAUSAL_LM}"


@dataclass(frozen=True)
class Judgement:
    """The verdict on the claim that position embeddings cause outliers, with its reason as a clause."""

    verdict: Verdict
    reason: str


def last_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the last checkpoint of each arm and seed."""
    last: dict[tuple[str, int], int] = {}
    for row in rows:
        key = (row["arm"], row["seed"])
        last[key] = max(last.get(key, 0), row["step"])
    return [row for row in rows if row["step"] == last[row["arm"], row["seed"]]]


def judge(rows: Sequence[Row]) -> Judgement:
    """Return the verdict on the claim of Luo, Kulmizev & Mao (2021) that position embeddings cause outliers.

    It is testable if, after the last step and for every seed, `learned` is better than `none` by half a nat and than
    the frequencies of tokens by one. It is refuted if `none` or `constant` has an outlier above the embeddings for some
    seed, and confirmed if `learned` has one for every seed, of at least three. It is not testable if `learned` has none
    for any seed, and unclear otherwise.
    """
    end = last_rows(rows)
    loss = {arm: {row["seed"]: row["loss"] for row in end if row["arm"] == arm} for arm in ("learned", "none")}
    unigram = {row["seed"]: row["unigram_loss"] for row in end if row["arm"] == "learned"}
    seeds = sorted(loss["learned"])
    if not seeds or seeds != sorted(loss["none"]):
        return Judgement("not testable", "the arms learned and none are needed, with the same seeds")
    for seed in seeds:
        learned, none = loss["learned"][seed], loss["none"][seed]
        for other, name, margin in (
            (none, "none", BETTER_THAN_NONE), (unigram[seed], "the frequencies of tokens", BETTER_THAN_UNIGRAM)
        ):  # fmt: skip
            if not other - learned >= margin:
                return Judgement(
                    "not testable",
                    f"with seed {seed}, learned is better than {name} by {other - learned:.2f} nats, and {margin:g} "
                    "are needed",
                )
    with_outlier = {arm: seeds_with_outlier(end, arm) for arm in ("learned", "none", "constant")}
    for arm in ("none", "constant"):
        if with_outlier[arm]:
            return Judgement("refuted", f"{arm} has an outlier with {_seeds(with_outlier[arm])}")
    if not with_outlier["learned"]:
        return Judgement("not testable", "learned has no outlier either, at this size and after these steps")
    if with_outlier["learned"] != seeds:
        return Judgement("unclear", f"learned has an outlier with {_seeds(with_outlier['learned'])} alone")
    if len(seeds) < SEEDS:
        return Judgement("unclear", f"learned has an outlier and none has not, but {SEEDS} seeds are needed")
    return Judgement("confirmed", "learned has an outlier with every seed, and none with no seed")


def seeds_with_outlier(rows: Iterable[Row], arm: str) -> list[int]:
    """Return the seeds with which an arm has an outlier of the mean in a layer above the embeddings."""
    return sorted({row["seed"] for row in rows if row["arm"] == arm and row["layer"] > 0 and is_outlier(row)})


def is_outlier(row: Row) -> bool:
    """Check whether a layer has an outlier of the mean."""
    return row["max_mean_sd"] > OUTLIER


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def trainings_of(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """Return the rows of each arm and seed, in the order of the rows."""
    by_training: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        by_training.setdefault((row["arm"], row["seed"]), []).append(row)
    return by_training


def arms_of(rows: Iterable[Row]) -> list[str]:
    """Return the arms, in the order of the rows."""
    return list(dict.fromkeys(row["arm"] for row in rows))


def frequencies_of(arm: str) -> str:
    """Return the name of an arm's reference loss: masked and next tokens are not quite equally frequent."""
    return NEXT_FREQUENCIES if arm == CAUSAL_LM else FREQUENCIES


def predicted_in(rows: Iterable[Row]) -> str:
    """Return the kind of tokens that the arms predict."""
    return f"masked tokens ({CAUSAL_LM}: of the next)" if CAUSAL_LM in arms_of(rows) else "masked tokens"


def tables(by_name: Tables) -> list[Any]:
    """Return the table of the terminal: each arm after its last step, with the range over seeds."""
    from probing.runtime.terminal import plain_table

    end = last_rows(by_name["arms"])
    table = plain_table("After the last step: mean over seeds (lowest to highest)")
    for heading in ("arm", "layer", "farthest mean, sd", "position accuracy", "by the token alone", "equivariance"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for arm in arms_of(end):
        of_arm = [row for row in end if row["arm"] == arm]
        for layer in sorted({row["layer"] for row in of_arm}):
            layer_rows = [row for row in of_arm if row["layer"] == layer]
            table.add_row(
                arm, str(layer), _range(layer_rows, "max_mean_sd"),
                _range(layer_rows, "position_accuracy"), _range(layer_rows, "token_accuracy"),
                f"{max(row['equivariance'] for row in layer_rows):.1e}",
            )  # fmt: skip
    return [table, *([_of_lengths(by_name["lengths"])] if by_name.get("lengths") else [])]


def _of_lengths(rows: Sequence[Row]) -> Any:
    """Tabulate the last layer on rows longer than in the training."""
    from probing.runtime.terminal import plain_table

    table = plain_table("Rows longer than those of the training, after the last step, in the last layer")
    for heading in (
        "arm",
        "tokens",
        "loss",
        FREQUENCIES,
        "position accuracy",
        "by the token alone",
        "farthest mean, sd",
    ):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for arm, length, top in lengths_read(rows):
        columns = ("loss", "unigram_loss", "position_accuracy", "token_accuracy", "max_mean_sd")
        has = [bool(top) and top[0].get(column) is not None for column in columns]
        cells = (_range(top, column) if is_known else "" for column, is_known in zip(columns, has, strict=True))
        table.add_row(arm, str(length), *cells)
    return table


def lengths_read(rows: Sequence[Row]) -> list[tuple[str, int, list[Row]]]:
    """Return each arm and length with a row per seed of the last layer, or without layer if only the loss exists."""
    by_length: dict[tuple[str, int], list[Row]] = {(row["arm"], row["length"]): [] for row in rows}
    last = max((row["layer"] for row in rows if row.get("layer") is not None), default=None)
    for row in rows:
        if row.get("loss") is not None and row.get("layer") in (last, None):
            by_length[row["arm"], row["length"]].append(row)
    return [(arm, length, top) for (arm, length), top in by_length.items()]


def _range(rows: Sequence[Row], column: str) -> str:
    values = [row[column] for row in rows]
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return f"{sum(values) / len(values):.2f}{in_brackets(f'{low} to {high}' if low != high else '')}"


def conclusions(by_name: Tables, growth: Mapping[str, Any] | None = None) -> list[str]:
    """Return the conclusions, a sentence for each question, with `growth` as in `results.json` if it was measured."""
    rows = by_name["arms"]
    end = last_rows(rows)
    lines = []
    for arm in arms_of(end):
        arm_rows = [row for row in end if row["arm"] == arm]
        last = max(row["layer"] for row in arm_rows)
        top = [row for row in arm_rows if row["layer"] == last]
        lines.append(
            f"{arm}: held-out loss {_range(top, 'loss')} nats, {FREQUENCIES} {_range(top, 'unigram_loss')}; "
            f"position accuracy in layer {last} {_range(top, 'position_accuracy')}, by the token alone "
            f"{_range(top, 'token_accuracy')}; {_outliers(arm_rows, arm)}."
        )
    lines += _not_read(by_name.get("lengths", ()))
    judgement = judge(rows)
    lines.append(f"{CLAIM}: {judgement.verdict}: {judgement.reason}.")
    if growth and not seeds_with_outlier(end, "learned"):
        lines.append(growth_line(growth))
    return lines


def _outliers(rows: Sequence[Row], arm: str) -> str:
    """Return a clause on an arm's outliers above the embeddings."""
    above = [row for row in rows if row["layer"] > 0]
    if seeds := seeds_with_outlier(above, arm):
        layers = sorted({row["layer"] for row in above if is_outlier(row)})
        return f"outliers with {_seeds(seeds)} (layers {', '.join(map(str, layers))})"
    most = max((row["max_mean_sd"] for row in above), default=0.0)
    return f"no outlier above the embeddings (the farthest mean is at {most:.1f} sd, an outlier beyond {OUTLIER:g})"


def _not_read(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each reason why arms were not measured at some lengths."""
    without = [row for row in rows if row.get("reason")]
    lines = []
    for reason in dict.fromkeys(row["reason"] for row in without):
        of_reason = [row for row in without if row["reason"] == reason]
        lengths = ", ".join(str(length) for length in sorted({row["length"] for row in of_reason}))
        lines.append(f"{', '.join(arms_of(of_reason))}, rows of {lengths} tokens: {reason}.")
    return lines


def growth_line(growth: Mapping[str, Any]) -> str:
    """Return a sentence on the number of steps to an outlier at the measured growth."""
    slope, low, high = growth["slope"], growth["slope_low"], growth["slope_high"]
    sentence = (
        f"From step {growth['first_step']} on, the farthest mean of learned grows by {slope:.2f} sd each time the "
    )
    sentence += "steps double" + (f" (95% interval over seeds: {low:.2f} to {high:.2f})" if low is not None else "")
    if slope <= 0:
        return f"{sentence}: at this rate there would never be an outlier."
    if growth["steps"] is None:
        return f"{sentence}: too slowly for an outlier within 30 doublings of the steps."
    reach = "no end" if growth["steps_high"] is None else f"{growth['steps_high']:,.0f}"
    ends = f" (interval: {growth['steps_low']:,.0f} to {reach})" if growth["steps_low"] is not None else ""
    return f"{sentence}: extrapolated, {OUTLIER:g} sd would be reached after {growth['steps']:,.0f} steps{ends}."


_ARM = text("arm", "What tells the encoder positions.")
_SEED = whole("seed", "Seed of the training.")
_STEP = whole("step", "Number of steps of the optimiser.")
_LOSS = number(
    "loss", "Mean cross-entropy of the tokens to predict in held-out text, in nats: masked ones, in causal_lm the next."
)
_UNIGRAM = number("unigram_loss", "The loss of a model that knows how often each token occurs and nothing else.")
ARMS = Schema("arms", "a row per arm, seed, checkpoint and layer", (
    _ARM, _SEED, _STEP, _LOSS, _UNIGRAM, layer_column(),
    whole("outlier_neuron", "The neuron with the farthest mean, where that is beyond 5 sd."),
    number("max_mean_sd", "How far the farthest mean of a neuron is from the mean of all, in sd of these."),
    number("argmax_share", "Share of tokens in which that neuron is the largest."),
    number("argmin_share", "Share of tokens in which it is the smallest."),
    number("position_accuracy", "Accuracy of a linear probe of position."),
    number("token_accuracy", "The same of a probe of the token embedding alone."),
    number("equivariance", "Largest difference of states if a row is read permuted, in root mean squares."),
))  # fmt: skip
LOSSES = Schema("losses", "a row per arm, seed and step at which a loss was noted", (
    _ARM, _SEED, _STEP,
    number("train_loss", "Mean training loss since the row before, in nats."),
    _LOSS, _UNIGRAM,
))  # fmt: skip
LENGTHS = Schema("lengths", "a row per arm, seed, length and layer, or a single one where the arm reads no such rows", (
    _ARM, _SEED, _STEP,
    whole("length", "Number of tokens in a row."),
    number("loss", "Mean cross-entropy of the tokens to predict in held-out rows of this length, in nats."),
    _UNIGRAM, layer_column(),
    whole("outlier_neuron", "The neuron with the farthest mean, where that is beyond 5 sd."),
    number("max_mean_sd", "How far the farthest mean of a neuron is from the mean of all, in sd of these."),
    number("position_accuracy", "Accuracy of a linear probe of position, trained on texts of this length."),
    number("token_accuracy", "The same of a probe of the token embedding alone."),
    text("reason", "Why the arm is not measured on rows of this length, where it is not."),
), optional=True)  # fmt: skip
