"""The head of a tuned model by itself: its outputs, its score beside that of the whole model, and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probing.cache import ActivationStore, Request, activations
from probing.corpus import Corpus
from probing.data.labelling import IGNORED
from probing.models import load_tokenizer, resolve_model
from probing.models.anatomy import hidden_states
from probing.models.loading import HeadOf, load_tuned, load_with_head
from probing.readouts.forward import Forward, Intact, Readers, Text, padded
from probing.readouts.later_blocks import LaterBlocks
from probing.readouts.pair_cosines import TunedHead, TunedScore
from probing.studies.disable.weights import importance

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]

TEXTS = [
    "the probe reads one layer",
    "a small model often forgets every position of a large sentence",
    "every layer",
] * 7


class Case:
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
        corpus, n_layers = Corpus("test", tuple(TEXTS)), self.model.anatomy.n_layers
        layers = range(n_layers + 1)
        store: ActivationStore = activations(Request(source, corpus, layers), place / "cache", {"accelerator": "cpu"})
        self.text, self.head = Text(store, np.arange(len(TEXTS))), TunedHead(self.whole, self.model, self.pad)
        self.readers = Readers.of(self.whole.base_model, self.pad, "tiny")

    def readout(self, targets: torch.Tensor) -> TunedScore:
        return TunedScore(self.text, targets, self.head, self.of, self.model.anatomy.n_layers)

    def batch(self, sentences: list[int]) -> Any:
        return padded(self.text.tokens, np.array(sentences), self.pad)


@pytest.fixture
def case(checkpoints: dict[str, Path], tmp_path: Path) -> Callable[..., Case]:
    return lambda family, of, n=3: Case(checkpoints[family], of, tmp_path, n)


FAMILIES = ["bert", "roberta", "distilbert", "albert", "electra", "gpt2", "llama", "modernbert"]


@pytest.mark.parametrize("of", ["sentences", "tokens"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_by_itself_gives_what_the_model_gives(family: str, of: HeadOf, case: Callable[..., Case]) -> None:
    one = case(family, of)
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
def test_the_accuracy_is_that_of_the_whole_model(family: str, case: Callable[..., Case]) -> None:
    one = case(family, "sentences")
    targets = torch.randint(-1, 3, (len(TEXTS),), generator=torch.Generator().manual_seed(0))
    targets[targets < 0] = IGNORED
    readout = one.readout(targets)
    found = Forward(one.readers, one.text, 64).read(Intact(1), readout)
    with torch.no_grad():
        alone = [int(one.whole(**one.batch([i]).inputs).logits.argmax()) for i in range(len(TEXTS))]
    expected = [float(answer == target) for answer, target in zip(alone, targets.tolist(), strict=True)]
    assert found[0].tolist() == expected
    assert readout.n.tolist() == (targets >= 0).long().tolist()


def test_numbers_have_r2_and_tokens_add_up_by_sentence(case: Callable[..., Case], tmp_path: Path) -> None:
    one = case("bert", "tokens", 1)
    targets = torch.randn(one.text.tokens.n_tokens, generator=torch.Generator().manual_seed(0))
    targets[::3] = torch.nan
    readout = one.readout(targets)
    found = Forward(one.readers, one.text, 64).read(Intact(1), readout)
    with torch.no_grad():
        answers = torch.cat([one.whole(**one.batch([i]).inputs).logits[0, :, 0] for i in range(len(TEXTS))])
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
    of: HeadOf, numbers: bool, case: Callable[..., Case]
) -> None:
    one = case("bert", of, 1 if numbers else 3)
    n = len(TEXTS) if of == "sentences" else one.text.tokens.n_tokens
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
