"""Neurons taken out of a model, runs from a block on, and what is read of pairs and by tuned heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional

from families import FAMILIES, untouched
from probing.activations import ActivationStore, Request, activations
from probing.data.labelling import IGNORED
from probing.downstream.labelled_pairs import WordPairs
from probing.errors import UserError
from probing.interventions.forward import Change, Forward, LaterBlocks, Readers, ReadText, draw_up_to, padded
from probing.interventions.heads import uniform_outputs, with_heads
from probing.interventions.model_output import SentenceSums
from probing.interventions.outliers import conditions, intervene
from probing.interventions.pair_cosines import (
    READ,
    TRAIN,
    PairsReadout,
    SenseRule,
    TunedHead,
    TunedScore,
    draw_pairs,
    halves,
    read_senses,
    read_similarity,
    rule_of,
    senses_readout,
    similarity_readout,
)
from probing.interventions.parameters import zeroed
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.anatomy import examine, hidden_states
from probing.models.examination import with_the_same_weights
from probing.models.loading import HeadOf, load_tuned, load_with_head
from probing.models.residual_stream import find_parameters
from probing.studies.ablate.weights import importance
from probing.text import Corpus
from small_data import sentence_pairs, word_pairs, write_semeval, write_wic

pytestmark = pytest.mark.numeric


class RootMeanSquare(nn.Module):
    """A norm without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 9.0))


def output_norms(encoder: Any) -> list[nn.Module]:
    return [encoder.get_submodule(norm.module) for norm in find_parameters(encoder, examine(encoder)).output_norms]


def test_gain_and_bias_are_zero_inside_and_afterwards_as_they_were() -> None:
    norms = [nn.LayerNorm(8), RootMeanSquare()]
    nn.init.normal_(norms[0].get_parameter("bias"))
    before = [parameter.detach().clone() for norm in norms for parameter in norm.parameters()]
    parameters = [parameter for norm in norms for parameter in norm.parameters()]
    others = [0, 1, 3, 4, 6, 7]

    def break_off() -> None:
        with zeroed([*norms, norms[0]], [2, 5]):
            assert all(parameter[[2, 5]].tolist() == [0, 0] for parameter in parameters)
            assert all(torch.equal(p[others], was[others]) for p, was in zip(parameters, before, strict=True))
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        break_off()
    assert all(torch.equal(parameter, was) for parameter, was in zip(parameters, before, strict=True))


@pytest.mark.parametrize("family", ["bert", "distilbert", "albert"])
def test_a_zeroed_neuron_is_0_in_all_that_blocks_hand_on_and_the_model_is_the_same_afterwards(
    family: str, checkpoints: dict[str, Path]
) -> None:
    encoder = untouched(checkpoints[family])
    norms = output_norms(encoder)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    ids = torch.arange(5, 15)[None]
    with torch.inference_mode(), zeroed(norms, [3]):
        embedded, *states = encoder(ids, output_hidden_states=True).hidden_states
    assert len(states) == 3
    assert (embedded[..., 3] != 0).all()
    for state in states:
        assert (state[..., 3] == 0).all()
        assert (state[..., [0, 1, 2, 4]] != 0).all()
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


def test_others_are_as_many_and_never_outliers() -> None:
    gains = np.array([9.0, 1, 2, 8, 3, 7, 0, 0, 0, 0])
    found = conditions([3, 0], gains, 20, 1)
    assert [(c.where, c.kind, c.draw) for c in found] == [
        ("inside", "outliers", 0), ("inside", "largest_gain", 0), *(("inside", "random", i + 1) for i in range(20)),
        ("after", "outliers", 0), *(("after", "random", i + 1) for i in range(20)),
    ]  # fmt: skip
    assert found[0].neurons == found[22].neurons == (0, 3)
    assert found[1].neurons == (4, 5)
    random = [c.neurons for c in found if c.kind == "random"]
    assert all(len(set(neurons)) == 2 and not {0, 3} & set(neurons) for neurons in random)
    assert random[:20] == random[20:]
    assert len(set(random)) > 5
    assert found == conditions([0, 3], gains, 20, 1) != conditions([0, 3], gains, 20, 2)


@pytest.mark.parametrize("outliers", [[], [0, 1, 2, 3, 4, 5]])
def test_nothing_is_compared_where_there_is_nothing_to_take_out_or_nothing_left(outliers: list[int]) -> None:
    with pytest.raises(ValueError, match="neurons"):
        conditions(outliers, np.ones(10), 3, 0)


# Each neuron's worth: the loss rises by it where the neuron is zeroed inside, by a tenth of it where it is clipped.
WORTH = np.array([5.0, 0, 1, 2, 3, 4, 0.5, 0])
SENTENCES = np.tile([2.0, -1, 3, 0.5], 8)
N_TOKENS = np.tile([3, 1, 2, 0], 8)


class Planted:
    """Reads a loss, and an accuracy that falls by a hundredth of what it rises by, off the gains of a norm."""

    def __init__(self, norm: nn.LayerNorm, sign: float = 1.0) -> None:
        self.norm, self.sign = norm, sign
        self.seen: list[Any] = []

    def __call__(self, clips: Sequence[Sequence[int]]) -> list[SentenceSums]:
        zero = self.norm.weight.detach().numpy() == 0
        self.seen.append(np.flatnonzero(zero).tolist())
        assert (self.norm.bias.detach().numpy()[zero] == 0).all()
        losses = [self.sign * (WORTH[zero].sum() + WORTH[list(neurons)].sum() / 10) for neurons in clips]
        return [
            SentenceSums(
                {
                    "mlm_loss": (SENTENCES + loss) * N_TOKENS,
                    "position_accuracy": (0.5 - (SENTENCES + loss) / 100) * N_TOKENS,
                },
                dict.fromkeys(("mlm_loss", "position_accuracy"), N_TOKENS),
            )
            for loss in losses
        ]


def planted(outlier: int, n_draws: int = 12, sign: float = 1.0) -> tuple[list[dict[str, Any]], Planted, nn.LayerNorm]:
    norm = nn.LayerNorm(8)
    nn.init.ones_(norm.bias)
    reader = Planted(norm, sign)
    return intervene([norm], conditions([outlier], np.ones(8), n_draws, 0), reader), reader, norm


def test_effects_are_differences_to_the_intact_model_with_intervals_over_sentences() -> None:
    rows, reader, norm = planted(0)
    assert norm.weight.tolist() == norm.bias.tolist() == [1] * 8
    assert reader.seen[:3] == [[], [0], [1]]  # as it is, without the outlier, without the first of equal gains
    by = {(row["measure"], row["where"], row["kind"]): row for row in rows if row.get("draw") is None}
    mean = (SENTENCES * N_TOKENS).sum() / N_TOKENS.sum()
    intact = by["mlm_loss", "", "intact"]
    assert intact["value"] == pytest.approx(mean)
    assert intact["low"] < mean < intact["high"]
    assert intact["n_tokens"] == 48
    inside, after = (by["mlm_loss", where, "outliers"] for where in ("inside", "after"))
    assert (inside["effect"], after["effect"]) == (pytest.approx(5), pytest.approx(0.5))
    assert inside["value"] == pytest.approx(mean + 5)
    # The effect is the same in every sentence: sentences differ in the value and not in the effect.
    assert (inside["effect_low"], inside["effect_high"]) == (pytest.approx(5), pytest.approx(5))
    assert inside["low"] < inside["value"] < inside["high"]
    accuracy = by["position_accuracy", "inside", "outliers"]
    assert accuracy["effect"] == pytest.approx(-0.05)
    assert accuracy["effect_low"] < -0.05 < accuracy["effect_high"]  # of accuracies, even that is not certain
    assert 0 < accuracy["low"] < accuracy["value"] < accuracy["high"] < 1
    for row in rows:
        if row["kind"] == "random":
            worth = WORTH[int(row["neurons"])] * (1 if row["where"] == "inside" else 0.1)
            assert row["effect"] == pytest.approx(worth if row["measure"] == "mlm_loss" else -worth / 100)
    assert len(rows) == 2 * (1 + 2 + 12 + 1 + 12)


@pytest.mark.parametrize("measure", ["mlm_loss", "position_accuracy"])
def test_the_percentile_counts_random_draws_that_do_less_harm(measure: str) -> None:
    for outlier in (0, 4, 1):
        rows, _, _ = planted(outlier, 12)
        for where in ("inside", "after"):
            here = [row for row in rows if (row["measure"], row["where"]) == (measure, where)]
            drawn = [WORTH[int(row["neurons"])] for row in here if row["kind"] == "random"]
            (row,) = [row for row in here if row["kind"] == "outliers"]
            less = sum(worth < WORTH[outlier] for worth in drawn)
            assert row["percentile"] == pytest.approx(100 * less / 12)
            assert row["p_value"] == pytest.approx((13 - less) / 13)
    assert 0 < less < 12 or outlier == 1


def test_taking_out_what_disturbs_is_no_harm() -> None:
    rows, _, _ = planted(0, 12, sign=-1)
    found = [row for row in rows if row["kind"] == "outliers"]
    assert {row["percentile"] for row in found} == {0}
    assert {row["p_value"] for row in found} == {1}


def test_without_random_draws_there_is_no_percentile() -> None:
    rows, _, _ = planted(0, 0)
    assert all("percentile" not in row and "p_value" not in row for row in rows)


# Blocks or heads cannot be told: ConvBERT's and XLNet's values or hidden states take another way.
REFUSED = {
    "xlnet": "no head or layer of it can be ablated, because its",
    "lfm2": "2 attentions were seen in a forward pass",
    "longformer": "0 attentions were seen in a forward pass",
}
TEXTS = ["the probe reads one layer", "a small model often forgets every position of a large sentence, quietly"]


def loaded(folder: Path) -> tuple[LaterBlocks, dict[str, Tensor]]:
    source = resolve_model(str(folder))
    tokenizer = load_tokenizer(source)
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    pad, longest = tokenizer.pad_token_id or 0, max(map(len, ids))
    inputs = {
        "input_ids": torch.tensor([one + [pad] * (longest - len(one)) for one in ids]),
        "attention_mask": torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in ids]),
    }
    return LaterBlocks.of(load_encoder(source), pad, folder.name), inputs


def all_layers(model: LaterBlocks, inputs: dict[str, Tensor]) -> dict[int, Tensor]:
    return hidden_states(model.encoder, model.anatomy, range(model.anatomy.n_layers + 1), **inputs)


def one_by_one(inputs: dict[str, Tensor], neutral: bool) -> list[dict[str, Tensor]]:
    """Return both sentences together, or each without padding where a family's hidden states depend on it."""
    if neutral:
        return [inputs]
    lengths = inputs["attention_mask"].sum(1).tolist()
    return [{name: values[i : i + 1, :n] for name, values in inputs.items()} for i, n in enumerate(lengths)]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_the_later_layers_are_those_of_the_whole_model_to_the_bit(family: str, checkpoints: dict[str, Path]) -> None:
    if family in REFUSED:
        with pytest.raises(UserError, match=REFUSED[family]):
            loaded(checkpoints[family])
        return
    model, both = loaded(checkpoints[family])
    last = model.anatomy.n_layers
    for inputs in one_by_one(both, model.anatomy.padding_is_neutral):
        states, beside = all_layers(model, inputs), model.beside_states(inputs)
        for block in range(1, last + 1):
            later = list(range(block, last + 1))
            found = model.run(inputs, block, states[block - 1], beside, later)
            assert all(torch.equal(found[layer], states[layer]) for layer in later)
            # A change that changes nothing is a change nowhere; one that does is one in all later layers.
            same = model.run(inputs, block, states[block - 1], beside, later, {block: lambda given: given})
            assert all(torch.equal(same[layer], states[layer]) for layer in later)
            other = model.run(
                inputs,
                block,
                states[block - 1],
                beside,
                later,
                {block: partial(with_heads, heads=model.columns(1), others=Tensor([0]))},
            )
            assert not any(torch.equal(other[layer], states[layer]) for layer in later)
        outside = model.run(inputs, last + 1, states[last - 1], beside, [last])
        assert outside[last].shape == states[last].shape
        assert not torch.equal(outside[last], states[last])


class Replaced:
    """Attention whose weights of one head are replaced by 1/L in one block; computed naively, a product at a time."""

    def __init__(self, block: int, head: int) -> None:
        self.block, self.head, self.calls = block, head, 0

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, **other: Any,
    ) -> Tensor:  # fmt: skip
        self.calls += 1
        scores = query @ key.transpose(2, 3) * (scale or 1 / math.sqrt(query.shape[-1]))
        seen = torch.ones_like(scores, dtype=torch.bool)
        if is_causal:
            seen = seen.tril()
        if attn_mask is not None:
            seen = seen & (attn_mask if attn_mask.dtype == torch.bool else attn_mask > -1)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        if self.calls == self.block:
            weights[:, self.head - 1] = (seen / seen.sum(-1, keepdim=True))[
                :, self.head - 1 if seen.shape[1] > 1 else 0
            ]
        return weights @ value


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "llama", "bart"])
@torch.inference_mode()
def test_uniform_is_the_attention_map_replaced(
    family: str, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = loaded(checkpoints[family])
    states, beside = all_layers(model, inputs), model.beside_states(inputs)
    mask = inputs["attention_mask"].bool()
    for block in range(1, model.anatomy.n_layers + 1):
        later = list(range(block, model.anatomy.n_layers + 1))
        _, values = model.outputs_of_heads(inputs, block, states[block - 1], beside)
        uniform = uniform_outputs(values, mask, model.heads.is_causal)
        assert uniform.shape[1] == (mask.shape[1] if model.heads.is_causal else 1)
        for head in (1, 2):
            here = model.columns(head)
            found = model.run(
                inputs,
                block,
                states[block - 1],
                beside,
                later,
                {block: partial(with_heads, heads=here, others=uniform[..., here])},
            )
            with monkeypatch.context() as patch:
                patch.setattr(functional, "scaled_dot_product_attention", replaced := Replaced(block, head))
                expected = all_layers(model, inputs)
            assert replaced.calls == model.anatomy.n_layers
            for layer in later:
                assert (found[layer] - expected[layer])[mask].abs().max() < 1e-5
                assert (states[layer] - expected[layer])[mask].abs().max() > 1e-4


# --- blocks that do not end in what the next one needs ---

_SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip
_XLM = {"vocab_size": 64, "emb_dim": 32, "n_layers": 4, "n_heads": 4, "n_words": 64, "pad_index": 0}
# Of XLM and FlauBERT, the residual and the feed-forward part are outside of the module that is given the states; the
# last two blocks of Gemma 4 take keys and values of those below; ZAYA's routers pass on what is no hidden state.
MORE_THAN_STATES: dict[str, dict[str, Any]] = {
    "xlm": _XLM, "flaubert": _XLM,
    "gemma4_text": {
        **_SIZES, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 16, "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8,
        "per_layer_config": {},
    },
    "zaya": {**_SIZES, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 1},
}  # fmt: skip


def of_config(family: str) -> tuple[LaterBlocks, dict[str, Tensor]]:
    from transformers import CONFIG_MAPPING, AutoModel

    make: Any = CONFIG_MAPPING[family]
    encoder: Any = AutoModel.from_config(make(**MORE_THAN_STATES[family])).eval()
    encoder.config.use_cache = False
    generator = torch.Generator().manual_seed(0)
    # With weights three times as large, a block of ZAYA makes the rounding of float32 a thousand times as large.
    with torch.no_grad():
        for parameter in (one for one in encoder.parameters() if one.ndim > 1):
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    inputs = {"input_ids": 5 + torch.arange(18).view(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    inputs["attention_mask"][1, 6:] = 0
    return LaterBlocks.of(encoder, 0, family), inputs


@pytest.mark.parametrize("family", MORE_THAN_STATES)
@torch.inference_mode()
def test_where_a_block_needs_more_than_hidden_states_the_later_layers_are_still_those_of_the_whole_model(
    family: str,
) -> None:
    model, inputs = of_config(family)
    last, there = model.anatomy.n_layers, inputs["attention_mask"].bool()
    states, beside = all_layers(model, inputs), model.beside_states(inputs)
    for block in range(1, last + 1):
        later = range(block, last + 1)
        found = model.run(inputs, block, states[block - 1], beside, later)
        # What a hook on the output projection of the whole model changes.
        projection = model.encoder.get_submodule((model.heads.projections or ())[block - 1])
        zeroed: list[Tensor] = []

        def without_head_1(module: Any, args: Any, zeroed: list[Tensor] = zeroed) -> tuple[Tensor, ...]:
            zeroed.append(args[0].clone())
            return (torch.cat([torch.zeros_like(args[0][..., :8]), args[0][..., 8:]], -1), *args[1:])

        handle = projection.register_forward_pre_hook(without_head_1)
        expected = all_layers(model, inputs)
        handle.remove()
        change = partial(with_heads, heads=model.columns(1), others=Tensor([0]))
        changed = model.run(inputs, block, states[block - 1], beside, later, {block: change})
        for layer in later:
            torch.testing.assert_close(found[layer][there], states[layer][there], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(changed[layer][there], expected[layer][there], rtol=1e-5, atol=1e-5)
        assert (expected[last] - states[last])[there].abs().max() > 1e-3
        outputs, values = model.outputs_of_heads(inputs, block, states[block - 1], beside)
        torch.testing.assert_close(outputs[there], zeroed[0][there], rtol=1e-5, atol=1e-5)
        assert values.shape == (2, model.heads.n_heads, 9, 8)
    assert not model.runs_from(last)


@pytest.mark.parametrize("family", MORE_THAN_STATES)
@torch.inference_mode()
def test_states_are_replaced_where_blocks_are_whole_layers_and_refused_elsewhere(family: str) -> None:
    model, inputs = of_config(family)
    if family in ("xlm", "flaubert"):
        with pytest.raises(UserError, match=f"`--neurons 3` changes states, and a layer of {family} .* is spread over"):
            model.check_layers("--neurons 3", "changes states", family)
        return
    model.check_layers("--neurons 3", "changes states", family)
    last, there = model.anatomy.n_layers, inputs["attention_mask"].bool()
    states, beside = all_layers(model, inputs), model.beside_states(inputs)
    for block in range(2, last + 1):
        other = states[block - 1] * 0.5
        assert model.anatomy.blocks is not None
        handle = model.anatomy.blocks[block - 1].register_forward_pre_hook(
            lambda module, args, other=other: (other, *args[1:])
        )
        expected = all_layers(model, inputs)[last]
        handle.remove()
        found = model.run(inputs, block, other, beside, [last])[last]
        torch.testing.assert_close(found[there], expected[there], rtol=1e-5, atol=1e-5)
        assert (found - states[last])[there].abs().max() > 1e-3


def test_a_block_is_checked_once_for_all_copies(checkpoints: dict[str, Path]) -> None:
    model, inputs = loaded(checkpoints["bert"])
    copy = model.of_copy(with_the_same_weights(model.encoder))
    with torch.inference_mode():
        states = all_layers(model, inputs)
        assert model.exact == {}
        model.run(inputs, 3, states[2], model.beside_states(inputs), [3])
    assert copy.exact == {3: True}
    assert copy.are_layers


class Case:
    """A tiny model, and its readouts of pairs of sentences and of words."""

    def __init__(self, folder: Path, place: Path) -> None:
        source = resolve_model(str(folder))
        self.readers = Readers.of(load_encoder(source), load_tokenizer(source).pad_token_id or 0, "tiny")
        self.last = self.readers.model.anatomy.n_layers

        def read(corpus: Corpus) -> ActivationStore:
            return activations(Request(source, corpus, range(self.last + 1)), place / "cache", {"accelerator": "cpu"})

        write_semeval(place / "STS12", "one", sentence_pairs(40, 0))
        (self.rated,) = read_similarity(str(place / "STS12"))
        self.store = read(self.rated.corpus)
        self.kept = draw_pairs(self.rated, self.store, 600, 0)
        self.similarity = similarity_readout(self.rated, self.store, self.kept, self.last)
        for part, n in ((TRAIN, 60), (READ, 30)):
            write_wic(place / "wic", part, word_pairs(n, n))
        self.words: Any = read_senses(str(place / "wic"))
        self.stores = {part: read(pairs.corpus) for part, pairs in self.words.items()}
        self.rule = rule_of(self.words[TRAIN], self.stores[TRAIN], self.last)
        self.senses = senses_readout(self.words[READ], self.stores[READ], self.rule, 10_000, self.last, 0)

    @torch.no_grad()
    def states(self, store: ActivationStore, sentence: int) -> Tensor:
        """The last hidden states of a sentence by itself, by the whole model."""
        ids = torch.from_numpy(store.tokens.input_ids[store.tokens.of_sentences(sentence, 1)].astype(np.int64))[None]
        states: Tensor = self.readers.model.encoder(input_ids=ids).last_hidden_state[0]
        return states


@pytest.fixture(scope="module")
def case(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(checkpoints["bert"], tmp_path_factory.mktemp("pairs"))


def cosine(first: Tensor, second: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(first.double(), second.double(), dim=0))


def of_sentences(case: Case) -> list[float]:
    special = case.store.tokens.special
    found = []
    for pair in case.rated.sentences[case.kept]:
        vectors = [
            case.states(case.store, int(one))[~special[case.store.tokens.of_sentences(int(one), 1)]].mean(0)
            for one in pair
        ]
        found.append(cosine(*vectors))
    return found


def of_words(case: Case) -> list[float]:
    pairs: WordPairs = case.words[READ]
    store = case.stores[READ]
    found = []
    for sentences, words in zip(pairs.sentences, pairs.targets, strict=True):
        vectors = [
            case.states(store, int(one))[store.tokens.words[store.tokens.of_sentences(int(one), 1)] == word].mean(0)
            for one, word in zip(sentences, words, strict=True)
        ]
        found.append(cosine(*vectors))
    return found


def test_the_correlation_is_that_of_each_sentence_by_itself_from_whatever_block(case: Case) -> None:
    assert 10 < len(case.kept) < 40
    expected = spearmanr(of_sentences(case), case.rated.gold[case.kept]).statistic
    forward = Forward(case.readers, case.similarity.text, 128)
    for layer in (0, case.last - 1):
        (sums,) = forward.read(Change(layer), case.similarity)
        assert float(sums.mean()) == pytest.approx(expected, abs=1e-6)
    assert case.similarity.n.tolist() == [1] * len(sums)
    assert case.similarity.name == "sts:STS12"


def test_senses_are_told_by_the_threshold_of_the_training_pairs(case: Case) -> None:
    found = np.array(of_words(case))
    expected = (found > case.rule.threshold) == case.words[READ].labels
    (sums,) = Forward(case.readers, case.senses.text, 128).read(Change(1), case.senses)
    assert sums.bool().tolist() == expected.tolist()
    assert 0 < expected.mean() < 1  # some are told, some are not


def true_losses(case: Case, readout: PairsReadout, block: int, head: int, factor: float) -> Tensor:
    """The loss of each pair while a head's output is multiplied, both sentences of a pair together."""
    model, mentions = case.readers.model, readout.mentions
    here, tokens = model.columns(head), readout.text.tokens
    batch = padded(tokens, np.arange(tokens.n_sentences), case.readers.pad_token_id)

    def change(outputs: Tensor) -> Tensor:
        changed = outputs.clone()
        changed[..., here] *= factor
        return changed

    with torch.inference_mode():
        states = model.encoder(**batch.inputs, output_hidden_states=True).hidden_states[block - 1]
        last = model.run(batch.inputs, block, states, None, [case.last], {block: change})[case.last]
        vectors = torch.zeros(len(mentions.sentences), last.shape[-1], dtype=torch.float64)
        index = torch.from_numpy(mentions.of_token)[batch.rows[batch.mask]]
        vectors.index_add_(0, index[index >= 0], last[batch.mask][index >= 0])
        first, second = vectors[torch.from_numpy(readout.pairs)].unbind(1)  # a cosine is blind to the mean's divisor
        return readout.error(torch.nn.functional.cosine_similarity(first, second))


@pytest.mark.parametrize("which", ["similarity", "senses"])
def test_gradients_of_a_pair_are_finite_differences_of_its_loss(case: Case, which: str) -> None:
    readout: PairsReadout = getattr(case, which)
    model = case.readers.model
    model.encoder.double()
    try:
        found = importance(model, case.readers.pad_token_id, readout, 64)
        for block, head in ((1, 2), (3, 1)):
            above, below = (true_losses(case, readout, block, head, 1 + by) for by in (1e-4, -1e-4))
            expected = (above - below) / 2e-4
            # The vectors that the loss starts from are those of the cache, which are float32.
            assert torch.allclose(found[:, block - 1, head - 1].double(), expected, rtol=1e-3, atol=1e-5)
            assert (expected.abs() > 1e-4).any()
    finally:
        model.encoder.float()


def test_pairs_are_drawn_whole_and_divided_in_two() -> None:
    sentences, lengths = np.array([[0, 1], [2, 0], [1, 1], [3, 2]]), np.array([3, 2, 4, 30], dtype=np.int32)
    drawn_pairs = [draw_up_to(lengths[sentences].sum(1), 16, seed) for seed in range(10)]
    assert {tuple(some.tolist()) for some in drawn_pairs} <= {(0, 1, 2), (0, 2), (0, 1), (1, 2), (0,), (1,), (2,), (3,)}
    assert draw_up_to(lengths[sentences].sum(1), 1, 0).shape == (1,)
    first, second = halves(np.arange(3, 14), 0)
    assert sorted([*first, *second]) == list(range(3, 14))
    assert abs(len(first) - len(second)) == 1


def test_the_logistic_curve_is_at_its_optimum_and_finite_where_the_cosine_separates_the_pairs() -> None:
    generator = np.random.default_rng(0)
    cosines = generator.random(200)
    same = generator.random(200) < 1 / (1 + np.exp(-(6 * cosines - 2)))
    rule = SenseRule.of(cosines, same)
    p = 1 / (1 + np.exp(-(rule.slope * cosines + rule.offset)))
    assert abs(np.mean(p - same)) < 1e-4
    assert abs(np.mean((p - same) * cosines)) < 1e-4
    assert rule.slope == pytest.approx(6, abs=2.5)
    separated = SenseRule.of(cosines, cosines > 0.5)
    assert np.isfinite([separated.slope, separated.offset]).all()
    assert ((cosines > separated.threshold) == (cosines > 0.5)).all()


TUNED_TEXTS = [
    "the probe reads one layer",
    "a small model often forgets every position of a large sentence",
    "every layer",
] * 7


class TunedCase:
    """A tiny model with a head, which is written and read again, and some sentences."""

    def __init__(self, folder: Path, of: HeadOf, place: Path, n_outputs: int = 3) -> None:
        source = resolve_model(str(folder))
        tokenizer = load_tokenizer(source)
        with_head = load_with_head(source, of, n_outputs, 0)
        if with_head.config.pad_token_id is None:
            with_head.config.pad_token_id = with_head.config.vocab_size - 1
        with_head.save_pretrained(place / "model")
        tokenizer.save_pretrained(place / "model")
        source, self.of = resolve_model(str(place / "model")), of
        self.whole = load_tuned(source, of)
        self.pad = int(self.whole.config.pad_token_id)
        self.model = LaterBlocks.of(self.whole.base_model, self.pad, "tiny")
        corpus, n_layers = Corpus("test", tuple(TUNED_TEXTS)), self.model.anatomy.n_layers
        layers = range(n_layers + 1)
        store: ActivationStore = activations(Request(source, corpus, layers), place / "cache", {"accelerator": "cpu"})
        self.text, self.head = ReadText(store, np.arange(len(TUNED_TEXTS))), TunedHead(self.whole, self.model, self.pad)
        self.readers = Readers.of(self.whole.base_model, self.pad, "tiny")

    def readout(self, targets: torch.Tensor) -> TunedScore:
        return TunedScore(self.text, targets, self.head, self.of, self.model.anatomy.n_layers)

    def batch(self, sentences: list[int]) -> Any:
        return padded(self.text.tokens, np.array(sentences), self.pad)


@pytest.fixture
def tuned_case(checkpoints: dict[str, Path], tmp_path: Path) -> Callable[..., TunedCase]:
    return lambda family, of, n=3: TunedCase(checkpoints[family], of, tmp_path, n)


TUNED_FAMILIES = ["bert", "roberta", "distilbert", "albert", "electra", "gpt2", "llama", "modernbert"]


@pytest.mark.slow
@pytest.mark.parametrize("of", ["sentences", "tokens"])
@pytest.mark.parametrize("family", TUNED_FAMILIES)
def test_the_head_by_itself_gives_what_the_model_gives(
    family: str, of: HeadOf, tuned_case: Callable[..., TunedCase]
) -> None:
    one = tuned_case(family, of)
    batch, last = one.batch([0, 1, 2]), one.model.anatomy.n_layers
    before = {name: value.clone() for name, value in one.whole.state_dict().items()}
    with torch.no_grad():
        expected = one.whole(**batch.inputs).logits
        states = hidden_states(one.whole.base_model, one.model.anatomy, [last], **batch.inputs)[last]
        found = one.head(batch.inputs, states)
        other = one.head(batch.inputs, torch.randn(states.shape))
    kept = batch.mask if of == "tokens" else slice(None)
    assert torch.allclose(found[kept], expected[kept], atol=1e-6)
    assert not torch.allclose(other[kept], expected[kept], atol=1e-4)
    assert all(torch.equal(before[name], value) for name, value in one.whole.state_dict().items())


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_accuracy_is_that_of_the_whole_model(family: str, tuned_case: Callable[..., TunedCase]) -> None:
    one = tuned_case(family, "sentences")
    targets = torch.randint(-1, 3, (len(TUNED_TEXTS),), generator=torch.Generator().manual_seed(0))
    targets[targets < 0] = IGNORED
    readout = one.readout(targets)
    found = Forward(one.readers, one.text, 64).read(Change(1), readout)
    with torch.no_grad():
        alone = [int(one.whole(**one.batch([i]).inputs).logits.argmax()) for i in range(len(TUNED_TEXTS))]
    expected = [float(answer == target) for answer, target in zip(alone, targets.tolist(), strict=True)]
    assert found[0].tolist() == expected
    assert readout.n.tolist() == (targets >= 0).long().tolist()


def test_numbers_have_r2_and_tokens_add_up_by_sentence(tuned_case: Callable[..., TunedCase], tmp_path: Path) -> None:
    one = tuned_case("bert", "tokens", 1)
    targets = torch.randn(one.text.tokens.n_tokens, generator=torch.Generator().manual_seed(0))
    targets[::3] = torch.nan
    readout = one.readout(targets)
    found = Forward(one.readers, one.text, 64).read(Change(1), readout)
    with torch.no_grad():
        answers = torch.cat([one.whole(**one.batch([i]).inputs).logits[0, :, 0] for i in range(len(TUNED_TEXTS))])
    there = ~targets.isnan()
    r2 = 1 - (answers - targets)[there].square().sum() / targets[there].square().sum()
    assert float(found.sum() / readout.n.sum()) == pytest.approx(float(r2), abs=1e-6)
    assert readout.n.sum() == int(there.sum())
    part = readout.part(np.array([1, 4]))
    rows = torch.from_numpy(np.flatnonzero(np.isin(one.text.tokens.sentences, [1, 4])))
    assert torch.equal(part.targets.nan_to_num(9), targets[rows].nan_to_num(9))
    assert part.n.tolist() == readout.n[[1, 4]].tolist()


@pytest.mark.parametrize(("of", "numbers"), [("sentences", False), ("sentences", True), ("tokens", False)])
def test_gradients_are_finite_differences_of_the_loss_of_the_whole_model(
    of: HeadOf, numbers: bool, tuned_case: Callable[..., TunedCase]
) -> None:
    one = tuned_case("bert", of, 1 if numbers else 3)
    n = len(TUNED_TEXTS) if of == "sentences" else one.text.tokens.n_tokens
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(n, generator=generator) if numbers else torch.randint(0, 3, (n,), generator=generator)
    found = importance(one.model, one.pad, one.readout(targets), 256)
    projection: Any = one.whole.base_model.encoder.layer[1].attention.output.dense
    weight, sentence = projection.weight.detach().clone(), 1
    rows = one.text.tokens.of_sentences(sentence, 1)

    def loss(factor: float) -> float:
        with torch.no_grad():
            projection.weight[:, 8:] = factor * weight[:, 8:]
            logits = one.whole(**one.batch([sentence]).inputs).logits.double()
            projection.weight.copy_(weight)
        own = targets[sentence : sentence + 1] if of == "sentences" else targets[rows]
        if numbers:
            return float((logits[:, 0] - own).square().mean())
        return float(torch.nn.functional.cross_entropy(logits.view(-1, 3), own))

    expected = (loss(1.05) - loss(0.95)) / 0.1
    assert float(found[sentence, 1, 1]) == pytest.approx(expected, rel=0.02, abs=1e-6)
    assert abs(expected) > 1e-6
