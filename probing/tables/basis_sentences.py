"""Sentences of features beside other units of the same hidden states, each with its rule."""

from __future__ import annotations

from probing.tables.evidence_notes import TABLES, Sentence

_BASES = "Features beside other units (`fit --site sae:FOLDER`)"

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
