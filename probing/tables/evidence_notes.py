"""Notes under tables of evidence, each with its rule; `evidence_sentences` has all other sentences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EvidenceSentence:
    """Sentence of evidence with names in braces, its rule (condition), and its group; most groups use one sentence."""

    text: str
    rule: str
    group: str


TABLES = "Notes under tables"
RANKING = "The ranking as such"

NOTES: dict[str, EvidenceSentence] = {
    "several_intervals": EvidenceSentence(
        "intervals: {n} neurons were removed, each with its 95% interval, of which about one in twenty misses the true "
        "value by chance; that a neuron carries something is said at 5% for all {n} together",
        "Neurons were removed.",
        TABLES,
    ),
    "not_better": EvidenceSentence(
        "{layers}: not shown to be better {unit}than a constant answer, so do not read the ranking",
        "Flag `uninformative`.",
        TABLES,
    ),
    "note_of_range": EvidenceSentence(
        "range: best and worst rank over the bootstraps", "There were bootstraps.", TABLES
    ),
    "note_of_eta": EvidenceSentence(
        "eta sq.: variance that the class explains beyond chance",
        "Labels are classes.",
        TABLES,
    ),
    "note_of_z": EvidenceSentence("z: how far that is beyond chance, in standard deviations", "Always.", TABLES),
    "note_of_eta_of_numbers": EvidenceSentence(
        "eta sq.: squared correlation with the number beyond chance",
        "Labels are numbers.",
        TABLES,
    ),
    "note_of_covariate": EvidenceSentence(
        "within: eta sq. among training tokens with the same value of the covariate",
        "`--control_for`.",
        TABLES,
    ),
    "note_of_loss": EvidenceSentence(
        "without it: {unit} lost by a retrained probe",
        "Neurons were removed.",
        TABLES,
    ),
    "note_of_far": EvidenceSentence(
        "* mean more than {far:.0f} sd from 0: {instead}", "The mean of a neuron is that far.", TABLES
    ),
    "note_of_random_slices": EvidenceSentence(
        "random slices: lowest and highest accuracy of {n} draws of as many neurons of the layer",
        "Neurons belong to heads.",
        TABLES,
    ),
    "note_of_heads_alone": EvidenceSentence(
        "accuracy: of a probe of the head's neurons alone (majority {majority:.3f})",
        "Neurons belong to heads.",
        TABLES,
    ),
    "note_of_classes": EvidenceSentence(
        "95% range: empty where fewer than {least} sentences, or what else is independent, have a token of it",
        "An interval of a class is missing.",
        TABLES,
    ),
    "note_of_negligible": EvidenceSentence(
        "{word}: the whole interval of what it loses is within {least} of 0", "A neuron is marked so.", TABLES
    ),
    "note_of_heads": EvidenceSentence(
        "° not above chance: its interval, widened for the number of heads, reaches the majority or a draw",
        "A head is marked so: its interval at 5% for all heads together is not above both.",
        TABLES,
    ),
    "note_of_choices": EvidenceSentence(
        "{mark} no better than chance: its interval, widened for the number of choices, reaches the majority or a "
        "random draw",
        "Of `rank`, under accuracies of the first neurons; one is marked so if its interval at 5% for all of them "
        "together is not above both.",
        TABLES,
    ),
    "note_of_rotated": EvidenceSentence(
        "first {first}: their share of the scores of all neurons (anova: of the shares of variance between classes; "
        "gaussian: of the bits of each alone), beside that of directions of {n} rotations; – not compared: the score "
        "is a rank, is in the neurons' own units, or takes other labels or probes",
        "Of `rank`, under the first neurons of each ranking.",
        TABLES,
    ),
    "note_of_overlap": EvidenceSentence(
        "top overlap: share of the first {top} neurons that both rankings have in common, matched neurons as one",
        "`compare`.",
        TABLES,
    ),
    "note_of_chance": EvidenceSentence(
        "by chance: 95% of what {null} give; p: that they give such a Spearman, corrected for all pairs of layers",
        "`compare`; what chance is, is the column `null` of `agreement.csv`.",
        TABLES,
    ),
    "note_of_match": EvidenceSentence(
        "match: correlation of matched neurons on other sentences; CKA: likeness of the whole layers (linear)",
        "`compare`.",
        TABLES,
    ),
    "chosen_penalty": EvidenceSentence(
        "Penalty: l2 {l2:.1e}{for_all}, chosen for the {what} of validation tokens ({measured:.4f}{unit}; {near}).",
        "The penalty was not given; numbers beside each other.",
        TABLES,
    ),
    "penalty_alone": EvidenceSentence(
        "The best for each layer alone would be {own}.",
        "The penalty was not given, and there are several layers.",
        TABLES,
    ),
    "others_clipped": EvidenceSentence(
        ", with as many other neurons clipped {value:.3f}", "`--transform clip`; a number beside another.", TABLES
    ),
    "transformed": EvidenceSentence(
        "Layer {layer}, {done}: {words} {value:.3f}, untransformed {plain:.3f}{difference}{others}.",
        "`--transform`; a number beside another, with the interval of the difference where there is one.",
        TABLES,
    ),
}

# --------------------------------------------------------------------------------------------------------------------
# Sentences of neurons beside directions, and of features beside other units of the same hidden states.
# --------------------------------------------------------------------------------------------------------------------

_BASES = "Features beside other units (`fit --site sae:FOLDER`)"

DIRECTION_SENTENCES: dict[str, EvidenceSentence] = {
    "basis": EvidenceSentence(
        "A ranking is of one basis: it was not compared with random directions.",
        "A ranking is said to be read in at least one layer, and there is no table `basis`.",
        RANKING,
    ),
    "favours_neurons": EvidenceSentence(
        "Layer {layer} favours neurons: its {first} {share:.1%}, {directions} at most {highest:.1%} "
        "({n} rotations){centred}; {above}.",
        "Table `basis`, in layers without the flag `uninformative`: at most one of 20 rotations, the layer itself "
        "counted as one, gives its first ten directions as large a share (p ≤ .05). Of less than 40 neurons, the first "
        "one is taken.",
        RANKING,
    ),
    "favours_no_neurons": EvidenceSentence(
        "Layer {layer} does not favour neurons: its {first} {share:.1%}, {directions} {lowest:.1%} "
        "to {highest:.1%} ({n} rotations){centred}; {above}.",
        "The same, where more rotations do.",
        RANKING,
    ),
    "layers_favour_neurons": EvidenceSentence(
        "{Layers} {favour} neurons: in layer {layer}, the {first} {share:.1%}, {directions} at "
        "most {highest:.1%} ({n} rotations).",
        "The same in several layers, with the numbers of the last of those that favour neurons.",
        RANKING,
    ),
    "layers_favour_no_neurons": EvidenceSentence(
        "{Layers} {favour} neurons: in layer {layer}, the {first} {share:.1%}, {directions} "
        "{lowest:.1%} to {highest:.1%} ({n} rotations).",
        "The same in several layers, where more rotations do, with the numbers of the first of them.",
        RANKING,
    ),
    "layers_none_above": EvidenceSentence(
        "In {layers} no neuron contributes more than {direction}: none may be said to carry {task} there.",
        "The same in several layers: `n_above` is 0.",
        RANKING,
    ),
    "centred_favours": EvidenceSentence(
        "; without the neurons' means it does ({share:.1%}, at most {highest:.1%})",
        "Part of the first two: centred contributions favour neurons, and contributions do not.",
        RANKING,
    ),
    "centred_favours_not": EvidenceSentence(
        "; without the neurons' means it does not ({share:.1%}, {lowest:.1%} to {highest:.1%})",
        "Part of the first two: contributions favour neurons, and centred ones do not.",
        RANKING,
    ),
    "n_above": EvidenceSentence(
        "{neurons} more than {direction}", "Part of the first two: `n_above` is not 0.", RANKING,
    ),
    "none_above": EvidenceSentence(
        "no neuron contributes more than {direction}: none may be said to carry {task}",
        "Part of the first two: `n_above` is 0.",
        RANKING,
    ),
    "optimum_of_neurons": EvidenceSentence(
        "With an l1 penalty the probe is optimal only in the basis of neurons, so the comparison favours neurons.",
        "`--probe.l1` above 0 and a table `basis`.",
        RANKING,
    ),
}  # fmt: skip

BASIS_SENTENCES: dict[str, EvidenceSentence] = {
    "beside_basis": EvidenceSentence(
        "Layer {layer}, the first features compared with as many {basis}: {parts}.",
        "A table `bases`. With so many units the paired interval of the difference, at the level that leaves 5% for "
        "all comparisons of the layer, is above 0 and the features are above every draw (better), the other way "
        "round (worse), or neither (not resolved).",
        _BASES,
    ),
    "no_better_than": EvidenceSentence(
        "Layer {layer}: with no number of units are the features shown to predict {task} better than {others}.",
        "Of these bases no comparison is `better`.",
        _BASES,
    ),
    "better_with": EvidenceSentence(
        "better with {counts} (by {most:.3f} at most)", "Part of the sentence before.", _BASES
    ),
    "worse_with": EvidenceSentence(
        "worse with {counts} (by {most:.3f} at most)", "Part of the sentence before.", _BASES
    ),
    "unresolved_with": EvidenceSentence("not resolved with {counts}", "Part of the sentence before.", _BASES),
    "note_of_bases": EvidenceSentence(
        "probes with an intercept of the first k units of each basis by the training part, accuracy (majority "
        "{majority:.3f}); ° features are not shown to be better, − they are worse; random features and rotations: "
        "means of {n} draws",
        "A table `bases`.",
        TABLES,
    ),
    "note_of_activity": EvidenceSentence(
        "active on a test token: {features:.1f} of {n_features:,} features, {random:.1f} of the random ones",
        "A table `bases`.",
        TABLES,
    ),
}

# --------------------------------------------------------------------------------------------------------------------
# What is said of a whole layer, and of why its ranking is not to be read, each with its rule.
# --------------------------------------------------------------------------------------------------------------------

_WHOLE_LAYER = "The whole layer"
_PARTS = "Parts of the sentences above"

LAYER_SENTENCES: dict[str, EvidenceSentence] = {
    "no_weights": EvidenceSentence(
        "Layer {layer}: no neuron contributes, because every weight of the probe is 0.",
        "All contributions are 0.",
        _WHOLE_LAYER,
    ),
    "unread": EvidenceSentence(
        "Layer {layer}: do not read its ranking. In {measure}, it is not resolved whether the probe predicts the test "
        "part better than a constant answer does. The comparison with the controls may still show that {task} can be "
        "decoded from this layer.",
        "Flag `uninformative`: the 95% interval of the nats saved over a constant answer, or of R², contains 0.",
        _WHOLE_LAYER,
    ),
    "worse": EvidenceSentence(
        "Layer {layer}: do not read its ranking. In {measure}, the probe predicts the test part worse than a constant "
        "answer does (95% interval {interval}). The comparison with the controls may still show that {task} can be "
        "decoded from this layer.",
        "Flag `uninformative`, and the interval is below 0.",
        _WHOLE_LAYER,
    ),
    "no_intercept": EvidenceSentence(
        "The missing intercept may be why: {why}. --probe.bias true (in Python `ProbeOptions(bias=True)`) trains with "
        "one.",
        "One of these two is said, of a probe without an intercept whose mean is 3 sd from 0 in some neuron; or that "
        "has a neuron with q < .001 and is below the majority class, or below 0 in R².",
        _WHOLE_LAYER,
    ),
    "far_mean": EvidenceSentence(
        "the mean of neuron {neuron} is {far:.1f} sd from 0", "The farthest of these.", _PARTS
    ),
    "varies_by_itself": EvidenceSentence(
        "neuron {neuron} varies with {task} (q = {q:.2g}), but the probe is below the majority class",
        "The neuron of the lowest q.",
        _PARTS,
    ),
    "varies_by_itself_number": EvidenceSentence(
        "neuron {neuron} varies with {task} (q = {q:.2g}), but R² is below 0", "The same, of numbers.", _PARTS
    ),
    "unread_layers": EvidenceSentence(
        "Do not read the rankings of {layers}: their probes are not shown to be better than a constant answer.",
        "Flag `uninformative` in some of several layers.",
        _WHOLE_LAYER,
    ),
    "leading": EvidenceSentence(
        "Neurons are those of layer {layer}, whose {what} is furthest above its strongest floor, by {apart:.3f} "
        "({floor}, {value:.3f}){among}.",
        "Several layers. Floors are the majority class or a constant answer and all controls but the randomly "
        "initialised model, where labels are positions, and those of `--transform`; of equal differences, the last "
        "layer's; layers with the flag `uninformative` come last.",
        _WHOLE_LAYER,
    ),
    "among_readable": EvidenceSentence(
        ", of the layers whose ranking may be read", "Some layers have the flag `uninformative`.", _PARTS
    ),
    "led_by_means": EvidenceSentence(
        "In {layers} the first neuron contributes mostly by its mean (flag `offset`), which replaces an intercept: "
        "--sort centred ranks without means, --probe.bias true trains with an intercept.",
        "Flag `offset` of the first neuron in some of several layers.",
        _WHOLE_LAYER,
    ),
    "worst_class": EvidenceSentence(
        "Layer {layer}: macro F1 is {macro:.3f}; of the classes that the test part has {few} times or more, {label} is "
        "decoded worst (F1 {f1:.3f}, {right} of {n} right{taken}).",
        "Classes are no numbers, the test part has at least two of them 10 times, and one answer is wrong.",
        _WHOLE_LAYER,
    ),
    "stopped_short": EvidenceSentence(
        "Layer {layer}: the probe stopped up to {gap:.1g} nats short of its optimum, so this ranking may reflect the "
        "optimiser rather than the data.",
        "The bound on the distance to the optimum is above the tolerance.",
        _WHOLE_LAYER,
    ),
    "stopped_short_report": EvidenceSentence(
        "In {layers} the probe stopped short of its optimum, so the ranking may reflect the optimiser rather than the "
        "data.",
        "The same, in a report.",
        _WHOLE_LAYER,
    ),
}

# --------------------------------------------------------------------------------------------------------------------
# What is said of two recipes of tuning that `compare` holds against each other, each with its rule.
# --------------------------------------------------------------------------------------------------------------------

_RECIPES = "Several recipes of tuning (`compare` of runs of `finetune`)"

RECIPE_SENTENCES: dict[str, EvidenceSentence] = {
    "better_recipe": EvidenceSentence(
        "{better} is better than {worse}, {start}: {difference} {score}, {low} to {high} over seeds, orders and test "
        "{examples}.",
        "The interval of the difference of both mean scores, over seeds, orders and test clusters, leaves out 0.",
        _RECIPES,
    ),
    "equal_recipes": EvidenceSentence(
        "{a} and {b} do not differ, {start}: every pair of tunings has the same score on every test cluster.",
        "So it is.",
        _RECIPES,
    ),
    "unresolved_recipes": EvidenceSentence(
        "Whether {a} or {b} is better, {start}, is not resolved: {difference} {score}, {low} to {high} over seeds, "
        "orders and test {examples}.",
        "The interval includes 0. The difference is that of the first run less the second.",
        _RECIPES,
    ),
    "unknown_recipes": EvidenceSentence(
        "Whether {a} or {b} is better, {start}, cannot be said: {difference} {score}, without an interval, for which "
        "each needs two tunings or more, and the test part {least} clusters.",
        "There is no interval.",
        _RECIPES,
    ),
    "options_differ": EvidenceSentence("The runs differ in {options}.", "Some option of the runs differs.", _RECIPES),
    "options_same": EvidenceSentence(
        "The runs have the same options, apart from what does not decide what is learnt.", "None does.", _RECIPES
    ),
    "paired_tunings": EvidenceSentence(
        "{a} and {b} are compared at the same seeds and orders{left_out}.",
        "Those of one run are all among those of the other. Tunings that only one has are left out.",
        _RECIPES,
    ),
    "independent_tunings": EvidenceSentence(
        "{a} and {b} have other seeds or orders, so that these are independent draws, and what they vary is added up.",
        "Otherwise.",
        _RECIPES,
    ),
    "several_recipes": EvidenceSentence(
        "Intervals are of {level:.1%}, so that those of all {n} pairs of runs hold together in 95 of 100 cases.",
        "There are three runs or more (Bonferroni).",
        _RECIPES,
    ),
}
