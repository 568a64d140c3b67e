"""Tables of `attention`."""

from __future__ import annotations

from probing.results.schema import Column, Schema, label_of_class, measured, number, text, whole
from probing.tables.schema import HEAD, block, value

_N = whole("n", "Number of sentences that count; with `--pairs`, of pairs.")
_MEASURE = text("measure", "What is measured.")
_TO = text("to", "Type of tokens that is attended to, where the measure is of one.")
_P = number("p_value", "p-value, corrected for the rows that are tested together.")

HEADS = Schema("heads", "a row per head, measure and type of tokens", (
    block(), HEAD, _MEASURE, _TO, value("Its value"), _N,
), optional=True)  # fmt: skip
ATTENTION_LAYERS = Schema("attention_layers", "the same of each layer, as means over its heads", (
    block(), _MEASURE, _TO, value("Its value"), _N,
), optional=True)  # fmt: skip
ATTENTION_CLASSES = Schema("attention_classes", "a row per head and factor of the thresholds", (
    block("Number of the block; in rows with `all`, the share of each class among the maps of all heads."), HEAD,
    number("factor", "Factor of the thresholds: 1, 0.75 or 1.25.", form=".2f"),
    number("v", "Mean of the vertical score over maps."),
    number("d", "Mean of the diagonal score over maps."),
    number("b", "Mean of the block score over maps, with `--pairs`."),
    number("b_moved", "The same with the boundary of each pair moved."),
    Column("class", label_of_class, "Class of most of the head's maps."),
    Column("share", float, "Share of its maps that are of this class; low, high: its 95% interval.", interval=""),
    _N,
    number("class_entropy", "Entropy of the classes of its maps, in nats."),
    measured("share_moved", "Share of block maps with the boundary moved."),
), optional=True)  # fmt: skip
ROLLOUT = Schema("rollout", "a row per layer, kind of token and measure", (
    block("Layer whose vectors are traced."),
    text("query", "Whose vectors: words or special tokens."),
    text("measure", "self, special_tokens, previous, next, others, distance or entropy."),
    value("Its value"), _N,
    number("uniform", "The value under uniform attention."),
), optional=True)  # fmt: skip
SIMILARITY = Schema("similarity", "a row per measure and pair of heads or of layers", (
    text("measure", "jensen_shannon of two heads, or cosine, cosine_of_means, cosine_matched of two layers."),
    block(), HEAD,
    whole("other_layer", "Number of the other block."),
    whole("other_head", "Number of the other head."),
    value("Its value"), whole("n", "Number of queries, of cosines of sentences."),
), optional=True)  # fmt: skip

_RELATION = text("relation", "Dependency relation.")
_QUERY = text("query", "Side of the arc that attends: dependent or head; chosen on train.")
_COUNTS = (
    whole("n_train", "Number of arcs, words or examples of the training part."),
    whole("n_test", "Number of arcs or words of the test part."),
)
_OF_RELATION = (
    number("train", "Accuracy on the training part."),
    measured("test", "Accuracy on the test part."),
    whole("offset", "The best fixed offset."),
    number("offset_train", "Its accuracy on the training part."),
    measured("offset_test", "Its accuracy on the test part."),
    measured("difference", "Accuracy of the head minus that of the offset."),
    _P,
    number("difference_permuted", "Mean difference if syntactic heads are permuted among a sentence's dependents."),
    number("p_permuted", "p-value that the difference is larger than that, corrected."),
)
_UNTRAINED = measured("untrained", "The same of a randomly initialised model.")
RELATIONS = Schema("relations", "a row per dependency relation", (
    _RELATION, *_COUNTS, _QUERY, block("Block of the head, chosen on train."), HEAD, *_OF_RELATION, _UNTRAINED,
), optional=True)  # fmt: skip
HEAD_RELATIONS = Schema("head_relations", "a row per head, with the relation that it is best at", (
    block(), HEAD, _RELATION, _QUERY, *_COUNTS, *_OF_RELATION,
), optional=True)  # fmt: skip
TREES = Schema("trees", "a row per head, and of the probe of all heads", (
    text("measure", "uuas of a head's trees, or uas of the probe of all heads."),
    block("Number of the block; `all` for the probe."), HEAD,
    text("chosen", "yes for the best head on train."),
    *_COUNTS,
    number("train", "Accuracy on the training part."),
    measured("test", "Accuracy on the test part."),
    measured("baseline", "Accuracy of the best simple tree."),
    measured("difference", "Accuracy minus that of the baseline."),
    _P, _UNTRAINED,
    whole("offset", "Offset that the probe reads as well."),
    number("optimality_gap", "By how many nats, at most, the probe's objective is above its minimum.", form=".1e"),
), optional=True)  # fmt: skip
ROLES = Schema("roles", "a row per role, side that attends and head", (
    text("role", "Semantic role; all for all links together."),
    text("query", "Side that attends: predicate or filler."),
    block(), HEAD,
    Column("score", float, "Mean attention of linked words; low, high: its 95% interval.", interval=""),
    number("unlinked", "Mean of pairs of other sentences that look alike."),
    number("z", "Distance of the score from that, in standard deviations of the draws."),
    number("p_value", "p-value against draws of all links of a predicate together."),
    whole("n", "Number of links that are compared."),
    whole("n_unmatched", "Number of links that no unlinked pairs look like."),
), optional=True)  # fmt: skip
CHANGE = Schema("change", "with `--against`, a row per measure and head, layer or matrix", (
    text("measure", "cosine, jensen_shannon, hidden_states or parameters; as published also cosine_as_published."),
    text("of", "same, other heads, other sentences, other tokens, or the name of a matrix."),
    block(), HEAD, value("Its value"), whole("n", "What the mean is over: sentences, or tokens."),
), optional=True)  # fmt: skip
FUSION = Schema("fusion", "with `--parts fusion`, a row per task, fusion of layers and measure", (
    text("task", "upos, deprel or position."),
    text("fusion", "layer for a single one, equal, max, concat or gate."),
    text("measure", "accuracy, difference, cosine or weight."),
    block("Number of the layer."),
    text("chosen", "yes for the best layer on validation sentences."),
    text("against", "What a difference is to: last layer, best layer or equal."),
    value("Its value"), _P,
    whole("n_train", "Number of training examples."),
    whole("n", "Number of test examples, of cosines of sentences."),
    number("optimality_gap", "By how many nats, at most, the objective is above its minimum.", form=".1e"),
    text("converged", "Whether the training of the fusion ended: yes or no."),
), optional=True)  # fmt: skip

_OFFSET = whole("offset", "Offset that the head attends to, chosen on training sentences.")


def _beside(of: str, what: str) -> tuple[Column, ...]:
    """Return a correlation, its values under two nulls, and their p-values."""
    return (
        number(of, f"{what} of the neurons' use with the run's contributions."),
        number(f"{of}_heads", "The same, mean over the block's other heads."),
        number(f"{of}_heads_p", "Its p-value, by rank."),
        number(f"{of}_bases", "The same, mean over random bases."),
        number(f"{of}_bases_p", "Its p-value, by rank."),
    )


POSITION_HEADS = Schema("position_heads", "with `--run`, a row per head", (
    block(), HEAD, _OFFSET,
    text("position_head", "Whether it is a position head: yes or no."),
    measured("mass", "Attention at the offset."),
    measured("word_mass", "The same among words alone."),
    measured("hit", "Share of queries whose largest attention is at the offset."),
    measured("told", "Attention to the word that is told to be at the offset, with the words permuted."),
    measured("told_true", "Attention to the word that is there in the sentence, in the same permuted text."),
    whole("n", "Number of sentences."),
    measured("contrast", "By how many logits the word at the offset stands out."),
    measured("position_part", "Part of that which comes from position, in logits."),
    measured("bias_part", "Part of that which comes from a bias of relative positions, in logits."),
    *_beside("spearman", "Spearman's correlation"),
    *_beside("partial", "Spearman's partial correlation"),
), optional=True)  # fmt: skip
POSITION_NEURONS = Schema("position_neurons", "a row per position head, and per clearest head, and neuron", (
    block(), HEAD, _OFFSET,
    whole("rank", "Rank by use."), whole("neuron", "Index of the neuron."),
    number("use", "How much the head's position part uses the neuron, in logits."),
    number("by_query", "Part by the query."), number("by_key", "Part by the key."),
    number("position_part", "Their sum."),
    number("contribution", "Contribution in the run."),
    number("contribution_centred", "Centred contribution in the run."),
    number("eta_squared", "Eta squared in the run."),
    number("sd_of_positions", "Standard deviation of the neuron's means by position."),
    number("sd_of_steps", "The same of the differences of neighbouring positions."),
), optional=True)  # fmt: skip


def _held(of: str, what: str) -> tuple[Column, ...]:
    """Return a measure with neurons held at their mean, beside drawn sets."""
    return (
        number(of, f"{what} in the intact model."),
        number(f"{of}_held", "The same with the neurons held at their mean."),
        number(f"{of}_random", "The same, mean of random sets."),
        number(f"{of}_random_p", "p-value beside them, by rank."),
        number(f"{of}_matched", "The same, mean of sets matched in standard deviation."),
        number(f"{of}_matched_p", "p-value beside them, by rank."),
    )


POSITION_REMOVAL = Schema("position_removal", "a row per position head, ranking and number of neurons", (
    block(), HEAD, _OFFSET,
    text("ranking", "Ranking whose first neurons are held."),
    whole("k", "Number of neurons."), text("neurons", "The neurons."),
    *_held("contrast", "Logits by which the word at the offset stands out"),
    *_held("word_mass", "Attention at the offset among words"),
), optional=True)  # fmt: skip

SCHEMAS = (
    HEADS, ATTENTION_LAYERS, ATTENTION_CLASSES, ROLLOUT, SIMILARITY, RELATIONS, HEAD_RELATIONS, TREES, ROLES, CHANGE,
    FUSION, POSITION_HEADS, POSITION_NEURONS, POSITION_REMOVAL,
)  # fmt: skip
