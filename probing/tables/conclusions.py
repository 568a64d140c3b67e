"""What a run's numbers allow one to conclude of a layer's first neuron, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.tables.columns import BELOW_RESOLUTION, NEGLIGIBLE, NEGLIGIBLE_NATS, UNINFORMATIVE, in_brackets, interval


def conclusion(rows: Sequence[Mapping[str, Any]], task: str) -> str:
    """Say in one sentence what the top neuron's numbers allow one to conclude.

    Args:
        rows: The whole ranked table of one layer.
        task: What the probe predicts, such as `position`.
    """
    top = rows[0]
    if not top["contribution"]:
        return f"Layer {top['layer']}: no neuron contributes, for every weight of the probe is 0."
    if top["flag"] == UNINFORMATIVE:
        return (
            f"Layer {top['layer']}: its ranking is not to be read, for the probe does not predict test tokens better, "
            f"in nats, than the constant answer of how common each class is: it shows no {task} in this layer."
        )
    who = f"Layer {top['layer']}: neuron {top['neuron']} contributes most, {top['ratio']:.1f} times the mean"
    if "rank_low" in top:
        who += f" (rank {top['rank_low']} to {top['rank_high']} over this probe and its bootstraps)"
    companion = top.get("contribution_companion")
    has_companion = isinstance(companion, float)
    left = f"{(companion if has_companion else top['contribution_centred']) / top['contribution']:.0%}"
    without_mean = "to a probe with an intercept" if has_companion else "without its mean"
    explained = f"{max(top['eta_squared'], 0):.1%} of its variance goes with {task} (z = {top['eta_squared_z']:.0f})"
    # Runs of earlier versions have no p-values.
    chance = f"chance (p = {top['eta_squared_p']:.2g})" if "eta_squared_p" in top else "chance"
    if top["flag"] == "offset no-signal":
        said = (
            f"{who}, but it is large and nearly constant, and it tells classes apart no better than {chance}: "
            f"it serves as the intercept and says nothing of {task}"
        )
    elif "offset" in top["flag"]:
        said = f"{who}, which overstates it: only {left} is left {without_mean}; {explained}, so it does carry some"
    elif "no-signal" in top["flag"]:
        no_better = f"yet alone it tells classes apart no better than {chance}"
        said = f"{who}, {no_better}: it is useful only together with others"
    else:
        said = (
            f"{who}; {left} is left {without_mean} and {explained}: it carries {task}, "
            f"as one of many, for it makes up {top['share']:.1%} of the sum"
        )
    return f"{said}{_without_it(rows)}."


def _without_it(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what the probe loses without the top neuron, beside what it loses without others."""
    top = rows[0]
    if not top.get("removed"):
        return ""
    loss = (
        f"{top['cross_entropy_without']:.4f} nats{in_brackets(interval(top, 'cross_entropy_without', ' to ', '.4f'))}"
    )
    if BELOW_RESOLUTION in top["removed"]:
        return f"; what it loses when retrained without it, {loss}, could not be resolved"
    if NEGLIGIBLE in top["removed"]:
        why = "it does as well without" if "no-signal" in top["flag"] else "other neurons carry the same information"
        return f"; retrained without it the probe loses {loss}, less than {NEGLIGIBLE_NATS} in any case: {why}"
    beside = sorted(row["cross_entropy_without"] for row in rows if str(row["removed"]).startswith("matched"))
    usual = f", without others like it {beside[len(beside) // 2]:.4f}" if beside else ""
    return f"; retrained without it the probe loses {loss}{usual}"
