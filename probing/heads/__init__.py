"""Attention-head measures over a corpus, and the attention maps of example sentences.

A measure is a pure function of the attention of one block over one batch (see `probing.heads.accumulation`). It returns
sums by sentence and head, and a pass stores them under the measure's name:

    def entropy(attention: BlockAttention, batch: SentenceBatch) -> Mapping[str, Tensor]:
        return {"entropy": ...}  # shape (batch, heads): a sum over the sentence's queries

    sums = accumulate(request, [Measure.of_blocks("entropy", entropy)], cache, trainer_options)
    sums["entropy"].by_sentence("entropy")  # shape (n_sentences, n_layers, heads), float64

A measure that needs several blocks at once, labels of the corpus, or values by token is a `Measure` with an
`Accumulator`, both of `probing.heads.accumulation`. The cache stores the sums of each measure by shard, so a killed
pass continues where it stopped and no measure is computed twice.
"""
