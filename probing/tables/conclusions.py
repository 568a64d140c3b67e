"""Sentences on the evidence of a layer's numbers and rankings, and on the scope of intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from probing.data import ADDED_CONTROLS, CONTROLS
from probing.results import Row, Table, ends, in_brackets, interval, layers_named, listed, shown
from probing.runtime.terminal import plain_table
from probing.statistics import TOP_OF_BOOTSTRAPS, TOP_OF_PENALTIES, few_sentences
from probing.tables import (
    ALPHA,
    BASIS_KINDS,
    CENTRED,
    FAR,
    FIRST,
    NEGLIGIBLE,
    NEGLIGIBLE_NATS,
    PLAIN,
    R2,
    UNINFORMATIVE,
    UNRESOLVED,
    controls_of,
    has_intercept,
    neuron_name,
    score_of,
    score_of_neurons,
    with_intercept,
)
from probing.tables.evidence_sentences import say

# --------------------------------------------------------------------------------------------------------------------
# Sentences on the accuracies of controls beside those of a probe, by the interval of the difference.
# --------------------------------------------------------------------------------------------------------------------


def compare_with_controls(row: Mapping[str, Any], task: str) -> str:
    """Compare a layer's accuracy with each control, by the interval of the difference; without intervals, list them."""
    score = score_of(row).name
    if not controls_of([row]):
        return ""
    named = {name: f"{_called(name)} ({row[f'{name}_{score}']:.3f})" for name in controls_of([row])}
    if ends(row, score) is None:
        return say("compare_it", layer=row["layer"], names=listed(list(named.values())))
    if side_of(row, "untrained") == "below":  # what is said of it ends the sentence
        named["untrained"] = named.pop("untrained") + say("upper_bound", task=task)
    sides: dict[str, list[str]] = {}
    for name, control in named.items():
        sides.setdefault(side_of(row, name), []).append(control)
    parts = [say(side, names=listed(sides[side])) for side in SIDES if side in sides]
    return say("with_controls", layer=row["layer"], sides="; ".join(parts))


def compare_layers_with_controls(rows: Sequence[Mapping[str, Any]], task: str) -> str:
    """Compare the accuracies of ascending layers with each control, by the intervals of the differences.

    For a single layer, or without intervals, returns `compare_with_controls` of the last layer.
    """
    if len(rows) == 1:
        return compare_with_controls(rows[0], task)
    everywhere: dict[str, list[str]] = {}
    somewhere: list[str] = []
    for name in sorted(controls_of(rows), key=lambda name: name == "untrained"):
        layers = {side: [row["layer"] for row in rows if side_of(row, name) == side] for side in SIDES}
        layers = {side: of_side for side, of_side in layers.items() if of_side}
        last = next(reversed(layers), "")
        end = say("upper_bound", task=task) if (name, last) == ("untrained", "below") else ""
        if len(layers) == 1:
            everywhere.setdefault(last, []).append(f"{_called(name)}{end}")
        elif layers:
            # Named where it is first said of, in the order of the sides.
            names = [_called(name), *["it"] * (len(layers) - 1)]
            parts = [
                say("side_in", side=say(side, names=called), layers=layers_named(of_side))
                for (side, of_side), called in zip(layers.items(), names, strict=True)
            ]
            somewhere.append(f"{listed(parts)}{end}")
    if not everywhere and not somewhere:
        return compare_with_controls(rows[-1], task)
    first = [say(side, names=listed(everywhere[side])) for side in SIDES if side in everywhere]
    sentences = [say("in_every_layer", sides="; ".join(first))] if first else []
    return " ".join([*sentences, *(say("in_some_layers", parts=part) for part in somewhere)])


def not_above(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each control that the probe does not beat in some layer, by the difference's interval."""
    what, sentences = score_of(rows[0]).words, []
    for name, words in controls_of(rows).items():
        for side in ("below", "alike"):
            if layers := [row["layer"] for row in rows if side_of(row, name) == side]:
                beside = say(side, names=say("the_control", control=words))
                sentences.append(say("not_above", layers=layers_named(layers), what=what, side=beside))
    return sentences


# Controls that are other probes of what can be read, and no floors.
_NO_FLOORS = ("untransformed", "others_clipped")


def _strongest_floor(row: Row) -> tuple[str, float]:
    """Return the floor with the highest score, in words, and its score; for R² without controls, a constant answer."""
    score = score_of(row).name
    # Of positions, a model without training is a ceiling; only labels that are such numbers have `within_one`.
    ceilings = ("untrained",) if "within_one" in row else ()
    floors = [name for name in controls_of([row]) if name not in _NO_FLOORS + ceilings]
    constant = {"a constant answer": 0.0} if score == R2.name else {}
    scores = {**constant, **{_called(name): float(row[f"{name}_{score}"]) for name in floors}}
    return max(scores.items(), key=lambda item: item[1], default=("nothing", 0.0))


def leading(rows: Sequence[Row]) -> Row:
    """Return the row of the layer shown first, furthest above its strongest floor; uninformative layers come last.

    Of differences equal to three digits, the last layer is taken; rows of `accuracy.csv` ascend by layer.
    """
    return max(reversed(rows), key=lambda row: (row.get("flag") != UNINFORMATIVE, _above_floor(row)))


def _above_floor(row: Row) -> float:
    return round(row[score_of(row).name] - _strongest_floor(row)[1], 3)


def why_leading(rows: Sequence[Row]) -> str:
    """Explain which layer's neurons are shown first, and why; empty for a single layer."""
    if len(rows) == 1:
        return ""
    row = leading(rows)
    floor, value = _strongest_floor(row)
    among = say("among_readable") if any(layer_row.get("flag") == UNINFORMATIVE for layer_row in rows) else ""
    apart = _above_floor(row)
    return say(
        "leading", layer=row["layer"], what=score_of(row).words, apart=apart, floor=floor, value=value, among=among
    )  # fmt: skip


# Results of comparing a score with that of a control, by the names of their words in `SENTENCES`.
SIDES = ("above", "alike", "below")


def side_of(row: Mapping[str, Any], name: str) -> str:
    """Return whether a layer's score is above, alike or below a control's; empty without intervals."""
    if (apart := ends(row, f"above_{name}")) is None:
        return ""
    return "above" if apart[0] > 0 else "below" if apart[1] < 0 else "alike"


def _called(name: str) -> str:
    return "the majority class" if name == "majority" else {**CONTROLS, **ADDED_CONTROLS}[name].called


# --------------------------------------------------------------------------------------------------------------------
# Neurons beside directions, and features beside other units of the same hidden states: tables and sentences.
# --------------------------------------------------------------------------------------------------------------------

FEATURES = "features"
_MARKS = {"better": "", "unresolved": "°", "worse": "−"}
_SENTENCES = {"better": "better_with", "unresolved": "unresolved_with", "worse": "worse_with"}


def bases_table(rows: Sequence[Row]) -> Any:
    """Return the accuracies of one layer as a rich table, a row per number of units."""
    first = {name: of_basis[0] for name, of_basis in Table(rows).by("basis").items()}
    names = list(first)
    table = plain_table(f"Layer {rows[0]['layer']}: accuracy of the first k units of each basis")
    for heading in ("k", FEATURES, "95% range", *names[1:]):
        table.add_column(heading, justify="right", no_wrap=heading == "k")
    cells = {(row["basis"], row["k"]): row for row in rows}
    for k in dict.fromkeys(row["k"] for row in rows):
        feature_row = cells[FEATURES, k]
        others = [cells[name, k] for name in names[1:]]
        shown = [f"{row['accuracy']:.3f}{_MARKS[row['features']]}" for row in others]
        table.add_row(str(k), f"{feature_row['accuracy']:.3f}", interval(feature_row, "accuracy"), *shown)
    drawn = first["random features"]
    table.caption = "; ".join([
        say("note_of_bases", majority=drawn["majority_accuracy"], n=drawn["n_draws"]),
        say("note_of_activity", features=first[FEATURES]["n_active"], n_features=first[FEATURES]["n_units"],
            random=drawn["n_active"]),
    ])  # fmt: skip
    return table


def bases_lines(rows: Sequence[Row], task: str) -> list[str]:
    """Return conclusions from `bases.csv` on where features are better than each basis, and where they are not."""
    lines = []
    for layer, layer_rows in Table(rows).where(lambda row: row["basis"] != FEATURES).by("layer").items():
        never: list[str] = []
        for name, of in layer_rows.by("basis").items():
            parts = [_part(verdict, of.where(features=verdict)) for verdict in _MARKS]
            lines.append(say("beside_basis", layer=layer, basis=name, parts="; ".join(filter(None, parts))))
            never += [name] * all(row["features"] != "better" for row in of)
        if never:
            lines.append(say("no_better_than", layer=layer, task=task, others=f"as many {listed(never)}"))
    return lines


def _part(verdict: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    most = max(abs(row["difference"]) for row in rows)
    return say(_SENTENCES[verdict], counts=listed([str(row["k"]) for row in rows]), most=most)


# --- neurons beside directions ---


def basis(
    rows: Sequence[Row], beside: Sequence[Row] = (), task: str = "", config: Mapping[str, Any] | None = None,
    in_short: bool = False,
) -> list[str]:  # fmt: skip
    """Return whether layers favour neurons over directions, without layers that have an uninformative ranking.

    Takes rows of `accuracy.csv` and of `basis.csv`; without the latter, the sentence is that directions were not
    measured.
    """
    layers = [row["layer"] for row in rows if row.get("flag") != UNINFORMATIVE]
    if not layers:
        return []
    of_layers = {kind: {row["layer"]: row for row in beside if row["kind"] == kind} for kind in BASIS_KINDS}
    pairs = [(of_layers[PLAIN][layer], of_layers[CENTRED][layer]) for layer in layers if layer in of_layers[PLAIN]]
    if not pairs:
        return [say("basis")]
    if in_short and len(pairs) > 1:
        sentences = _favouring_layers([plain for plain, _ in pairs], task, leading(rows)["layer"])
    else:
        sentences = [_favouring(plain, centred, task) for plain, centred in pairs]
    return sentences + [say("optimum_of_neurons")] * bool(((config or {}).get("probe") or {}).get("l1"))


def _favouring(plain: Row, centred: Row, task: str) -> str:
    favours, beside = _favours(plain), ""
    if favours != _favours(centred):
        beside = say("centred_favours_not" if favours else "centred_favours", **_shares(centred))
    name, n, direction = "favours_neurons" if favours else "favours_no_neurons", plain["n_above"], _direction(plain)
    neurons = f"{n:,} neuron{' contributes' if n == 1 else 's contribute'}"
    above = say("n_above" if n else "none_above", neurons=neurons, direction=direction, task=task)
    return say(name, layer=plain["layer"], centred=beside, above=above, **_shares(plain))


def _favouring_layers(rows: Sequence[Row], task: str, shown_layer: int) -> list[str]:
    sentences = []
    for favours in (True, False):
        name = "layers_favour_neurons" if favours else "layers_favour_no_neurons"
        if same_side := [row for row in rows if _favours(row) == favours]:
            layers = [row["layer"] for row in same_side]
            default = same_side[-1 if favours else 0]
            shown_of = next((row for row in same_side if row["layer"] == shown_layer), default)
            example = say("example_layer", layer=shown_of["layer"]) if len(same_side) > 1 else ""
            sentences.append(say(name, layers=layers_named(layers), example=example, **_shares(shown_of)))
    if none := [row["layer"] for row in rows if not row["n_above"]]:
        sentences.append(say("layers_none_above", layers=layers_named(none), direction=_direction(rows[0]), task=task))
    return sentences


def _share(row: Row) -> str:
    """Return the column that decides for a layer: of few neurons the first ten would be nearly all."""
    return f"first_{FIRST}_share" if row["n_neurons"] >= 4 * FIRST else "first_share"


def favours_neurons(beside: Sequence[Row], layer: int) -> bool:
    """Return whether a layer favours neurons over directions, by rows of `basis.csv`."""
    return any(_favours(row) for row in beside if row["kind"] == PLAIN and row["layer"] == layer)


def _favours(row: Row) -> bool:
    return bool(row[f"{_share(row)}_p"] <= ALPHA)


def _shares(row: Row) -> dict[str, Any]:
    share = _share(row)
    is_largest = share == "first_share"
    return {
        "first": "first makes up" if is_largest else f"first {FIRST} make up", "n": row["n_rotations"],
        "directions": "one random direction" if is_largest else f"{FIRST} random directions",
        "share": row[share], "lowest": row[f"{share}_lowest"], "highest": row[f"{share}_highest"],
    }  # fmt: skip


def _direction(row: Row) -> str:
    """Return the bar that neurons exceed: with few rotations, all directions of all rotations."""
    every = 2 / (1 + row["n_rotations"]) > ALPHA
    return "any direction" if every else f"the largest direction of 95% of {row['n_rotations']} rotations"


# Columns that loggers show as curves over layers.
_CURVES = (f"first_{FIRST}_share", *(f"first_{FIRST}_share_{of}" for of in ("directions", "highest", "p")), "n_above")


def with_basis(accuracy: Sequence[Row], beside: Sequence[Row]) -> list[Row]:
    """Return the rows of `accuracy.csv` with each layer's comparison with directions from `basis.csv`, for loggers."""
    of_layers = {row["layer"]: {name: row[name] for name in _CURVES} for row in beside if row["kind"] == PLAIN}
    return [{**row, **of_layers.get(row["layer"], {})} for row in accuracy]


def is_above_directions(row: Mapping[str, Any]) -> bool:
    """Return whether a neuron contributes more than directions, and if flagged `offset`, also when centred.

    False without rotations.
    """
    names = ["direction_p", *["direction_p_centred"] * ("offset" in row["flag"])]
    return all(isinstance(row.get(name), float) and row[name] <= ALPHA for name in names)


def beside_directions(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of `neurons.csv` of rotated neurons: none without rotations, and no dead neurons."""
    ends = ("direction_lowest", "direction_highest")
    return [row for row in rows if all(isinstance(at := row.get(end), float) and math.isfinite(at) for end in ends)]


def as_a_direction(top: Mapping[str, Any]) -> str:
    """Return the sentence that a direction contributes as much; empty if none does, or none was measured."""
    return say("as_a_direction", p=top["direction_p"]) if "direction" in top["flag"].split() else ""


# A centred contribution within this share of the contribution itself counts as nearly unchanged.
UNCHANGED = 0.05
# False discovery rate below which a neuron surely varies with the label.
SURE = 1e-3
# Neurons of a group that are named.
MOST_NAMED = 8


class Sentences(NamedTuple):
    """Sentences on a run, or on the first neuron of a layer: the answer, what speaks against it, and further ones."""

    answer: list[str]
    doubts: list[str]
    details: list[str]


def conclusion(
    rows: Sequence[Mapping[str, Any]], task: str, layer: Mapping[str, Any] | None = None, covariate: str = "",
    bias: bool = False, dependent: str = "",
) -> str:  # fmt: skip
    """Return the evidence on the top neuron of the ranked table of one layer, in a few sentences; see `on_neuron`."""
    return " ".join(chain(*on_neuron(rows, task, layer, covariate, bias, dependent)))


def on_neuron(
    rows: Sequence[Mapping[str, Any]], task: str, layer: Mapping[str, Any] | None = None, covariate: str = "",
    bias: bool = False, dependent: str = "",
) -> Sentences:  # fmt: skip
    """Return the evidence on the top neuron of the ranked table of one layer.

    `layer` is the layer's row of `accuracy.csv`, for the controls that see only the token, or the covariate.
    `covariate` and `dependent` are from `covariate_words` and `dependent_unit`; with a dependent unit, no p-value is a
    claim.
    """
    top = rows[0]
    if not top["contribution"]:
        return Sentences([say("no_weights", layer=top["layer"])], [], [])
    if top["flag"] == UNINFORMATIVE:
        return Sentences([_unread(rows, task, layer or {}, bias, dependent)], [], [])
    first = [neuron_name(row) for row in rows if row["rank"] == top["rank"]]
    values = {"layer": top["layer"], "ratio": top["ratio"], "share": top["share"], "range": _range(top)}
    who = say("most", neuron=neuron_name(top), **values) if len(first) == 1 else say(
        "most_equal", neurons=_named(first), neuron=neuron_name(top), **values
    )  # fmt: skip
    parts = Sentences(
        [who, _of_itself(top, task, layer, dependent), _without_it(rows)],
        [*_confounds(layer, task, covariate), as_a_direction(top), _first_unflagged(rows), _missing_evidence(top)],
        [_correlated(rows), _within_covariate(top, task, covariate, dependent), _in_control_tasks(top)],
    )
    return Sentences(*([sentence for sentence in part if sentence] for part in parts))


def _unread(rows: Sequence[Mapping[str, Any]], task: str, layer: Mapping[str, Any], bias: bool, dependent: str) -> str:
    is_number = score_of_neurons(rows[0]) is R2
    column, values = "r2" if is_number else "information", {"measure": "R²" if is_number else "nats", "task": task}
    sentence = say("unread", layer=rows[0]["layer"], **values)
    if known(layer, f"{column}_high") and layer[f"{column}_high"] < 0:
        sentence = say("worse", layer=rows[0]["layer"], interval=interval(layer, column, " to ", ".4f"), **values)
    why = [] if bias else _far_mean(rows)
    why += [] if bias or dependent else _varies_by_itself(rows, task, layer, is_number)
    return f"{sentence} {say('no_intercept', why=listed(why))}" if why else sentence


def _far_mean(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    live = [row for row in rows if row["flag"] != "dead" and known(row, "sd") and row["sd"] > 0]
    far, _, name = max(
        ((abs(row["mean"]) / row["sd"], row["neuron"], neuron_name(row)) for row in live), default=(0.0, 0, "")
    )
    return [say("far_mean", neuron=name, far=far)] if far > FAR else []


def _varies_by_itself(
    rows: Sequence[Mapping[str, Any]], task: str, layer: Mapping[str, Any], is_number: bool
) -> list[str]:
    """Name the neuron that varies most surely with labels that a probe predicts worse than the majority class does."""
    q, _, neuron = min(
        ((row["eta_squared_q"], row["neuron"], neuron_name(row)) for row in rows if known(row, "eta_squared_q")),
        default=(1, 0, ""),
    )
    score, floor = (layer.get("r2"), 0) if is_number else (layer.get("accuracy"), layer.get("majority_accuracy"))
    if q >= SURE or score is None or floor is None or score >= floor:
        return []
    return [say("varies_by_itself_number" if is_number else "varies_by_itself", neuron=neuron, task=task, q=q)]


def _correlated(rows: Sequence[Mapping[str, Any]]) -> str:
    group = rows[0].get("correlated_group")
    alike = [row for row in rows[1:] if isinstance(group, int) and row.get("correlated_group") == group]
    names = [neuron_name(row) for row in sorted([rows[0], *alike], key=lambda row: row["neuron"])]
    return say("correlated", neurons=_named(names)) if alike else ""


def _named(neurons: Sequence[str]) -> str:
    more = [f"{len(neurons) - MOST_NAMED} more"] if len(neurons) > MOST_NAMED else []
    return listed([*neurons[:MOST_NAMED], *more])


def first_unflagged(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the first neuron of a ranking without a flag; None if all are flagged."""
    return next((row for row in rows if not row["flag"]), None)


def _first_unflagged(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows[0]["flag"]:
        return ""
    row, layer = first_unflagged(rows), rows[0]["layer"]
    if row is None:
        return say("all_flagged", layer=layer)
    return say("first_unflagged", layer=layer, neuron=neuron_name(row), rank=row["rank"])


def _of_itself(top: Mapping[str, Any], task: str, layer: Mapping[str, Any] | None, dependent: str) -> str:
    """Return the sentence on the relation between the neuron and what is predicted."""
    shows = "be correlated with the number" if score_of_neurons(top) is R2 else "distinguish the classes"
    rate = f", q = {top['eta_squared_q']:.2g}" if "eta_squared_q" in top else ""
    chance = f"chance (p = {top['eta_squared_p']:.2g}{rate})"
    flags = top["flag"].split()
    if {"offset", "no-signal"} <= {*flags}:
        return say("intercept_only", shows=shows, chance=chance, task=task)
    if "no-signal" in flags:
        return say("only_together", shows=shows, chance=chance)
    is_offset = "offset" in flags
    centred = _centred(top, "only " * is_offset)
    begin = f"{centred[0].upper()}{centred[1:]}"
    if dependent:
        return say("unjudged", Centred=begin, task=task, unit=dependent, advice=_advice(dependent))
    explained = say("explained", share=max(top["eta_squared"], 0), z=top["eta_squared_z"])
    is_confounded = "confound" in flags or any(_is_enough(layer, name) for name in _ALONE)
    carries = carries_it(top) and is_above_directions(top) and not is_confounded
    if is_offset:
        name = "carries_some" if carries else "varies_though_offset"
        return say(name, centred=centred, explained=explained, task=task)
    return say("carries" if carries else "varies", Centred=begin, explained=explained, task=task)


def carries_it(row: Mapping[str, Any]) -> bool:
    """Return whether the probe is demonstrably worse without a neuron, with an error rate over all removed neurons.

    The loss must be above 0 with a p-value of at most `ALPHA` that is corrected for the layer's removed neurons, and
    its interval must reach `NEGLIGIBLE_NATS`. False for a neuron that was not removed.
    """
    p, loss = row.get("removed_p"), ends(row, score_of_neurons(row).without) if row.get("removed") else None
    return loss is not None and isinstance(p, float) and p <= ALPHA and loss[0] > 0 and loss[1] >= NEGLIGIBLE_NATS


# Controls that see nothing but what the labels may be confounded with, with the sentence on a probe that does not beat
# them.
_ALONE = {"token": "token_is_enough", "covariate": "covariate_is_enough"}


def _is_enough(layer: Mapping[str, Any] | None, control: str) -> bool:
    return layer is not None and side_of(layer, control) in ("below", "alike")


def _confounds(layer: Mapping[str, Any] | None, task: str, covariate: str) -> list[str]:
    sentences = []
    for control, name in _ALONE.items():
        if layer is not None and _is_enough(layer, control):
            score = score_of(layer)
            both = f"{layer[score.name]:.3f} against {layer[f'{control}_{score.name}']:.3f}"
            sentences.append(say(name, both=both, task=task, covariate=covariate))
    return sentences


def covariate_words(config: Mapping[str, Any]) -> str:
    """Return the covariate of a run in words; empty without a covariate."""
    covariate = config.get("control_for")
    if not covariate:
        return ""
    return {"token": "the token", "covariate": "the covariate"}.get(str(covariate), str(covariate).rpartition(":")[2])


def held_fixed(results: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return which tokens are compared within the covariate; empty without a covariate."""
    if "covariate" not in results:
        return ""
    n_train = results["n_example_tokens"]["train"]
    return say("held_fixed", covariate=covariate_words(config), n_train=n_train, **results["covariate"])


def _within_covariate(top: Mapping[str, Any], task: str, covariate: str, dependent: str) -> str:
    if not known(top, "within_covariate_q") or "no-signal" in top["flag"]:
        return ""
    if "confound" in top["flag"]:
        return say(
            "covariate_not", covariate=covariate, task=task, p=top["within_covariate_p"], q=top["within_covariate_q"]
        )
    if dependent:
        return ""
    return say(
        "covariate_too",
        covariate=covariate,
        task=task,
        share=max(top["within_covariate_eta_squared"], 0),
        q=top["within_covariate_q"],
    )


def _in_control_tasks(top: Mapping[str, Any]) -> str:
    share = top.get("control_task_share")
    return say("share_of_control_task", share=share) if isinstance(share, float) else ""


def _missing_evidence(top: Mapping[str, Any]) -> str:
    lacking = [say("its_stability")] if "rank_low" not in top else []
    lacking += [say("its_loss")] if not top.get("removed") else []
    return say("not_measured", what=listed(lacking)) if lacking else ""


def _range(top: Mapping[str, Any]) -> str:
    if "rank_low" not in top:
        return ""
    if top["rank_low"] == top["rank_high"]:
        return say("one_rank", rank=top["rank_low"])
    return say("ranks", low=top["rank_low"], high=top["rank_high"])


def _centred(top: Mapping[str, Any], only: str = "") -> str:
    """Return the share of the contribution that remains once the neuron cannot replace the intercept."""
    value = with_intercept(top)
    if value is not None:
        return say("left_with_intercept", only=only, left=value / top["contribution"])
    share = top["contribution_centred"] / top["contribution"]
    if abs(share - 1) <= UNCHANGED:
        return say("unchanged", left=share)
    return say("raised", left=share) if share > 1 else say("left", only=only, left=share)


def _without_it(rows: Sequence[Mapping[str, Any]]) -> str:
    top = rows[0]
    if not top.get("removed"):
        return ""
    score, removed = score_of_neurons(top), str(top["removed"])
    value, sign = top[score.without], -1 if top[score.without] < 0 else 1
    # Of a gain, the interval is that of the gain.
    between = in_brackets(interval(top, score.without, " to ", ".4f", times=sign))
    changes = f"{_lost(value)}{score.unit}{between}"
    if UNRESOLVED in removed:
        return say("unresolved", changes=changes)
    if NEGLIGIBLE in removed:
        name = "negligible_without_signal" if "no-signal" in top["flag"] else "negligible"
        return say(name, changes=changes, least=NEGLIGIBLE_NATS)
    beside = sorted(row[score.without] for row in rows if str(row["removed"]).startswith("matched"))
    baseline = say("beside", changes=_lost(beside[len(beside) // 2])) if beside else ""
    return say("loses", changes=changes, beside=baseline)


def _lost(value: float) -> str:
    return f"{'gains' if value < 0 else 'loses'} {shown(abs(value), '.4f')}"


def overlaps(layer: Mapping[str, Any], n_neurons: int) -> str:
    """Return the stability of a layer's ranking over penalties and samples; empty if uninformative or not measured."""
    parts = []
    if layer.get("flag") == UNINFORMATIVE:
        return ""
    if known(layer, "more_penalty_overlap"):
        parts.append(
            say(
                "overlap_of_penalties", more=layer["more_penalty_overlap"], less=layer["less_penalty_overlap"],
                spearman_more=layer["more_penalty_spearman"], spearman_less=layer["less_penalty_spearman"],
                top=min(TOP_OF_PENALTIES, n_neurons),
            )
        )  # fmt: skip
    if known(layer, "bootstrap_overlap"):
        top = min(TOP_OF_BOOTSTRAPS, n_neurons)
        parts.append(say("overlap_of_bootstraps", share=layer["bootstrap_overlap"], top=top))
    return say("overlaps", layer=layer["layer"], parts="; ".join(parts)) if parts else ""


def known(row: Mapping[str, Any], column: str) -> bool:
    """Return whether a row has a finite number in a column."""
    value = row.get(column)
    return isinstance(value, float | int) and math.isfinite(value)


def few_clusters(results: Mapping[str, Any]) -> str | None:
    """Return a sentence on why a run has no intervals, from its `results.json`; None if it has intervals."""
    over = _over(results)
    return few_sentences(over["n"], f"test {over['unit']}")


def scope(results: Mapping[str, Any], test_corpus: str | None) -> str:
    """Return the unit of a run's intervals or the reason for none, the dependence of the unit, and rounding."""
    return " ".join(filter(None, (_interval_scope(results, test_corpus), _dependence(results), _rounding(results))))


def _interval_scope(results: Mapping[str, Any], test_corpus: str | None) -> str:
    if few := few_clusters(results):
        return few
    over = _over(results)
    if over["unit"] in ("row", "group"):  # from arrays, whose origin is not known
        return say("over_arrays", **over)
    if not test_corpus:
        if over["unit"] == "document":
            return say("over_documents", **over)
        if n_documents := results.get("cache", {}).get("test", {}).get("n_documents"):
            return say("over_sentences_of_documents", **over, n_documents=n_documents)
    of = test_corpus if test_corpus else "the same corpus; --test_corpus tests on another text"
    return say("over_units", **over, of=of)


def dependent_unit(results: Mapping[str, Any]) -> str:
    """Return the unit that is not independent, `row` or `sentence`; empty if labels do not indicate dependence."""
    return str(_over(results)["unit"]) if "correlation_of_neighbours" in results else ""


def _dependence(results: Mapping[str, Any]) -> str | None:
    if not (unit := dependent_unit(results)):
        return None
    return say("neighbours", unit=unit, correlation=results["correlation_of_neighbours"], advice=_advice(unit))


def _advice(unit: str) -> str:
    return say("give_groups" if unit == "row" else "mark_documents")


def _rounding(results: Mapping[str, Any]) -> str | None:
    # Arrays have no entry in the cache.
    dtype = results.get("cache", {}).get("train", {}).get("key", {}).get("dtype", "float32")
    return None if dtype == "float32" else say("rounded", dtype=dtype)


def _over(results: Mapping[str, Any]) -> Mapping[str, Any]:
    # Earlier versions did not record it: their intervals are over sentences.
    over: Mapping[str, Any] | None = results.get("intervals_over")
    return over or {"unit": "sentence", "n": results["n_sentences"]["test"]}


def layer_conclusions(
    row: Row, ranked: Sequence[Row], task: str, results: Mapping[str, Any], config: Mapping[str, Any]
) -> list[str]:
    """Return the conclusion on a layer's ranking, from its row of `accuracy.csv`, and the stability of the ranking."""
    covariate, dependent = covariate_words(config), dependent_unit(results)
    of_first = conclusion(ranked, task, row, covariate, has_intercept(config), dependent)
    return [sentence for sentence in (of_first, overlaps(row, len(ranked))) if sentence]


def ranking_conclusions(
    accuracy: Sequence[Row], neurons: Sequence[Row], task: str, results: Mapping[str, Any], config: Mapping[str, Any],
    beside: Sequence[Row] = (),
) -> list[str]:  # fmt: skip
    """Return the conclusion on the ranking of each layer, and the scope of all; `beside` has rows of `basis.csv`."""
    lines: list[str] = []
    ranked = Table(neurons).by("layer")
    for row, fitted in zip(accuracy, results["layers"], strict=True):
        lines += layer_conclusions(row, ranked[row["layer"]], task, results, config)
        if not fitted["converged"]:
            lines.append(say("stopped_short", layer=row["layer"], gap=fitted["optimality_gap"]))
    lines += [
        *basis(accuracy, beside, task, config),
        held_fixed(results, config),
        scope(results, config["test_corpus"]),
    ]
    return [line for line in lines if line]
