"""Neurons of the stream with other values: sets, passes, rows of effects, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from probing.activations import ActivationStore, Request, activations
from probing.interventions import NEURON_KINDS
from probing.interventions.forward import Change, Forward, Readers, ReadText, draw_text, padded_batches
from probing.interventions.frozen_probes import ProbeReadout
from probing.interventions.neurons import (
    Moves,
    NeuronPasses,
    NeuronSet,
    Place,
    Values,
    changed_tokens,
    chosen_sets,
    draw_targets,
    drawn_sets,
    sizes_up_to,
)
from probing.interventions.passes import among
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.anatomy import examine, hidden_states
from probing.studies.ablate.neuron_tables import conclusions, tables
from probing.studies.ablate.neurons import EffectRow, effect_rows
from probing.text import Corpus

pytestmark = pytest.mark.numeric

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
        labels = torch.from_numpy(self.labels.astype(np.int64))
        self.positions = ProbeReadout(self.text, weight, labels, self.readers.device)

    def values(self, layer: int, at: Place = "words") -> Values:
        return Values.of(self.train, layer, at, self.train_labels, N_CLASSES)

    def passes(self, at: Place = "words", text: ReadText | None = None, batch_tokens: int = 256) -> NeuronPasses:
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
        intact = Forward(case.readers, case.text, 256).states(Change(layer), range(layer, 4))
        for kind in NEURON_KINDS:
            states = passes.states(NeuronSet(layer, kind, ()), range(layer, 4))
            assert all(torch.equal(states[at], intact[at]) for at in range(layer, 4))
        assert torch.equal(states[layer], case.text.states(layer))


@pytest.mark.slow
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
    right = passes.read(one, case.positions)
    attributes = {name: set(vars(module)) for name, module in case.encoder.named_modules()}
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in case.encoder.modules()]

    def fail(*args: Any) -> Any:
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(ProbeReadout, "right", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            passes.read(one, case.positions)
    assert all(torch.equal(value, before[name]) for name, value in case.encoder.state_dict().items())
    assert {name: set(vars(module)) for name, module in case.encoder.named_modules()} == attributes
    assert [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in case.encoder.modules()] == hooks
    assert torch.equal(passes.intact(1), states)  # the cached states are not written to
    assert torch.equal(passes.read(one, case.positions), right)


def test_given_hidden_states_are_not_written_to(case: Case) -> None:
    passes = case.passes()
    (batch, *_) = padded_batches(case.text.tokens, 256, case.pad, True)
    states = case.text.states(1)[batch.rows]
    before = states.clone()
    changed = passes.change(NeuronSet(1, "zero", (2, 5))).states[1](states, batch)
    assert torch.equal(states, before)
    assert not torch.equal(changed, before)


def test_a_sentence_gives_the_same_alone_as_in_a_padded_batch(case: Case) -> None:
    together, alone = case.passes(), case.passes(batch_tokens=1)
    for kind in NEURON_KINDS:
        one = NeuronSet(1, kind, (2, 5, 7))
        assert torch.equal(together.read(one, case.positions), alone.read(one, case.positions))


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


def test_doses_go_up_to_all_neurons_that_are_named() -> None:
    assert sizes_up_to(1) == [1]
    assert sizes_up_to(3) == [1, 2, 3]
    assert sizes_up_to(10) == [1, 2, 5, 10]
    assert sizes_up_to(96) == [1, 2, 5, 10, 20, 50, 96]


def test_the_first_neurons_of_the_ranking_are_changed_and_nothing_for_comparison() -> None:
    sets = chosen_sets(2, [7, 1, 5], ["zero", "direction"], 16)
    assert sets == [
        NeuronSet(2, "zero", ()),
        *(NeuronSet(2, kind, (7, 1, 5)[:k]) for kind in ("zero", "direction") for k in (1, 2, 3)),
    ]  # fmt: skip


def test_drawn_sets_have_the_size_of_the_chosen_ones_and_matched_ones_their_spread() -> None:
    sd = np.linspace(0.1, 10, 200)
    chosen = chosen_sets(1, [199, 198, 197, 196, 195], ["mean", "zero"], 200)
    drawn = list(drawn_sets(chosen, sd, 30, seed=3))
    assert len(drawn) == len(set(drawn)) == 2 * 3 * 2 * 30
    for one in drawn:
        assert len(set(one.neurons)) == one.k
        if one.source == "matched":
            assert min(one.neurons) >= 175
    random = {n for one in drawn if one.source == "random" for n in one.neurons}
    assert len(random) > 100
    assert random & {195, 196, 197, 198, 199}  # also those that they are compared with
    by_kind = [[(one.neurons, one.source, one.draw) for one in drawn if one.kind == kind] for kind in ("mean", "zero")]
    assert by_kind[0] == by_kind[1]
    again = list(drawn_sets(chosen, sd, 30, seed=3))
    assert drawn == again != list(drawn_sets(chosen, sd, 30, seed=4))


def test_all_neurons_of_a_layer_are_one_set_that_nothing_is_compared_with() -> None:
    sets = chosen_sets(1, range(16), ["direction"], 16)
    assert [one.k for one in sets] == [0, 16]
    assert list(drawn_sets(sets, np.ones(16), 20, 0)) == []


def test_an_effect_stands_beside_those_of_drawn_sets_on_their_part_of_the_sentences() -> None:
    n = np.array([4, 2, 0, 10])
    intact = np.array([[4.0, 2, 0, 8], [8.0, 4, 0, 20]])
    chosen = np.array([[2.0, 1, 0, 8], [9.0, 4, 0, 20]])
    lines = [EffectRow("position", 3, n, {}), EffectRow("mlm", 4, n, {"head": 2})]
    drawn = {
        NeuronSet(1, "mean", (i,), source, i + 1): sums
        for source in ("random", "matched")
        for i, sums in enumerate(([[4.0, 8], [8.0, 20]], [[1.0, 8], [12.0, 20]], [[2.0, 8], [8.0, 19]]))
    }
    results = {NeuronSet(1, "mean", ()): intact, NeuronSet(1, "mean", (7,)): chosen}
    arrays = {one: np.array(sums) for one, sums in drawn.items()}
    rows, draws = effect_rows(results, arrays, lines, np.array([0, 3]))
    accuracy, loss = rows
    assert accuracy["neurons"] == "7"
    assert (accuracy["intact"], accuracy["value"]) == (14 / 16, 11 / 16)
    assert accuracy["effect"] == pytest.approx(-3 / 16)
    # On the first and the last sentence: -2 of 14, among 0, -3 and -2.
    assert (accuracy["random_lowest"], accuracy["random_highest"]) == pytest.approx((-3 / 14, 0))
    assert accuracy["random"] == pytest.approx(-5 / 42)
    assert accuracy["random_percentile"] == pytest.approx(100 / 3)
    assert accuracy["random_p"] == pytest.approx(3 / 4)
    # Of a loss a rise is a harm: +1 of 14, among 0, +4 and -1.
    assert loss["matched_percentile"] == pytest.approx(200 / 3)
    assert loss["matched_p"] == pytest.approx(2 / 4)
    assert loss["head"] == 2
    assert [(row["set"], row["draw"]) for row in draws[:7]] == [
        ("chosen", 0), *((source, draw) for source in ("random", "matched") for draw in (1, 2, 3)),
    ]  # fmt: skip
    assert [row["effect"] for row in draws[:4]] == pytest.approx([-2 / 14, 0, -3 / 14, -2 / 14])


def test_a_p_value_is_the_rank_among_all_sets() -> None:
    others = np.linspace(-1, 1, 19)
    assert among(-2.0, others, -1)["p_value"] == 1 / 20
    assert among(2.0, others, -1)["p_value"] == 1
    assert among(2.0, others, 1)["p_value"] == 1 / 20
    assert among(0.0, np.zeros(9), 1)["p_value"] == 1
    assert among(0.0, np.array([]), 1) == {}


CHANCE = "not shown to be more than by chance"


def row(n: int, n_as_given: int, **others: Any) -> dict[str, Any]:
    return {
        "changed_layer": 1, "kind": "interchange", "k": 5, "readout": "words", "layer": 3, "intact": 0.0, "value": 0.4,
        "effect": 0.4, "low": 0.3, "high": 0.5, "all_neurons": 0.9, "difference": 1.25, "n": n,
        "n_as_given": n_as_given, **others,
    }  # fmt: skip


def test_the_share_stands_beside_that_of_all_neurons_and_what_it_is_of() -> None:
    share, told = conclusions([row(40, 38)])
    assert share == (
        "Layer 1, 5 neurons exchanged between the sentences of pairs: log odds carried, layer 3 from 0.000 to 0.400 "
        "(+40.0 points (+30.0 to +50.0); all neurons +90.0)."
    )
    assert told == (
        "In the intact model, the log odds of the two words differ by 1.2 nats between the texts of a pair, in 38 of "
        "40 pairs in the direction of the file."
    )
    (table,) = tables([row(40, 38)])
    assert [list(column.cells)[1] for column in table.columns[1:3]] == ["all", "+90.0"]


def test_what_reads_no_words_says_nothing_of_them_and_has_no_row_of_all_neurons() -> None:
    other = {**row(40, 38), "kind": "mean", "readout": "position", "all_neurons": float("nan")}
    assert len(conclusions([other])) == 1
    (table,) = tables([other])
    assert table.row_count == 1


@pytest.mark.parametrize(
    ("n", "as_given", "is_chance"), [(40, 20, True), (40, 25, True), (40, 28, False), (5, 5, True)]
)
def test_pairs_that_the_model_does_not_tell_apart_are_said_to_be_chance(n: int, as_given: int, is_chance: bool) -> None:
    assert (CHANCE in conclusions([row(n, as_given)])[1]) is is_chance


def test_noise_is_called_chance_and_a_model_that_knows_the_words_is_not() -> None:
    generator = np.random.default_rng(0)
    noise, signal = (generator.binomial(60, share, size=400) for share in (0.5, 0.85))
    of_noise, of_signal = (
        np.mean([CHANCE in conclusions([row(60, int(n))])[1] for n in few]) for few in (noise, signal)
    )
    assert of_noise > 0.96  # one side of an exact interval of 95%
    assert of_signal == 0
