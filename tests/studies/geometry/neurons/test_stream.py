"""Neurons of the stream with other values: passes against the whole model, and what must not change anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from probing.cache import ActivationStore, Request, activations
from probing.corpus import Corpus
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.anatomy import examine, hidden_states
from probing.readouts.forward import Readers, Text, draw_text
from probing.readouts.frozen_probes import ProbeReadout, Probes
from probing.studies.geometry.neurons.sets import (
    KINDS,
    Moves,
    NeuronPasses,
    NeuronSet,
    Place,
    Values,
    changed_tokens,
    draw_targets,
)

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]

N_CLASSES = 9


class Case:
    """A tiny model, the cached states of some sentences, and probes with random weights."""

    def __init__(self, folder: Path, cache: Path, sentences: list[str]) -> None:
        source = resolve_model(str(folder))
        self.encoder, self.pad = load_encoder(source), load_tokenizer(source).pad_token_id or 0
        corpus = Corpus("test", tuple(sentences[:40]))
        self.store: ActivationStore = activations(Request(source, corpus, range(4)), cache, {"accelerator": "cpu"})
        first = np.arange(40) < 20
        self.text, self.train = (draw_text(self.store, which, 10_000, 0) for which in (first, ~first))
        generator = torch.Generator().manual_seed(1)
        d_model = self.store.plan.d_model
        weight = {k: torch.randn(N_CLASSES, d_model, generator=generator) for k in range(1, 4)}
        self.labels, self.train_labels = (
            np.random.default_rng(i).integers(-1, N_CLASSES, of.tokens.n_tokens).astype(np.int32)
            for i, of in enumerate((self.text, self.train))
        )
        self.readers = Readers.of(self.encoder, self.pad, "tiny")
        probes = Probes(weight, torch.from_numpy(self.labels.astype(np.int64)))
        self.positions = ProbeReadout(self.text, probes, self.readers.device)

    def values(self, layer: int, at: Place = "words") -> Values:
        return Values.of(self.train, layer, at, self.train_labels, N_CLASSES)

    def passes(self, at: Place = "words", text: Text | None = None, batch_tokens: int = 256) -> NeuronPasses:
        text = text or self.text
        own = self.readers, text, lambda layer: self.values(layer, at)
        labels = self.labels if text is self.text else self.train_labels
        source, target = (torch.from_numpy(given.astype(np.int64)) for given in (labels, (labels + 2) % N_CLASSES))
        return NeuronPasses(*own, text is self.train, at, batch_tokens, seed=0, moves=Moves(source, target))


@pytest.fixture(scope="module")
def case(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Case:
    return Case(checkpoints["bert"], tmp_path_factory.mktemp("cache"), sentences)


def whole(case: Case, layer: int, upto: int, replaced: Any = None) -> Tensor:
    """Return a later layer by the whole model, sentence by sentence, its hidden states replaced at one layer."""
    tokens, found = case.text.tokens, []
    anatomy = examine(case.encoder, case.pad)
    assert anatomy.blocks is not None
    for i in range(tokens.n_sentences):
        rows = tokens.of_sentences(i, 1)
        ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]

        def change(module: Any, args: Any, kwargs: Any, rows: slice = rows) -> Any:
            given = args[0] if args else kwargs["hidden_states"]
            states = replaced(given[0], rows)[None]
            return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": states})

        handles = [anatomy.blocks[layer].register_forward_pre_hook(change, with_kwargs=True)] if replaced else []
        try:
            states = hidden_states(
                case.encoder, anatomy, [upto], input_ids=ids, attention_mask=torch.ones_like(ids)
            )[upto][0]  # fmt: skip
        finally:
            for handle in handles:
                handle.remove()
        found.append(states)
    return torch.cat(found)


@torch.no_grad()
def test_a_change_of_no_neurons_changes_nothing_to_the_bit(case: Case) -> None:
    passes = case.passes()
    for layer in (0, 1, 2):
        intact = passes.forward.states(_Intact(layer), range(layer, 4))
        for kind in KINDS:
            states = passes.states(NeuronSet(layer, kind, ()), range(layer, 4))
            assert all(torch.equal(states[at], intact[at]) for at in range(layer, 4))
        assert torch.equal(states[layer], case.text.states(layer))


class _Intact:
    def __init__(self, layer: int) -> None:
        self.layer = layer

    def later(self, model: Any, batch: Any, beside: Any, states: Tensor, layers: Any) -> Any:
        return model.run(batch.inputs, self.layer + 1, states, beside, layers)


@torch.no_grad()
@pytest.mark.parametrize("at", ["words", "everywhere"])
def test_later_layers_are_those_of_the_whole_model_with_these_values(case: Case, at: Place) -> None:
    passes, neurons, layer = case.passes(at), (3, 11, 4), 1
    tokens, values = case.text.tokens, case.values(layer, at)
    special = torch.from_numpy(tokens.special)
    train = case.train.states(layer)[torch.from_numpy(changed_tokens(case.train.tokens, at))]
    drawn = passes.drawn(layer)
    others = {
        "mean": lambda rows: train.double().mean(0).float()[list(neurons)].expand(rows.stop - rows.start, 3),
        "zero": lambda rows: torch.zeros(rows.stop - rows.start, 3),
        "resample": lambda rows: train[drawn[rows]][:, list(neurons)],
        "direction": lambda rows: values.eraser(neurons).apply(case.text.states(layer)[rows][:, list(neurons)]),
        "shuffled": lambda rows: values.eraser(neurons, values.shuffled).apply(
            case.text.states(layer)[rows][:, list(neurons)]
        ),
    }
    labels = torch.from_numpy(case.labels.astype(np.int64))

    def moved(rows: slice) -> Tensor:
        kept = torch.from_numpy(case.train_labels)[torch.from_numpy(changed_tokens(case.train.tokens, at))]
        states = case.text.states(layer)[rows][:, list(neurons)].clone()
        for i, label in enumerate(labels[rows].tolist()):
            if label >= 0:
                there, here = (train[kept == one].double().mean(0) for one in ((label + 2) % N_CLASSES, label))
                states[i] += (there - here).float()[list(neurons)]
        return states

    for kind, made in {**others, "translate": moved}.items():

        def replaced(states: Tensor, rows: slice, made: Any = made) -> Tensor:
            there = ~special[rows] | (at == "everywhere")
            changed = states.clone()
            changed[:, list(neurons)] = torch.where(there[:, None], made(rows), states[:, list(neurons)])
            return changed

        found = passes.states(NeuronSet(layer, kind, neurons), [1, 2, 3])  # type: ignore[arg-type]
        unchanged = [n for n in range(case.store.plan.d_model) if n not in neurons]
        before = case.text.states(layer)
        assert torch.equal(found[1][:, unchanged], before[:, unchanged])
        assert torch.equal(found[1][special], before[special]) == (at == "words")
        for later in (2, 3):
            # Alone and in a batch, products are added in another order.
            assert (found[later] - whole(case, layer, later, replaced)).abs().max() < 2e-5
            assert (found[later] - case.text.states(later)).abs().max() > 1e-3


def test_values_come_from_tokens_of_other_sentences(case: Case) -> None:
    passes = case.passes(text=case.train)
    drawn, sentences = passes.drawn(1), case.train.tokens.sentences
    others = case.values(1).sentences
    assert not (sentences == others[drawn]).any()
    assert len(set(others[drawn])) == 20


def test_without_directions_no_linear_probe_of_the_layer_beats_a_constant_answer(case: Case) -> None:
    """The theorem of LEACE: all classes have one mean, so that the gradient at the best constant answer is 0."""
    values = case.values(2)
    neurons = list(range(case.store.plan.d_model))
    replace = values.replace("direction", neurons, torch.zeros(0, dtype=torch.int64))
    labelled = values.labels >= 0
    states, labels = values.states[labelled].double(), values.labels[labelled]
    share = labels.bincount(minlength=N_CLASSES).double() / len(labels)
    wrong = share - torch.nn.functional.one_hot(labels, N_CLASSES)

    def gradient(given: Tensor) -> float:
        return float((wrong.double().T @ given / len(given)).abs().max())

    intact = gradient(states - states.mean(0))
    assert intact > 0.005
    assert gradient(replace(states, labels)) < 1e-6 * intact
    # Directions that tell shuffled positions leave the true ones to be read.
    assert gradient(values.replace("shuffled", neurons, torch.zeros(0, dtype=torch.int64))(states, labels)) > 0.003
    # A part of the neurons: their own part of a probe is constant, that of the others is not.
    part = values.replace("direction", neurons[:5], torch.zeros(0, dtype=torch.int64))
    assert gradient(part(states[:, :5], labels)) < 1e-6 * intact


def test_everything_is_restored_after_an_error(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    passes, one = case.passes(), NeuronSet(1, "zero", (2, 5))
    before = {name: value.clone() for name, value in case.encoder.state_dict().items()}
    states = case.text.states(1)
    right = passes.run(one, [case.positions])
    attributes = {name: set(vars(module)) for name, module in case.encoder.named_modules()}
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in case.encoder.modules()]

    def fail(*args: Any) -> Any:
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(Probes, "read", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            passes.run(one, [case.positions])
    assert all(torch.equal(value, before[name]) for name, value in case.encoder.state_dict().items())
    assert {name: set(vars(module)) for name, module in case.encoder.named_modules()} == attributes
    assert [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in case.encoder.modules()] == hooks
    assert torch.equal(passes.forward.intact(1), states)  # the cached states are not written to
    assert torch.equal(passes.run(one, [case.positions]), right)


def test_given_hidden_states_are_not_written_to(case: Case) -> None:
    passes = case.passes()
    batch = passes.forward.batches[0]
    states = case.text.states(1)[batch.rows]
    before = states.clone()
    changed = passes.change(NeuronSet(1, "zero", (2, 5))).changed(states, batch)
    assert torch.equal(states, before)
    assert not torch.equal(changed, before)


def test_a_sentence_gives_the_same_alone_as_in_a_padded_batch(case: Case) -> None:
    together, alone = case.passes(), case.passes(batch_tokens=1)
    for kind in KINDS:
        one = NeuronSet(1, kind, (2, 5, 7))
        assert torch.equal(together.run(one, [case.positions]), alone.run(one, [case.positions]))


def test_an_example_is_moved_to_each_other_class_alike_and_to_none_that_training_lacks() -> None:
    labels = np.repeat(np.array([-1, 0, 1, 2, 3], dtype=np.int32), 3000)
    found = draw_targets(labels, np.array([0, 1, 3]), seed=5)
    assert (found[(labels < 0) | (labels == 2)] == -1).all()
    for own in (0, 1, 3):
        others, counts = np.unique(found[labels == own], return_counts=True)
        assert others.tolist() == [one for one in (0, 1, 3) if one != own]
        assert counts == pytest.approx(1500, abs=150)  # 5 sd
    assert (draw_targets(labels, np.array([1]), seed=5) == -1).all()


def test_the_mean_of_a_class_comes_to_lie_at_that_of_the_other(case: Case) -> None:
    values, neurons = case.values(1), [0, 4, 9]
    means = values.class_means(neurons)
    labels = values.labels
    replace = values.replace("translate", neurons, torch.zeros(0), Moves(labels, (labels + 1) % N_CLASSES))
    moved = replace(values.states[:, neurons], torch.arange(len(labels)))
    for one in range(N_CLASSES):
        assert torch.allclose(moved[labels == one].double().mean(0), means[(one + 1) % N_CLASSES], atol=1e-5)
    assert torch.equal(moved[labels < 0], values.states[:, neurons][labels < 0])


def test_without_directions_of_means_over_pieces_no_probe_of_these_beats_a_constant_answer(case: Case) -> None:
    """Each example is the mean over three tokens; the map of tokens erases the class from the means."""
    plain = case.values(1)
    stands = torch.arange(len(plain.states)) // 3 * 3
    labels = torch.where(stands == torch.arange(len(stands)), plain.labels, -1)
    values = Values(plain.states, plain.sentences, labels, N_CLASSES, labels, stands)
    neurons = list(range(case.store.plan.d_model))
    mapped = values.replace("direction", neurons, torch.zeros(0))(plain.states, labels)

    def spread_of_means(states: Tensor) -> float:
        vectors = torch.stack([states[stands == i].double().mean(0) for i in stands[labels >= 0].tolist()])
        own = labels[labels >= 0]
        return float(torch.stack([vectors[own == one].mean(0) for one in own.unique()]).std(0).max())

    assert spread_of_means(mapped) < 1e-5 * spread_of_means(plain.states)
