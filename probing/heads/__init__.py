"""What the heads of a model do, measured in one pass over a corpus.

A measure is a pure function of the attention of one block over one batch; `probing.heads.accumulation` says what it
receives. It returns what it wants to have summed, by sentence and head, and it is added to a pass by its name:

    def entropy(attention: Attention, batch: Batch) -> Mapping[str, Tensor]:
        return {"entropy": ...}  # shape (batch, heads): a sum over the sentence's queries

    sums = accumulate(request, [BlockMeasure("entropy", entropy)], cache, trainer_options)
    sums["entropy"].by_sentence("entropy")  # shape (n_sentences, n_layers, heads), float64

A measure that needs several blocks at once, labels of the corpus, or something by token instead of by sentence is a
class with the two methods of `probing.heads.accumulation.Measure`. Sums are stored by shard in the cache, one entry for
each measure, so that a pass that was killed goes on where it stopped and no measure is taken twice.
"""
