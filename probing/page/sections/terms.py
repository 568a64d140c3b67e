"""The terms of a page: the meaning of every heading in its tables and every name in its charts, part by part."""

from __future__ import annotations

from collections.abc import Mapping

from probing.data.control_names import ADDED_CONTROLS, CONTROLS
from probing.page.neuron_table import COLUMNS, UNRESOLVED
from probing.page.sources import Sources
from probing.results.markup import Html, element, pairs
from probing.tables.columns import BELOW_RESOLUTION, FAR, NEGLIGIBLE, NEGLIGIBLE_NATS, R2, UNINFORMATIVE
from probing.tables.pretraining import BETTER_THAN_NONE, BETTER_THAN_UNIGRAM, FREQUENCIES, OUTLIER, SEEDS
from probing.tables.space_names import WORDS

Terms = Mapping[str, str]

# The meaning of each flag.
FLAGS = {
    "offset": "overstated: less than half of the contribution is left after centring, so the neuron stands in for the "
    "intercept that the probe lacks; it may still carry the task",
    "no-signal": "by itself it is not shown to tell the classes apart beyond chance; it may be useful together with "
    "other neurons",
    "offset no-signal": "it stands in for the intercept: it is large and nearly constant, and is not shown to tell the "
    "classes apart beyond chance",
    "confound": "with what `--given` names held fixed, it is not shown to tell the classes apart beyond chance",
    UNINFORMATIVE: "in nats, or of numbers in squared error, the probe of this layer is not shown to be better than a "
    "constant answer, so do not read its ranking",
    "dead": "it hardly varies; its weight and contribution are exactly 0",
}

_CONTROLS = {
    "shuffled": "The same probe with labels permuted within each sentence, and exchanged among sentences as far as "
    "they differ between these: what the length of a sentence alone allows. It is the floor of any task.",
    "token": "The same probe on the input embedding of each token instead of its hidden state: what can be read "
    "from the token alone.",
    "permuted_positions": "The same probe where the model reads each sentence with its tokens permuted: the true floor "
    "for position.",
    "control_task": "The same probe on labels drawn at random for each word type, the mean of several draws: what it "
    "reaches by memorising words.",
    "untrained": "The same probe on a randomly initialised model of the same architecture: what the architecture "
    "passes on without training. For position it is a ceiling rather than a floor.",
    "untransformed": "The same probe on the hidden states as they are, without the transform of this run.",
    "others_clipped": "The same probe with other neurons clipped, as many as this run clips outliers.",
    "given": "The same probe with labels permuted among tokens with the same value of what `--given` names: what can "
    "be read from that value alone.",
}

ACCURACY: Terms = {
    "layer": "0 is the embedding output, and layer k the output of block k; units of an MLP and outputs of heads of "
    "layer k are inside block k.",
    "probe": "Linear classifier without an intercept, trained on the hidden states of one layer.",
    "accuracy": "Share of the test tokens whose class the probe predicts correctly. Their sentences were not used in "
    "training. It shows that the label can be read off linearly, not that the model uses it.",
    "95% range": "Confidence interval of the accuracy, in which sentences or documents, not tokens, are taken as "
    "independent; the answer says which.",
    "majority": "Accuracy of always predicting the most frequent class of the training tokens.",
    **{words: _CONTROLS[name] for name, words in (CONTROLS | ADDED_CONTROLS).items()},
    "within 1": "Share of the test tokens whose predicted class is at most 1 away from the true one, where classes are "
    "numbers.",
    "error": "Mean absolute difference between the predicted number and the true one.",
    "selectivity": "Accuracy minus that of the control task.",
    "compression": "How many times shorter the training labels become when they are encoded online with the help of "
    "this layer, compared with a code that knows only the number of classes. The higher, the more easily they can "
    "be read from the layer.",
    "nats": "Cross-entropy: the mean of -ln p over the test tokens, where p is the probability that the probe gives "
    "to the true class. Lower is better.",
    "constant": "Cross-entropy of a constant answer: the shares of the classes among the training tokens, or a uniform "
    "guess where that is better. If a probe is no better, its ranking says nothing about the neurons.",
    "training": "Cross-entropy of the training tokens. Where it is far below that of the test tokens, the probe "
    "overfits.",
    "gap": "Optimality gap: by how many nats, at most, the probe's training objective is above its minimum. A probe "
    "far from its optimum ranks the optimiser rather than the neurons.",
}

NUMBERS: Terms = {
    "layer": ACCURACY["layer"],
    "probe": "Linear ridge regression without an intercept on the hidden states of one layer; the mean of the training "
    "numbers is added to what it predicts.",
    "R²": "Share of the constant answer's squared error on the test tokens that the probe saves; the constant answer "
    "is the mean of the training numbers, whose R² is 0. Below 0 the probe is worse; the chart shows that as 0.",
    "95% range": "Confidence interval of R², in which sentences or documents are taken as independent; the answer says "
    "which.",
    **{words: _CONTROLS[name].replace("Accuracy", "R²") for name, words in (CONTROLS | ADDED_CONTROLS).items()},
    "in training": "R² of the training tokens. Where it is far above that of the test tokens, the probe overfits.",
    "error": "Mean absolute difference between the predicted number and the true one.",
    "rms error": "Root of the mean squared difference.",
    "constant": "The same of the constant answer.",
    "gradient": "Norm of the gradient of the probe's objective, divided by that at 0: how exactly it is solved.",
}

NEURONS: Terms = {
    **{column.words: column.meaning for column in COLUMNS},
    "95% range of that": "Interval of the nats lost without the neuron.",
    "activation mean": "Mean of the neuron's activations over training tokens.",
    "activation sd": "Standard deviation of the neuron's activations over training tokens.",
    "flag": "A warning about the rank. A neuron without a flag has none of the following properties.",
    **{f"flag {name}": f"{text[:1].upper()}{text[1:]}." for name, text in FLAGS.items()},
    "*": f"The neuron's mean is more than {FAR:.0f} standard deviations from 0, which makes its centred contribution "
    "unreliable; the column with intercept has the value of a probe with an intercept.",
    UNRESOLVED: f"The loss without the neuron is {BELOW_RESOLUTION}: its interval neither excludes 0 nor is narrow "
    "enough to call the loss negligible.",
    NEGLIGIBLE: "A probe without the neuron loses almost nothing: the whole interval is within "
    f"{NEGLIGIBLE_NATS} nats of 0, or of R².",
    "shade": "In the map, a neuron's contribution in multiples of its layer's mean, on a logarithmic scale.",
}

HEADS: Terms = {
    "head": "An attention head, counted from 1; its neurons are a slice of the layer.",
    "neurons": "First and last neuron of the head.",
    "share": "Contributions of the head's neurons as a share of the sum over the layer's neurons.",
    "accuracy": "Accuracy of a probe that is trained on the head's neurons alone. ° marks heads that are no better "
    "than chance: the interval, widened for the number of heads, reaches the majority class or a random slice.",
    "95% range": ACCURACY["95% range"],
    "random slices": "Lowest and highest accuracy of probes of as many neurons, drawn at random from the layer.",
}

AGREEMENT: Terms = {
    "layers": "A layer of the first run and a layer of the second, at the same relative depth.",
    "top overlap": "Share of the first neurons of one ranking that are, or are matched to, first neurons of the other. "
    "In the map: overlap of the top.",
    "by chance": "The range in which the number to its left lies in 95 of 100 cases if the rankings have nothing in "
    "common: one of them is permuted, or computed in a random basis of the same space.",
    "Spearman": "Spearman's correlation of the two rankings over all neurons: 1 for the same order, 0 for "
    "unrelated orders.",
    "95% range": "Interval of Spearman's correlation over bootstrap samples of test sentences.",
    "p": "Probability that chance gives a correlation at least as high, corrected for the number of pairs of layers "
    "(Holm).",
    "match": "Correlation of matched neurons on sentences that were not used for the matching.",
    "CKA": "Linear centred kernel alignment: how alike the two layers are as a whole, whatever their neurons; 1 where "
    "one is a rotation of the other.",
    "layer, neuron, rank": "Layer, neuron and rank in the first run of a neuron that is at the top of every run; "
    "with the name of a run, those of its match in that run.",
}

_TRANSFORMS = {
    "none": "Hidden states without a transform.",
    "clip": "Outlier dimensions are set to 0, or to their mean, after the model has run.",
    "clip_random": "As many other neurons, drawn at random, are clipped instead.",
    "whiten": "Hidden states are mapped so that all directions have the same variance and are uncorrelated.",
    "standardise": "Each neuron is centred and divided by its standard deviation.",
    "center": "The mean vector of all tokens is subtracted.",
    "all_but_the_top": "The mean vector and the first principal directions are removed (Mu & Viswanath 2018).",
}

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
    **_TRANSFORMS,
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

EVALUATIONS: Terms = {
    **{words: _TRANSFORMS[space] for space, words in WORDS.items()},
    "static vectors": "One vector per word type, the same in all sentences, instead of the model's hidden states.",
    "layer": ACCURACY["layer"],
    "space": "How hidden states were transformed before their cosines were taken.",
    "always yes": "Answering for every pair that the word means the same.",
    "threshold": "Cosine from which on a pair is predicted to mean the same, chosen on the training part.",
    "accuracy": "Share of the pairs that are predicted correctly.",
    "area": "Area under the ROC curve: the probability that a pair with the same meaning has a higher cosine than a "
    "pair with two meanings.",
    "95% range": "Interval over pairs, of the number to its left.",
    "gain": "Difference from untransformed hidden states.",
    "won": "Number of pairs that are predicted correctly only in this space.",
    "lost": "Number of pairs that are predicted correctly only from untransformed hidden states.",
    "p": "McNemar's test of pairs won against pairs lost.",
    "best layer": "Layer with the highest accuracy on the training part itself.",
    "best of 9 thresholds": "Threshold, among 0.1 to 0.9, with the highest accuracy on the training part itself.",
    "accuracy on train": "Accuracy of both on the pairs they were chosen on, which is too high for other pairs.",
    "set": "Collection of sentence pairs with human scores of how similar they are.",
    "vectors": "How the vector of a sentence is made from those of its tokens, and in which space.",
    "chosen on": "Pairs on which the layer was chosen.",
    "all": "Spearman's correlation of cosines and human scores, times 100, over all pairs of the set.",
    "mean": "The mean of that correlation over the subsets.",
    "wmean": "The same mean, each subset weighted by its number of pairs.",
}

_BY_TOKEN = "The same of a probe that sees the token embedding alone."

PRETRAINING: Terms = {
    "arm": "What tells the encoder positions: learned (a table that is trained), none, constant (every token is told "
    "the same position), causal (none, but attention to earlier tokens alone), sinusoidal (a fixed table) or rotary.",
    "seed": "Seed of the initial weights, the order of the text and the masks, the same for all arms.",
    "steps": "Number of steps of the optimiser.",
    "loss at first": "The loss before the first step.",
    "loss": "Mean cross-entropy of masked tokens in held-out text, in nats, after the last step.",
    FREQUENCIES: "The loss of a model that knows how often each token occurs and nothing else.",
    "below it": "How many nats the loss is below that.",
    "verdict": f"On the last checkpoints. Not testable unless learned is better than none by {BETTER_THAN_NONE:g} nats "
    f"and than the frequencies of tokens by {BETTER_THAN_UNIGRAM:g}, for every seed; refuted if none or constant has "
    f"an outlier above the embeddings; confirmed if learned has one for every seed, of at least {SEEDS}; not testable "
    "if learned has none; otherwise unclear.",
    "layer": ACCURACY["layer"],
    "farthest mean, sd": "How far the mean of the farthest neuron is from the mean of all neurons' means, in standard "
    "deviations of these.",
    "outlier": f"The neuron with that mean, if it is beyond {OUTLIER:g} sd.",
    "an outlier is beyond": f"The limit of {OUTLIER:g} sd.",
    "largest in": "Share of the tokens in whose hidden state this neuron is the largest.",
    "smallest in": "Share of the tokens in whose hidden state it is the smallest.",
    "position accuracy": "Share of the test tokens whose position a linear probe predicts correctly.",
    "by the token alone": _BY_TOKEN,
    "equivariance": "Largest difference between the states of a token in a row that is read as it is and permuted, in "
    "root mean squares of the layer's states: 0, up to rounding, where nothing tells positions.",
}

SERIES: Terms = {
    "step": "Number of steps of the training, from the name of the checkpoint.",
    "loss": "Mean loss on held-out text, in nats, as the training wrote it.",
    "token frequencies": "The loss of a model that knows how often each token occurs and nothing else.",
    "position": "Accuracy of a linear probe of position.",
    "95% range": "Confidence interval of that accuracy over sentences.",
    "token, the token alone": _BY_TOKEN,
    "cosine": "Mean cosine of the hidden states of two tokens.",
    "outliers": "Number of neurons whose mean is far from the means of the others.",
    "largest": "The farthest mean, in standard deviations of the means, with its layer and neuron.",
    "heads": "Number of heads that give more than half of their attention to one offset, or attend there most of all "
    "in 90% of the queries.",
    "strongest": "Most that a head gives to one offset, with the layer and the head.",
    "special": "Share of the attention that goes to special tokens.",
    "quantity": "What comes: loss, position, position heads or outliers. It is there where its measure is past its "
    "threshold.",
    "threshold": "From where on a quantity is there.",
    "layer": ACCURACY["layer"],
    "neuron": "Coordinate of the hidden state.",
    "first seen": "First step at which the quantity was there.",
    "not at": "Last step at which it was not there before it came to stay.",
    "stays from": "First step from which it is there in every later checkpoint.",
    "half way": "First step from which at least half of its change over the series is made.",
    "first": "Its measure at the first checkpoint.",
    "last": "Its measure at the last checkpoint.",
}

PRECISION = (
    "Numbers on this page are rounded, and contributions by class have three digits; the tables and tensors in the "
    "run's folder are exact."
)


def terms_section(sources: Sources) -> Html:
    """Return the terms of a page with their meanings, for the parts that it has."""
    scores = [subject.score for subject in sources.subjects]
    parts = {} if set(scores) <= {R2} else {"Accuracy": ACCURACY}
    parts |= {"R²": NUMBERS} if R2 in scores else {}
    parts |= {"Neurons": NEURONS} if scores else {}
    parts |= {"Heads": HEADS} if any(subject.run.heads for subject in sources.subjects) else {}
    parts |= sources.agreement.study.terms(sources.agreement) if sources.agreement else {}
    for one in sources.shown:
        parts |= one.study.terms(one)
    lists = [element("section", element("h3", name), pairs([*terms.items()])) for name, terms in parts.items()]
    return element("section", element("h2", "Terms"), *lists, element("p", PRECISION), id="terms")
