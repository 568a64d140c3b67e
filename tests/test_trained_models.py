"""Trained models, for which no tiny one stands: run `make models`, then `-m base`."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import BARE, ROOT
from probing import WandbOptions, fit, reproduce
from probing.activations import Request, activations
from probing.cli.options import ProbeOptions
from probing.models import resolve_model
from probing.studies.claims.claim import KINDS_OF_MODELS, kinds_of
from probing.text import from_sentences

pytestmark = pytest.mark.base

# Reactions of textbooks, each with what it is called.
TEXTBOOK = {
    "CC(=O)O.CCO>>CCOC(C)=O": "esterification of Fischer and Speier",
    "CO.O=C(O)c1ccccc1>>COC(=O)c1ccccc1": "the same, of benzoic acid",
    "CC(=O)OC(C)=O.O=C(O)c1ccccc1O>>CC(=O)Oc1ccccc1C(=O)O": "aspirin",
    "CCOC(=O)c1ccccc1.[Na+].[OH-]>>O=C(O)c1ccccc1": "saponification",
    "CCN.O=C(Cl)c1ccccc1>>CCNC(=O)c1ccccc1": "amide of Schotten and Baumann",
    "CC(=O)Cl.ClCCl.Nc1ccccc1>>CC(=O)Nc1ccccc1": "acetanilide",
    "CO.O=Cc1ccccc1.[BH4-].[Na+]>>OCc1ccccc1": "reduction of an aldehyde",
    "Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1": "coupling of Suzuki",
    "CI.CN(C)C=O.O=C([O-])[O-].Oc1ccccc1.[K+].[K+]>>COc1ccccc1": "ether of Williamson",
    "CC(C)(C)OC(=O)NCc1ccccc1.ClCCl.O=C(O)C(F)(F)F>>NCc1ccccc1": "removal of a protecting group",
    "BrCc1ccccc1.[C-]#N.[Na+]>>N#CCc1ccccc1": "nitrile of Kolbe",
    "CCO.O=[N+]([O-])c1ccccc1.[Cl-].[Fe].[NH4+]>>Nc1ccccc1": "aniline",
}
ACIDS = ("C", "CC", "CCC", "CC(C)", "c1ccccc1", "Cc1ccccc1", "CCCCC", "CC(C)C", "ClC", "FC(F)(F)")
ALCOHOLS = ("C", "CC", "CCC", "CC(C)", "CCCC", "CC(C)C", "C=CC", "CCCCCC")
REACTIONS = ("rxn-bert", "rxn-bert-tuned", "rxn-bert-tuned-10k", "rxn-albert")


def folder_of(name: str) -> Path:
    """Return the folder of a trained model, or skip the test."""
    if not (folder := ROOT / "runs" / "models" / name).is_dir():
        pytest.skip(f"{name} is not there: run `make models ARGS={name}`")
    return folder


def whole(kind: Any, name: str) -> tuple[Any, Any]:
    """Load a model none of whose tensors is missing, and its tokenizer."""
    from transformers import AutoTokenizer

    model, report = kind.from_pretrained(folder_of(name), output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    return model.eval(), AutoTokenizer.from_pretrained(folder_of(name))


@pytest.mark.parametrize("name", ["rxn-bert", "rxn-albert"])
def test_a_masked_token_of_a_reaction_is_recovered(name: str) -> None:
    from transformers import AutoModelForMaskedLM

    model, tokenizer = whole(AutoModelForMaskedLM, name)
    right = []
    for reaction in TEXTBOOK:
        ids = torch.tensor(tokenizer(reaction)["input_ids"])
        assert tokenizer.unk_token_id not in ids
        masked = torch.arange(1, len(ids) - 1)  # between [CLS] and [SEP]
        rows = torch.arange(len(masked))
        inputs = ids.repeat(len(masked), 1)
        inputs[rows, masked] = tokenizer.mask_token_id
        with torch.inference_mode():
            found = model(input_ids=inputs).logits[rows, masked].argmax(-1)
        right += (found == ids[masked]).tolist()
    assert len(right) > 250
    assert sum(right) / len(right) > 0.8


def test_tuned_models_load_with_the_heads_that_were_published() -> None:
    from transformers import AutoModel, AutoModelForSequenceClassification

    encoder, tokenizer = whole(AutoModel, "rxn-bert-tuned")
    classifier, _ = whole(AutoModelForSequenceClassification, "rxn-bert-tuned-10k")
    tokens = tokenizer(next(iter(TEXTBOOK)), return_tensors="pt")
    assert (encoder.config.num_hidden_layers, encoder.config.hidden_size) == (12, 256)
    with torch.inference_mode():
        assert classifier(**tokens).logits.shape == (1, 50)


@pytest.mark.parametrize(
    ("text", "next_word"),
    [
        ("The capital of France is", " Paris"),
        ("Two plus two is equal to", " four"),
        ("The opposite of hot is", " cold"),
    ],
)
def test_the_decoder_completes_a_sentence(text: str, next_word: str) -> None:
    from transformers import AutoModelForCausalLM

    model, tokenizer = whole(AutoModelForCausalLM, "smollm2")
    with torch.inference_mode():
        best = model(**tokenizer(text, return_tensors="pt")).logits[0, -1].argmax()
    assert tokenizer.decode([int(best)]) == next_word


def test_the_first_token_of_the_decoder_is_far_larger_than_any_other() -> None:
    from transformers import AutoModel

    model, tokenizer = whole(AutoModel, "smollm2")
    tokens = tokenizer("The capital of France is Paris, and that of Italy is Rome.", return_tensors="pt")
    with torch.inference_mode():
        norms = model(**tokens, output_hidden_states=True).hidden_states[12][0].norm(dim=-1)
    assert norms[0] > 50 * norms[1:].max()


@pytest.mark.parametrize("name", [*REACTIONS, "smollm2"])
def test_position_is_fitted_on_each(name: str, sentences: list[str], tmp_path: Path) -> None:
    esters = [f"OC(=O){acid}.O{alcohol}>>{alcohol}OC(=O){acid}" for acid, alcohol in product(ACIDS, ALCOHOLS)]
    texts = [*TEXTBOOK, *esters] if name in REACTIONS else sentences[:90]
    (tmp_path / "few.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    n_layers, d_model = (12, 256) if name in REACTIONS else (30, 576)
    made = fit(
        model=str(folder_of(name)), layer=[0, 1, n_layers], corpus=str(tmp_path / "few.txt"),
        runs=str(tmp_path / "runs"), cache=str(tmp_path / "cache"), quiet=True, wandb=WandbOptions(mode="disabled"),
        **{**BARE, "controls": "shuffled", "probe": ProbeOptions(tolerance=1e-2)},
    )  # fmt: skip
    best = max(row["accuracy"] for row in made.accuracy)
    assert best > 0.3
    assert sorted(row["neuron"] for row in made.top(n_layers, 1000)) == list(range(d_model))
    if name in REACTIONS:
        assert made.accuracy[0]["accuracy"] > made.accuracy[0]["shuffled_accuracy"] + 0.5


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("rxn-bert", {"masked language model"}),
        ("rxn-bert-tuned", set()),
        ("rxn-albert", {"masked language model"}),
        ("smollm2", {"decoder", "large model"}),
    ],
)
def test_kinds_of_trained_models_are_seen(name: str, kinds: set[str]) -> None:
    assert kinds_of(resolve_model(str(folder_of(name))), KINDS_OF_MODELS) == kinds


def test_the_claim_on_decoders_has_numbers_of_a_decoder(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(
        "\n".join(f"The acid number {k} reacts with an alcohol of {k} atoms." for k in range(60)), encoding="utf-8"
    )
    made = reproduce(
        "luo2021", models=str(folder_of("smollm2")), claims=58, corpus=str(text), runs=str(tmp_path), name="claims",
        quiet=True, wandb=WandbOptions("disabled"),
    )  # fmt: skip
    (row,) = (row for row in made.claims if "measured" in row)
    assert (row["verdict"], row["measure"]) == ("analogue", "least_mean_cosine")
    assert 0 < row["measured"] < 1


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
    embeddings, last = made.accuracy
    assert embeddings["accuracy"] > embeddings["shuffled_accuracy"] + 0.2
    assert embeddings["accuracy"] > last["accuracy"]
    # Every neuron has its place in the ranking.
    assert sorted(row["neuron"] for row in made.top(12, 1000)) == list(range(768))
