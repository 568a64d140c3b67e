"""What is said of a whole layer, and of why its ranking is not to be read, each with its rule."""

from __future__ import annotations

from probing.tables.evidence_notes import Sentence

_WHOLE_LAYER = "The whole layer"
_PARTS = "Parts of the sentences above"

LAYER_SENTENCES: dict[str, Sentence] = {
    "no_weights": Sentence(
        "Layer {layer}: no neuron contributes, because every weight of the probe is 0.",
        "All contributions are 0.",
        _WHOLE_LAYER,
    ),
    "unread": Sentence(
        "Layer {layer}: do not read its ranking. In {measure}, it is not resolved whether the probe predicts the test "
        "part better than a constant answer does. The comparison with the controls may still show that {task} can be "
        "read in this layer.",
        "Flag `uninformative`: the 95% interval of the nats saved over a constant answer, or of R², contains 0.",
        _WHOLE_LAYER,
    ),
    "worse": Sentence(
        "Layer {layer}: do not read its ranking. In {measure}, the probe predicts the test part worse than a constant "
        "answer does (95% interval {interval}). The comparison with the controls may still show that {task} can be "
        "read in this layer.",
        "Flag `uninformative`, and the interval is below 0.",
        _WHOLE_LAYER,
    ),
    "no_intercept": Sentence(
        "The missing intercept may be why: {why}. --probe.bias true (in Python `ProbeOptions(bias=True)`) trains with "
        "one.",
        "One of these two is said, of a probe without an intercept whose mean is 3 sd from 0 in some neuron; or that "
        "has a neuron with q < .001 and is below the majority class, or below 0 in R².",
        _WHOLE_LAYER,
    ),
    "far_mean": Sentence("the mean of neuron {neuron} is {far:.1f} sd from 0", "The farthest of these.", _PARTS),
    "varies_by_itself": Sentence(
        "neuron {neuron} varies with {task} (q = {q:.2g}), and yet the probe is below the majority class",
        "The neuron of the lowest q.",
        _PARTS,
    ),
    "varies_by_itself_number": Sentence(
        "neuron {neuron} varies with {task} (q = {q:.2g}), and yet R² is below 0", "The same, of numbers.", _PARTS
    ),
    "unread_layers": Sentence(
        "Do not read the rankings of {layers}: their probes are not shown to be better than a constant answer.",
        "Flag `uninformative` in some of several layers.",
        _WHOLE_LAYER,
    ),
    "leading": Sentence(
        "Neurons are those of layer {layer}, whose {what} is furthest above its strongest floor, by {apart:.3f} "
        "({floor}, {value:.3f}){among}.",
        "Several layers. Floors are the majority class or a constant answer and all controls but the randomly "
        "initialised model, where labels are positions, and those of `--transform`; of equal differences, the last "
        "layer's; layers with the flag `uninformative` come last.",
        _WHOLE_LAYER,
    ),
    "among_readable": Sentence(
        ", of the layers whose ranking may be read", "Some layers have the flag `uninformative`.", _PARTS
    ),
    "led_by_means": Sentence(
        "In {layers} the first neuron contributes mostly by its mean (flag `offset`), in place of an intercept: --sort "
        "centred ranks without means, --probe.bias true trains with an intercept.",
        "Flag `offset` of the first neuron in some of several layers.",
        _WHOLE_LAYER,
    ),
    "worst_class": Sentence(
        "Layer {layer}: macro F1 is {macro:.3f}; of the classes that the test part has {few} times or more, {label} is "
        "read worst (F1 {f1:.3f}, {right} of {n} right{taken}).",
        "Classes are no numbers, the test part has at least two of them 10 times, and one answer is wrong.",
        _WHOLE_LAYER,
    ),
    "stopped_short": Sentence(
        "Layer {layer}: the probe stopped up to {gap:.1g} nats short of its optimum, so this ranking may reflect the "
        "optimiser rather than the data.",
        "The bound on the distance to the optimum is above the tolerance.",
        _WHOLE_LAYER,
    ),
    "stopped_short_report": Sentence(
        "In {layers} the probe stopped short of its optimum, so the ranking may reflect the optimiser rather than the "
        "data.",
        "The same, in a report.",
        _WHOLE_LAYER,
    ),
}
