"""Notes under tables of evidence, each with its rule; `evidence_sentences` has all other sentences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sentence:
    """A sentence, and when it may be said.

    Args:
        text: The sentence, with names in braces for what is filled in.
        rule: What must hold.
        group: What it is about; of most groups one sentence is said.
    """

    text: str
    rule: str
    group: str


TABLES = "Notes under tables"
RANKING = "The ranking as such"

NOTES: dict[str, Sentence] = {
    "several_intervals": Sentence(
        "intervals: {n} neurons were removed, each with a 95% interval of its own, of which about one in twenty misses "
        "its truth by chance; that a neuron carries something is said at 5% for all {n} together",
        "Neurons were removed.",
        TABLES,
    ),
    "not_better": Sentence(
        "{layers}: not shown to be better {unit}than a constant answer, so do not read the ranking",
        "Flag `uninformative`.",
        TABLES,
    ),
    "note_of_range": Sentence("range: best and worst rank over the bootstraps", "There were bootstraps.", TABLES),
    "note_of_eta": Sentence(
        "eta sq.: variance that the class explains beyond chance",
        "Labels are classes.",
        TABLES,
    ),
    "note_of_z": Sentence("z: how far that is beyond chance, in standard deviations", "Always.", TABLES),
    "note_of_eta_of_numbers": Sentence(
        "eta sq.: squared correlation with the number beyond chance",
        "Labels are numbers.",
        TABLES,
    ),
    "note_of_given": Sentence(
        "given: eta sq. among training tokens with the same value of what --given names", "`--given`.", TABLES
    ),
    "note_of_loss": Sentence(
        "without it: {unit} lost by a retrained probe",
        "Neurons were removed.",
        TABLES,
    ),
    "note_of_far": Sentence(
        "* mean more than {far:.0f} sd from 0: {instead}", "The mean of a neuron is that far.", TABLES
    ),
    "note_of_random_slices": Sentence(
        "random slices: lowest and highest accuracy of {n} draws of as many neurons of the layer",
        "Neurons belong to heads.",
        TABLES,
    ),
    "note_of_heads_alone": Sentence(
        "accuracy: of a probe of the head's neurons alone (majority {majority:.3f})",
        "Neurons belong to heads.",
        TABLES,
    ),
    "note_of_classes": Sentence(
        "95% range: empty where fewer than {least} sentences, or what else is independent, have a token of it",
        "An interval of a class is missing.",
        TABLES,
    ),
    "note_of_negligible": Sentence(
        "{word}: the whole interval of what it loses is within {least} of 0", "A neuron is marked so.", TABLES
    ),
    "note_of_heads": Sentence(
        "° not above chance: its interval, widened for the number of heads, reaches the majority or a draw",
        "A head is marked so: its interval at 5% for all heads together is not above both.",
        TABLES,
    ),
    "note_of_choices": Sentence(
        "{mark} no better than chance: its interval, widened for the number of choices, reaches the majority or a "
        "random draw",
        "Of `rank`, under accuracies of the first neurons; one is marked so if its interval at 5% for all of them "
        "together is not above both.",
        TABLES,
    ),
    "note_of_rotated": Sentence(
        "first {first}: their share of the scores of all neurons (anova: of the shares of variance between classes; "
        "gaussian: of the bits of each alone), beside that of directions of {n} rotations; – not compared: the score "
        "is a rank, is in the neurons' own units, or takes other labels or probes",
        "Of `rank`, under the first neurons of each ranking.",
        TABLES,
    ),
    "note_of_overlap": Sentence(
        "top overlap: share of the first {top} neurons that both rankings have in common, matched neurons as one",
        "`compare`.",
        TABLES,
    ),
    "note_of_chance": Sentence(
        "by chance: 95% of what {null} give; p: that they give such a Spearman, corrected for all pairs of layers",
        "`compare`; what chance is, is the column `null` of `agreement.csv`.",
        TABLES,
    ),
    "note_of_match": Sentence(
        "match: correlation of matched neurons on other sentences; CKA: likeness of the whole layers (linear)",
        "`compare`.",
        TABLES,
    ),
    "chosen_penalty": Sentence(
        "Penalty: l2 {l2:.1e}{for_all}, chosen for the {what} of validation tokens ({measured:.4f}{unit}; {near}).",
        "The penalty was not given; numbers beside each other.",
        TABLES,
    ),
    "penalty_alone": Sentence(
        "The best for each layer alone would be {own}.",
        "The penalty was not given, and there are several layers.",
        TABLES,
    ),
    "others_clipped": Sentence(
        ", with as many other neurons clipped {value:.3f}", "`--transform clip`; a number beside another.", TABLES
    ),
    "transformed": Sentence(
        "Layer {layer}, {done}: {words} {value:.3f}, untransformed {plain:.3f}{difference}{others}.",
        "`--transform`; a number beside another, with the interval of the difference where there is one.",
        TABLES,
    ),
}
