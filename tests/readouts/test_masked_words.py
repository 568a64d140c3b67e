"""The loss of masked words with something changed: against the whole model with its head, a sentence at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch import Tensor

from families import masked_lm
from probing.cache.tokens import tokenize
from probing.disabling.probed_task import replacing
from probing.errors import UserError
from probing.models import load_tokenizer, resolve_model
from probing.readouts.forward import Forward, Intact, Padded, Readers, padded
from probing.readouts.later_blocks import LaterBlocks
from probing.readouts.model_output import MaskedWordLoss, masked_lm_of
from probing.studies.disable.weights import head_gradients

pytestmark = pytest.mark.numeric


class WithoutHead:
    """Head 2 of block 2 gives zeros."""

    layer = 1

    def later(self, model: LaterBlocks, batch: Padded, beside: Any, states: Tensor, layers: Any) -> dict[int, Tensor]:
        return model.run(batch.inputs, 2, states, beside, layers, replacing(model.columns(2), torch.zeros(8)))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> tuple[Any, Readers, MaskedWordLoss]:
    source = resolve_model(str(masked_lm(tmp_path_factory.mktemp("masked") / "bert", "bert", sentences)))
    tokenizer = load_tokenizer(source)
    model: Any = masked_lm_of(source, False, tokenizer.mask_token_id)
    readers = Readers.of(model.base_model, tokenizer.pad_token_id, "tiny")
    tokens = tokenize(tokenizer, sentences[:12], 128)
    mask, pad, anatomy = tokenizer.mask_token_id, tokenizer.pad_token_id, readers.model.anatomy
    return model, readers, MaskedWordLoss.of(model, model.base_model, anatomy, tokens, mask, pad, 128, seed=0)


def naive(model: Any, readout: MaskedWordLoss) -> list[float]:
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
    intact = naive(model, readout)
    for layer in (0, 2):
        sums = forward.read(Intact(layer), readout)
        np.testing.assert_allclose(sums[0].numpy(), intact, rtol=1e-4)
    # In the whole model, the head gives nothing where the weights that read it are zero.
    read = model.bert.encoder.layer[1].attention.output.dense.weight
    before = read.detach().clone()
    without = forward.read(WithoutHead(), readout)
    with torch.no_grad():
        read[:, 8:] = 0
    expected = naive(model, readout)
    with torch.no_grad():
        read.copy_(before)
    np.testing.assert_allclose(without[0].numpy(), expected, rtol=1e-4)
    assert not np.allclose(expected, intact, rtol=1e-3)
    assert torch.equal(forward.read(Intact(2), readout), sums)


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

                    return loss(later.run(batch.inputs, block, embedded[block - 1], None, [3], change)[3])

                expected = (scaled(1 + 1e-4) - scaled(1 - 1e-4)) / 2e-4
                assert torch.allclose(found[block - 1, :, head - 1], expected, rtol=1e-3, atol=1e-8)
                assert (expected.abs() > 1e-7).all()
    finally:
        model.float()


def test_a_model_without_a_trained_head_is_refused(checkpoints: dict[str, Path]) -> None:
    source = resolve_model(str(checkpoints["bert"]))
    for is_random, mask, words in (
        (False, 4, "no such head with weights"),
        (False, None, "no mask"),
        (True, 4, "rand"),
    ):
        with pytest.raises(UserError, match=f"--readouts mlm` needs a model with a trained .*{words}"):
            masked_lm_of(source, is_random, mask)
