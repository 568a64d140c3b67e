"""Options of `pretrain`: the shape of the encoder and how it is trained; help texts are read from here.

This file imports nothing heavy, because the command line reads it before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from probing.cli.options import as_options
from probing.errors import out_of_range

Size = Literal["tiny", "base"]
# The arm that predicts next tokens in place of masked ones.
CAUSAL_LM = "causal_lm"
ARMS = (
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
    """Return the shape and the training of a size, with what the user gives in place of it."""
    shape, recipe = _SIZES[size]
    groups = as_options(EncoderOptions, encoder, "encoder"), as_options(TrainingOptions, training, "training")
    given = [{name: value for name, value in asdict(some).items() if value is not None} for some in groups]
    return replace(shape, **given[0]), replace(recipe, **given[1])


def row_multiples(typed: int | list[int] | str | None) -> tuple[list[int], list[str]]:
    """Return the lengths that `--lengths` names, ascending, in lengths of the training's rows, and problems with it."""
    if typed is None:
        return [], []
    parts = typed.split(",") if isinstance(typed, str) else [typed] if isinstance(typed, int) else typed
    try:
        found = sorted({int(part) for part in parts})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        return [], [f"`--lengths {typed}` are no lengths; give whole numbers from 1 on, such as 1,2,4"]
    return found, []


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
