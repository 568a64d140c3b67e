"""Sentences of evidence on whole rankings, several runs and features, and notes under tables; see `SENTENCES`."""

from __future__ import annotations

from probing.tables import ALPHA, SAME

# Sentences by name, each with its rule: what must hold for it to be said.
Sentences = dict[str, tuple[str, str]]

RANKING: Sentences = {
    "overlaps": (
        "Layer {layer}, first neurons: {parts}.",
        "Bootstraps or probes under other penalties were trained, and the layer is informative.",
    ),
    "overlap_of_penalties": (
        "{more:.0%} of {top} stay with ten times the penalty, {less:.0%} with a tenth (Spearman of all "
        "{spearman_more:.2f} and {spearman_less:.2f})",
        "Probes under other penalties were trained.",
    ),
    "overlap_of_bootstraps": ("two bootstraps share {share:.0%} of {top}", "Bootstraps were trained."),
    "basis": (
        "A ranking is of one basis: it was not compared with random directions.",
        "A ranking is said to be read in at least one layer, and there is no table `basis`.",
    ),
    "favours_neurons": (
        "Layer {layer} favours neurons: its {first} {share:.1%}, {directions} at most {highest:.1%} "
        "({n} rotations){centred}; {above}.",
        "Table `basis`, in layers without the flag `uninformative`: at most one of 20 rotations, the layer itself "
        "counted as one, gives its first ten directions as large a share (p ≤ .05). Of less than 40 neurons, the first "
        "one is taken.",
    ),
    "favours_no_neurons": (
        "Layer {layer} does not favour neurons: its {first} {share:.1%}, {directions} {lowest:.1%} "
        "to {highest:.1%} ({n} rotations){centred}; {above}.",
        "The same, where more rotations do.",
    ),
    "layers_favour_neurons": (
        "{Layers} {favour} neurons: in layer {layer}, the {first} {share:.1%}, {directions} at "
        "most {highest:.1%} ({n} rotations).",
        "The same in several layers, with the numbers of the last of those that favour neurons.",
    ),
    "layers_favour_no_neurons": (
        "{Layers} {favour} neurons: in layer {layer}, the {first} {share:.1%}, {directions} "
        "{lowest:.1%} to {highest:.1%} ({n} rotations).",
        "The same in several layers, where more rotations do, with the numbers of the first of them.",
    ),
    "layers_none_above": (
        "In {layers} no neuron contributes more than {direction}: none may be said to carry {task} there.",
        "The same in several layers: `n_above` is 0.",
    ),
    "centred_favours": (
        "; without the neurons' means it does ({share:.1%}, at most {highest:.1%})",
        "Part of the first two: centred contributions favour neurons, and contributions do not.",
    ),
    "centred_favours_not": (
        "; without the neurons' means it does not ({share:.1%}, {lowest:.1%} to {highest:.1%})",
        "Part of the first two: contributions favour neurons, and centred ones do not.",
    ),
    "n_above": ("{neurons} more than {direction}", "Part of the first two: `n_above` is not 0."),
    "none_above": (
        "no neuron contributes more than {direction}: none may be said to carry {task}",
        "Part of the first two: `n_above` is 0.",
    ),
    "optimum_of_neurons": (
        "With an l1 penalty the probe is optimal only in the basis of neurons, so the comparison favours neurons.",
        "`--probe.l1` above 0 and a table `basis`.",
    ),
    "fewest": (
        "Layer {layer}, {ranking}: {parts}; {end}.",
        "`rank --curves`; accuracies beside each other, and the fewest first neurons that reach that of all less .01, "
        "chosen on validation tokens.",
    ),
    "positions": (
        "Layer {layer}: accuracy {parts} and {last}; positions.csv has every position.",
        "Classes are numbers of tokens, with test tokens at three positions or more.",
    ),
}

COMPARE: Sentences = {
    "everywhere": (
        "{subject} among the first {top} of every run at the same relative depth.",
        "There are no probes of shuffled labels.",
    ),
    "everywhere_by_chance": (
        "{subject} among the first {top} of every run at the same relative depth; with shuffled labels, {mean} are on "
        "average ({low} to {high}; p = {p:.2g}).",
        "There are such probes.",
    ),
    "everywhere_beyond": (
        "{n} of them {verb} there in at most {share:.0%} of the draws of shuffled labels.",
        "All rankings are to be read; counted are neurons without `no-signal` that few draws have at the top.",
    ),
    "unread_run": (
        "{label}: ignore {layers}, where the probe is not shown to predict better than a constant answer: its ranking, "
        "and so the agreement with it, is no evidence.",
        "A layer of the run has the flag `uninformative`.",
    ),
    "unpaired": (
        "{other} has no partner for {layers} of {label}: only layers of the same relative depth are paired.",
        "Two layers are paired if each is the other's nearest in relative depth, its number over the number of blocks, "
        "and they differ by less than half a block of the model with fewer blocks.",
    ),
    "basis_compared": (
        "Rankings are of the bases of these runs. Where neurons are matched by correlation, chance is that of {n} "
        "random bases of the second run if this is above that of permuted neurons.",
        "Always.",
    ),
    "same_neurons": (
        "{a} and {b} have the same neurons at the top of their rankings: {numbers}.",
        f"In every pair of layers of the same relative depth, the top overlap is at least {SAME:.0%}, and it and "
        f"Spearman's correlation are above chance (p ≤ {ALPHA}, corrected for all pairs of layers; against shuffled "
        "labels, random bases or permutations). Layers with the flag `uninformative` do not count, here and below.",
    ),
    "partly_same": (
        "{a} and {b} rank neurons alike only in part: {numbers}.",
        "One of the two is above chance in some pair of layers, and not all that the sentence before needs.",
    ),
    "no_more_than_chance": (
        "{a} and {b} are not shown to rank the same neurons first more than chance does: {numbers}.",
        "Neither is above chance in any pair of layers.",
    ),
    "no_verdict": (
        "Whether {a} and {b} rank the same neurons first cannot be said: in no pair of layers of the same relative "
        "depth are both probes shown to predict better than a constant answer.",
        "In each such pair of layers, one has the flag `uninformative`.",
    ),
    "agreement": (
        "in layers of the same relative depth, {shared} of the first {top} neurons are in common ({chance} by chance; "
        "above it in {n_overlap} of {pairs} of layers), and Spearman's correlation of the rankings is {values} (above "
        "chance in {n_spearman})",
        f"Part of the first three; above chance is p ≤ {ALPHA}, corrected for all pairs of layers.",
    ),
}

RECIPES: Sentences = {
    "better_recipe": (
        "{better} is better than {worse}, {start}: {difference} {score}, {low} to {high} over seeds, orders and test "
        "{examples}.",
        "The interval of the difference of both mean scores, over seeds, orders and test clusters, leaves out 0.",
    ),
    "equal_recipes": (
        "{a} and {b} do not differ, {start}: every pair of tunings has the same score on every test cluster.",
        "So it is.",
    ),
    "unresolved_recipes": (
        "Whether {a} or {b} is better, {start}, is not resolved: {difference} {score}, {low} to {high} over seeds, "
        "orders and test {examples}.",
        "The interval includes 0. The difference is that of the first run less the second.",
    ),
    "unknown_recipes": (
        "Whether {a} or {b} is better, {start}, cannot be said: {difference} {score}, without an interval, for which "
        "each needs two tunings or more, and the test part {least} clusters.",
        "There is no interval.",
    ),
    "options_differ": ("The runs differ in {options}.", "Some option of the runs differs."),
    "options_same": ("The runs have the same options, apart from what does not decide what is learnt.", "None does."),
    "paired_tunings": (
        "{a} and {b} are compared at the same seeds and orders{left_out}.",
        "Those of one run are all among those of the other. Tunings that only one has are left out.",
    ),
    "independent_tunings": (
        "{a} and {b} have other seeds or orders, so that these are independent draws, and what they vary is added up.",
        "Otherwise.",
    ),
    "several_recipes": (
        "Intervals are of {level:.1%}, so that those of all {n} pairs of runs hold together in 95 of 100 cases.",
        "There are three runs or more (Bonferroni).",
    ),
}

BASES: Sentences = {
    "beside_basis": (
        "Layer {layer}, the first features compared with as many {basis}: {parts}.",
        "A table `bases`. With so many units the paired interval of the difference, at the level that leaves 5% for "
        "all comparisons of the layer, is above 0 and the features are above every draw (better), the other way "
        "round (worse), or neither (not resolved).",
    ),
    "no_better_than": (
        "Layer {layer}: with no number of units are the features shown to predict {task} better than {others}.",
        "Of these bases no comparison is `better`.",
    ),
    "better_with": ("better with {counts} (by {most:.3f} at most)", "Part of the sentence before."),
    "worse_with": ("worse with {counts} (by {most:.3f} at most)", "Part of the sentence before."),
    "unresolved_with": ("not resolved with {counts}", "Part of the sentence before."),
}

NOTES: Sentences = {
    "note_of_bases": (
        "probes with an intercept of the first k units of each basis by the training part, accuracy (majority "
        "{majority:.3f}); ° features are not shown to be better, − they are worse; random features and rotations: "
        "means of {n} draws",
        "A table `bases`.",
    ),
    "note_of_activity": (
        "active on a test token: {features:.1f} of {n_features:,} features, {random:.1f} of the random ones",
        "A table `bases`.",
    ),
    "several_intervals": (
        "intervals: {n} neurons were removed, each with its 95% interval, of which about one in twenty misses the true "
        "value by chance; that a neuron carries something is said at 5% for all {n} together",
        "Neurons were removed.",
    ),
    "not_better": (
        "{layers}: not shown to be better {unit}than a constant answer, so do not read the ranking",
        "Flag `uninformative`.",
    ),
    "note_of_range": ("range: best and worst rank over the bootstraps", "There were bootstraps."),
    "note_of_eta": ("eta sq.: variance that the class explains beyond chance", "Labels are classes."),
    "note_of_z": ("z: how far that is beyond chance, in standard deviations", "Always."),
    "note_of_eta_of_numbers": ("eta sq.: squared correlation with the number beyond chance", "Labels are numbers."),
    "note_of_covariate": (
        "within: eta sq. among training tokens with the same value of the covariate",
        "`--control_for`.",
    ),
    "note_of_loss": ("without it: {unit} lost by a retrained probe", "Neurons were removed."),
    "note_of_far": ("* mean more than {far:.0f} sd from 0: {instead}", "The mean of a neuron is that far."),
    "note_of_random_slices": (
        "random slices: lowest and highest accuracy of {n} draws of as many neurons of the layer",
        "Neurons belong to heads.",
    ),
    "note_of_heads_alone": (
        "accuracy: of a probe of the head's neurons alone (majority {majority:.3f})",
        "Neurons belong to heads.",
    ),
    "note_of_classes": (
        "95% range: empty where fewer than {least} sentences, or what else is independent, have a token of it",
        "An interval of a class is missing.",
    ),
    "note_of_negligible": (
        "{word}: the whole interval of what it loses is within {least} of 0",
        "A neuron is marked so.",
    ),
    "note_of_heads": (
        "° not above chance: its interval, widened for the number of heads, reaches the majority or a draw",
        "A head is marked so: its interval at 5% for all heads together is not above both.",
    ),
    "note_of_choices": (
        "{mark} no better than chance: its interval, widened for the number of choices, reaches the majority or a "
        "random draw",
        "Of `rank`, under accuracies of the first neurons; one is marked so if its interval at 5% for all of them "
        "together is not above both.",
    ),
    "note_of_rotated": (
        "first {first}: their share of the scores of all neurons (anova: of the shares of variance between classes; "
        "gaussian: of the bits of each alone), beside that of directions of {n} rotations; – not compared: the score "
        "is a rank, is in the neurons' own units, or takes other labels or probes",
        "Of `rank`, under the first neurons of each ranking.",
    ),
    "note_of_overlap": (
        "top overlap: share of the first {top} neurons that both rankings have in common, matched neurons as one",
        "`compare`.",
    ),
    "note_of_chance": (
        "by chance: 95% of what {null} give; p: that they give such a Spearman, corrected for all pairs of layers",
        "`compare`; what chance is, is the column `null` of `agreement.csv`.",
    ),
    "note_of_match": (
        "match: correlation of matched neurons on other sentences; CKA: likeness of the whole layers (linear)",
        "`compare`.",
    ),
    "chosen_penalty": (
        "Penalty: l2 {l2:.1e}{for_all}, chosen for the {what} of validation tokens ({measured:.4f}{unit}; {near}).",
        "The penalty was not given; numbers beside each other.",
    ),
    "penalty_alone": (
        "The best for each layer alone would be {own}.",
        "The penalty was not given, and there are several layers.",
    ),
    "others_clipped": (
        ", with as many other neurons clipped {value:.3f}",
        "`--transform clip`; a number beside another.",
    ),
    "transformed": (
        "Layer {layer}, {done}: {words} {value:.3f}, untransformed {plain:.3f}{difference}{others}.",
        "`--transform`; a number beside another, with the interval of the difference where there is one.",
    ),
}
