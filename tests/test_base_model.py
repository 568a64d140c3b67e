"""A real model of 12 blocks and 768 neurons, which no tiny one stands for: run `make models`, then `-m base`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import BARE
from probing import ProbeOptions, WandbOptions, fit
from probing.cache import Request, activations
from probing.corpus import from_sentences
from probing.models import resolve_model
from synthetic import LIGHTNING_WARNINGS

pytestmark = [pytest.mark.base, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_padded_batches_give_the_hidden_states_of_each_sentence_by_itself(
    base_model: Path, sentences: list[str], cache: Path
) -> None:
    from transformers import AutoModel, AutoTokenizer

    layers, some = list(range(13)), sentences[:12]
    assert len({len(sentence.split()) for sentence in some}) > 6  # sentences of one length would need no padding
    request = Request(resolve_model(str(base_model)), from_sentences("made up", some), layers, batch_tokens=400)
    store = activations(request, cache, {"accelerator": "cpu"})
    model, tokenizer = AutoModel.from_pretrained(base_model), AutoTokenizer.from_pretrained(base_model)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (12, 768)
    ours = {layer: torch.cat([store.read(layer, shard.index) for shard in store.plan.shards]) for layer in layers}
    for i, sentence in enumerate(some):
        with torch.inference_mode():
            plain = model.eval()(**tokenizer(sentence, return_tensors="pt"), output_hidden_states=True).hidden_states
        rows = torch.from_numpy(store.tokens.sentences == i)
        for layer in layers:
            # Products of another shape are summed in another order; hidden states are up to some 5 in magnitude.
            torch.testing.assert_close(ours[layer][rows], plain[layer][0], rtol=0, atol=1e-5)


def test_position_is_read_off_the_embeddings_of_few_sentences(
    base_model: Path, sentences: list[str], tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "few.txt").write_text("".join(f"{sentence}\n" for sentence in sentences[:100]), encoding="utf-8")
    made = fit(
        model=str(base_model), layer=[0, 12], corpus=str(tmp_path / "few.txt"), runs=str(tmp_path / "runs"),
        cache=str(cache), quiet=True, wandb=WandbOptions(mode="disabled"),
        **{**BARE, "controls": "shuffled", "probe": ProbeOptions(tolerance=1e-2)},
    )  # fmt: skip
    assert made is not None
    embeddings, last = made.accuracy
    assert embeddings["accuracy"] > embeddings["shuffled_accuracy"] + 0.2
    assert embeddings["accuracy"] > last["accuracy"]
    # Every neuron has its place in the ranking.
    assert sorted(row["neuron"] for row in made.top(12, 1000)) == list(range(768))
