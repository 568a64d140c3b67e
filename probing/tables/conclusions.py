"""Sentences on what the numbers of a layer support: on its first neuron, and compared with its controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.tables.columns import (
    BELOW_RESOLUTION,
    NEGLIGIBLE,
    NEGLIGIBLE_NATS,
    R2,
    UNINFORMATIVE,
    controls_of,
    ends,
    in_brackets,
    interval,
    score_of,
    score_of_neurons,
    with_intercept,
)
from probing.tables.wording import layers_named, listed

# A centred contribution within this share of the contribution itself counts as nearly unchanged.
UNCHANGED = 0.05


def conclusion(rows: Sequence[Mapping[str, Any]], task: str, layer: Mapping[str, Any] | None = None) -> str:
    """Return what the top neuron's numbers support, in a few sentences.

    Args:
        rows: The whole ranked table of one layer.
        task: What the probe predicts, such as `position`.
        layer: The layer's row of `accuracy.csv`, for the control that sees the token alone.
    """
    top = rows[0]
    if not top["contribution"]:
        return f"Layer {top['layer']}: no neuron contributes, because every weight of the probe is 0."
    score = score_of_neurons(top)
    measure, apart = ("R²", "going with the number") if score is R2 else ("nats", "telling the classes apart")
    if top["flag"] == UNINFORMATIVE:
        return (
            f"Layer {top['layer']}: do not read its ranking. In {measure}, it is not resolved whether the probe "
            "predicts the test part better than a constant answer does. The comparison with the controls may still "
            f"show that {task} can be read in this layer."
        )
    who = f"Layer {top['layer']}: neuron {top['neuron']} contributes most, {top['ratio']:.1f} times the layer's mean"
    explained = (
        f"{task} explains {max(top['eta_squared'], 0):.1%} of its variance beyond chance "
        f"(z = {top['eta_squared_z']:.0f})"
    )
    # Runs of earlier versions have no p-values.
    chance = "chance"
    if "eta_squared_p" in top:
        rate = f", q = {top['eta_squared_q']:.2g}" if "eta_squared_q" in top else ""
        chance += f" (p = {top['eta_squared_p']:.2g}{rate})"
    if top["flag"] == "offset no-signal":
        said = (
            f"It is large and nearly constant, and is not shown by itself to be {apart} beyond {chance}: it stands in "
            f"for the missing intercept and is no evidence of {task}"
        )
    elif "offset" in top["flag"]:
        carries = _carries(top, layer, "some ")
        said = f"This overstates it: {_centred(top, 'only ')}. Still, {explained}: it {carries}{task}"
    elif "no-signal" in top["flag"]:
        alone = f"By itself it is not shown to be {apart} beyond {chance}"
        said = f"{alone}: it can be useful only together with other neurons"
    else:
        centred = _centred(top)
        said = (
            f"{centred[0].upper()}{centred[1:]}, and {explained}: it {_carries(top, layer)}{task} and makes up "
            f"{top['share']:.1%} of the layer's total contribution"
        )
    return f"{who}{_range(top)}. {said}.{_without_it(rows)}{_beside_the_token(layer, task)}{_not_measured(top)}"


def _carries(top: Mapping[str, Any], layer: Mapping[str, Any] | None, how_much: str = "") -> str:
    """Return the verb for a neuron that tells the classes apart: it carries them if a probe without it does worse.

    The loss must be above 0 by its whole interval, and its interval must reach `NEGLIGIBLE_NATS`. Where the token alone
    is enough, the neuron may do no more than tell tokens apart.

    Args:
        top: The neuron's row.
        layer: The layer's row of `accuracy.csv`.
        how_much: Text after the verb `carries`, such as `some `.
    """
    loss = ends(top, score_of_neurons(top).without) if top.get("removed") else None
    is_worse = loss is not None and loss[0] > 0 and loss[1] >= NEGLIGIBLE_NATS
    return f"carries {how_much}" if is_worse and not _token_is_enough(layer) else "varies with "


def _token_is_enough(layer: Mapping[str, Any] | None) -> bool:
    return layer is not None and _side(layer, "token") in (BELOW, ALIKE)


def _beside_the_token(layer: Mapping[str, Any] | None, task: str) -> str:
    """Say that a probe of the token alone is not beaten; return an empty text where it is, or was not measured."""
    if layer is None or not _token_is_enough(layer):
        return ""
    score = score_of(layer)
    both = f"{layer[score.name]:.3f} against {layer[f'token_{score.name}']:.3f}"
    return (
        f" The probe is not shown to do better than one that sees the token alone ({both}), so that this is no "
        f"evidence of {task} beyond the token."
    )


def _not_measured(top: Mapping[str, Any]) -> str:
    """Say which evidence on the neuron the run did not measure; return an empty text if it measured all."""
    lacking = ["how stable its rank is"] if "rank_low" not in top else []
    lacking += ["what a probe loses without it"] if not top.get("removed") else []
    return f" This run did not measure {listed(lacking)}." if lacking else ""


def _range(top: Mapping[str, Any]) -> str:
    """Return the best and the worst rank in brackets; nothing where there were no bootstraps."""
    if "rank_low" not in top:
        return ""
    if top["rank_low"] == top["rank_high"]:
        return f" (rank {top['rank_low']} in this probe and all its bootstraps)"
    return f" (rank {top['rank_low']} to {top['rank_high']} over this probe and its bootstraps)"


def _centred(top: Mapping[str, Any], only: str = "") -> str:
    """Say how much of the contribution is left once the neuron cannot stand in for the intercept.

    Args:
        top: The neuron's row.
        only: Text before the share that is left, such as `only `.
    """
    value = with_intercept(top)
    if value is not None:
        left = value / top["contribution"]
        return f"in a probe with an intercept {only}{left:.0%} of its contribution is left"
    left = top["contribution_centred"] / top["contribution"]
    if abs(left - 1) <= UNCHANGED:
        return f"centring leaves its contribution nearly unchanged ({left:.0%})"
    return f"centring raises it to {left:.0%}" if left > 1 else f"centring leaves {only}{left:.0%} of its contribution"


def _without_it(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what the probe loses without the top neuron, compared with what it loses without others."""
    top = rows[0]
    if not top.get("removed"):
        return ""
    score = score_of_neurons(top)
    within = in_brackets(interval(top, score.without, " to ", ".4f"))
    loss = f" A probe retrained without it loses {top[score.without]:.4f}{score.unit}{within}"
    if BELOW_RESOLUTION in top["removed"]:
        return f"{loss}: whether anything is lost could not be resolved."
    if NEGLIGIBLE in top["removed"]:
        no_signal = "no-signal" in top["flag"]
        why = "the probe does as well without it" if no_signal else "other neurons carry the same information"
        return f"{loss}, less than {NEGLIGIBLE_NATS} over the whole interval: {why}."
    beside = sorted(row[score.without] for row in rows if str(row["removed"]).startswith("matched"))
    usual = f", and {beside[len(beside) // 2]:.4f} without a matched random neuron (median)" if beside else ""
    return f"{loss}{usual}."


def held_against(row: Mapping[str, Any]) -> str:
    """Compare a layer's accuracy with each control, by the interval of the difference.

    Where there are no intervals, only the controls and their accuracies are listed.

    Args:
        row: The layer's row of `accuracy.csv`.
    """
    score = score_of(row).name
    if not controls_of([row]):
        return ""
    if ends(row, score) is None:
        beside = [
            f"{_called(name, words)} ({row[f'{name}_{score}']:.3f})" for name, words in controls_of([row]).items()
        ]
        return f"In layer {row['layer']}, compare it with {listed(beside)}."
    sides: dict[str, list[str]] = {}
    for name, words in controls_of([row]).items():
        sides.setdefault(_side(row, name), []).append(f"{_called(name, words)} ({row[f'{name}_{score}']:.3f})")
    parts = [f"{side} {listed(sides[side])}" for side in (ABOVE, BELOW, ALIKE) if side in sides]
    return f"In layer {row['layer']} it is {'; '.join(parts)}."


def not_above(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each control that is not beaten in some layer, by the interval of the difference.

    Args:
        rows: Rows of `accuracy.csv`, ascending by layer.
    """
    what = "R²" if score_of(rows[0]) is R2 else "accuracy"
    found = []
    for name, words in controls_of(rows).items():
        for side in (BELOW, ALIKE):
            if layers := [row["layer"] for row in rows if _side(row, name) == side]:
                found.append(f'In {layers_named(layers)} the {what} is {side} the control "{words}".')
    return found


# Results of comparing a score with that of a control.
ABOVE, BELOW, ALIKE = "above", "below", "not told apart from"


def _side(row: Mapping[str, Any], name: str) -> str:
    """Return how a layer's score lies to a control's; empty where there are no intervals."""
    if (apart := ends(row, f"above_{name}")) is None:
        return ""
    return ABOVE if apart[0] > 0 else BELOW if apart[1] < 0 else ALIKE


def _called(name: str, words: str) -> str:
    """Return the name of a control in a sentence."""
    noun = {
        "majority": "the majority class", "shuffled": words, "permuted_positions": words,
        "untrained": "the randomly initialised model", "untransformed": "the states as they are",
        "others_clipped": "other neurons clipped",
    }  # fmt: skip
    return noun.get(name, f"the {words}")
