"""Meanings of the headings of `geometry` on a page."""

from __future__ import annotations

from probing.page.terms import ACCURACY, TRANSFORMS, Terms

MEASURES: Terms = {
    "mean_cosine": "Mean cosine of the hidden states of two tokens, over all pairs of different tokens.",
    "mean_cosine_one_per_sentence": "The same over tokens of different sentences, one drawn from each.",
    "mean_cosine_centred": "The same after the mean vector is subtracted.",
    "mean_energy_share": "Share of the squared length of the hidden states that lies in their mean vector.",
    "isoscore": "IsoScore: 1 if all directions have the same variance, 0 if only one varies (Rudman et al. 2022).",
    "partition_isotropy": "Smallest value of a partition function divided by its largest, over directions: 1 where "
    "vectors are spread evenly (Mu & Viswanath 2018).",
    "top_cosine_share": "Share of the mean cosine that the neuron with the largest share contributes.",
    "self_similarity": "Mean cosine of the vectors of one word in different sentences.",
    "self_similarity_adjusted": "Self-similarity minus the mean cosine of tokens of different sentences.",
    "intra_sentence_similarity": "Mean cosine of the tokens of a sentence with the mean vector of that sentence.",
    "intra_sentence_similarity_adjusted": "The same minus the mean cosine of tokens of different sentences.",
    "token_similarity": "Mean cosine of two tokens of one sentence.",
    "distance_to_equal_rows": "Distance of a sentence's hidden states to the nearest matrix whose rows, the tokens, "
    "are all equal.",
    "relative_distance": "That distance divided by the norm of the hidden states: 0 if all tokens of a sentence are "
    "equal.",
    "distance_ratio": "That distance divided by the distance in the layer before.",
    "rank": "Number of dimensions that the transform leaves.",
    "mean_cosine_e19": "Mean cosine as Ethayarajh (2019) estimates it, from drawn pairs.",
    "mean_cosine_lkm": "Mean cosine as Luo, Kulmizev & Mao (2021) estimate it, from drawn pairs.",
    "mean_cosine_tvs": "Mean cosine as Timkey & van Schijndel (2021) estimate it, from drawn pairs.",
}

GEOMETRY: Terms = {
    **TRANSFORMS,
    "layer": ACCURACY["layer"] + " In the table of outliers, all stands for all layers but the embeddings together.",
    **{name.replace("_", " "): text for name, text in MEASURES.items()},
    "definition": "Why a neuron is an outlier. argmin_share and argmax_share: it is the smallest or the largest of "
    "most tokens' vectors. mean_profile: its mean is far from the mean neuron's. variance: it varies at least five "
    "times as much as the mean neuron. layer_norm: its LayerNorm parameters deviate in more than three layers.",
    "neuron": "Coordinate of the hidden state.",
    "value": "How strong an outlier the neuron is. Depending on the definition: a share of tokens, standard deviations "
    "with their sign, multiples of the mean variance, or a number of layers.",
    "special tokens": "Whether special tokens such as [CLS] are included.",
    "without the first token": "Neurons with a far mean over the tokens that are measured, and how far it is, in sd.",
    "with it": "The same over these tokens and the first one of each sentence.",
    "first tokens alone": "The same over the first tokens.",
    "norm, without the first token": "Root mean square of the norms of the tokens that are measured.",
    "norm, first tokens": "The same of the first tokens.",
    "mean cosine, without the first token": "Mean cosine of two of the tokens that are measured.",
    "mean cosine, with it": "The same with the first token of each sentence.",
    "block": "Number of the block; its output is the layer of the same number.",
    "measured": "Distance of a sentence to equal rows after the block, divided by the distance before it.",
    "σ1": "Least standard deviation, over neurons, among the tokens that enter the block's first LayerNorm.",
    "σ2": "The same for the second LayerNorm.",
    "σ1σ2": "Product of σ1 and σ2.",
    "above 1": "Share of the sentences in which that product is above 1, in which case small weights would make "
    "tokens more similar.",
    "gains": "Product of the largest gains of the two LayerNorms.",
    "attention": "Largest factor by which the attention of the block can multiply the distance.",
    "FFN": "Largest factor by which its feed-forward layer can multiply the distance.",
    "bound": "Largest factor by which the block can multiply the distance: attention x FFN x gains / σ1σ2.",
    "published": "The bound as published, with one singular value for all matrices and without gains.",
    "closest": "Largest share of the bound that the distance of any sentence reaches.",
    "taken out": "Where the neurons are set to 0: inside the model, so that later blocks cannot read them, or after "
    "it.",
    "effect": "Change of the measure in the title of the table.",
    "95% range": "Interval of the effect over sentences.",
    "random others": "Range of the effects of as many other neurons, drawn at random.",
    "worse than": "Share of these draws that do less harm than the outliers.",
    "p": "Probability that random other neurons do as much harm; of distances, that they reduce them as much with both "
    "norms made ordinary.",
    "large gains": "Effect of as many other neurons, those with the largest LayerNorm gains.",
    "norm": "Number of the norm within the block, in the order in which the block calls its norms.",
    "mean": "Mean of the neuron behind the norm: the sum of the four terms to the right.",
    "sd": "Distance of that mean from the mean of all neurons, in standard deviations of the neurons.",
    "input": "What the mean would be with the gain that other neurons have on average, and without a bias.",
    "own gain": "What the neuron's own gain adds to that.",
    "own bias": "What the neuron's own bias adds to the bias that other neurons have on average.",
    "others' bias": "Mean bias of the neurons that are no outliers.",
    "largest": "The term of input, own gain and own bias that is largest in magnitude.",
    "intact": "The distance in standard deviations in the model as it is.",
    "the first norm": "The distance, or the effect, with ordinary gains and biases in the first norm of every block; "
    "in brackets the range with those of random neurons made ordinary instead.",
    "the second norm": "The same with the second norm of every block.",
    "both norms": "The same with both.",
    "in": "In which norms of every block the outliers have the gain and the bias of other neurons.",
    "tokens": "Whether the mean is over the first tokens of sentences, or over words.",
    "first position": "Distance of the neuron from the others in the position embedding of the first token.",
    "places": "Number of places on the residual stream at which the neuron is more than 5 standard deviations from the "
    "mean of all neurons.",
    "from": "First of these places, with the number of its block.",
    "to": "Last of them.",
    "farthest": "Largest distance anywhere on the stream, and where.",
    "below at": "The place after the last one, where the neuron is within 5 standard deviations again.",
}

CHANGED_NEURONS: Terms = {
    "read": "What is read of later layers: probes of position or of a run's own task, as they were and trained again, "
    "heads that attend to a fixed offset, masked words, or the similarity of sentences or words. Target: the share "
    "that probes read as the class that examples are moved to. Counterpart: the share of examples that are read "
    "differently in two sentences and now as in the other one. Log odds carried: the share of the difference "
    "between two texts in the log odds of two words at the mask.",
    "k": "Number of neurons that are changed, the first of the ranking; all: all neurons of the layer.",
    "effect": "Difference from the whole model.",
    "95% range": "Its interval over sentences, or pairs of sentences.",
    "random sets": "Least and largest effect of as many random neurons.",
    "matched in sd": "Least and largest effect of neurons with about the same standard deviations.",
    "p": "Share of the sets to the left with at least as much loss, the changed neurons counted among them.",
}
