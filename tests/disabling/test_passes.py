"""Passes over a text with something disabled: against the whole model, and what must not change anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from probing.disabling.probed_task import KINDS, OF_HEADS, Job, Passes, all_jobs, fingerprint_of
from probing.readouts.forward import Readers, Text
from probing.readouts.frozen_probes import Probes
from tiny_models import Case, of_whole_model, weights_of

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]


@pytest.fixture(scope="module")
def case(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Case:
    return Case(checkpoints["bert"], tmp_path_factory.mktemp("cache"), sentences)


@torch.no_grad()
def test_without_a_change_the_probes_read_what_they_read_from_the_whole_model(case: Case) -> None:
    passes = case.passes()
    for block in (1, 2, 3):
        right = passes.run(Job(block, None, None))
        assert right.shape == (4 - block, 20)
        for i, layer in enumerate(range(block, 4)):
            assert torch.equal(right[i], of_whole_model(case, layer))
    assert np.array_equal(case.probes.n_by_sentence(case.text.tokens), _n_examples(case))


def _n_examples(case: Case) -> list[int]:
    tokens, labels = case.text.tokens, case.probes.labels
    return [int((labels[tokens.of_sentences(i, 1)] >= 0).sum()) for i in range(tokens.n_sentences)]


def test_every_kind_of_replacement_changes_something_and_the_jobs_name_all_of_them(case: Case) -> None:
    passes, jobs = case.passes(), all_jobs(3, 2)
    assert len(set(jobs)) == len(jobs) == 3 * (1 + 2 * len(OF_HEADS) + len(KINDS))
    intact = passes.run(Job(1, None, None))
    found = {job: passes.run(job) for job in jobs if job.block == 1 and job.kind is not None}
    for right in found.values():
        assert not torch.equal(right, intact)
    distinct = {right.numpy().tobytes() for right in found.values()}
    assert len(distinct) == len(found)


def test_replaced_outputs_are_what_they_are_called(case: Case) -> None:
    passes = case.passes()
    replacements = passes.replacements(2)
    rows = torch.arange(case.text.tokens.n_tokens)
    sentences = torch.from_numpy(case.text.tokens.sentences.astype(np.int64))
    outputs = _outputs_of_heads(case, case.train, 2)
    assert torch.allclose(replacements.mean, outputs.mean(0), atol=1e-6)
    drawn = replacements.of("resample", slice(8, 16), sentences, rows[None])[0]
    distances = torch.cdist(drawn, outputs[:, 8:16], compute_mode="donot_use_mm_for_euclid_dist")
    assert distances.min(1).values.max() < 1e-5  # each is the output at some training token
    assert len(distances.argmin(1).unique()) > len(rows) / 3
    assert not replacements.of("zero", slice(0, 8), sentences, rows).any()


def _outputs_of_heads(case: Case, text: Text, block: int) -> Tensor:
    """Return what the output projection of a block reads, each sentence read alone by the whole model."""
    found: list[Tensor] = []
    handle = weights_of(case.encoder, "output", block).register_forward_pre_hook(
        lambda module, args: found.append(args[0][0].detach())
    )
    for i in range(text.tokens.n_sentences):
        ids = torch.from_numpy(text.tokens.input_ids[text.tokens.of_sentences(i, 1)].astype(np.int64))[None]
        with torch.no_grad():
            case.encoder(input_ids=ids, attention_mask=torch.ones_like(ids))
    handle.remove()
    return torch.cat(found)


def test_no_token_is_replaced_by_one_of_its_own_sentence(case: Case) -> None:
    passes = Passes(Readers.of(case.encoder, case.pad, "tiny"), case.train, case.train, 256, seed=0)
    drawn = passes.replacements(1).drawn.numpy()
    sentences = case.train.tokens.sentences
    assert not (sentences[drawn] == sentences).any()
    assert len(set(sentences[drawn])) == 20


def test_a_sentence_gives_the_same_alone_as_in_a_padded_batch(case: Case) -> None:
    together, alone = case.passes(), case.passes(batch_tokens=1)
    for job in (Job(1, 2, "uniform"), Job(2, 1, "resample"), Job(2, None, "mean"), Job(1, None, "skip")):
        assert torch.equal(together.run(job), alone.run(job))


def test_disabling_changes_nothing_where_attention_is_uniform_already(
    tiny_model: Callable[..., Path], tmp_path: Path, sentences: list[str]
) -> None:
    def without_queries(encoder: nn.Module) -> None:
        for block in (1, 2, 3):
            query = weights_of(encoder, "query", block)
            query.weight.zero_()
            query.bias.zero_()

    case = Case(tiny_model("bert"), tmp_path / "cache", sentences, without_queries)
    passes = case.passes()
    for block in (1, 3):
        intact = passes.run(Job(block, None, None))
        for head in (1, 2, None):
            assert torch.equal(passes.run(Job(block, head, "uniform")), intact)
            assert not torch.equal(passes.run(Job(block, head, "zero")), intact)


def test_a_head_that_is_not_read_costs_nothing_and_the_only_one_that_is_costs_all(
    tiny_model: Callable[..., Path], tmp_path: Path, sentences: list[str]
) -> None:
    def read_head_2_of_block_2_alone(encoder: nn.Module) -> None:
        for block in (1, 2, 3):
            weights_of(encoder, "output", block).weight.zero_()
        # Its outputs decide the largest coordinates of the stream.
        weights_of(encoder, "output", 2).weight[:8, 8:] = 50 * torch.eye(8)

    case = Case(tiny_model("bert"), tmp_path / "cache", sentences, read_head_2_of_block_2_alone)
    passes = case.passes()
    for job in all_jobs(3, 2):
        if job.kind in (None, "skip"):
            continue
        effect = passes.run(job) - passes.run(Job(job.block, None, None))
        if job.block == 2 and job.head in (2, None):
            assert effect[0].abs().sum() > 5
        else:
            assert not effect.any(), job


def test_the_model_is_what_it_was_to_the_bit_also_after_an_error(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = dict(case.encoder.named_modules())
    before = {name: value.clone() for name, value in case.encoder.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in modules.items()}
    passes = case.passes()
    passes.run(Job(2, 1, "uniform"))
    hooks = {name: (len(module._forward_pre_hooks), len(module._forward_hooks)) for name, module in modules.items()}

    def fail(*args: Any) -> Any:
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(Probes, "read", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            passes.run(Job(2, 1, "mean"))
    with monkeypatch.context() as patch:
        block: Any = passes.model.anatomy.blocks and passes.model.anatomy.blocks[2]
        patch.setattr(type(block.intermediate), "forward", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            passes.run(Job(2, 1, "uniform"))
    assert all(torch.equal(value, before[name]) for name, value in case.encoder.state_dict().items())
    assert {name: set(vars(module)) for name, module in modules.items()} == attributes
    for name, module in modules.items():
        assert (len(module._forward_pre_hooks), len(module._forward_hooks)) == hooks[name]
    assert torch.equal(passes.run(Job(2, None, None))[0], of_whole_model(case, 2))


def test_a_causal_model_is_read_too(checkpoints: dict[str, Path], tmp_path: Path, sentences: list[str]) -> None:
    passes = Case(checkpoints["gpt2"], tmp_path, sentences).passes()
    uniform = passes.replacements(1).uniform
    assert len(uniform) == passes.passes.tokens.n_tokens
    assert not torch.equal(passes.run(Job(1, 1, "uniform")), passes.run(Job(1, None, None)))


def test_fingerprints_tell_arrays_apart_by_their_values_and_not_by_how_they_lie_in_memory() -> None:
    values = torch.arange(6.0).view(2, 3)
    assert fingerprint_of(values) == fingerprint_of(values.T.contiguous().T)
    assert fingerprint_of(values) != fingerprint_of(values.T)
    assert fingerprint_of(values) != fingerprint_of(values + 1e-6)
