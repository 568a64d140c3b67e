"""The terms of a page: the meaning of every heading in its tables and every name in its charts, part by part."""

from __future__ import annotations

import re
from collections.abc import Collection
from html import unescape

from probing.data.control_names import ADDED_CONTROLS, CONTROLS
from probing.page.neurons import COLUMNS, flags_of
from probing.results.rows import Html, element, pairs
from probing.runs.study import Terms
from probing.tables.columns import FAR, NEGLIGIBLE, NEGLIGIBLE_NATS, UNINFORMATIVE, UNRESOLVED
from probing.tables.probes import SHOWN
from probing.tables.schema import CLASS_SCORES, NEURON_CLASSES

# The meaning of each flag.
FLAGS = {
    "offset": "overstated: less than half of the contribution is left after centring, so the neuron stands in for the "
    "intercept that the probe lacks; it may still carry the task",
    "no-signal": "by itself it is not shown to tell the classes apart beyond chance; it may be useful together with "
    "other neurons",
    "offset no-signal": "it stands in for the intercept: it is large and nearly constant, and is not shown to tell the "
    "classes apart beyond chance",
    "confound": "with what `--given` names held fixed, it is not shown to tell the classes apart beyond chance",
    "direction": "a direction of a random rotation of the neurons contributes as much",
    UNINFORMATIVE: "in nats, or of numbers in squared error, the probe of this layer is not shown to be better than a "
    "constant answer, so do not read its ranking",
    "dead": "it hardly varies; its weight and contribution are exactly 0",
}


def meaning_of_flag(flag: str) -> str:
    """Return the meaning of a neuron's flag; empty where there is none."""
    return "; ".join(FLAGS[name] for name in flags_of(flag) if name in FLAGS)


_CONTROLS = {control.words: control.meaning for control in (*CONTROLS.values(), *ADDED_CONTROLS.values())}

ACCURACY: Terms = {
    "layer": "0 is the embedding output, and layer k the output of block k; units of an MLP and outputs of heads of "
    "layer k are inside block k.",
    "probe": "Linear classifier, trained on the hidden states of one layer, without an intercept unless the run was "
    "made with `--probe.bias true`; its neurons are then centred, and so are contributions.",
    "accuracy": "Share of the test tokens, or of the test sentences where these are classified, whose class the probe "
    "predicts correctly. Their sentences were not used in training. It shows that the label can be read off linearly, "
    "not that the model uses it.",
    "95% range": "Confidence interval of the accuracy, in which sentences or documents, not tokens, are taken as "
    "independent; the answer says which.",
    "majority": "Accuracy of always predicting the most frequent class of the training tokens.",
    **_CONTROLS,
    "within 1": "Share of the test tokens whose predicted class is at most 1 away from the true one, where classes are "
    "numbers.",
    "error": "Mean absolute difference between the predicted number and the true one.",
    "selectivity": "Accuracy minus that of the control task.",
    "compression": "How many times shorter the training labels become when they are encoded online with the help of "
    "this layer, compared with a code that knows only the number of classes. The higher, the more easily they can "
    "be read from the layer.",
    "nats": "Cross-entropy: the mean of -ln p over the test tokens, where p is the probability that the probe gives "
    "to the true class. Lower is better.",
    "constant": "Cross-entropy of a constant answer: the shares of the classes among the training tokens, or a uniform "
    "guess where that is better. If a probe is no better, its ranking says nothing about the neurons.",
    "training": "Cross-entropy of the training tokens. Where it is far below that of the test tokens, the probe "
    "overfits.",
    "gap": "Optimality gap: by how many nats, at most, the probe's training objective is above its minimum. A probe "
    "far from its optimum ranks the optimiser rather than the neurons.",
}

NUMBERS: Terms = {
    "layer": ACCURACY["layer"],
    "probe": "Linear ridge regression on the hidden states of one layer, which are centred with `--probe.bias true`; "
    "the mean of the training numbers is added to what it predicts.",
    "R²": "Share of the constant answer's squared error on the test tokens that the probe saves; the constant answer "
    "is the mean of the training numbers, whose R² is 0. Below 0 the probe is worse; the chart shows that as 0.",
    "95% range": "Confidence interval of R², in which sentences or documents are taken as independent; the answer says "
    "which.",
    **_CONTROLS,
    "in training": "R² of the training tokens. Where it is far above that of the test tokens, the probe overfits.",
    "error": "Mean absolute difference between the predicted number and the true one.",
    "rms error": "Root of the mean squared difference.",
    "constant": "The same of the constant answer.",
    "gradient": "Norm of the gradient of the probe's objective, divided by that at 0: how exactly it is solved.",
}

NEURONS: Terms = {
    **{column.words: column.meaning for column in COLUMNS},
    "95% range of that": "Interval of the nats lost without the neuron.",
    "activation mean": "Mean of the neuron's activations over training tokens.",
    "activation sd": "Standard deviation of the neuron's activations over training tokens.",
    "flag": "A warning about the rank; empty where there is none.",
    **{f"flag {name}": f"{text[:1].upper()}{text[1:]}." for name, text in FLAGS.items()},
    "*": f"The neuron's mean is more than {FAR:.0f} standard deviations from 0, which makes its centred contribution "
    "unreliable; the column with intercept has the value of a probe with an intercept.",
    UNRESOLVED: f"The loss without the neuron is {UNRESOLVED}: its interval neither excludes 0 nor is narrow "
    "enough to call the loss negligible.",
    NEGLIGIBLE: "A probe without the neuron loses almost nothing: the whole interval is within "
    f"{NEGLIGIBLE_NATS} nats of 0, or of R².",
    "shade": "In the map, a neuron's contribution in multiples of its layer's mean, on a logarithmic scale.",
    "band": "Behind the sorted contributions, those of directions of random rotations of the layer's neurons: at each "
    "rank, the lowest and the highest of a rotation. They add up to the same logits, so that neurons matter as neurons "
    "as far as the line is above the band. Dead neurons are left out.",
    "ring": "A neuron that contributes more than the largest direction, at p = .05.",
    "highest on, lowest on": "The test tokens on which the neuron's activation is highest and lowest, marked in the "
    "text around them, each with its class and the activation.",
    **NEURON_CLASSES.terms(("class", "weight")),
}

CLASSES: Terms = CLASS_SCORES.terms((*SHOWN, "confused_with"))

HEADS: Terms = {
    "head": "An attention head, counted from 1; its neurons are a slice of the layer.",
    "neurons": "First and last neuron of the head.",
    "share": "Contributions of the head's neurons as a share of the sum over the layer's neurons.",
    "accuracy": "Accuracy of a probe that is trained on the head's neurons alone. ° marks heads that are no better "
    "than chance: the interval, widened for the number of heads, reaches the majority class or a random slice.",
    "95% range": ACCURACY["95% range"],
    "random slices": "Lowest and highest accuracy of probes of as many neurons, drawn at random from the layer.",
}

BASES: Terms = {
    "k": "Number of units that a probe with an intercept reads: the first by the share of their variance over training "
    "tokens that is between classes.",
    "features": "Accuracy of the first k features of the dictionary.",
    "neurons": "Accuracy of the first k neurons of the layer. ° features are not shown to be better, − they are worse.",
    "random features": "The mean accuracy of features whose directions are drawn at random, of which as many are "
    "active.",
    "rotated neurons": "The mean accuracy of neurons after random rotations of the hidden states.",
    "95% range": ACCURACY["95% range"],
}


TRANSFORMS = {
    "none": "Hidden states without a transform.",
    "clip": "Outlier dimensions are set to 0, or to their mean, after the model has run.",
    "clip_random": "As many other neurons, drawn at random, are clipped instead.",
    "whiten": "Hidden states are mapped so that all directions have the same variance and are uncorrelated.",
    "standardise": "Each neuron is centred and divided by its standard deviation.",
    "center": "The mean vector of all tokens is subtracted.",
    "all_but_the_top": "The mean vector and the first principal directions are removed (Mu & Viswanath 2018).",
}


BY_TOKEN = "The same of a probe that sees the token embedding alone."


PRECISION = (
    "Numbers on this page are rounded, and contributions by class have three digits; the tables and tensors in the "
    "run's folder are exact."
)


# What names something in a part of a page: headings and cells of tables, labels of charts, and choices.
_NAMING = re.compile(r"<(th|td|li|option)\b[^>]*>(.*?)</\1>", re.DOTALL)


def names_in(part: Html) -> set[str]:
    """Return the texts of a part that name something; of a label with details behind it, also the label alone."""
    texts = {unescape(re.sub("<[^>]*>", "", found)) for _, found in _NAMING.findall(part)}
    labels = {re.split(r", | \(", text, maxsplit=1)[0] for text in texts}
    return texts | labels | {"*" for text in texts if text.startswith("*") or text.endswith("*")}


class Glossary:
    """The terms of a page, those alone that it uses; they are gathered while its parts are made."""

    def __init__(self) -> None:
        self._used: dict[str, dict[str, str]] = {}

    def add(self, title: str, terms: Terms, part: Html | None, also: Collection[str] = ()) -> None:
        """Add the terms that name something in a part of the page.

        Args:
            title: Heading of the terms; those of several parts can stand under one.
            terms: Meanings of everything that such parts can show. Names that are explained together are separated by
                commas, and stand where all of them are used.
            part: The part.
            also: Names that the script or an image shows.
        """
        names = names_in(part) | {*also} if part else set()
        before = self._used.get(title, {})
        used = {
            name: meaning
            for name, meaning in terms.items()
            if name in before or name in names or names.issuperset(name.split(", "))
        }
        if used:
            self._used[title] = used

    def section(self) -> Html:
        """Return the terms with their meanings."""
        lists = [element("section", element("h3", name), pairs([*of.items()])) for name, of in self._used.items()]
        return element("section", element("h2", "Terms"), *lists, element("p", PRECISION), id="terms")
