"""Hidden states and parameters of two checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from families import untouched
from probing.heads.accumulation import accumulate
from probing.heads.change import OTHER_TOKENS, SAME, StateChange, parameter_rows, row_cosines, state_rows
from probing.heads.subject import Checkpoint
from probing.models import load_tokenizer
from tiny_models import CHANGED, asked, other_queries, tuned

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]


@torch.no_grad()
def test_states_are_those_of_a_loop_and_below_a_changed_block_the_same(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_model("bert")
    requests = asked(folder, 25), asked(tuned(folder, other_queries), 25)
    measure = StateChange(Checkpoint(requests[0]), Checkpoint(requests[1]))
    store = accumulate(requests[0], [measure], tmp_path, {"accelerator": "cpu"})[measure.name]
    found = {(row["of"], row["layer"]): row for row in state_rows(store, (0, 1, 2, 3))}
    tokenizer = load_tokenizer(requests[0].source)
    models = [untouched(Path(one.source.name)) for one in requests]
    same, following = [], []
    for sentence in requests[0].corpus.sentences:
        encoded = tokenizer(sentence, return_tensors="pt")
        states = (model(**encoded, output_hidden_states=True).hidden_states for model in models)
        x, y = (torch.stack(one)[:, 0].double() for one in states)
        same.append(torch.cosine_similarity(x, y, dim=-1).numpy())
        following.append(torch.cosine_similarity(x[:, :-1], y[:, 1:], dim=-1).numpy())
    for of, values in ((SAME, same), (OTHER_TOKENS, following)):
        expected = np.concatenate(values, 1)
        for layer in range(4):
            # A forward pass in float32, in batches here and one sentence at a time there.
            assert found[of, layer]["value"] == pytest.approx(expected[layer].mean(), abs=1e-6)
            assert found[of, layer]["n"] == expected.shape[1]
    assert [found[SAME, layer]["value"] == 1 for layer in range(4)] == [True, True, False, False]


@torch.no_grad()
def test_only_the_matrix_that_was_changed_differs(tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model("bert")
    one, other = (Checkpoint(asked(each)) for each in (folder, tuned(folder, other_queries)))
    assert {row["value"] for row in parameter_rows(one, one)} == {1}
    rows = parameter_rows(one, other)
    name = f"encoder.layer.{CHANGED - 1}.attention.self.query.weight"
    assert [(row["of"], row["layer"]) for row in rows if row["value"] != 1] == [(name, CHANGED)]
    x, y = (dict(untouched(Path(each.request.source.name)).named_parameters())[name].double() for each in (one, other))
    expected = torch.cosine_similarity(x.flatten(), y.flatten(), dim=0)
    (value,) = (row["value"] for row in rows if row["of"] == name)
    assert value == pytest.approx(float(expected))
    assert {row["layer"] for row in rows} == {None, 1, 2, 3}
    words = next(row for row in rows if row["of"] == "embeddings.word_embeddings.weight")
    assert words["layer"] is None


def test_a_pooler_that_a_checkpoint_lacks_does_not_count_as_changed(tiny_model: Callable[..., Path]) -> None:
    from transformers import BertModel

    folder = tiny_model("bert")
    BertModel.from_pretrained(folder, add_pooling_layer=False).save_pretrained(folder)
    one, other = Checkpoint(asked(folder)), Checkpoint(asked(folder))
    random: list[Any] = [each.encoder.get_submodule("pooler.dense").weight for each in (one, other)]
    assert not torch.equal(*random)  # transformers draws it at random
    assert {row["value"] for row in parameter_rows(one, other)} == {1}


def test_cosines_in_pieces_are_exact_for_equal_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, 2**20 + 7, generator=generator) for _ in range(2))
    assert row_cosines(a, a).tolist() == [1, 1]
    assert row_cosines(a, -a).tolist() == [-1, -1]
    expected = torch.cosine_similarity(a.double(), b.double(), dim=-1)
    assert row_cosines(a, b).tolist() == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-12)
