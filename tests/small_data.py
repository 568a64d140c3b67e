"""Small data sets in the layouts of WiC and STS, and treebanks, made up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from probing.heads.accumulation import Measure, SentenceBatch, SumsStore, attention_of
from probing.text import Corpus, from_words
from probing.text.tokens import Tokens

WORDS = ("probe", "layer", "neuron", "token", "sentence", "position", "model", "weight", "value", "answer", "question")

Pair = tuple[list[str], list[str], int, bool]


def word_pairs(n: int, seed: int) -> list[Pair]:
    """Make pairs of sentences of 5 to 9 words in which the word at some place is the same where the label is yes.

    Where it is no, another word stands there. The words before are the same in both, so that the place is, whatever the
    number of pieces; those behind are drawn at random.
    """
    generator = random.Random(seed)
    pairs = []
    for i in range(n):
        first, second = ([generator.choice(WORDS) for _ in range(generator.randint(5, 9))] for _ in range(2))
        place, same = generator.randrange(5), i % 2 == 0
        second[:place] = first[:place]
        others = [word for word in WORDS if word != first[place]]
        second[place] = first[place] if same else generator.choice(others)
        pairs.append((first, second, place, same))
    return pairs


def write_wic(folder: Path, part: str, pairs: Sequence[Pair]) -> None:
    """Write one part in the original form, lemma and part of speech made up."""
    (folder / part).mkdir(parents=True, exist_ok=True)
    data = [f"word\tN\t{place}-{place}\t{' '.join(a)}\t{' '.join(b)}\n" for a, b, place, _ in pairs]
    (folder / part / f"{part}.data.txt").write_text("".join(data), encoding="utf-8")
    (folder / part / f"{part}.gold.txt").write_text("".join("FT"[same] + "\n" for *_, same in pairs), encoding="utf-8")


# A score may be text, as it stands in the file.
Rated = tuple[str, str, float | str]


def sentence_pairs(n: int, seed: int) -> list[tuple[str, str, float]]:
    """Make pairs of sentences, the second with some of the first one's ten words: the score tells how many."""
    generator = random.Random(seed)
    pairs = []
    for _ in range(n):
        words, kept = generator.choices(WORDS, k=10), generator.randint(0, 10)
        other = words[:kept] + generator.choices(["the", "a", "between", "behind", "never"], k=10 - kept)
        pairs.append((" ".join(words) + " .", " ".join(other) + " .", kept / 2))
    return pairs


def write_semeval(folder: Path, subset: str, pairs: Sequence[Rated]) -> None:
    """Write one subset of STS12 to STS16 in SentEval's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"STS.input.{subset}.txt").write_text("".join(f"{a}\t{b}\n" for a, b, _ in pairs), encoding="utf-8")
    (folder / f"STS.gs.{subset}.txt").write_text("".join(f"{_score(one)}\n" for *_, one in pairs), encoding="utf-8")


def _score(score: float | str) -> str:
    return score if isinstance(score, str) else f"{score:.3f}"


def write_benchmark(folder: Path, part: str, pairs: Sequence[Rated]) -> None:
    """Write one part of STS-B as published; some lines have columns of a licence at their end."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f"main-news\tx\t2012\t{i:04}\t{_score(s)}\t{a}\t{b}" + "\tx\ty" * (i % 2) for i, (a, b, s) in enumerate(pairs)
    ]
    (folder / f"sts-{part}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_sick(folder: Path, part: str, pairs: Sequence[Rated], entailment: Sequence[str] | None = None) -> None:
    """Write one part of SICK, in which all pairs are neutral unless their entailment is given."""
    folder.mkdir(parents=True, exist_ok=True)
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    (folder / f"SICK_{part}.txt").write_text(
        head
        + "".join(
            f"{i}\t{a}\t{b}\t{score}\t{entailment[i] if entailment else 'NEUTRAL'}\n"
            for i, (a, b, score) in enumerate(pairs)
        ),
        encoding="utf-8",
    )


def marked_pairs(n: int, seed: int = 0) -> list[tuple[str, str, float]]:
    """Make pairs of different short sentences, of which half share the word `probe` and have the score 5, others 1.

    In the other half, one of the two sentences has it, so that neither sentence tells the score by itself.
    """
    generator = random.Random(seed)
    plain = [word for word in WORDS if word not in ("probe", "layer")]
    made: dict[tuple[str, str], float] = {}
    marks = [("probe", "probe"), ("probe", "layer"), ("probe", "probe"), ("layer", "probe")]
    while len(made) < n:
        first, second = (
            " ".join([mark, *generator.choices(plain, k=generator.randint(3, 5))]) for mark in marks[len(made) % 4]
        )
        if not {first, second} & {text for pair in made for text in pair}:
            made[first, second] = 5.0 if first.split()[0] == second.split()[0] else 1.0
    return [(first, second, score) for (first, second), score in made.items()]


def entailment_of(pairs: Sequence[Rated]) -> list[str]:
    """Return a label for each of `marked_pairs`."""
    return ["ENTAILMENT" if score == 5.0 else "NEUTRAL" for *_, score in pairs]


def write_sts(folder: Path, n: int = 40) -> Path:
    """Write STS12 of two subsets, STS-B without its test part, and SICK's training and trial part."""
    write_semeval(folder / "STS12-en-test", "MSRpar", sentence_pairs(n, 0))
    write_semeval(folder / "STS12-en-test", "OnWN", sentence_pairs(n // 2, 1))
    for seed, part in enumerate(("train", "dev"), 2):
        write_benchmark(folder / "STSBenchmark", part, sentence_pairs(2 * n, seed))
    for seed, part in enumerate(("train", "trial"), 4):
        write_sick(folder / "SICK", part, sentence_pairs(n, seed))
    return folder


def plant_outlier(model: Path, neuron: int) -> Path:
    """Give one neuron of a BERT a bias in the embeddings that makes it the smallest of every token there."""
    weights = load_file(model / "model.safetensors")
    weights["embeddings.LayerNorm.bias"][neuron] = -30.0
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    return model


# Returns the maps of a sentence, given its index and the words of its tokens.
MapsOf = Callable[[int, NDArray[np.int16]], Tensor]

RELATIONS = ("nsubj", "obl:tmod", "det", "punct")


def treebank(n: int, seed: int = 0, shortest: int = 4, longest: int = 14) -> Corpus:
    """Return made-up sentences with a random tree over each, of words with one to three pieces."""
    generator = np.random.default_rng(seed)
    words, heads, relations = [], [], []
    for i in range(n):
        length = int(generator.integers(shortest, longest + 1))
        words.append([f"w{i}_{j}" for j in range(length)])
        order = generator.permutation(length)
        of = [0] * length
        for k, word in enumerate(order[1:], 1):
            of[word] = int(order[generator.integers(k)]) + 1
        heads.append(tuple(map(str, of)))
        relations.append(tuple("root" if head == 0 else str(generator.choice(RELATIONS)) for head in of))
    return from_words("made up", words, {"head": heads, "deprel": relations})


@dataclass(frozen=True)
class Stored:
    """What a measure kept, without files."""

    tokens: Tokens
    values: Tensor

    def by_token(self, name: str) -> Tensor:
        return self.values


def tokens_of_words(corpus: Corpus, seed: int = 0) -> Tokens:
    """Return a table of tokens in which each word has one to three pieces, with a special token at both ends."""
    generator = np.random.default_rng(seed)
    words = [[-1, *np.repeat(np.arange(len(of)), generator.integers(1, 4, len(of))), -1] for of in corpus.words or ()]
    lengths = np.array([len(of) for of in words], dtype=np.int32)
    flat = np.concatenate(words).astype(np.int16)
    return Tokens(lengths, np.zeros(len(flat), dtype=np.int32), flat)


def batch_of(tokens: Tokens, sentences: Sequence[int], is_causal: bool = False) -> SentenceBatch:
    lengths = tokens.lengths[list(sentences)]
    n = int(lengths.max())
    mask = torch.arange(n) < torch.from_numpy(lengths)[:, None]
    rows = torch.from_numpy(tokens.offsets[list(sentences)])[:, None] + torch.arange(n)
    rows = torch.where(mask, rows, 0)
    words = torch.where(mask, torch.from_numpy(tokens.words.astype(np.int64))[rows], -1)
    special = mask & (words < 0)
    special[:, 0] |= is_causal
    return SentenceBatch(torch.tensor(sentences), rows, rows, mask, special, words, is_causal)


def kept_of(measure: Measure, corpus: Corpus, tokens: Tokens, maps_of: MapsOf, size: int = 7) -> SumsStore:
    """Return what a measure keeps of maps by sentence, each of shape (n_layers, heads, from, to)."""
    values: dict[int, Tensor] = {}
    begin = measure.of_corpus(tokens, corpus)
    for first in range(0, tokens.n_sentences, size):
        batch = batch_of(tokens, range(first, min(first + size, tokens.n_sentences)))
        maps = [maps_of(int(i), tokens.words[tokens.of_sentences(int(i), 1)]) for i in batch.sentences]
        n, length = batch.mask.shape
        padded = torch.full((n, *maps[0].shape[:2], length, length), torch.nan)
        for i, one in enumerate(maps):
            padded[i, :, :, : one.shape[-1], : one.shape[-1]] = one
        accumulator = begin(batch)
        for layer in range(padded.shape[1]):
            accumulator.add(attention_of(layer + 1, padded[:, layer], torch.empty(0), None, batch))
        of = accumulator.batch_values().by_token[measure.name]
        values |= {int(s): of[i][batch.mask[i]] for i, s in enumerate(batch.sentences)}
    return cast(SumsStore, Stored(tokens, torch.cat([values[i] for i in range(tokens.n_sentences)])))


def random_maps(n: int, seed: int, heads: int = 3) -> Tensor:
    return torch.randn(2, heads, n, n, generator=torch.Generator().manual_seed(seed)).mul(2).softmax(-1)
