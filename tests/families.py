"""The families of models that are tested: a tiny random checkpoint of each, with its tokenizer."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from probing.runtime import quiet_libraries

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


D_MODEL, N_HEADS = 16, 2


@dataclass(frozen=True)
class Family:
    """One row of the table of families in docs/notes/families.md.

    Args:
        title: Name of the family as people write it.
        published: Aliases and well-known models.
        tokenizer: Kind of its tokenizer, as `make_tokenizer` takes it.
        config: Returns a tiny configuration for a size of the vocabulary.
        n_layers: Number of blocks of this configuration.
    """

    title: str
    published: str
    tokenizer: str
    config: Callable[[int], Any]
    n_layers: int = 3


def _config(model_type: str, **own: Any) -> Callable[[int], Any]:
    """Return a maker of tiny configurations, with dropout as published models have it."""

    def make(vocab_size: int) -> Any:
        from transformers import CONFIG_MAPPING

        sizes = {
            "hidden_size": D_MODEL,
            "num_hidden_layers": 3,
            "num_attention_heads": N_HEADS,
            "intermediate_size": 32,
            "max_position_embeddings": MAX_LENGTH,
        }
        make_config: Any = CONFIG_MAPPING[model_type]
        return make_config(vocab_size=vocab_size, **{**sizes, **own})

    return make


def _config_alone(model_type: str, **own: Any) -> Callable[[int], Any]:
    """Return a maker of configurations whose sizes have other names than those in `_config`."""

    def make(vocab_size: int) -> Any:
        from transformers import CONFIG_MAPPING

        make_config: Any = CONFIG_MAPPING[model_type]
        return make_config(vocab_size=vocab_size, **own)

    return make


_ROBERTA_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
# RoBERTa's positions start behind the padding index: two rows of the table are never a position.
_ROBERTA = {"max_position_embeddings": MAX_LENGTH + 2, **_ROBERTA_IDS}
_DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
_ENCODER_DECODER = {
    "d_model": D_MODEL, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": N_HEADS,
    "decoder_attention_heads": N_HEADS, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    "max_position_embeddings": MAX_LENGTH,
}  # fmt: skip

_ESM = {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 4, "pad_token_id": 0}
_GEMMA = {
    "num_key_value_heads": 1, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
_LFM = {
    "num_key_value_heads": 1, "layer_types": ["conv", "full_attention", "full_attention"],
    "block_auto_adjust_ff_dim": False, **_ROBERTA_IDS,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "bert": Family("BERT", "`bert`, `bert-large`, `minilm`", "wordpiece", _config("bert")),
    "roberta": Family(
        "RoBERTa", "`roberta`, `distilroberta`", "byte-level", _config("roberta", num_hidden_layers=2, **_ROBERTA), 2
    ),
    "distilbert": Family(
        "DistilBERT",
        "`distilbert`, `distilbert-multilingual`",
        "lower-case wordpiece",
        _config_alone(
            "distilbert",
            dim=D_MODEL,
            n_layers=3,
            n_heads=N_HEADS,
            hidden_dim=32,
            max_position_embeddings=MAX_LENGTH,
        ),
    ),
    "albert": Family("ALBERT", "`albert`", "unigram", _config("albert", embedding_size=8)),
    "electra": Family("ELECTRA", "`electra`", "lower-case wordpiece", _config("electra", embedding_size=8)),
    "deberta": Family(
        "DeBERTa",
        "microsoft/deberta-base",
        "byte-level",
        _config("deberta", max_relative_positions=-1, **_DISENTANGLED),
    ),
    "deberta-v2": Family(
        "DeBERTa-v2, -v3",
        "`deberta`, `deberta-large`",
        "unigram",
        _config("deberta-v2", position_buckets=8, share_att_key=True, norm_rel_ebd="layer_norm", **_DISENTANGLED),
    ),
    "xlm-roberta": Family("XLM-R", "`xlm-roberta`", "unigram <s>", _config("xlm-roberta", **_ROBERTA)),
    "mpnet": Family("MPNet", "`mpnet`", "lower-case wordpiece <s>", _config("mpnet", **_ROBERTA)),
    "modernbert": Family(
        "ModernBERT",
        "`modernbert`, `modernbert-large`",
        "byte-level",
        _config("modernbert", cls_token_id=0, sep_token_id=2, **_ROBERTA_IDS),
    ),
    "convbert": Family("ConvBERT", "YituTech/conv-bert-base", "wordpiece", _config("convbert", embedding_size=8)),
    "xlnet": Family(
        "XLNet",
        "xlnet/xlnet-base-cased",
        "unigram",
        _config_alone("xlnet", d_model=D_MODEL, n_layer=3, n_head=N_HEADS, d_inner=32),
    ),
    "t5": Family(
        "T5 (encoder)",
        "`t5`",
        "unigram",
        _config_alone("t5", d_model=D_MODEL, d_kv=8, d_ff=32, num_layers=3, num_heads=N_HEADS),
    ),
    "bart": Family("BART (encoder)", "`bart`", "byte-level", _config_alone("bart", **_ENCODER_DECODER)),
    "prophetnet": Family(
        "ProphetNet (encoder)",
        "microsoft/prophetnet-large-uncased",
        "lower-case wordpiece",
        _config_alone(
            "prophetnet",
            hidden_size=D_MODEL,
            num_encoder_layers=3,
            num_decoder_layers=1,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            num_encoder_attention_heads=N_HEADS,
            num_decoder_attention_heads=N_HEADS,
            max_position_embeddings=MAX_LENGTH + 1,
            pad_token_id=0,
        ),
    ),
    "openai-gpt": Family(
        "GPT (the first)",
        "openai-community/openai-gpt",
        "byte-level alone",
        _config_alone("openai-gpt", n_embd=D_MODEL, n_layer=3, n_head=N_HEADS, n_positions=MAX_LENGTH),
    ),
    "gpt2": Family(
        "GPT-2",
        "`gpt2`, `gpt2-medium`, `distilgpt2`",
        "byte-level alone",
        _config_alone("gpt2", n_embd=D_MODEL, n_layer=3, n_head=N_HEADS, n_positions=MAX_LENGTH),
    ),
    "gpt_neox": Family(
        "GPT-NeoX", "`pythia` with `--revision step1000`", "byte-level alone", _config("gpt_neox", rotary_pct=0.5)
    ),
    "llama": Family("Llama", "meta-llama/Llama-3.2-1B", "byte-level <s> first", _config("llama")),
}
# Those that stand for the others where more than states, attention and sites are tested.
CORE = tuple(FAMILIES)
FAMILIES |= {
    "eurobert": Family(
        "EuroBERT", "EuroBERT/EuroBERT-210m", "byte-level", _config("eurobert", mask_token_id=4, **_ROBERTA_IDS)
    ),
    "nomic_bert": Family(
        "NomicBERT", "nomic-ai/nomic-embed-text-v1.5", "lower-case wordpiece", _config("nomic_bert", head_dim=8)
    ),
    "gte": Family("GTE", "Alibaba-NLP/gte-multilingual-base", "unigram <s>", _config("gte", **_ROBERTA_IDS)),
    "jina_embeddings_v3": Family(
        "Jina v3", "jinaai/jina-embeddings-v3", "unigram <s>", _config("jina_embeddings_v3", **_ROBERTA_IDS)
    ),
    "roformer": Family(
        "RoFormer", "junnyu/roformer_chinese_base", "wordpiece", _config("roformer", embedding_size=D_MODEL)
    ),
    "esm": Family("ESM", "facebook/esm2_t6_8M_UR50D", "wordpiece", _config("esm", **_ESM)),
    "megatron-bert": Family(
        "MegatronBERT", "nvidia/megatron-bert-uncased-345m", "lower-case wordpiece", _config("megatron-bert")
    ),
    "luke": Family(
        "LUKE",
        "studio-ousia/luke-base",
        "byte-level",
        _config("luke", entity_vocab_size=8, entity_emb_size=8, **_ROBERTA),
    ),
    "rembert": Family("RemBERT", "google/rembert", "unigram", _config("rembert", input_embedding_size=8)),
    "qwen3": Family(
        "Qwen3", "Qwen/Qwen3-0.6B", "byte-level alone", _config("qwen3", num_key_value_heads=1, head_dim=8)
    ),
    "gemma3_text": Family("Gemma 3", "google/gemma-3-270m", "byte-level <s> first", _config("gemma3_text", **_GEMMA)),
    "bloom": Family(
        "BLOOM",
        "bigscience/bloom-560m",
        "byte-level alone",
        _config_alone("bloom", hidden_size=D_MODEL, n_layer=3, n_head=N_HEADS, seq_length=MAX_LENGTH),
    ),
    "lfm2": Family("LFM2", "LiquidAI/LFM2-350M", "byte-level <s> first", _config("lfm2", **_LFM)),
    "olmo2": Family(
        "OLMo 2", "allenai/OLMo-2-0425-1B", "byte-level alone", _config("olmo2", num_key_value_heads=1, eos_token_id=0)
    ),
    "mpt": Family(
        "MPT",
        "mosaicml/mpt-7b",
        "byte-level alone",
        _config_alone("mpt", d_model=D_MODEL, n_layers=3, n_heads=N_HEADS, max_seq_len=MAX_LENGTH),
    ),
    "longformer": Family(
        "Longformer",
        "allenai/longformer-base-4096",
        "byte-level",
        _config("longformer", attention_window=8, **_ROBERTA),
    ),
}


# Those that `make test` takes: from one absolute table of positions to none, padded and causal.
QUICK = ("bert", "roberta", "mpnet", "gpt2", "llama")


def few_quickly(families: Iterable[str]) -> list[Any]:
    """Return values of a parameter that stands for a family; `make test` takes those of `QUICK` alone."""
    import pytest  # benchmarks, which make checkpoints too, do without

    return [pytest.param(family, marks=() if family in QUICK else pytest.mark.slow) for family in families]


# --- checkpoints ---


def make_checkpoint(folder: Path, family: str, sentences: list[str], seed: int = 0, **sizes: int) -> Path:
    """Save a tiny model whose every parameter is random, gains and biases too, with its tokenizer.

    Args:
        folder: Where to.
        family: Name of the family.
        sentences: What the tokenizer is made from.
        seed: Decides the parameters.
        sizes: What differs from the family's tiny configuration.
    """
    from transformers import AutoModel

    tokenizer = make_tokenizer(FAMILIES[family].tokenizer, sentences)
    config = FAMILIES[family].config(len(tokenizer))
    config.update(sizes)
    return save_at_random(folder, AutoModel.from_config(config), tokenizer, seed)


def save_at_random(folder: Path, model: Any, tokenizer: Any, seed: int = 0) -> Path:
    """Save a model with its tokenizer, its parameters drawn from the seed alone; without a word on standard error."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gain = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            parameter.copy_(gain + 0.3 * torch.randn(parameter.shape, generator=generator))
    with quiet_libraries():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def untouched(folder: Path, **options: Any) -> Any:
    """Load the encoder with transformers alone."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, **options).eval()
    return model.get_encoder() if model.config.is_encoder_decoder else model


def page_row(family: str, folder: Path) -> str:
    """Return a family's row in the table of docs/notes/families.md, from what its checkpoint does."""
    import torch

    from probing.models import load_encoder, resolve_model
    from probing.models.anatomy import examine
    from probing.models.examination import vectors_in

    encoder = load_encoder(resolve_model(str(folder)))
    anatomy = examine(encoder)
    last = "the last block's output"
    if anatomy.blocks is None:
        last = "as handed out"
    else:
        outputs: list[Any] = []
        handle = anatomy.blocks[-1].register_forward_hook(lambda module, args, output: outputs.append(output))
        ids = torch.arange(5, 15)[None]
        with torch.inference_mode():
            states = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        handle.remove()
        output = vectors_in(outputs[-1])
        assert output is not None
        # Longformer's blocks read padding that is not handed out.
        if not torch.equal(output.view(1, -1, states.shape[-1])[:, : len(ids[0])], states):
            last = "after a final norm"
    runs = "k blocks" if anatomy.blocks else "all blocks"
    padding = "padded" if anatomy.padding_is_neutral else "of equal length"
    return f"| {FAMILIES[family].title} | {FAMILIES[family].published} | {runs} | {last} | {padding} |"


def masked_lm(folder: Path, family: str, sentences: list[str]) -> Path:
    """Save a tiny model with its head, all parameters random."""
    from transformers import AutoModelForMaskedLM

    tokenizer = make_tokenizer(FAMILIES[family].tokenizer, sentences)
    return save_at_random(folder, AutoModelForMaskedLM.from_config(FAMILIES[family].config(len(tokenizer))), tokenizer)


def causal_lm(folder: Path, sentences: list[str]) -> Path:
    """Save a tiny GPT-2 with its head, all parameters random."""
    from transformers import AutoModelForCausalLM

    tokenizer = make_tokenizer(FAMILIES["gpt2"].tokenizer, sentences)
    config = FAMILIES["gpt2"].config(len(tokenizer))
    config.update({"bos_token_id": 0, "eos_token_id": 0})
    return save_at_random(folder, AutoModelForCausalLM.from_config(config), tokenizer)


def batch_of(folder: Path, sentences: list[str]) -> dict[str, Any]:
    """A batch padded by hand: some tokenizers have no padding token."""
    import torch

    from probing.models import load_tokenizer, resolve_model

    tokenizer = load_tokenizer(resolve_model(str(folder)))
    ids = [torch.tensor(tokenizer(sentence)["input_ids"]) for sentence in sentences]
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones_like(row) for row in ids], batch_first=True)
    return {"input_ids": pad(ids, True, tokenizer.pad_token_id or 0), "attention_mask": mask}


def bend(folder: Path, neuron: int) -> Path:
    """Give a neuron a bias in the LayerNorm behind every block that makes it the smallest of every token."""
    import torch
    from transformers import AutoModel, AutoModelForMaskedLM

    config = (folder / "config.json").read_text(encoding="utf-8")
    model: Any = (AutoModelForMaskedLM if "MaskedLM" in config else AutoModel).from_pretrained(folder)
    with torch.no_grad():
        for layer in model.base_model.encoder.layer:
            layer.output.LayerNorm.bias[neuron] = -6
    model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    from conftest import make_sentences

    place = Path(sys.argv[1])
    text = make_sentences(400)
    masked_lm(place / "bert", "bert", text)
    (place / "text.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
