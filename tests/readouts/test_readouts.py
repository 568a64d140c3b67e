"""What is read of a model as it stands: masked words, positions, texts with a mask, and classes of frozen probes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from probing.builtin_tasks.position import Position as PositionTask
from scipy.special import log_softmax
from torch import Tensor

from families import FAMILIES, make_tokenizer, masked_lm
from probing.activations.store import ActivationStore, StorePlan, divide
from probing.errors import UserError
from probing.interventions import model_output as readouts
from probing.interventions.forward import Change, Forward, Readers, draw_text, padded, padded_batches
from probing.interventions.frozen_probes import (
    ProbeReadout,
    at_offset,
    at_tokens,
    means,
    probe_loss,
    spread,
    standing_for,
)
from probing.interventions.heads import replaced_heads
from probing.interventions.model_output import (
    MASKED,
    MaskedWordLoss,
    MaskedWords,
    PositionAccuracy,
    Prompt,
    choose_masked,
    draw_sentences,
    masked_lm_of,
    prompt_of,
    states_of_layer,
    tokens_of_prompts,
)
from probing.interventions.parameters import zeroed
from probing.models import load_encoder, load_masked_lm, load_tokenizer, resolve_model
from probing.models.anatomy import examine
from probing.studies.ablate.weights import head_gradients
from probing.text import from_sentences
from probing.text.tasks import SentenceTask, Task
from probing.text.tokens import Tokens, tokenize
from synthetic import make_tokens

pytestmark = pytest.mark.numeric


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    return masked_lm(tmp_path_factory.mktemp("masked") / "bert", "bert", sentences)


@pytest.fixture
def tokens(folder: Path, sentences: list[str]) -> Tokens:
    return tokenize(load_tokenizer(resolve_model(str(folder))), sentences[:12], 128)


def load(folder: Path) -> Any:
    model = load_masked_lm(resolve_model(str(folder)))
    assert model is not None
    return model


def naive(model: Any, tokens: Tokens, masked: Any, mask_id: int, neuron: int | None = None) -> list[float]:
    """The loss of each sentence by itself, summed over its masked tokens."""
    losses = []
    for sentence in range(tokens.n_sentences):
        rows = tokens.of_sentences(sentence, 1)
        ids, hidden = tokens.input_ids[rows].astype(np.int64), masked[rows]
        with torch.inference_mode():
            states = model.bert(torch.from_numpy(np.where(hidden, mask_id, ids))[None]).last_hidden_state.clone()
            if neuron is not None:
                states[..., neuron] = 0
            nats = log_softmax(model.cls(states)[0].double().numpy(), axis=1)
        losses.append(-sum(nats[i, ids[i]] for i in np.flatnonzero(hidden)))
    return losses


def test_the_loss_of_masked_words_is_that_of_each_sentence_by_itself(
    folder: Path, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(folder)
    masked = choose_masked(tokens, 0)
    reader = MaskedWords(model, model.bert, tokens, masked, 4, 0)
    monkeypatch.setattr(readouts, "VARIANTS", 2)
    intact, clipped, last = reader([(), (7,), (3,)])
    # Not to the bit: how many variants are read at a time decides how threads cut the sums.
    np.testing.assert_allclose(last.sums["mlm_loss"], reader([(3,)])[0].sums["mlm_loss"], rtol=1e-6)
    np.testing.assert_allclose(intact.sums["mlm_loss"], naive(model, tokens, masked, 4), rtol=1e-4)
    np.testing.assert_allclose(clipped.sums["mlm_loss"], naive(model, tokens, masked, 4, neuron=7), rtol=1e-4)
    assert intact.n_tokens["mlm_loss"].sum() == masked.sum()
    assert not np.allclose(intact.sums["mlm_loss"], clipped.sums["mlm_loss"], rtol=1e-3)
    norm = model.bert.encoder.layer[2].output.LayerNorm
    with zeroed([norm], [7]):
        # In the last block, zeroing inside and clipping after are one.
        (zero,) = reader([()])
    np.testing.assert_allclose(zero.sums["mlm_loss"], clipped.sums["mlm_loss"], rtol=1e-5)
    (again,) = reader([()])
    np.testing.assert_allclose(again.sums["mlm_loss"], intact.sums["mlm_loss"], rtol=1e-6)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "mpnet", "modernbert"])
def test_heads_of_other_families_are_read(family: str, tmp_path: Path, sentences: list[str]) -> None:
    model = load(masked_lm(tmp_path / family, family, sentences))
    tokens = make_tokens([9, 4, 6])
    ids = Tokens(tokens.lengths, tokens.input_ids % 100 + 5, tokens.words)
    masked = choose_masked(ids, 0)
    reader = MaskedWords(model, model.base_model, ids, masked, 4, 1, examine(model.base_model).padding_is_neutral)
    (found,) = reader([()])
    for sentence in range(3):
        rows = ids.of_sentences(sentence, 1)
        labels, hidden = torch.from_numpy(ids.input_ids[rows].astype(np.int64)), torch.from_numpy(masked[rows])
        with torch.inference_mode():
            logits = model(input_ids=torch.where(hidden, 4, labels)[None]).logits[0]
        loss = torch.nn.functional.cross_entropy(logits[hidden], labels[hidden], reduction="sum")
        assert found.sums["mlm_loss"][sentence] == pytest.approx(float(loss), rel=1e-3)


def test_a_head_that_looks_at_several_tokens_at_a_time_is_refused(folder: Path, tokens: Tokens) -> None:
    model = load(folder)
    model.cls.register_forward_pre_hook(lambda module, args: (args[0].cumsum(1),))
    with pytest.raises(ValueError, match="more than one token"):
        MaskedWords(model, model.bert, tokens, choose_masked(tokens, 0), 4, 0)


def test_a_share_of_each_sentence_is_masked_at_least_one_word_and_never_a_special_token() -> None:
    tokens = make_tokens([2, 3, 42, 102, 12])  # of which 0, 1, 40, 100 and 10 are words
    masked = choose_masked(tokens, 0)
    assert np.bincount(tokens.sentences, masked).tolist() == [0, 1, 6, 15, 2]
    assert MASKED == 0.15
    assert not (masked & tokens.special).any()
    np.testing.assert_array_equal(masked, choose_masked(tokens, 0))
    assert (masked != choose_masked(tokens, 1)).any()
    drawn = np.mean([choose_masked(tokens, seed) for seed in range(300)], axis=0)[47:147]
    assert drawn[1:-1].min() > 0.08  # every word of the long sentence is masked at some time
    assert drawn[1:-1].max() < 0.23


def test_sentences_are_drawn_until_no_further_one_fits() -> None:
    tokens = make_tokens([5, 9, 7, 3, 8])
    drawn, kept = draw_sentences(tokens, 16, 0)
    assert drawn.n_tokens <= 16 < tokens.n_tokens
    assert kept == sorted(kept)
    for place, sentence in enumerate(kept):
        np.testing.assert_array_equal(
            drawn.input_ids[drawn.of_sentences(place, 1)], tokens.input_ids[tokens.of_sentences(sentence, 1)]
        )
    assert len(draw_sentences(tokens, 1, 0)[1]) == 1
    assert draw_sentences(tokens, 1000, 0)[1] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("family", ["bert", "gpt2", "bart", "electra"])
def test_a_checkpoint_without_its_head_has_none(family: str, checkpoints: dict[str, Path]) -> None:
    assert load_masked_lm(resolve_model(str(checkpoints[family]))) is None


def test_the_part_of_a_masked_language_model_is_the_encoder_that_is_probed(folder: Path) -> None:
    model, encoder = load(folder), load_encoder(resolve_model(str(folder)))
    assert not model.training
    ids = torch.arange(5, 20)[None]
    with torch.inference_mode():
        assert torch.equal(model.bert(ids).last_hidden_state, encoder(ids).last_hidden_state)


# --- positions ---


@pytest.fixture(scope="module")
def many(sentences: list[str], folder: Path) -> tuple[Tokens, Any]:
    tokens = tokenize(load_tokenizer(resolve_model(str(folder))), sentences[:60], 30)
    return tokens, from_sentences("made up", sentences[:60])


def test_last_hidden_states_are_those_of_each_sentence_by_itself(folder: Path, tokens: Tokens) -> None:
    encoder: Any = load_encoder(resolve_model(str(folder)))
    found = states_of_layer(encoder, anatomy := examine(encoder), tokens, 0, anatomy.n_layers)
    for sentence in range(tokens.n_sentences):
        rows = tokens.of_sentences(sentence, 1)
        with torch.inference_mode():
            alone = encoder(torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]).last_hidden_state[0]
        torch.testing.assert_close(found[rows], alone, rtol=1e-4, atol=1e-5)


def test_positions_are_read_by_a_probe_of_the_intact_model_and_by_a_retrained_one(many: tuple[Tokens, Any]) -> None:
    tokens, corpus = many
    generator = torch.Generator().manual_seed(0)
    # Positions one-hot, in a basis that is turned around later.
    states = torch.nn.functional.one_hot(torch.from_numpy(tokens.positions.astype(np.int64)), 30).float()
    states += 0.01 * torch.randn(states.shape, generator=generator)
    now = [states]
    reader = PositionAccuracy(lambda: now[0], tokens, corpus, PositionTask(), 0)
    intact, without = reader([(), range(10, 30)])
    n = intact.n_tokens["position_accuracy"]
    assert 0 < (n > 0).mean() < 0.5  # test sentences alone
    right = intact.sums["position_accuracy"]
    np.testing.assert_array_equal(right, intact.sums["position_accuracy_retrained"])
    np.testing.assert_array_equal(right, n)
    # The first ten positions are left, of which the special token at 0 is none.
    assert without.sums["position_accuracy_retrained"].sum() >= 9 * (n > 0).sum() * 0.7
    assert without.sums["position_accuracy_retrained"].sum() < n.sum()
    now[0] = states.flip(1)
    (turned,) = reader([()])
    assert turned.sums["position_accuracy_retrained"].sum() == n.sum()
    assert turned.sums["position_accuracy"].sum() < 0.3 * n.sum()


def test_the_reference_probe_is_of_the_model_at_building_whatever_is_read_first(many: tuple[Tokens, Any]) -> None:
    tokens, corpus = many
    states = torch.nn.functional.one_hot(torch.from_numpy(tokens.positions.astype(np.int64)), 30).float()
    now = [states]
    reader = PositionAccuracy(lambda: now[0], tokens, corpus, PositionTask(), 0)
    now[0] = states.flip(1)
    (turned,) = reader([()])
    assert turned.sums["position_accuracy"].sum() < 0.3 * turned.n_tokens["position_accuracy"].sum()
    now[0] = states
    (intact,) = reader([()])
    assert intact.sums["position_accuracy"].sum() == intact.n_tokens["position_accuracy"].sum()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> tuple[Any, Readers, MaskedWordLoss]:
    source = resolve_model(str(masked_lm(tmp_path_factory.mktemp("masked") / "bert", "bert", sentences)))
    tokenizer = load_tokenizer(source)
    model: Any = masked_lm_of(source, False, tokenizer.mask_token_id, "this test")
    readers = Readers.of(model.base_model, tokenizer.pad_token_id, "tiny")
    tokens = tokenize(tokenizer, sentences[:12], 128)
    mask, pad, anatomy = tokenizer.mask_token_id, tokenizer.pad_token_id, readers.model.anatomy
    return model, readers, MaskedWordLoss.of(model, model.base_model, anatomy, tokens, mask, pad, 128, seed=0)


def masked_naive(model: Any, readout: MaskedWordLoss) -> list[float]:
    """The loss of each sentence by itself, summed over its masked tokens."""
    losses, tokens = [], readout.text.tokens
    for sentence in range(tokens.n_sentences):
        rows = tokens.of_sentences(sentence, 1)
        labels, hidden = readout.labels[rows].tolist(), np.flatnonzero(readout.masked[rows])
        with torch.inference_mode():
            logits = model(input_ids=torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]).logits[0]
        nats = log_softmax(logits.double().numpy(), axis=1)
        losses.append(-sum(nats[i, labels[i]] for i in hidden))
    return losses


def test_the_loss_is_that_of_the_whole_model_also_without_a_head(case: tuple[Any, Readers, MaskedWordLoss]) -> None:
    model, readers, readout = case
    forward = Forward(readers, readout.text, 128)
    assert readout.n.sum() == readout.masked.sum() > 12
    intact = masked_naive(model, readout)
    for layer in (0, 2):
        sums = forward.read(Change(layer), readout)
        np.testing.assert_allclose(sums[0].numpy(), intact, rtol=1e-4)
    # In the whole model, the head gives nothing where the weights that read it are zero.
    read = model.bert.encoder.layer[1].attention.output.dense.weight
    before = read.detach().clone()
    without_head = Change(1, heads=replaced_heads([(2, 2)], torch.zeros(3, readers.model.width), 8))
    without = forward.read(without_head, readout)
    with torch.no_grad():
        read[:, 8:] = 0
    expected = masked_naive(model, readout)
    with torch.no_grad():
        read.copy_(before)
    np.testing.assert_allclose(without[0].numpy(), expected, rtol=1e-4)
    assert not np.allclose(expected, intact, rtol=1e-3)
    assert torch.equal(forward.read(Change(2), readout), sums)


def test_gradients_of_the_loss_are_finite_differences(case: tuple[Any, Readers, MaskedWordLoss]) -> None:
    model, readers, readout = case
    later = readers.model
    model.double()
    try:
        some = np.array([3, 7])
        batch = padded(readout.text.tokens, some, readers.pad_token_id)
        loss = readout.loss(batch, some)
        found = head_gradients(later, batch.inputs, loss)
        with torch.inference_mode():
            embedded = later.encoder(**batch.inputs, output_hidden_states=True).hidden_states
            for block, head in ((1, 1), (2, 2), (3, 1)):
                here = later.columns(head)

                def scaled(factor: float, block: int = block, here: slice = here) -> Tensor:
                    def change(outputs: Tensor) -> Tensor:
                        return torch.cat(
                            [outputs[..., : here.start], factor * outputs[..., here], outputs[..., here.stop :]], -1
                        )

                    return loss(later.run(batch.inputs, block, embedded[block - 1], None, [3], {block: change})[3])

                expected = (scaled(1 + 1e-4) - scaled(1 - 1e-4)) / 2e-4
                assert torch.allclose(found[block - 1, :, head - 1], expected, rtol=1e-3, atol=1e-8)
                assert (expected.abs() > 1e-7).all()
    finally:
        model.float()


def test_a_model_without_a_trained_head_is_refused(checkpoints: dict[str, Path]) -> None:
    source = resolve_model(str(checkpoints["bert"]))
    for is_random, mask, words in (
        (False, 4, "no such head with weights.*, or take it out"),
        (False, None, "no mask.*, or take it out"),
        (True, 4, "rand"),
    ):
        with pytest.raises(UserError, match=f"^`--given` needs a model with a trained .*{words}"):
            masked_lm_of(source, is_random, mask, "`--given`", ", or take it out")


KNOWN = ["The layer reads the token.", "The neuron reads the layer.", "Every probe reads the word that is here."] * 9


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_mask_stands_for_the_whole_word(family: str) -> None:
    tokenizer = make_tokenizer(FAMILIES[family].tokenizer, KNOWN)
    prompt = prompt_of(tokenizer, "The [MASK] reads the token.", ("layer", "neuron"), 100)
    assert isinstance(prompt, Prompt)
    for word, answer in zip(("layer", "neuron"), prompt.answers, strict=True):
        ids = list(prompt.input_ids)
        ids[prompt.mask] = answer
        assert ids == tokenizer(f"The {word} reads the token.")["input_ids"]
    assert prompt.input_ids[prompt.mask] == tokenizer.mask_token_id
    assert prompt.words[prompt.mask] == 1
    assert (prompt.words[0], prompt.words[-1]) == (-1, -1)
    tokens = tokens_of_prompts([prompt, prompt])
    assert tokens.lengths.tolist() == [len(prompt.input_ids)] * 2
    assert tokens.input_ids.tolist() == [*prompt.input_ids] * 2


@pytest.mark.parametrize(
    ("words", "longest", "reason"),
    [
        (("layer", "latherod"), 100, "a word is not a single piece of the vocabulary"),
        (("layer", "layer"), 100, "the vocabulary does not tell the two words apart"),
        (("layer", "neuron"), 3, "the text is longer than the 3 tokens that the model reads"),
    ],
)
def test_what_cannot_be_asked_has_a_reason(words: tuple[str, str], longest: int, reason: str) -> None:
    tokenizer = make_tokenizer(FAMILIES["bert"].tokenizer, KNOWN)
    assert prompt_of(tokenizer, "The [MASK] reads the token.", words, longest) == reason


LENGTHS = np.array([3, 0, 5, 2, 4, 6, 1, 3], dtype=np.int32)


@pytest.fixture
def store() -> Any:
    """Return a store of three shards, in which token i has the state (i, layer) and the id 10 + i."""
    n = int(LENGTHS.sum())
    tokens = Tokens(LENGTHS, np.arange(10, 10 + n, dtype=np.int32), np.zeros(n, dtype=np.int16))

    class Held:
        plan = StorePlan({}, 2, 2, "float32", 8, divide(LENGTHS, 10))

        def read(self, layer: int, shard: int) -> torch.Tensor:
            rows = torch.arange(n)[self.plan.shards[shard].rows(tokens)]
            return torch.stack([rows, torch.full_like(rows, layer)], dim=1).to(torch.bfloat16)

    held = Held()
    held.tokens = tokens  # type: ignore[attr-defined]
    assert len(held.plan.shards) == 3
    return held


def test_the_states_of_a_text_are_those_of_its_own_tokens(store: ActivationStore) -> None:
    text = draw_text(store, np.array([1, 1, 0, 1, 0, 1, 0, 1], dtype=bool), 100, 0)
    assert text.sentence_indices.tolist() == [0, 3, 5, 7]  # the second sentence has no token
    rows = text.tokens.input_ids - 10
    assert rows.tolist() == [0, 1, 2, 8, 9, 14, 15, 16, 17, 18, 19, 21, 22, 23]
    states = text.states(2)
    assert states.dtype == torch.float32
    assert states.tolist() == [[row, 2] for row in rows.tolist()]


@pytest.mark.parametrize("with_padding", [True, False])
def test_batches_have_every_token_once(store: ActivationStore, with_padding: bool) -> None:
    text = draw_text(store, np.ones(8, dtype=bool), 100, 0)
    batches = padded_batches(text.tokens, 8, pad_token_id=1, with_padding=with_padding)
    found = sorted(row for batch in batches for row in batch.rows[batch.mask].tolist())
    assert found == list(range(text.tokens.n_tokens))
    for batch in batches:
        assert batch.input_ids[batch.mask].tolist() == text.tokens.input_ids[batch.rows[batch.mask].numpy()].tolist()
        assert bool((batch.input_ids[~batch.mask] == 1).all())
        assert batch.mask.sum(1).tolist() == text.tokens.lengths[batch.sentences.numpy()].tolist()
        assert with_padding or bool(batch.mask.all())
        assert batch.inputs["attention_mask"].tolist() == batch.mask.int().tolist()


def test_as_many_sentences_are_drawn_as_there_is_room_for(store: ActivationStore) -> None:
    drawn = [draw_text(store, np.ones(8, dtype=bool), 12, seed) for seed in range(20)]
    assert all(7 <= text.tokens.n_tokens <= 12 for text in drawn)
    assert {int(i) for text in drawn for i in text.sentence_indices} == {0, 2, 3, 4, 5, 6, 7}
    assert (
        draw_text(store, np.ones(8, dtype=bool), 12, 3).sentence_indices.tolist() == drawn[3].sentence_indices.tolist()
    )
    longest = cast(Any, np.arange(8) == 5)
    assert draw_text(store, longest, 2, 0).tokens.n_tokens == 6  # one is drawn even if it is longer


# Two sentences with special tokens at both ends, an empty one, and one of special tokens alone.
WORDS = [[-1, 0, 0, 1, 2, 2, 2, -1], [-1, 0, 1, 1, -1], [], [-1, -1]]
TOKENS = Tokens(
    np.array([len(of) for of in WORDS], dtype=np.int32), np.arange(15, dtype=np.int32),
    np.concatenate(WORDS).astype(np.int16),
)  # fmt: skip


class OfPieces(Task):
    pass


class OfWords(Task):
    word_means = True


def test_a_token_stands_for_itself_where_examples_are_tokens() -> None:
    labels = np.arange(15, dtype=np.int32)
    assert standing_for(OfPieces(), TOKENS) is None
    assert at_tokens(OfPieces(), TOKENS, labels) is labels
    assert torch.equal(spread(torch.from_numpy(labels), None), torch.from_numpy(labels))


def test_the_first_piece_stands_for_a_word() -> None:
    found: Any = standing_for(OfWords(), TOKENS)
    assert found.tolist() == [-1, 1, 1, 3, 4, 4, 4, -1, -1, 9, 10, 10, -1, -1, -1]


@pytest.mark.parametrize(("pooling", "rows"), [("mean", [1, 9]), ("cls", [0, 8, 13])])
def test_the_label_of_a_sentence_is_at_its_first_word_or_first_token(pooling: Any, rows: list[int]) -> None:
    task = SentenceTask(pooling=pooling)
    found = at_tokens(task, TOKENS, np.array([7, 8, 5, 6], dtype=np.int32))
    assert {int(row): int(found[row]) for row in np.flatnonzero(found >= 0)} == dict(zip(rows, [7, 8, 6], strict=False))
    stands: Any = standing_for(task, TOKENS)
    if pooling == "cls":
        assert stands is None
        return
    assert stands.tolist() == [-1, *[1] * 6, -1, -1, 9, 9, 9, -1, -1, -1]
    assert spread(torch.from_numpy(found), torch.from_numpy(stands)).tolist() == [
        -1, *[7] * 6, -1, -1, 8, 8, 8, -1, -1, -1
    ]  # fmt: skip


def test_means_are_those_of_a_loop() -> None:
    states = torch.randn(15, 3, generator=torch.Generator().manual_seed(0))
    into = torch.tensor([-1, 0, 0, 2, 2, 2, 2, -1, -1, 3, 3, 3, -1, -1, -1])
    found = means(states, into, 4)
    assert torch.equal(found[1], torch.zeros(3))
    for i in (0, 2, 3):
        assert torch.allclose(found[i], states[into == i].mean(0), atol=1e-6)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("offset", [-2, 1])
def test_contrast_and_attention_are_those_of_a_loop_over_words(offset: int, is_causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 7, 5, generator=generator, dtype=torch.float64)
    query, key = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    bias = torch.randn(4, generator=generator, dtype=torch.float64)
    words = torch.tensor([[0, 1, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 1, 1]]).bool()
    contrast, mass = at_offset(inputs, words, query, bias, key, offset, is_causal)
    for b in range(3):
        expected = [0.0, 0.0]
        for i in range(7):
            seen = [j for j in range(7) if words[b, j] and (j <= i or not is_causal)]
            if not words[b, i] or i + offset not in seen:
                continue
            scores = [float((inputs[b, i] @ query + bias) @ (inputs[b, j] @ key + 3.0)) for j in seen]
            own = scores[seen.index(i + offset)]
            expected[0] += own - float(np.mean(scores))
            expected[1] += math.exp(own) / sum(math.exp(s) for s in scores)
        assert float(contrast[b]) == pytest.approx(expected[0], abs=1e-9)
        assert float(mass[b]) == pytest.approx(expected[1], abs=1e-9)


def test_a_head_without_query_weights_has_no_contrast_and_attends_to_all_words_alike() -> None:
    inputs, words = torch.randn(1, 6, 5), torch.tensor([[0, 1, 1, 1, 1, 0]]).bool()
    contrast, mass = at_offset(inputs, words, torch.zeros(5, 4), torch.zeros(4), torch.randn(5, 4), 1, False)
    assert float(contrast) == 0
    assert float(mass) == pytest.approx(3 / 4)


@dataclass
class Held:
    tokens: Tokens


def vectors_of(task: Task, tokens: Tokens, states: Tensor) -> dict[int, Tensor]:
    """Return the vector of each example, by the row of the token that stands for it, sentence by sentence."""
    found: dict[int, Tensor] = {}
    for i in range(tokens.n_sentences):
        rows = range(tokens.n_tokens)[tokens.of_sentences(i, 1)]
        inside = [row for row in rows if not tokens.special[row]]
        if isinstance(task, SentenceTask):
            found[rows[0] if task.pooling == "cls" else inside[0]] = (
                states[rows[0]] if task.pooling == "cls" else states[inside].mean(0)
            )
            continue
        for row in inside:
            pieces = [other for other in inside if tokens.words[other] == tokens.words[row]]
            found[row] = states[row] if not task.word_means else states[pieces].mean(0)
    return found


@pytest.mark.parametrize(
    "task", [OfPieces(), OfWords(), SentenceTask(), SentenceTask(pooling="cls")],
    ids=["pieces", "words", "sentences", "first tokens"],
)  # fmt: skip
@pytest.mark.parametrize("batch_tokens", [1, 64])
def test_examples_of_every_form_are_counted_as_in_a_loop(task: Any, batch_tokens: int) -> None:
    generator, n_classes = np.random.default_rng(0), 4
    tokens = make_tokens([5, 9, 3, 7, 12, 4])
    # Words of one to three pieces.
    words = np.where(tokens.special, -1, (tokens.positions - 1) // generator.integers(1, 4)).astype(np.int16)
    tokens = Tokens(tokens.lengths, tokens.input_ids, words)
    states = torch.randn(tokens.n_tokens, 6, generator=torch.Generator().manual_seed(1))
    weight = {layer: torch.randn(n_classes, 6, generator=torch.Generator().manual_seed(layer)) for layer in (1, 2)}
    given = generator.integers(-1, n_classes, tokens.n_sentences if isinstance(task, SentenceTask) else tokens.n_tokens)
    labels = at_tokens(task, tokens, given.astype(np.int32))
    if not isinstance(task, SentenceTask):
        labels = np.where(tokens.special | (task.word_means & ~tokens.first_pieces), -1, labels)
    stands = standing_for(task, tokens)
    readout = ProbeReadout(
        cast(Any, Held(tokens)), weight, torch.from_numpy(labels.astype(np.int64)), torch.device("cpu"),
        None if stands is None else torch.from_numpy(stands), "task",
    )  # fmt: skip
    reading = readout.begin(readout.layers(1))
    for batch in padded_batches(tokens, batch_tokens, 0, True):
        reading.take({1: states[batch.rows], 2: -2 * states[batch.rows]}, batch)
    expected, n = np.zeros((2, tokens.n_sentences)), np.zeros(tokens.n_sentences)
    for row, vector in vectors_of(task, tokens, states).items():
        if labels[row] < 0:
            continue
        n[tokens.sentences[row]] += 1
        for i, sign in enumerate((1, -2)):
            expected[i, tokens.sentences[row]] += int((weight[i + 1] @ (sign * vector)).argmax()) == labels[row]
    assert n.sum() >= 4
    assert readout.n.tolist() == n.tolist()
    assert reading.sums().tolist() == expected.tolist()


def test_the_loss_of_a_sentence_is_the_mean_over_its_own_examples() -> None:
    generator = torch.Generator().manual_seed(0)
    states, weight = torch.randn(3, 4, 6, generator=generator), torch.randn(5, 6, generator=generator)
    labels = torch.tensor([[0, 3, -1, 4], [-1, -1, 2, -1], [-1, -1, -1, -1]])
    found = probe_loss(weight, labels)(states)
    for sentence, loss in enumerate(found.tolist()):
        nats = [
            -float((weight @ states[sentence, token]).softmax(0)[label].log())
            for token, label in enumerate(labels[sentence].tolist()) if label >= 0
        ]  # fmt: skip
        assert loss == pytest.approx(sum(nats) / max(len(nats), 1), rel=1e-5)
