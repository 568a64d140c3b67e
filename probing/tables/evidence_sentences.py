"""All sentences of evidence that `fit`, `probe` and `compare` print or show in a report, with their rules.

Code takes sentences from here by name, so that no unlisted sentence appears; the site has a page of this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from probing.statistics import FEW
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
        "Layer {layer} favours neurons: its {first} {share:.1%} of all contributions, {directions} at most "
        "{highest:.1%} ({n} rotations){centred}; {above}.",
        "Table `basis`, in layers without the flag `uninformative`: at most one of 20 rotations, the layer itself "
        "counted as one, gives its first ten directions as large a share (p ≤ .05). Of less than 40 neurons, the first "
        "one is taken.",
    ),
    "favours_no_neurons": (
        "Layer {layer} does not favour neurons: its {first} {share:.1%} of all contributions, {directions} "
        "{lowest:.1%} to {highest:.1%} ({n} rotations){centred}; {above}.",
        "The same, where more rotations do.",
    ),
    "layers_favour_neurons": (
        "Neurons are favoured in {layers}: {example}the {first} {share:.1%}, {directions} at most {highest:.1%} ({n} "
        "rotations).",
        "The same in several layers, with the numbers of the layer shown, or of the last of those that favour neurons.",
    ),
    "layers_favour_no_neurons": (
        "Neurons are not favoured in {layers}: {example}the {first} {share:.1%}, {directions} {lowest:.1%} to "
        "{highest:.1%} ({n} rotations).",
        "The same in several layers, where more rotations do, with the numbers of the layer shown, or of the first of "
        "them.",
    ),
    "example_layer": ("in layer {layer}, for example, ", "Part of the two before: they are of several layers."),
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
        "{subject} among the first {top} of every run at the same relative depth{summed}{distinct}; for "
        "unrelated rankings, {chance_mean} are on average (no test, since layers share neurons).",
        "There are no probes of shuffled labels. Layers with the flag `uninformative` do not count.",
    ),
    "everywhere_by_chance": (
        "{subject} among the first {top} of every run at the same relative depth{summed}{distinct}; with "
        "shuffled labels, {chance_mean} are on average ({chance_low} to {chance_high}; p = {p:.2g}).",
        "There are such probes.",
    ),
    "everywhere_distinct": (" ({n} distinct neurons of the first run)", "Some neuron is there in several layers."),
    "everywhere_beyond": (
        "{n} of them {verb} there in at most {share:.0%} of the draws of shuffled labels.",
        "Counted are neurons without `no-signal` that few draws have at the top.",
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
    "accuracy_of_runs": (
        "Test accuracy is highest {accuracies}.",
        "Always; of equal accuracies, the last layer.",
    ),
    "site": (
        "In {label}, a neuron is a {neuron}.",
        "They are not of the residual stream in some run (also `rank`).",
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
        "in {pairs} of layers of the same relative depth{left_out}, {shared} of the first {top} neurons are in common "
        "({chance} by chance in one pair taken alone; above chance in {n_overlap} of {n}, corrected for {tested} of "
        "layers), and Spearman's correlation of the rankings is {values} (above chance in {n_spearman} of {n}, "
        "corrected)",
        f"Part of the first three; above chance is p ≤ {ALPHA}, corrected for all pairs of layers.",
    ),
    "other_depths": (
        "Of the {pairs} of layers of other relative depths, {a} and {b} have more of the first neurons in common "
        "than by chance in {n_overlap}{shared}, and a higher Spearman's correlation in {n_spearman} (p ≤ {share}, "
        "corrected for {tested} of layers).",
        "Some such pair, without layers with the flag `uninformative`, is above chance.",
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
        "by chance: 95% of what {null} give in one pair of layers; p: share giving as much, corrected for all pairs",
        "`compare`; what chance is, is the column `null` of `agreement.csv`.",
    ),
    "note_of_match": (
        "match: correlation of matched neurons on other sentences; CKA: likeness of the whole layers (linear)",
        "`compare`.",
    ),
    "note_of_unread": ("{mark} uninformative: no evidence, and left out of the sentences", "`compare`."),
    "note_of_matches": ("{mark} correlates no more than by chance: {n} of {of} matches", "`compare`."),
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

_CORRECTED = (
    f"the loss is above 0 with a p-value of at most {ALPHA}, corrected for all neurons that were removed in the layer "
    "(Holm), the upper end of its 95% interval is at least .001, the probes of the token alone and of the "
    "covariate, if there are any, are beaten, there is no flag `confound`, and the neuron contributes more than the "
    "directions of random rotations; with the flag `offset`, centred too"
)

_WHOLE_LAYER: Sentences = {
    "no_weights": (
        "Layer {layer}: no neuron contributes, because every weight of the probe is 0.",
        "All contributions are 0.",
    ),
    "unread": (
        "Layer {layer}: do not read its ranking. In {measure}, it is not resolved whether the probe predicts the test "
        "part better than a constant answer does. The comparison with the controls may still show that {task} can be "
        "decoded from this layer.",
        "Flag `uninformative`: the 95% interval of the nats saved over a constant answer, or of R², contains 0.",
    ),
    "worse": (
        "Layer {layer}: do not read its ranking. In {measure}, the probe predicts the test part worse than a constant "
        "answer does (95% interval {interval}). The comparison with the controls may still show that {task} can be "
        "decoded from this layer.",
        "Flag `uninformative`, and the interval is below 0.",
    ),
    "no_intercept": (
        "The missing intercept may be why: {why}. --probe.bias true (in Python `ProbeOptions(bias=True)`) trains with "
        "one.",
        "One of these two is said, of a probe without an intercept whose mean is 3 sd from 0 in some neuron; or that "
        "has a neuron with q < .001 and is below the majority class, or below 0 in R².",
    ),
    "unread_layers": (
        "Do not read the ranking of {layers}: the probe is not shown to be better than a constant answer there.",
        "Flag `uninformative` in some of several layers.",
    ),
    "leading": (
        "Neurons are those of layer {layer}, whose {what} is furthest above its strongest floor, by {apart:.3f} "
        "({floor}, {value:.3f}){among}.",
        "Several layers. Floors are the majority class or a constant answer and all controls but the randomly "
        "initialised model, where labels are positions, and those of `--transform`; of equal differences, the last "
        "layer's; layers with the flag `uninformative` come last.",
    ),
    "led_by_means": (
        "In {layers} the first neuron contributes mostly by its mean (flag `offset`), which replaces an intercept: "
        "--sort centred ranks without means, --probe.bias true trains with an intercept.",
        "Flag `offset` of the first neuron in some of several layers.",
    ),
    "worst_class": (
        "Layer {layer}: macro F1 is {macro:.3f}; of the classes that the test part has {few} times or more, {label} is "
        "decoded worst (F1 {f1:.3f}, {right} of {n} right{taken}).",
        "Classes are no numbers, the test part has at least two of them 10 times, and one answer is wrong.",
    ),
    "stopped_short": (
        "Layer {layer}: the probe stopped up to {gap:.1g} nats short of its optimum, so this ranking may reflect the "
        "optimiser rather than the data.",
        "The bound on the distance to the optimum is above the tolerance.",
    ),
    "stopped_short_report": (
        "In {layers} the probe stopped short of its optimum, so the ranking may reflect the optimiser rather than the "
        "data.",
        "The same, in a report.",
    ),
}

_PARTS: Sentences = {
    "far_mean": ("the mean of neuron {neuron} is {far:.1f} sd from 0", "The farthest of these."),
    "varies_by_itself": (
        "neuron {neuron} varies with {task} (q = {q:.2g}), but the probe is below the majority class",
        "The neuron of the lowest q.",
    ),
    "varies_by_itself_number": (
        "neuron {neuron} varies with {task} (q = {q:.2g}), but R² is below 0",
        "The same, of numbers.",
    ),
    "among_readable": (", of the layers whose ranking may be read", "Some layers have the flag `uninformative`."),
    "upper_bound": (
        ", which is an upper bound, not a baseline: untrained layers preserve {task}",
        "The interval of the difference to the randomly initialised model is below 0.",
    ),
    "side_in": ("{side} in {layers}", "Part of the sentence before."),
    "give_groups": ("Give `groups`; independent rows are groups of one.", "Rows of arrays."),
    "mark_documents": (
        "--group_by document keeps documents whole, where the corpus marks them (`# newdoc`, empty lines).",
        "Sentences of a corpus.",
    ),
    "explained": (
        "the label explains {share:.1%} of its variance beyond chance (z = {z:.0f})",
        "Part of sentences that need a share of variance that is significant at a false discovery rate of 1%.",
    ),
    "one_rank": (" (rank {rank} in all bootstraps)", "There were bootstraps."),
    "ranks": (" (rank {low} to {high} over its bootstraps)", "There were bootstraps."),
    "left_with_intercept": (
        "in a probe with an intercept {only}{left:.0%} of its contribution is left",
        "The neuron's mean is more than 3 standard deviations from 0.",
    ),
    "unchanged": ("centring leaves its contribution nearly unchanged ({left:.0%})", "Within 5% of the contribution."),
    "raised": ("centring raises it to {left:.0%}", "More than 5% above the contribution."),
    "left": ("centring leaves {only}{left:.0%} of its contribution", "More than 5% below it."),
    "beside": (
        "; without a matched random neuron it {changes} (median)",
        "Matched neurons were removed; no rule, a number beside another.",
    ),
    "taken_for": (", {n} taken for {other}", "Some of its tokens are taken for another class."),
    "its_stability": ("how stable its rank is", "There were no bootstraps."),
    "its_loss": ("what a probe loses without it", "No neuron was removed."),
    "the_control": ('the control "{control}"', "A control of that name was run."),
}

_NEURON: Sentences = {
    "most": (
        "Layer {layer}: neuron {neuron} contributes most, {share:.1%} of the total and {ratio:.1f} times the "
        "mean{range}.",
        "Always, unless one of the first two is said.",
    ),
    "most_equal": (
        "Layer {layer}: neurons {neurons} contribute most, equally: each {share:.1%} of the total and {ratio:.1f} "
        "times the mean{range}. The next sentences are of neuron {neuron}.",
        "The contributions of several neurons are equal within a hundred-thousandth: they share the first rank.",
    ),
    "intercept_only": (
        "It is large and nearly constant, and alone it is not shown to {shows} beyond {chance}: it replaces the "
        "missing intercept and is no evidence of {task}.",
        "Flags `offset` and `no-signal`: centring leaves less than half of its contribution, and its share of variance "
        "is not significant at a false discovery rate of 1% over the layer.",
    ),
    "carries_some": (
        "This overstates it: {centred}. Still, {explained}: it carries {task} in part.",
        f"Flag `offset` without `no-signal`; {_CORRECTED}.",
    ),
    "varies_though_offset": (
        "This overstates it: {centred}. Still, {explained}: it varies with {task}.",
        "Flag `offset` without `no-signal`, and not all that the sentence before needs.",
    ),
    "only_together": (
        "Alone it is not shown to {shows} beyond {chance}: it can be useful only together with other neurons.",
        "Flag `no-signal` without `offset`.",
    ),
    "carries": ("{Centred}, and {explained}: it carries {task}.", f"No flag; {_CORRECTED}."),
    "varies": (
        "{Centred}, and {explained}: it varies with {task}.",
        "No flag, and not all that the sentence before needs.",
    ),
    "unjudged": (
        "{Centred}. Whether it is correlated with {task} is not judged: labels of neighbouring {unit}s are correlated, "
        "so these {unit}s are not independent in this order, as p-values assume. {advice}",
        "Instead of the sentences on what it varies with or carries, where labels of neighbours are correlated.",
    ),
}

_BESIDE: Sentences = {
    "correlated": (
        "Neurons {neurons} are a group with correlations of .99 or more in size: the probe divides its weight among "
        "them, so that ranks are of the group, and little is lost without one of them.",
        "Over training tokens, the neuron correlates so with another one, or through others that do.",
    ),
    "token_is_enough": (
        "The probe is not shown to do better than one that sees the token alone ({both}), so that its accuracy is no "
        "evidence of {task} beyond the token.",
        "The 95% interval of the difference to the control `token` is not above 0.",
    ),
    "covariate_too": (
        "Within values of {covariate} it varies with {task}, too: the label explains {share:.1%} of its remaining "
        "variance (q = {q:.2g}).",
        "`--control_for`; its share among training tokens with the same value is significant at a false discovery rate "
        "of 1%.",
    ),
    "covariate_not": (
        "Within values of {covariate} it is not shown to vary with {task} (p = {p:.2g}, q = {q:.2g}): its relation to "
        "{task} may be due to {covariate}.",
        "`--control_for`, and flag `confound`: the share is significant among all tokens, and not among those with the "
        "same value.",
    ),
    "covariate_is_enough": (
        "The probe is not shown to do better than one trained on labels permuted among tokens with the same value of "
        "{covariate} ({both}), so that its accuracy is no evidence of {task} beyond {covariate}.",
        "The 95% interval of the difference to the control `covariate` is not above 0.",
    ),
    "as_a_direction": ("A random direction contributes as much (p = {p:.2g}).", "Flag `direction`."),
    "share_of_control_task": (
        "Of the contributions to probes of random labels of word types (control task) it makes up {share:.1%}.",
        "The control `control_task` was run; no rule, a number beside another.",
    ),
    "first_unflagged": (
        "The first neuron of layer {layer} without a flag is {neuron}, at rank {rank}.",
        "The neuron that contributes most has a flag, and another one has none.",
    ),
    "all_flagged": ("Every neuron of layer {layer} has a flag.", "No neuron has none."),
    "not_measured": ("This run did not measure {what}.", "There were no bootstraps, or no neuron was removed."),
}

_LOSS: Sentences = {
    "loses": (
        "A probe retrained without it {changes}{beside}.",
        "It was removed, and its interval leaves out 0, or there is none; a loss below 0 is called a gain.",
    ),
    "unresolved": (
        "A probe retrained without it {changes}: whether it loses or gains could not be resolved.",
        "Its interval contains 0 and reaches beyond .001 on either side.",
    ),
    "negligible_without_signal": (
        "A probe retrained without it {changes}, less than {least} over the whole interval: the probe does as well "
        "without it.",
        "Its interval contains 0 and is within .001 of it; flag `no-signal`.",
    ),
    "negligible": (
        "A probe retrained without it {changes}, less than {least} over the whole interval: other neurons carry the "
        "same information.",
        "Its interval contains 0 and is within .001 of it; no flag `no-signal`.",
    ),
}

_INTERVALS: Sentences = {
    "held_fixed": (
        "Neurons are also compared within values of {covariate}: among {n_tokens:,} of {n_train:,} training tokens, "
        "which have one of the {n_values:,} values with several labels.",
        "`--control_for`.",
    ),
    "few": (FEW, "Fewer than 20 test sentences, documents, groups, rows or pairs; no layer is informative then."),
    "over_arrays": (
        "Intervals are over {n:,} test {unit}s and hold for others drawn as these were.",
        "Activations came from arrays, whose origin is not known.",
    ),
    "over_documents": (
        "Intervals are over {n:,} test documents, which the split keeps apart from training, and hold for other "
        "documents of the same corpus; --test_corpus tests on another text.",
        "The split keeps documents whole, and the test part is of the training corpus.",
    ),
    "over_sentences_of_documents": (
        "Intervals are over {n:,} test sentences, of whose {n_documents:,} documents training has others: they hold "
        "for other sentences of these documents, not for other documents. --group_by document keeps documents whole.",
        "Sentences are the unit, the test part is of the training corpus, and it marks documents.",
    ),
    "neighbours": (
        "Labels of neighbouring {unit}s are correlated ({correlation:.2f}), as in the same document; if these "
        " {unit}s are not independent, intervals are too narrow and p-values too small. {advice}",
        "Units are rows without groups, or sentences; most of the labels' differences are between units; and the "
        "correlation of neighbours is at least .05 and 4.5 standard errors above 0.",
    ),
    "over_units": ("Intervals are over {n:,} test {unit}s and hold for other {unit}s of {of}.", "Otherwise."),
    "rounded": (
        "The model ran in {dtype} and its activations are stored in {dtype}: --dtype float32 avoids this rounding.",
        "`--dtype bfloat16` or `float16`.",
    ),
}

_CONTROLS: Sentences = {
    "above": ("above {names}", "The paired 95% interval of the difference is above 0."),
    "below": ("below {names}", "It is below 0."),
    "alike": ("not distinguished from {names}", "It contains 0."),
    "with_controls": ("In layer {layer} the probe is {sides}.", "There are intervals."),
    "in_every_layer": ("In every layer the probe is {sides}.", "Several layers; there are intervals."),
    "in_some_layers": ("The probe is {parts}.", "The layers are not all on the same side of a control."),
    "compare_it": ("In layer {layer}, compare it with {names}.", "There are none."),
    "not_above": (
        "In {layers} the {what} is {side}.",
        "The interval of the difference is below 0, or contains it; nothing is said of controls that are beaten.",
    ),
}


@dataclass(frozen=True)
class EvidenceSentence:
    """Sentence of evidence with names in braces, its rule (condition), and its group; most groups use one sentence."""

    text: str
    rule: str
    group: str


_GROUPS = {
    "The whole layer": _WHOLE_LAYER,
    "Parts of the sentences above": _PARTS,
    "The neuron that contributes most": _NEURON,
    "Beside it": _BESIDE,
    "What a probe loses without that neuron": _LOSS,
    "What intervals hold for": _INTERVALS,
    "Accuracy or R² against a control, or the majority class": _CONTROLS,
    "The ranking as such": RANKING,
    "Several runs (`compare`)": COMPARE,
    "Several recipes of tuning (`compare` of runs of `finetune`)": RECIPES,
    "Features beside other units (`fit --site sae:FOLDER`)": BASES,
    "Notes under tables": NOTES,
}

SENTENCES = {
    name: EvidenceSentence(*sentence, group)
    for group, sentences in _GROUPS.items()
    for name, sentence in sentences.items()
}


def say(name: str, **values: object) -> str:
    """Return the sentence of this name with the values of its braces filled in."""
    return SENTENCES[name].text.format(**values)
