"""Meanings of the headings of `attention` on a page."""

from __future__ import annotations

from collections.abc import Mapping

from probing.page.heads import HEAD
from probing.page.terms import Terms
from probing.runs.study import Result

ATTENTION: Terms = {
    "head": HEAD,
    "class": "Pattern that most maps of the head follow: vertical (attention to special tokens), diagonal (to the "
    "token itself and its neighbours), both, or heterogeneous (all others), by rules on the mean attention.",
    "entropy": "Of a query's attention, in units of that of uniform attention to what the mask lets it see: 0 for "
    "attention to one token.",
    "special tokens": "Mean attention to all special tokens together. By itself it says little: lift is this mass over "
    "that under uniform attention to what each query may see, and by norm weights each token by the norm of what the "
    "head reads there.",
    "best at": "The dependency relation in which the head is furthest above the best offset on the sentences to choose "
    "by; its accuracy is that on other sentences.",
    "best offset": "The fixed distance from a word to its head that most arcs of the relation have: what a head that "
    "knows positions alone would reach.",
    "if permuted": "The same difference, as a mean over permutations of the syntactic heads among the dependents of "
    "each sentence: what a head finds that attends to words which head many others, whatever depends on them.",
    "p beyond permuted": "Of the difference being larger than under these permutations, corrected for the number of "
    "relations by the largest of each permutation.",
    "from": "The side of the relation that attends: dependent or head.",
    "p": "Of the difference between a head and the offset on the same arcs, corrected for the number of relations or "
    "of heads (Holm).",
}

ROLLOUT: Terms = {
    "layer": "Block whose output is followed back to the input, each block taken to keep half of a vector.",
    "itself": "Share of a word's vector that comes from its own token; in brackets, under uniform attention.",
    "special tokens": "Share that comes from special tokens, and so on for the previous token, the next one and all "
    "others.",
    "previous": "Share that comes from the previous token.",
    "next": "Share that comes from the next token.",
    "others": "Share that comes from all other tokens.",
}

CHANGE: Terms = {
    "layer": "Block of both checkpoints.",
    "maps": "Cosine of the two attention maps of a sentence, mean over sentences and heads.",
    "other heads": "The same of two heads of the layer, one in each checkpoint.",
    "other sentences": "The same of two sentences of equal length.",
    "Jensen-Shannon": "Divergence of the two attention distributions of a query, in nats: 0 where they are the same.",
    "as published": "Cosine of maps with their padding, as in Kovaleva et al. (2019).",
    "hidden states": "Cosine of the two hidden states of a token.",
    "other tokens": "Cosine of the hidden states of two tokens.",
}

FUSION: Terms = {
    "task": "What a linear probe predicts.",
    "last layer": "The model's last layer alone.",
    "best layer": "The layer that is best on the validation sentences.",
    "mean": "The mean of all layers, in which nothing is learnt.",
    "concat": "A weighted sum of layers, with a weight for each that is the same for all tokens.",
    "max": "The largest of the layers, neuron by neuron, in which nothing is learnt.",
    "gate": "A weighted sum of layers, with weights for each token.",
    "fusion": "How the layers are made one.",
    "from the last layer": "Difference of accuracies in points, with its 95% interval.",
    "from the best layer": "The same beside the best layer.",
    "from the mean": "The same beside the mean of the layers.",
}

POSITION_HEADS: Terms = {
    "offset": "Distance from the attending word to the word that gets most of the head's attention, chosen on training "
    "sentences: -1 is the previous token.",
    "all keys": "Mean attention to the word at the offset. A position head has more than .5 of it, or .9 in the "
    "column most.",
    "words": "The same as a share of the attention to words.",
    "most": "Share of the words that attend there most.",
    "told": "Where the words are permuted before the model reads them: attention to the word that is told to be at the "
    "offset.",
    "true": "Attention to the word that is there in the sentence, in the same permuted text.",
    "contrast": "Score of the key at the offset less the mean score of all words, in logits of the attention.",
    "positions": "The part of the contrast that is left when each word is replaced by the mean word at its position.",
    "Spearman": "Rank correlation of what the head uses of each neuron with the contributions of the run.",
    "partial": "The same with the spread of neurons over positions, and from position to position, held constant.",
    "ranking": "By what neurons are ranked: contribution, its centred form, eta squared (needs no probe), or use by "
    "the head itself.",
    "held": "The number to the left with the first neurons of the ranking at their mean, in this head's queries and "
    "keys alone.",
    "random": "The same for random neurons, mean of 100 sets.",
    "matched": "The same for neurons with about the same standard deviation, mean of 100 sets.",
    "p": "Share of the matched sets after which no more is left.",
}

_PARTS: Mapping[str, tuple[str, Terms]] = {
    "rollout": ("Rollout", ROLLOUT), "change": ("Change between checkpoints", CHANGE),
    "fusion": ("Fusion of layers", FUSION), "position_heads": ("Position heads", POSITION_HEADS),
}  # fmt: skip


def terms_of_survey(made: Result) -> dict[str, Terms]:
    """Return the terms of a survey of heads by their titles, those of some tables where it has them."""
    there = {title: terms for name, (title, terms) in _PARTS.items() if made.by_name[name]}
    return {"Attention heads": ATTENTION, **there}
