"""Meanings of the headings of `geometry --position` on a page."""

from __future__ import annotations

from probing.page.terms import ACCURACY, Terms

POSITION: Terms = {
    "layer": ACCURACY["layer"],
    "position": "Share of the variance that positions add to sentences, without what is by chance.",
    "by chance": "Share that they would add if the tokens of each sentence stood in random order; it is taken off.",
    "context": "Share that sentences add to positions.",
    "shared": "Share that either of the two explains.",
    "rest": "Share that neither explains.",
    "position, standardised": "Share of position if every neuron counts as if its variance were 1.",
    "position alone": "Share of the means of positions, whatever else these differ in, without what is by chance.",
    "directions": "Number of directions of the position part that describe sentences which were left out.",
    "slow": "Share of the position part in the lowest tenth of the frequencies along the sentence.",
    "with context": "How far its directions are those of the context part: 1 if the same, 0 if at right angles.",
    "other half": "The same of the two halves of the sentences, the most one can expect.",
    "layer below": "The same of the layer below.",
    "read": "Share of the tokens whose position is read in these directions, in sentences that were left out.",
    "in longer": "The same in sentences longer than all that were fitted.",
    "half in neurons": "Number of neurons that hold half of it; in brackets the lowest and the highest number of "
    "directions of random rotations that do.",
    "standardised": "The same if every neuron counts as if its variance were 1.",
    "first of fit": "What the first neurons of the ranking of `fit` hold.",
    "by eta squared": "What the first neurons by eta squared hold.",
    "that hold most": "What the neurons hold that hold most, chosen in half of the sentences, measured in the other.",
    "random": "What as many random neurons hold: median and range of 20 draws.",
    "of a rotation": "What as many neurons, chosen and measured alike, hold of a random rotation of it.",
    "own directions": "What as many of its own directions have, chosen and measured alike.",
}
