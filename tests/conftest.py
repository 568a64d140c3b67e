"""Tiny transformers, their tokenizers and a corpus, built rather than downloaded."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Read by huggingface_hub when it is first imported: no test reaches the network, whatever is asked.
os.environ["HF_HUB_OFFLINE"] = "1"
# Read by torch when it is first imported. Tensors of a few kilobytes gain nothing from threads, which on a busy machine
# wait for each other: with two, these tests took eight times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

FAMILIES = ("bert", "roberta", "distilbert")
# Blocks of each tiny model.
N_LAYERS = {"bert": 3, "roberta": 2, "distilbert": 3}
D_MODEL, N_HEADS, MAX_LENGTH = 16, 2, 128

_WORDS = """
a the one every this that probe layer neuron token sentence position model weight value answer question reads
writes moves carries finds counts hides shows ranks learns forgets compares repeats measures between behind
before after under over within beyond quickly slowly rarely often never always quietly small large hidden
linear random sparse dense early late middle final first second strange familiar unaffordable
internationalisation untranslatable counterrevolutionary
"""


def make_sentences(n: int, seed: int = 0, longest: int = 40) -> list[str]:
    """Build distinct sentences of 3 to `longest` words, the same ones for the same seed."""
    generator = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < n:
        words = generator.choices(_WORDS.split(), k=generator.randint(3, longest))
        if len(words) > 6:
            words[3] += ","
        found[" ".join(words).capitalize() + generator.choice(".?!")] = None
    return list(found)


def make_tokenizer(family: str, sentences: list[str]) -> Any:
    """Train a fast tokenizer as the family has it: WordPiece with [CLS] and [SEP], or byte-level BPE with <s> and </s>.

    The vocabulary is too small for the long words, so that some words have many pieces.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    if family == "roberta":
        # The order gives <s> 0, <pad> 1, </s> 2, <unk> 3, as in the published model.
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        names = {"cls_token": "<s>", "bos_token": "<s>", "sep_token": "</s>", "eos_token": "</s>"}
        tokenizer = Tokenizer(models.BPE(unk_token=None))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(sentences, trainer)
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    else:
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        names = {"cls_token": "[CLS]", "sep_token": "[SEP]"}
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=family == "distilbert")
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=220, special_tokens=special, show_progress=False)
        tokenizer.train_from_iterator(sentences, trainer)
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        # RoBERTa's keeps transformers' very large number, so that only the model limits its length.
        names["model_max_length"] = MAX_LENGTH
    by_name = {"pad": special[1 if family == "roberta" else 0], "mask": special[4]}
    by_name["unk"] = special[3 if family == "roberta" else 1]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{f"{k}_token": v for k, v in by_name.items()}, **names)


def make_config(family: str, vocab_size: int) -> Any:
    """Return the configuration of a tiny model of a family, with dropout, as published models have."""
    from transformers import BertConfig, DistilBertConfig, RobertaConfig

    if family == "distilbert":
        return DistilBertConfig(
            vocab_size=vocab_size,
            dim=D_MODEL,
            n_layers=N_LAYERS[family],
            n_heads=N_HEADS,
            hidden_dim=32,
            max_position_embeddings=MAX_LENGTH,
        )
    keywords = {
        "vocab_size": vocab_size,
        "hidden_size": D_MODEL,
        "num_hidden_layers": N_LAYERS[family],
        "num_attention_heads": N_HEADS,
        "intermediate_size": 32,
    }
    if family == "roberta":
        # Positions start behind the padding index: two rows of the table are never a position.
        return RobertaConfig(
            **keywords, max_position_embeddings=MAX_LENGTH + 2, pad_token_id=1, bos_token_id=0, eos_token_id=2
        )
    return BertConfig(**keywords, max_position_embeddings=MAX_LENGTH)


def make_checkpoint(folder: Path, family: str, sentences: list[str], seed: int = 0) -> Path:
    """Save a tiny model whose every parameter is random, gains and biases too, with its tokenizer."""
    import torch
    from transformers import AutoModel

    tokenizer = make_tokenizer(family, sentences)
    model = AutoModel.from_config(make_config(family, len(tokenizer)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gain = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            parameter.copy_(gain + 0.3 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """200 distinct sentences of 3 to 40 words, always the same."""
    return make_sentences(200)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> dict[str, Path]:
    """A tiny checkpoint for each family; read only."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {family: make_checkpoint(folder / f"tiny-{family}", family, sentences) for family in FAMILIES}


@pytest.fixture
def tiny_model(tmp_path: Path, sentences: list[str]) -> Callable[..., Path]:
    """Make a tiny checkpoint in the test's own folder, to be changed at will: `tiny_model(family, seed=0)`."""

    def make(family: str, seed: int = 0) -> Path:
        return make_checkpoint(tmp_path / f"own-{family}-{seed}", family, sentences, seed)

    return make


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    """The sentences as a text file, one a line; read only."""
    path = tmp_path_factory.mktemp("corpus") / "sentences.txt"
    path.write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")
    return path
