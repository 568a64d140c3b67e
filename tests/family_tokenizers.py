"""Fast tokenizers of the kinds that families of models have, trained on a few sentences."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from typing import Any

# Length of the longest sentence that the tiny models and most of these tokenizers take.
MAX_LENGTH = 128

# Vocabularies are chosen here: the trainers of WordPiece and Unigram break ties by a hash that differs from process
# to process, so that models of the same seed would read other pieces in each run of the tests. BPE's trainer does not.


def _pieces(tokenizer: Any, sentences: list[str], inside: str) -> Counter[str]:
    """Count every character and pair of them, with a prefix inside words, and the 30 most frequent short words."""
    parts: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for sentence in sentences:
        text = tokenizer.normalizer.normalize_str(sentence)
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
            words[word] += 1
            for start, end in combinations(range(len(word) + 1), 2):
                if end - start < 3:
                    parts[(inside if start else "") + word[start:end]] += 1
    short = sorted((word for word in words if 2 < len(word) < 10), key=lambda word: (-words[word], word))
    return parts + Counter({word: words[word] for word in short[:30]})


def make_tokenizer(kind: str, sentences: list[str]) -> Any:
    """Train a fast tokenizer of a kind, with a vocabulary too small for the long words, which have many pieces."""
    from transformers import PreTrainedTokenizerFast

    kind, _, variant = kind.partition(" ") if not kind.startswith("lower-case") else (kind, "", "")
    if kind.startswith("byte-level"):
        return PreTrainedTokenizerFast(**_byte_level(sentences, variant))
    if kind.startswith("unigram"):
        return PreTrainedTokenizerFast(**_unigram(sentences, with_start=variant == "<s>"))
    return PreTrainedTokenizerFast(**_wordpiece(sentences, lowercase="lower-case" in kind, roberta="<s>" in kind))


def _wordpiece(sentences: list[str], lowercase: bool, roberta: bool) -> dict[str, Any]:
    """Return WordPiece with [CLS] and [SEP], or as in MPNet with <s> and </s>."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    start, pad, end, unknown, mask = ("<s>", "<pad>", "</s>", "[UNK]", "<mask>") if roberta else (
        "[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"
    )  # fmt: skip
    # RoBERTa's order gives <s> 0, <pad> 1, </s> 2, as in the published model; BERT's padding is 0.
    special = [start, pad, end, unknown, mask] if roberta else [pad, unknown, start, end, mask]
    tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    pieces = [*special, *_pieces(tokenizer, sentences, "##")]
    tokenizer.model = models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token=unknown)
    tokenizer.add_special_tokens(special)
    ids = {piece: i for i, piece in enumerate(pieces)}
    tokenizer.post_processor = processors.BertProcessing((end, ids[end]), (start, ids[start]))
    # Byte-level tokenizers do not get a `model_max_length` here, so that only the model limits the length of a
    # sentence.
    return {
        "tokenizer_object": tokenizer, "cls_token": start, "sep_token": end, "pad_token": pad, "unk_token": unknown,
        "mask_token": mask, "model_max_length": MAX_LENGTH,
    }  # fmt: skip


def _byte_level(sentences: list[str], variant: str) -> dict[str, Any]:
    """Return byte-level BPE: with <s> and </s>, with <s> alone, or as in GPT-2 with neither and without padding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    # The order gives <s> 0, <pad> 1, </s> 2, <unk> 3, as in the published RoBERTa.
    special = ["<|endoftext|>"] if variant == "alone" else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    if variant == "alone":
        # As published: GPT-2 would take token types for token ids, whose embeddings it adds.
        names = {"bos_token": special[0], "eos_token": special[0]}
        return {"tokenizer_object": tokenizer, **names, "model_input_names": ["input_ids", "attention_mask"]}
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    if variant:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        return {"tokenizer_object": tokenizer, **names}
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return {"tokenizer_object": tokenizer, **names, "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}


def _unigram(sentences: list[str], with_start: bool) -> dict[str, Any]:
    """Return Unigram as SentencePiece makes it: beginnings of words are marked, </s> ends a text; XLM-R adds <s>."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    special = ["<s>", "<pad>", "</s>", "<unk>"] if with_start else ["<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    pieces = _pieces(tokenizer, sentences, "")
    scores = [(token, 0.0) for token in special]
    scores += [(piece, math.log(count / pieces.total())) for piece, count in pieces.items()]
    tokenizer.model = models.Unigram(scores, unk_id=special.index("<unk>"))
    tokenizer.add_special_tokens(special)
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    ids = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>") if token in special]
    single = "<s> $A </s>" if with_start else "$A </s>"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    if with_start:
        names |= {"bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>"}
    return {"tokenizer_object": tokenizer, **names, "model_max_length": MAX_LENGTH}
