"""Text for pretraining: the held-out part, word pieces, rows of packed tokens, and batches with tokens to predict."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, islice
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from probing.errors import UserError
from probing.runtime.trainer import ContinuedData, generator_of, save_model, seed_of
from probing.studies.pretrain.tables import CAUSAL_LM, Encoder
from probing.text import Corpus, side_of, split_key

_TABLE = "embeddings.position_embeddings.weight"

# Arms whose table is the same in all places and is trained there: the model is told place 0 of every token.
_ONE_ROW = ("constant", "relative")

# Arms whose table is that of `learned`: it has a row for each position in a row of text, and none for later ones.
LEARNED_TABLES = ("learned", "pre_norm", "plain_norm")

# What families call the parameters of BERT, by the names of their base models, and what some call those of its head.
_FAMILIES: dict[str, dict[str, str]] = {
    "bert": {},
    "roformer": {},
    "roberta_prelayernorm": {},
    "mpnet": {
        "attention.attn.q": "attention.self.query", "attention.attn.k": "attention.self.key",
        "attention.attn.v": "attention.self.value", "attention.attn.o": "attention.output.dense",
        "attention.LayerNorm": "attention.output.LayerNorm",
    },
    "deberta": {f"self.{name}_proj": f"self.{name}" for name in ("query", "key", "value")},
}  # fmt: skip

_HEAD = {
    "lm_head.dense": "cls.predictions.transform.dense", "lm_head.layer_norm": "cls.predictions.transform.LayerNorm",
    "lm_head.decoder": "cls.predictions.decoder", "lm_head.bias": "cls.predictions.bias",
}  # fmt: skip


def build(arm: str, shape: Encoder, tokenizer: Any, seed: int) -> Any:
    """Return an arm's model with its language-model head, in training mode.

    The parameters that arms have in common are drawn once for a seed, and are the same in all of them.
    """
    from transformers import BertForMaskedLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "weights") % 2**63)
        drawn = BertForMaskedLM(_config("learned", shape, tokenizer))
        if arm == "learned":
            return drawn.train()
        model = class_of(arm)(_config(arm, shape, tokenizer))
    _copy_common(drawn, model)
    embeddings = model.base_model.embeddings
    # MPNet has 1 here, whatever the tokenizer has.
    embeddings.word_embeddings.padding_idx = tokenizer.pad_token_id
    if arm == "relative":
        with torch.no_grad():  # MPNet has no embeddings of segments, of which BERT adds the first to every token
            position_table(model).copy_(drawn.bert.embeddings.token_type_embeddings.weight[0])
    elif arm == "pre_norm":
        with torch.no_grad():  # positions are counted from behind the padding token
            position_table(model)[tokenizer.pad_token_id + 1 :] = position_table(drawn)
    elif arm == "plain_norm":
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.requires_grad_(False)
    elif arm not in ("rotary", "disentangled"):
        fill_table(arm, position_table(model), shape.initial_sd)
    return model.train()


def fill_table(arm: str, table: nn.Parameter, initial_sd: float) -> None:
    """Fill a table of positions by the rule of the arm, and set whether it is trained.

    The first row remains where all rows are the same. `initial_sd` is the standard deviation of the initial token
    embeddings.
    """
    with torch.no_grad():
        if arm in _ONE_ROW:
            table.copy_(table[:1].clone().expand_as(table))
        elif arm == "sinusoidal":
            table.copy_(initial_sd * _sinusoids(*table.shape))
        else:
            table.zero_()
    table.requires_grad_(arm in _ONE_ROW)


def position_table(model: Any) -> nn.Parameter:
    """Return the table of position embeddings of an encoder that has one."""
    return cast(nn.Parameter, model.base_model.get_parameter(_TABLE))


def head_of(model: Any) -> Any:
    """Return the head, which maps hidden states to logits."""
    return model.cls if hasattr(model, "cls") else model.lm_head


def model_inputs(arm: str, input_ids: Tensor) -> dict[str, Tensor]:
    """Return the inputs of a model: token ids, and in some arms place 0 for all tokens.

    A saved checkpoint needs no positions, since all rows of its table are the same.
    """
    if arm in _ONE_ROW:
        return {"input_ids": input_ids, "position_ids": torch.zeros_like(input_ids)}
    return {"input_ids": input_ids}


def make_ordinary(arm: str, model: Any) -> None:
    """Change a model in place so that it needs only token ids; its outputs stay the same."""
    if arm in _ONE_ROW:
        table = position_table(model)
        with torch.no_grad():
            table.copy_(table[:1].clone().expand_as(table))


def class_of(arm: str) -> Any:
    """Return the class of an arm's model."""
    import transformers

    if arm == "alibi":
        from probing.models.attention_heads import AlibiBertForMaskedLM

        return AlibiBertForMaskedLM
    names = {
        "rotary": "RoFormerForMaskedLM", "relative": "MPNetForMaskedLM", "disentangled": "DebertaV2ForMaskedLM",
        CAUSAL_LM: "BertLMHeadModel", "pre_norm": "RobertaPreLayerNormForMaskedLM",
    }  # fmt: skip
    return getattr(transformers, names.get(arm, "BertForMaskedLM"))


def _config(arm: str, shape: Encoder, tokenizer: Any) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": shape.d_model, "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads, "intermediate_size": shape.d_feedforward,
        "max_position_embeddings": shape.row_length, "initializer_range": shape.initial_sd,
        "hidden_dropout_prob": shape.dropout, "attention_probs_dropout_prob": shape.dropout,
        "pad_token_id": tokenizer.pad_token_id, "use_cache": False,
    }  # fmt: skip
    # What BERT has, where a family has it otherwise.
    as_bert = {"layer_norm_eps": 1e-12, "bos_token_id": None, "eos_token_id": None}
    arm_options: dict[str, dict[str, Any]] = {
        "causal": {"is_decoder": True},
        CAUSAL_LM: {"is_decoder": True},
        "rotary": {"embedding_size": shape.d_model, "rotary_value": False},
        # Two rows are for padding and before it.
        "relative": {"max_position_embeddings": shape.row_length + 2, **as_bert},
        "disentangled": {
            "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False,
            "max_relative_positions": shape.row_length, "type_vocab_size": 2, **as_bert,
        },
        "pre_norm": {
            "max_position_embeddings": shape.row_length + tokenizer.pad_token_id + 1, "type_vocab_size": 2, **as_bert
        },
    }  # fmt: skip
    return class_of(arm).config_class(**{**sizes, **arm_options.get(arm, {})})


def _copy_common(source: nn.Module, target: nn.Module) -> None:
    """Copy all parameters of the same shape that both models have, by their names in BERT."""
    values = {_as_in_bert(name): value for name, value in source.state_dict().items()}
    with torch.no_grad():
        for name, value in target.state_dict().items():
            drawn = values.get(_as_in_bert(name))
            if drawn is not None and drawn.shape == value.shape:
                value.copy_(drawn)


def _as_in_bert(name: str) -> str:
    """Return the name of a parameter in BERT, without the prefix of the family."""
    family, _, rest = name.partition(".")
    renamed = rest if family in _FAMILIES else name
    for theirs, ours in {**_FAMILIES.get(family, {}), **_HEAD}.items():
        renamed = renamed.replace(theirs, ours)
    return renamed


def _sinusoids(n_positions: int, width: int) -> Tensor:
    """Return sines in the even and cosines in the odd columns, shape (n_positions, width).

    Multiplied by the standard deviation of token embeddings, they have the same size relative to these as in Vaswani et
    al. (2017), section 3.4, where token embeddings have standard deviation 1.
    """
    frequency = torch.exp(-math.log(10_000) * torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(n_positions, dtype=torch.float64)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[:, :width].float()


def checkpoint_steps(steps: int, factor: float) -> list[int]:
    """Return the steps after which there is a checkpoint: 0, 1, the powers of the factor, and the last."""
    steps_saved, power = {0, steps}, 1.0
    while power < steps:
        steps_saved.add(round(power))
        power *= factor
    return sorted(steps_saved)


def checkpoint_folder(folder: Path, arm: str, seed: int, step: int, steps: int) -> Path:
    """Return the folder of a checkpoint; names sort as steps do, of which `steps` is the last."""
    return folder / f"{arm}-seed{seed}" / f"step{step:0{len(str(steps))}d}"


def save_checkpoint(folder: Path, arm: str, model: Any, tokenizer: Any) -> None:
    """Write a model and its tokenizer as a folder that `from_pretrained` reads; an older one is replaced."""
    make_ordinary(arm, model)
    save_model(folder, model, tokenizer)


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Documents are held out as a whole if there are at least this many, otherwise sentences are.
DOCUMENTS = 20

# Most sentences that are tokenised at once.
_CHUNK = 10_000

# The size of the vocabulary divided by this is the maximum number of different characters. A character can take two
# pieces, one at the beginning of words and one inside.
_ALPHABET = 3

# Most sentences that word pieces are trained on.
_TRAINED_ON = 1_000_000


@dataclass(frozen=True)
class PackedText:
    """Packed text of both parts, in rows of shape (n_rows, row_length), int32, and the held-out sentences.

    The word pieces of the tokenizer were trained on the training part. `log_unigram` has the log probability of each
    token by its frequency in the training part, shape (n_vocabulary,).
    """

    tokenizer: Any
    train: Tensor
    validation: Tensor
    validation_corpus: Corpus
    log_unigram: Tensor

    def unigram_loss(self, labels: Tensor) -> float:
        """Return the cross-entropy of tokens under the frequencies of the training part, in nats."""
        return float(-self.log_unigram[labels.long()].mean())


def validation_flags(corpus: Corpus, seed: int) -> list[bool]:
    """Return for each sentence whether it is held out: a tenth of the documents, or of sentences if those are few."""
    if corpus.documents is not None and len(set(corpus.documents)) >= DOCUMENTS:
        sides = {document: side_of(f"document {document}", seed) for document in set(corpus.documents)}
        return [sides[document] == "test" for document in corpus.documents]
    return [side_of(split_key(sentence), seed) == "test" for sentence in corpus.sentences]


def prepare(
    corpus: Corpus, vocabulary: int, lowercase: bool, row_length: int, held_out_rows: int, seed: int,
    tokenizer: Any = None,
) -> PackedText:  # fmt: skip
    """Split the corpus, train the tokenizer unless given, and pack the tokens of both parts into rows.

    Raises:
        UserError: If a part has not enough text for one row.
    """
    in_validation = validation_flags(corpus, seed)
    parts = [corpus.subset([i for i, flag in enumerate(in_validation) if flag is side]) for side in (False, True)]
    if not all(part.sentences for part in parts):
        raise _too_small(corpus, row_length)
    if tokenizer is None:
        tokenizer = train_tokenizer(parts[0].sentences, vocabulary, lowercase, row_length)
    rows = [packed(part.sentences, tokenizer, row_length) for part in parts]
    rows[1] = rows[1][:held_out_rows]
    if not all(len(part) for part in rows):
        raise _too_small(corpus, row_length)
    return PackedText(tokenizer, rows[0], rows[1], parts[1], _log_unigram(rows[0], tokenizer))


def train_tokenizer(sentences: Sequence[str], vocabulary: int, lowercase: bool, row_length: int) -> Any:
    """Train word pieces, and return the fast tokenizer of transformers; the same sentences give the same tokenizer.

    Only the most frequent characters are known, at most a third of the size of the vocabulary, so that pieces remain
    for words.
    """
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece
    from tokenizers.trainers import WordPieceTrainer

    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    read = sentences[:: -(-len(sentences) // _TRAINED_ON)]
    initial, inner = _characters(read, tokenizer, vocabulary // _ALPHABET)
    # The trainer numbers pieces inside of words in an order that differs between processes, and breaks ties by these
    # numbers. Given as special tokens, they have the numbers of this list.
    first = [*SPECIAL, *(f"##{character}" for character in inner)]
    trainer = WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=first, initial_alphabet=initial, limit_alphabet=len(initial),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(read, trainer)
    pieces = [piece for piece, _ in sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])]
    final = Tokenizer(WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    final.normalizer, final.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    ends = [(token, final.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    final.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return as_fast(final, row_length)


def as_fast(backend: Any, row_length: int) -> Any:
    """Wrap a tokenizer of `tokenizers` in a fast tokenizer of transformers."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=row_length, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip


def _characters(sentences: Sequence[str], tokenizer: Any, most: int) -> tuple[list[str], list[str]]:
    """Return the most frequent characters, and those among them that occur inside words, both sorted."""
    normalise, divide = tokenizer.normalizer.normalize_str, tokenizer.pre_tokenizer.pre_tokenize_str
    words = Counter(word for sentence in sentences for word, _ in divide(normalise(sentence)))
    counts: Counter[str] = Counter()
    inner: set[str] = set()
    for word, n in words.items():
        inner.update(word[1:])
        for character in word:
            counts[character] += n
    frequent = sorted(sorted(counts, key=lambda character: (-counts[character], character))[:most])
    return frequent, [character for character in frequent if character in inner]


def packed(sentences: Sequence[str], tokenizer: Any, row_length: int) -> Tensor:
    """Return the tokens of sentences as rows of equal length, int32; an incomplete last row is left out.

    A row is [CLS] and the next tokens of the text, in which [SEP] follows every sentence.
    """
    ids, remaining = array("i"), iter(sentences)
    while chunk := list(islice(remaining, _CHUNK)):
        for encoding in tokenizer.backend_tokenizer.encode_batch(chunk, add_special_tokens=False):
            ids.extend(encoding.ids)
            ids.append(tokenizer.sep_token_id)
    width = row_length - 1
    n = len(ids) // width
    text = torch.tensor(ids[: n * width], dtype=torch.int32).view(n, width)
    return torch.cat([torch.full((n, 1), tokenizer.cls_token_id, dtype=torch.int32), text], dim=1)


def _log_unigram(rows: Tensor, tokenizer: Any) -> Tensor:
    """Return the log frequencies of ordinary tokens; 1 is added to each count, so that no frequency is 0."""
    counts = torch.bincount(rows.flatten(), minlength=len(tokenizer)).double() + 1
    counts[tokenizer.all_special_ids] = 0  # these are never predicted
    return (counts / counts.sum()).log()


def _too_small(corpus: Corpus, row_length: int) -> UserError:
    return UserError(
        f"`--corpus {corpus.name}`: training and held-out text both need at least one row of {row_length} tokens; give "
        "more text or a smaller --encoder.row_length."
    )


def order_of_rows(n_rows: int, batch_size: int, first: int, seed: int) -> Iterator[Tensor]:
    """Yield the row numbers of each batch, without end, beginning with batch `first`.

    Rows are reshuffled after each pass over all of them; a batch may reach from one order into the next.
    """

    @lru_cache(1)
    def order(epoch: int) -> Tensor:
        return torch.randperm(n_rows, generator=generator_of(seed, "order", epoch))

    for batch in count(first):
        places = range(batch * batch_size, (batch + 1) * batch_size)
        yield torch.stack([order(i // n_rows)[i % n_rows] for i in places])


# Rows of held-out text that are read at once.
_HELD_OUT_BATCH = 64


@dataclass
class MaskedBatch:
    """Rows in which some tokens are predicted; inputs and labels, -100 elsewhere, have shape (n_rows, row_length).

    `n_predicted` is the number of predicted tokens in all rows of a step: of all processes, and of all parts whose
    gradients are accumulated.
    """

    input_ids: Tensor
    labels: Tensor
    n_predicted: int

    def to(self, device: Any, **options: Any) -> MaskedBatch:
        """Return the batch on a device; Lightning calls this."""
        return MaskedBatch(self.input_ids.to(device, **options), self.labels.to(device, **options), self.n_predicted)


class Masking:
    """Choice of a share of ordinary tokens to predict, by transformers' collator: 80% masked, 10% random tokens."""

    def __init__(self, tokenizer: Any, share: float) -> None:
        from transformers import DataCollatorForLanguageModeling

        self._collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=share, seed=0)
        self._special = torch.tensor(tokenizer.all_special_ids)

    def __call__(self, rows: Tensor, *seed: int | str) -> tuple[Tensor, Tensor]:
        """Return the inputs and the labels; the draws depend on the seed alone."""
        self._collator.generator = generator_of(*seed)
        rows = rows.long()
        inputs, labels = self._collator.torch_mask_tokens(rows.clone(), torch.isin(rows, self._special))
        return inputs, labels


class NextTokens:
    """Choice of the tokens to predict from earlier tokens: all but the first and special ones."""

    def __init__(self, tokenizer: Any) -> None:
        self._special = torch.tensor(tokenizer.all_special_ids)

    def __call__(self, rows: Tensor, *seed: int | str) -> tuple[Tensor, Tensor]:
        """Return the rows and, at each token, the next one as its label; nothing is drawn."""
        rows = rows.long()
        following = torch.full_like(rows, -100)
        following[:, :-1] = rows[:, 1:]
        return rows, following.masked_fill(torch.isin(following, self._special), -100)


class PackedRows(ContinuedData):
    """Packed rows in a shuffled order, with tokens to predict.

    Order and masks depend on the seed and the number of the step alone; the masks of the held-out part are the same for
    all seeds. The number of processes, which share batches of size `batch_size`, changes neither order nor masks. The
    share of tokens `masked` is None where next tokens are predicted.
    """

    def __init__(
        self, text: PackedText, batch_size: int, masked: float | None, seed: int, n_accumulated: int = 1
    ) -> None:
        super().__init__(n_accumulated)
        self.text, self.batch_size, self.seed = text, batch_size, seed
        self.choose = NextTokens(text.tokenizer) if masked is None else Masking(text.tokenizer, masked)

    def whole_batches(self, first: int) -> Iterator[MaskedBatch]:
        """Yield the batch of each step, without end."""
        order = order_of_rows(len(self.text.train), self.batch_size * self.n_accumulated, first, self.seed)
        for step, chosen in enumerate(order, start=first):
            inputs, labels = self.choose(self.text.train[chosen], self.seed, "masks", step)
            yield MaskedBatch(inputs, labels, int((labels >= 0).sum()))

    def part_of(self, batch: MaskedBatch, part: int, n_parts: int) -> MaskedBatch:
        """Return every `n_parts`-th row."""
        return MaskedBatch(batch.input_ids[part::n_parts], batch.labels[part::n_parts], batch.n_predicted)

    def validation_batches(self) -> Iterator[MaskedBatch]:
        """Yield the held-out rows, with the same tokens to predict for every model of the kind."""
        inputs, labels = self.choose(self.text.validation, "held out")
        for some in zip(inputs.split(_HELD_OUT_BATCH), labels.split(_HELD_OUT_BATCH), strict=True):
            yield MaskedBatch(*some, int((some[1] >= 0).sum()))

    def unigram_loss(self) -> float:
        """Return the loss of the frequencies of tokens on the held-out tokens, in nats."""
        _, labels = self.choose(self.text.validation, "held out")
        return self.text.unigram_loss(labels[labels >= 0])
