"""All sentences of evidence that `fit`, `probe` and `compare` print or show in a report, with their rules.

Code takes sentences from here by name, so that no unlisted sentence appears; `python docs/evidence.py` writes
docs/evidence.md from this table. Sentences of a group exclude each other.
"""

from __future__ import annotations

from probing.statistics import FEW
from probing.tables.evidence_notes import (
    BASIS_SENTENCES,
    DIRECTION_SENTENCES,
    LAYER_SENTENCES,
    NOTES,
    RANKING,
    RECIPE_SENTENCES,
    EvidenceSentence,
)

# Error rate at which claims are made: for a single interval, and for all neurons together that were removed in a layer.
ALPHA = 0.05
# Share of the first neurons that two rankings have in common from which on they are called the same.
SAME = 0.5


def say(name: str, **values: object) -> str:
    """Return the sentence of this name with the values of its braces filled in."""
    return SENTENCES[name].text.format(**values)


_NEURON = "The neuron that contributes most"
_LOSS = "What a probe loses without that neuron"
_BESIDE = "Beside it"
_CONTROLS = "Accuracy or R² against a control, or the majority class"
_INTERVALS = "What intervals hold for"
_COMPARE = "Several runs (`compare`)"
_PARTS = "Parts of the sentences above"

_CORRECTED = (
    f"the loss is above 0 with a p-value of at most {ALPHA}, corrected for all neurons that were removed in the layer "
    "(Holm), the upper end of its 95% interval is at least .001, the probes of the token alone and of the "
    "covariate, if there are any, are beaten, there is no flag `confound`, and the neuron contributes more than the "
    "directions of random rotations; with the flag `offset`, centred too"
)

SENTENCES: dict[str, EvidenceSentence] = {
    **LAYER_SENTENCES,
    "most": EvidenceSentence(
        "Layer {layer}: neuron {neuron} contributes most, {share:.1%} of the total and {ratio:.1f} times the "
        "mean{range}.",
        "Always, unless one of the first two is said.",
        _NEURON,
    ),
    "most_equal": EvidenceSentence(
        "Layer {layer}: neurons {neurons} contribute most, equally: each {share:.1%} of the total and {ratio:.1f} "
        "times the mean{range}. The next sentences are of neuron {neuron}.",
        "The contributions of several neurons are equal within a hundred-thousandth: they share the first rank.",
        _NEURON,
    ),
    "correlated": EvidenceSentence(
        "Neurons {neurons} are a group with correlations of .99 or more in size: the probe divides its weight among "
        "them, so that ranks are of the group, and little is lost without one of them.",
        "Over training tokens, the neuron correlates so with another one, or through others that do.",
        _BESIDE,
    ),
    "intercept_only": EvidenceSentence(
        "It is large and nearly constant, and alone it is not shown to {shows} beyond {chance}: it replaces the "
        "missing intercept and is no evidence of {task}.",
        "Flags `offset` and `no-signal`: centring leaves less than half of its contribution, and its share of variance "
        "is not significant at a false discovery rate of 1% over the layer.",
        _NEURON,
    ),
    "carries_some": EvidenceSentence(
        "This overstates it: {centred}. Still, {explained}: it carries some {task}.",
        f"Flag `offset` without `no-signal`; {_CORRECTED}.",
        _NEURON,
    ),
    "varies_though_offset": EvidenceSentence(
        "This overstates it: {centred}. Still, {explained}: it varies with {task}.",
        "Flag `offset` without `no-signal`, and not all that the sentence before needs.",
        _NEURON,
    ),
    "only_together": EvidenceSentence(
        "Alone it is not shown to {shows} beyond {chance}: it can be useful only together with other neurons.",
        "Flag `no-signal` without `offset`.",
        _NEURON,
    ),
    "carries": EvidenceSentence(
        "{Centred}, and {explained}: it carries {task}.",
        f"No flag; {_CORRECTED}.",
        _NEURON,
    ),
    "varies": EvidenceSentence(
        "{Centred}, and {explained}: it varies with {task}.",
        "No flag, and not all that the sentence before needs.",
        _NEURON,
    ),
    "unjudged": EvidenceSentence(
        "{Centred}. Whether it is correlated with {task} is not judged: labels of neighbouring {unit}s are correlated, "
        "so these {unit}s are not independent in this order, as p-values assume. {advice}",
        "Instead of the sentences on what it varies with or carries, where labels of neighbours are correlated.",
        _NEURON,
    ),
    "loses": EvidenceSentence(
        "A probe retrained without it {changes}{beside}.",
        "It was removed, and its interval leaves out 0, or there is none; a loss below 0 is called a gain.",
        _LOSS,
    ),
    "unresolved": EvidenceSentence(
        "A probe retrained without it {changes}: whether it loses or gains could not be resolved.",
        "Its interval contains 0 and reaches beyond .001 on either side.",
        _LOSS,
    ),
    "negligible_without_signal": EvidenceSentence(
        "A probe retrained without it {changes}, less than {least} over the whole interval: the probe does as well "
        "without it.",
        "Its interval contains 0 and is within .001 of it; flag `no-signal`.",
        _LOSS,
    ),
    "negligible": EvidenceSentence(
        "A probe retrained without it {changes}, less than {least} over the whole interval: other neurons carry the "
        "same information.",
        "Its interval contains 0 and is within .001 of it; no flag `no-signal`.",
        _LOSS,
    ),
    "token_is_enough": EvidenceSentence(
        "The probe is not shown to do better than one that sees the token alone ({both}), so that its accuracy is no "
        "evidence of {task} beyond the token.",
        "The 95% interval of the difference to the control `token` is not above 0.",
        _BESIDE,
    ),
    "covariate_too": EvidenceSentence(
        "Within values of {covariate} it varies with {task}, too: {task} explains {share:.1%} of its remaining "
        "variance (q = {q:.2g}).",
        "`--control_for`; its share among training tokens with the same value is significant at a false discovery rate "
        "of 1%.",
        _BESIDE,
    ),
    "covariate_not": EvidenceSentence(
        "Within values of {covariate} it is not shown to vary with {task} (p = {p:.2g}, q = {q:.2g}): its relation to "
        "{task} may be due to {covariate}.",
        "`--control_for`, and flag `confound`: the share is significant among all tokens, and not among those with the "
        "same value.",
        _BESIDE,
    ),
    "covariate_is_enough": EvidenceSentence(
        "The probe is not shown to do better than one trained on labels permuted among tokens with the same value of "
        "{covariate} ({both}), so that its accuracy is no evidence of {task} beyond {covariate}.",
        "The 95% interval of the difference to the control `covariate` is not above 0.",
        _BESIDE,
    ),
    "held_fixed": EvidenceSentence(
        "Neurons are also compared within values of {covariate}: among {n_tokens:,} of {n_train:,} training tokens, "
        "which have one of the {n_values:,} values with several labels.",
        "`--control_for`.",
        _INTERVALS,
    ),
    "as_a_direction": EvidenceSentence(
        "A random direction contributes as much (p = {p:.2g}).",
        "Flag `direction`.",
        _BESIDE,
    ),
    "share_of_control_task": EvidenceSentence(
        "Of the contributions to probes of random labels of word types (control task) it makes up {share:.1%}.",
        "The control `control_task` was run; no rule, a number beside another.",
        _BESIDE,
    ),
    "first_unflagged": EvidenceSentence(
        "The first neuron without a flag is {neuron}, at rank {rank}.",
        "The neuron that contributes most has a flag, and another one has none.",
        _BESIDE,
    ),
    "all_flagged": EvidenceSentence("Every neuron of the layer has a flag.", "No neuron has none.", _BESIDE),
    "not_measured": EvidenceSentence(
        "This run did not measure {what}.",
        "There were no bootstraps, or no neuron was removed.",
        _BESIDE,
    ),
    "above": EvidenceSentence("above {names}", "The paired 95% interval of the difference is above 0.", _CONTROLS),
    "below": EvidenceSentence("below {names}", "It is below 0.", _CONTROLS),
    "alike": EvidenceSentence("not distinguished from {names}", "It contains 0.", _CONTROLS),
    "with_controls": EvidenceSentence("In layer {layer} the probe is {sides}.", "There are intervals.", _CONTROLS),
    "upper_bound": EvidenceSentence(
        ", which is an upper bound, not a baseline: untrained layers preserve {task}",
        "The interval of the difference to the randomly initialised model is below 0.",
        _PARTS,
    ),
    "in_every_layer": EvidenceSentence(
        "In every layer the probe is {sides}.", "Several layers; there are intervals.", _CONTROLS
    ),
    "in_some_layers": EvidenceSentence(
        "The probe is {parts}.", "The layers are not all on the same side of a control.", _CONTROLS
    ),
    "side_in": EvidenceSentence("{side} in {layers}", "Part of the sentence before.", _PARTS),
    "compare_it": EvidenceSentence("In layer {layer}, compare it with {names}.", "There are none.", _CONTROLS),
    "not_above": EvidenceSentence(
        "In {layers} the {what} is {side}.",
        "The interval of the difference is below 0, or contains it; nothing is said of controls that are beaten.",
        _CONTROLS,
    ),
    "overlaps": EvidenceSentence(
        "Layer {layer}, first neurons: {parts}.",
        "Bootstraps or probes under other penalties were trained, and the layer is informative.",
        RANKING,
    ),
    "overlap_of_penalties": EvidenceSentence(
        "{more:.0%} of {top} stay with ten times the penalty, {less:.0%} with a tenth (Spearman of all "
        "{spearman_more:.2f} and {spearman_less:.2f})",
        "Probes under other penalties were trained.",
        RANKING,
    ),
    "overlap_of_bootstraps": EvidenceSentence(
        "two bootstraps share {share:.0%} of {top}",
        "Bootstraps were trained.",
        RANKING,
    ),
    **DIRECTION_SENTENCES,
    "fewest": EvidenceSentence(
        "Layer {layer}, {ranking}: {parts}; {end}.",
        "`rank --curves`; accuracies beside each other, and the fewest first neurons that reach that of all less .01, "
        "chosen on validation tokens.",
        RANKING,
    ),
    "positions": EvidenceSentence(
        "Layer {layer}: accuracy {parts} and {last}; positions.csv has every position.",
        "Classes are numbers of tokens, with test tokens at three positions or more.",
        RANKING,
    ),
    "few": EvidenceSentence(
        FEW,
        "Fewer than 20 test sentences, documents, groups, rows or pairs; no layer is informative then.",
        _INTERVALS,
    ),
    "over_arrays": EvidenceSentence(
        "Intervals are over {n:,} test {unit}s and hold for others drawn as these were.",
        "Activations came from arrays, whose origin is not known.",
        _INTERVALS,
    ),
    "over_documents": EvidenceSentence(
        "Intervals are over {n:,} test documents, which the split keeps apart from training, and hold for other "
        "documents of the same corpus; --test_corpus tests on another text.",
        "The split keeps documents whole, and the test part is of the training corpus.",
        _INTERVALS,
    ),
    "over_sentences_of_documents": EvidenceSentence(
        "Intervals are over {n:,} test sentences, of whose {n_documents:,} documents training has others: they hold "
        "for other sentences of these documents, not for other documents. --group_by document keeps documents whole.",
        "Sentences are the unit, the test part is of the training corpus, and it marks documents.",
        _INTERVALS,
    ),
    "neighbours": EvidenceSentence(
        "Labels of neighbouring {unit}s are correlated ({correlation:.2f}), as in the same document; if these "
        " {unit}s are not independent, intervals are too narrow and p-values too small. {advice}",
        "Units are rows without groups, or sentences; most of the labels' differences are between units; and the "
        "correlation of neighbours is at least .05 and 4.5 standard errors above 0.",
        _INTERVALS,
    ),
    "give_groups": EvidenceSentence("Give `groups`; independent rows are groups of one.", "Rows of arrays.", _PARTS),
    "mark_documents": EvidenceSentence(
        "--group_by document keeps documents whole, where the corpus marks them (`# newdoc`, empty lines).",
        "Sentences of a corpus.",
        _PARTS,
    ),
    "over_units": EvidenceSentence(
        "Intervals are over {n:,} test {unit}s and hold for other {unit}s of {of}.", "Otherwise.", _INTERVALS
    ),
    "rounded": EvidenceSentence(
        "The model ran in {dtype} and its activations are stored in {dtype}: --dtype float32 avoids this rounding.",
        "`--dtype bfloat16` or `float16`.",
        _INTERVALS,
    ),
    "everywhere": EvidenceSentence(
        "{subject} among the first {top} of every run at the same relative depth.",
        "There are no probes of shuffled labels.",
        _COMPARE,
    ),
    "everywhere_by_chance": EvidenceSentence(
        "{subject} among the first {top} of every run at the same relative depth; with shuffled labels, {mean} are on "
        "average ({low} to {high}; p = {p:.2g}).",
        "There are such probes.",
        _COMPARE,
    ),
    "everywhere_beyond": EvidenceSentence(
        "{n} of them {verb} there in at most {share:.0%} of the draws of shuffled labels.",
        "All rankings are to be read; counted are neurons without `no-signal` that few draws have at the top.",
        _COMPARE,
    ),
    "unread_run": EvidenceSentence(
        "{label}: ignore {layers}, where the probe is not shown to predict better than a constant answer: its ranking, "
        "and so the agreement with it, is no evidence.",
        "A layer of the run has the flag `uninformative`.",
        _COMPARE,
    ),
    "unpaired": EvidenceSentence(
        "{other} has no partner for {layers} of {label}: only layers of the same relative depth are paired.",
        "Two layers are paired if each is the other's nearest in relative depth, its number over the number of blocks, "
        "and they differ by less than half a block of the model with fewer blocks.",
        _COMPARE,
    ),
    "basis_compared": EvidenceSentence(
        "Rankings are of the bases of these runs. Where neurons are matched by correlation, chance is that of {n} "
        "random bases of the second run if this is above that of permuted neurons.",
        "Always.",
        _COMPARE,
    ),
    "same_neurons": EvidenceSentence(
        "{a} and {b} have the same neurons at the top of their rankings: {numbers}.",
        f"In every pair of layers of the same relative depth, the top overlap is at least {SAME:.0%}, and it and "
        f"Spearman's correlation are above chance (p ≤ {ALPHA}, corrected for all pairs of layers; against shuffled "
        "labels, random bases or permutations). Layers with the flag `uninformative` do not count, here and below.",
        _COMPARE,
    ),
    "partly_same": EvidenceSentence(
        "{a} and {b} rank neurons alike only in part: {numbers}.",
        "One of the two is above chance in some pair of layers, and not all that the sentence before needs.",
        _COMPARE,
    ),
    "no_more_than_chance": EvidenceSentence(
        "{a} and {b} are not shown to rank the same neurons first more than chance does: {numbers}.",
        "Neither is above chance in any pair of layers.",
        _COMPARE,
    ),
    "no_verdict": EvidenceSentence(
        "Whether {a} and {b} rank the same neurons first cannot be said: in no pair of layers of the same relative "
        "depth are both probes shown to predict better than a constant answer.",
        "In each such pair of layers, one has the flag `uninformative`.",
        _COMPARE,
    ),
    "agreement": EvidenceSentence(
        "in layers of the same relative depth, {shared} of the first {top} neurons are in common ({chance} by chance; "
        "above it in {n_overlap} of {pairs} of layers), and Spearman's correlation of the rankings is {values} (above "
        "chance in {n_spearman})",
        f"Part of the first three; above chance is p ≤ {ALPHA}, corrected for all pairs of layers.",
        _COMPARE,
    ),
    "explained": EvidenceSentence(
        "{task} explains {share:.1%} of its variance beyond chance (z = {z:.0f})",
        "Part of sentences that need a share of variance that is significant at a false discovery rate of 1%.",
        _PARTS,
    ),
    "one_rank": EvidenceSentence(" (rank {rank} in all bootstraps)", "There were bootstraps.", _PARTS),
    "ranks": EvidenceSentence(" (rank {low} to {high} over its bootstraps)", "There were bootstraps.", _PARTS),
    "left_with_intercept": EvidenceSentence(
        "in a probe with an intercept {only}{left:.0%} of its contribution is left",
        "The neuron's mean is more than 3 standard deviations from 0.",
        _PARTS,
    ),
    "unchanged": EvidenceSentence(
        "centring leaves its contribution nearly unchanged ({left:.0%})", "Within 5% of the contribution.", _PARTS
    ),
    "raised": EvidenceSentence("centring raises it to {left:.0%}", "More than 5% above the contribution.", _PARTS),
    "left": EvidenceSentence("centring leaves {only}{left:.0%} of its contribution", "More than 5% below it.", _PARTS),
    "beside": EvidenceSentence(
        ", and one without a matched random neuron {changes} (median)",
        "Matched neurons were removed; no rule, a number beside another.",
        _PARTS,
    ),
    "taken_for": EvidenceSentence(", {n} taken for {other}", "Some of its tokens are taken for another class.", _PARTS),
    "its_stability": EvidenceSentence("how stable its rank is", "There were no bootstraps.", _PARTS),
    "its_loss": EvidenceSentence("what a probe loses without it", "No neuron was removed.", _PARTS),
    "the_control": EvidenceSentence('the control "{control}"', "A control of that name was run.", _PARTS),
    **RECIPE_SENTENCES,
    **BASIS_SENTENCES,
    **NOTES,
}
