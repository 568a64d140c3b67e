"""Sentences of neurons beside directions, and of features beside other units of the same hidden states."""

from __future__ import annotations

from probing.tables.evidence_notes import RANKING, TABLES, Sentence

_BASES = "Features beside other units (`fit --site sae:FOLDER`)"

DIRECTION_SENTENCES: dict[str, Sentence] = {
    "basis": Sentence(
        "A ranking is of one basis: random directions were not measured beside it.",
        "A ranking is said to be read in at least one layer, and there is no table `basis`.",
        RANKING,
    ),
    "favours_neurons": Sentence(
        "Layer {layer} favours neurons: its {first} {share:.1%}, {directions} at most {highest:.1%} "
        "({n} rotations){centred}; {above}.",
        "Table `basis`, in layers without the flag `uninformative`: at most one of 20 rotations, the layer itself "
        "counted as one, gives its first ten directions as large a share (p ≤ .05). Of less than 40 neurons, the first "
        "one is taken.",
        RANKING,
    ),
    "favours_no_neurons": Sentence(
        "Layer {layer} does not favour neurons: its {first} {share:.1%}, {directions} {lowest:.1%} "
        "to {highest:.1%} ({n} rotations){centred}; {above}.",
        "The same, where more rotations do.",
        RANKING,
    ),
    "layers_favour_neurons": Sentence(
        "{Layers} {favour} neurons: in layer {layer}, the {first} {share:.1%}, {directions} at "
        "most {highest:.1%} ({n} rotations).",
        "The same in several layers, with the numbers of the last of those that favour neurons.",
        RANKING,
    ),
    "layers_favour_no_neurons": Sentence(
        "{Layers} {favour} neurons: in layer {layer}, the {first} {share:.1%}, {directions} "
        "{lowest:.1%} to {highest:.1%} ({n} rotations).",
        "The same in several layers, where more rotations do, with the numbers of the first of them.",
        RANKING,
    ),
    "layers_none_above": Sentence(
        "In {layers} no neuron contributes more than {direction}: none may be said to carry {task} there.",
        "The same in several layers: `n_above` is 0.",
        RANKING,
    ),
    "centred_favours": Sentence(
        "; without the neurons' means it does ({share:.1%}, at most {highest:.1%})",
        "Part of the first two: centred contributions favour neurons, and contributions do not.",
        RANKING,
    ),
    "centred_favours_not": Sentence(
        "; without the neurons' means it does not ({share:.1%}, {lowest:.1%} to {highest:.1%})",
        "Part of the first two: contributions favour neurons, and centred ones do not.",
        RANKING,
    ),
    "n_above": Sentence(
        "{neurons} more than {direction}", "Part of the first two: `n_above` is not 0.", RANKING,
    ),
    "none_above": Sentence(
        "no neuron contributes more than {direction}: none may be said to carry {task}",
        "Part of the first two: `n_above` is 0.",
        RANKING,
    ),
    "optimum_of_neurons": Sentence(
        "With an l1 penalty the probe is the optimum of the basis of neurons alone, which favours neurons.",
        "`--probe.l1` above 0 and a table `basis`.",
        RANKING,
    ),
}  # fmt: skip

BASIS_SENTENCES: dict[str, Sentence] = {
    "beside_basis": Sentence(
        "Layer {layer}, the first features beside as many {basis}: {parts}.",
        "A table `bases`. With so many units the paired interval of the difference, at the level that leaves 5% for "
        "all comparisons of the layer, is above 0 and the features are above every draw (better), the other way "
        "round (worse), or neither (not resolved).",
        _BASES,
    ),
    "no_better_than": Sentence(
        "Layer {layer}: with no number of units are the features shown to tell more of {task} than {others}.",
        "Of these bases no comparison is `better`.",
        _BASES,
    ),
    "better_with": Sentence("better with {counts} (by {most:.3f} at most)", "Part of the sentence before.", _BASES),
    "worse_with": Sentence("worse with {counts} (by {most:.3f} at most)", "Part of the sentence before.", _BASES),
    "unresolved_with": Sentence("not resolved with {counts}", "Part of the sentence before.", _BASES),
    "note_of_bases": Sentence(
        "probes with an intercept of the first k units of each basis by the training part, accuracy (majority "
        "{majority:.3f}); ° features are not shown to be better, − they are worse; random features and rotations: "
        "means of {n} draws",
        "A table `bases`.",
        TABLES,
    ),
    "note_of_activity": Sentence(
        "active on a test token: {features:.1f} of {n_features:,} features, {random:.1f} of the random ones",
        "A table `bases`.",
        TABLES,
    ),
}
