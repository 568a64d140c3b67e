"""What the words of a page mean: every heading of its tables and every name in its charts, part by part."""

from __future__ import annotations

from collections.abc import Mapping

from probing.data.control_names import CONTROLS, TRANSFORM_CONTROLS
from probing.page.markup import Html, element
from probing.page.neuron_table import COLUMNS, UNRESOLVED
from probing.page.sources import Sources
from probing.page.tables import pairs
from probing.tables.columns import BELOW_RESOLUTION, FAR, NEGLIGIBLE, NEGLIGIBLE_NATS, UNINFORMATIVE
from probing.tables.space_names import WORDS

Terms = Mapping[str, str]

# What a reader must know of each flag.
FLAGS = {
    "offset": "overstated: less than half of the contribution is left without the neuron's mean, so it stands in for "
    "the intercept that the probe lacks; it may carry the task all the same",
    "no-signal": "alone it tells classes apart no better than chance; it may be useful together with others",
    "offset no-signal": "the intercept, not the task: large, nearly constant, and telling nothing of the class",
    UNINFORMATIVE: "the probe of this layer does not beat a constant answer in nats, so that its ranking is not to be "
    "read",
    "dead": "it hardly varies; its weight and contribution are exactly 0",
}

_CONTROLS = {
    "shuffled": "The same probe where labels are permuted within each sentence: what the length and the words of a "
    "sentence alone allow. It is the floor of any task.",
    "token": "The same probe on the input embedding of each token instead of its hidden state: what the token alone "
    "tells.",
    "permuted_positions": "The same probe where the model reads each sentence with its tokens permuted: for position, "
    "the true floor.",
    "control_task": "The same probe on labels that are drawn for each word type, the mean of several draws: what it "
    "reaches by knowing words by heart.",
    "untrained": "The same probe on the same architecture with random weights: what the architecture hands on without "
    "any training. For position it is a ceiling rather than a floor.",
    "untransformed": "The same probe on the hidden states as they are, without the transform of this run.",
    "others_clipped": "The same probe where as many other neurons are clipped as this run clips outliers.",
}

ACCURACY: Terms = {
    "layer": "0 is the embedding output, and layer k the output of block k.",
    "probe": "Linear classifier without an intercept, trained on the hidden states of one layer.",
    "accuracy": "Share of the test tokens whose class the probe names. No sentence of theirs was used in training. It "
    "says that the label can be read off linearly, not that the model uses it.",
    "95% range": "Confidence interval of the accuracy, in which sentences, not tokens, are taken as independent.",
    "majority": "Accuracy of naming the most frequent class of the training tokens every time.",
    **{words: _CONTROLS[name] for name, words in (CONTROLS | TRANSFORM_CONTROLS).items()},
    "within 1": "Share of the test tokens whose class the probe misses by 1 at most, where classes are numbers.",
    "error": "Mean absolute difference between the number that the probe names and the true one.",
    "selectivity": "Accuracy less that of the control task.",
    "compression": "How many times shorter the training labels become when they are encoded online with the help of "
    "this layer, compared with a code that knows only the number of classes. The more, the easier the layer tells "
    "them.",
    "nats": "Cross-entropy: the mean of -ln p over the test tokens, where p is the probability that the probe gives "
    "to the true class. Lower is better.",
    "constant": "Cross-entropy of the constant answer, the shares of the classes among the training tokens. A probe "
    "that is no better says nothing of its neurons.",
    "training": "Cross-entropy of the training tokens. Where it is far below that of the test tokens, the probe "
    "overfits.",
    "gap": "Optimality gap: by how many nats, at most, the probe's training objective is above its minimum. A probe "
    "far from its optimum ranks the optimiser rather than the neurons.",
}

NEURONS: Terms = {
    **{column.label: column.help for column in COLUMNS},
    "95% range of that": "Interval of the nats lost without the neuron, over test sentences.",
    "activation mean": "Mean of the neuron's activations over training tokens.",
    "activation sd": "Standard deviation of the neuron's activations over training tokens.",
    "flag": "What to know before believing the rank. A neuron without a flag shows none of the following.",
    **{f"flag {name}": f"{text[:1].upper()}{text[1:]}." for name, text in FLAGS.items()},
    "*": f"The neuron's mean is more than {FAR:.0f} standard deviations from 0, which makes its centred contribution "
    "unreliable; the column companion says what a probe with an intercept makes of it.",
    UNRESOLVED: f"The loss without the neuron is {BELOW_RESOLUTION}: its interval neither tells it from none nor tells "
    "that it is negligible.",
    NEGLIGIBLE: "Without the neuron the probe loses next to nothing: the whole interval is within "
    f"{NEGLIGIBLE_NATS} nats of none.",
    "shade": "In the map, a neuron's contribution in multiples of the mean of its layer, on a logarithmic scale.",
}

AGREEMENT: Terms = {
    "layers": "A layer of the first run and a layer of the second, at the same relative depth.",
    "top overlap": "Share of the first neurons of one ranking that are, or are matched to, first neurons of the other. "
    "In the map: overlap of the top.",
    "by chance": "The range that the number left of it has in 95 of 100 cases where the rankings have nothing in "
    "common: one of them is permuted, or taken in a random basis of the same space.",
    "Spearman": "Spearman's correlation of the two rankings over all neurons: 1 for the same order, 0 for none in "
    "common.",
    "95% range": "Interval of Spearman's correlation over redrawn test sentences.",
    "p": "How often chance gives a correlation as high, corrected for the number of pairs of layers (Holm).",
    "match": "Correlation of matched neurons over sentences that they were not matched on.",
    "CKA": "Linear centred kernel alignment: how alike the two layers are as a whole, whatever their neurons; 1 where "
    "one is a rotation of the other.",
    "layer, neuron, rank": "Where a neuron that is at the top of every run stands in the first run; with the name of a "
    "run, where the neuron that it goes with stands in that run.",
}

_TRANSFORMS = {
    "none": "Hidden states as they are.",
    "clip": "Outlier dimensions are set to 0, or to their mean, after the model has run.",
    "clip_random": "As many other neurons are clipped instead, drawn at random.",
    "whiten": "Hidden states are mapped so that all directions vary alike and independently.",
    "standardise": "Each neuron is centred and divided by its standard deviation.",
    "center": "The mean vector of all tokens is subtracted.",
    "all_but_the_top": "The mean vector and the first principal directions are taken out (Mu & Viswanath 2018).",
}

MEASURES: Terms = {
    "mean_cosine": "Mean cosine of the hidden states of two tokens, over all pairs of different tokens.",
    "mean_cosine_one_per_sentence": "The same over tokens of different sentences, one drawn from each.",
    "mean_cosine_centred": "The same after the mean vector is subtracted.",
    "mean_energy_share": "Share of the squared length of the hidden states that lies in their mean vector.",
    "isoscore": "IsoScore: 1 where all directions vary alike, 0 where only one varies (Rudman et al. 2022).",
    "partition_isotropy": "Smallest value of a partition function divided by its largest, over directions: 1 where "
    "vectors are spread evenly (Mu & Viswanath 2018).",
    "top_cosine_share": "Share that the neuron with the largest part in the mean cosine has in it.",
    "self_similarity": "Mean cosine of the vectors of one word in different sentences.",
    "self_similarity_adjusted": "Self-similarity less the mean cosine of tokens of different sentences.",
    "intra_sentence_similarity": "Mean cosine of the tokens of a sentence with the mean vector of that sentence.",
    "intra_sentence_similarity_adjusted": "The same less the mean cosine of tokens of different sentences.",
    "token_similarity": "Mean cosine of two tokens of one sentence.",
    "distance_to_equal_rows": "Distance of a sentence's hidden states to the nearest ones that are equal for all "
    "tokens.",
    "relative_distance": "That distance as a share of the norm: 0 where all tokens of a sentence are equal.",
    "distance_ratio": "That distance divided by the same in the layer before.",
    "rank": "Dimensions that the transform leaves.",
    "mean_cosine_e19": "Mean cosine as Ethayarajh (2019) estimates it, from drawn pairs.",
    "mean_cosine_lkm": "Mean cosine as Luo, Kulmizev & Mao (2021) estimate it, from drawn pairs.",
    "mean_cosine_tvs": "Mean cosine as Timkey & van Schijndel (2021) estimate it, from drawn pairs.",
}

GEOMETRY: Terms = {
    **_TRANSFORMS,
    "layer": ACCURACY["layer"] + " In the table of outliers, all stands for all layers but the embeddings together.",
    **{name.replace("_", " "): text for name, text in MEASURES.items()},
    "definition": "By what a neuron is an outlier: argmin_share and argmax_share, it is the smallest or the largest of "
    "most tokens' vectors; mean_profile, its mean is far from the mean neuron's; variance, it varies at least five "
    "times as much as the mean neuron; layer_norm, its LayerNorm parameters deviate in more than three layers.",
    "neuron": "Coordinate of the hidden state.",
    "value": "How far the neuron is an outlier: a share of tokens, standard deviations with their sign, multiples of "
    "the mean variance, or a number of layers, by definition.",
    "special tokens": "Whether special tokens such as [CLS] count.",
    "block": "Number of a block; its output is the layer of the same number.",
    "measured": "Distance of a sentence to equal rows after the block, divided by the same before it.",
    "σ1": "Least standard deviation, over neurons, among the tokens that enter the block's first LayerNorm.",
    "σ2": "The same of its second LayerNorm.",
    "σ1σ2": "Their product.",
    "above 1": "Share of the sentences in which that product is above 1, which with small weights would make tokens "
    "come closer.",
    "gains": "Product of the largest gains of the two LayerNorms.",
    "attention": "What the attention of the block can multiply the distance by at most.",
    "FFN": "What its feed-forward layer can multiply the distance by at most.",
    "bound": "What the block can multiply the distance by at most: attention x FFN x gains / σ1σ2.",
    "published": "The same as the paper has it, with one singular value for all matrices and without gains.",
    "closest": "Largest share of its bound that the distance of any sentence reaches.",
    "taken out": "Where the neurons are set to 0: inside the model, so that later blocks do without them, or after it.",
    "effect": "Change of the measure that the table is about.",
    "95% range": "Interval of the effect over sentences.",
    "random others": "Range of the effects of as many other neurons, drawn at random.",
    "worse than": "Share of these draws that do less harm.",
    "p": "How often draws of other neurons do as much harm.",
    "large gains": "Effect of as many other neurons with the largest LayerNorm gains.",
}

EVALUATIONS: Terms = {
    **{words: _TRANSFORMS[space] for space, words in WORDS.items()},
    "static vectors": "One vector a word type, the same in all sentences, instead of the model's hidden states.",
    "layer": ACCURACY["layer"],
    "space": "How hidden states were transformed before their cosines were taken.",
    "always yes": "Answering for each pair that the word means the same.",
    "above": "Cosine from which on a pair is said to mean the same, chosen on the training part.",
    "accuracy": "Share of the pairs that are told rightly.",
    "area": "Area under the ROC curve: how often a pair with one meaning has a higher cosine than a pair with two.",
    "95% range": "Interval over pairs, of the number left of it.",
    "gain": "What the space adds to hidden states as they are.",
    "won": "Pairs that only this space tells rightly.",
    "lost": "Pairs that only hidden states as they are tell rightly.",
    "p": "McNemar's test of pairs won against pairs lost.",
    "best layer": "Layer with the highest accuracy on the training part itself.",
    "best of 9 thresholds": "Threshold, of 0.1 to 0.9, with the highest accuracy on the training part itself.",
    "accuracy on train": "What both reach on the pairs that they were chosen on, which is too high for others.",
    "set": "Collection of sentence pairs with human scores of how similar they are.",
    "vectors": "How a sentence gets its vector from those of its tokens, and in which space.",
    "chosen on": "Pairs on which the layer was chosen.",
    "all": "Spearman's correlation of cosines and human scores, times 100, over all pairs of the set.",
    "mean": "The mean of that correlation over the subsets.",
    "wmean": "The same mean, each subset weighted by its number of pairs.",
}

PRECISION = (
    "What is shown is rounded, and contributions by class are kept to three digits; the tables and tensors in the "
    "run's folder are exact."
)


def terms_section(sources: Sources) -> Html:
    """Return what the words of a page mean, for the parts that it has."""
    parts = {"Accuracy": ACCURACY, "Neurons": NEURONS}
    parts |= {"Agreement": AGREEMENT} if sources.agreement else {}
    parts |= {"Geometry": GEOMETRY} if sources.geometry else {}
    parts |= {"Words and sentences": EVALUATIONS} if sources.evaluations else {}
    lists = [element("section", element("h3", name), pairs([*terms.items()])) for name, terms in parts.items()]
    return element("section", element("h2", "Terms"), *lists, element("p", PRECISION), id="terms")
