"""What tokens get of the attention and add to the stream: as loops, as the model itself, and as `attention` has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from families import untouched
from probing import WandbOptions
from probing.cache import Request, load
from probing.corpus import Corpus, from_sentences
from probing.heads.accumulation import Attention, AttentionReader, Batch, accumulate, attention_of
from probing.heads.subject import Attended
from probing.models import load_tokenizer, resolve_model
from probing.models.attention_heads import OutputProjection
from probing.studies.attention.command import attention
from probing.studies.geometry.command import geometry
from probing.studies.geometry.extremes.held import as_sinks
from probing.studies.geometry.extremes.survey import Added, added

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]

LENGTHS, HEADS, WIDTH, D = (6, 3), 2, 4, 7


def made_up() -> tuple[Attention, Batch, Tensor]:
    """Return random attention over a padded batch, and types of tokens."""
    generator = torch.Generator().manual_seed(0)
    n, length = len(LENGTHS), max(LENGTHS)
    mask = torch.arange(length) < torch.tensor(LENGTHS)[:, None]
    ids = torch.arange(n * length).view(n, length)
    batch = Batch(torch.arange(n), ids, ids, mask, mask & (ids % length == 0), ids)
    scores = torch.randn(n, HEADS, length, length, generator=generator).masked_fill(~mask[:, None, None], -torch.inf)
    values = torch.randn(n, HEADS, length, WIDTH, generator=generator)
    values[1, :, 3:] = torch.nan  # padding
    projection = OutputProjection(
        torch.randn(HEADS, WIDTH, D, generator=generator), torch.randn(D, generator=generator)
    )
    types = (torch.rand(n, length, 3, generator=generator) < 0.4) & mask[:, :, None]
    attention = attention_of(1, scores.softmax(-1), torch.nan_to_num(values), projection, batch)
    return Attention(1, attention.probabilities, values, projection), batch, types


def test_what_is_added_is_that_of_a_loop() -> None:
    attention, batch, types = made_up()
    found = added(attention, batch, types)
    matrix = attention.projection.matrix.double().numpy()  # type: ignore[union-attr]
    bias = attention.projection.bias.double().numpy()  # type: ignore[union-attr]
    maps, values = attention.probabilities.double().numpy(), attention.values.double().numpy()
    for s, n in enumerate(LENGTHS):
        outputs = np.zeros(HEADS)
        output_of_block = 0.0
        for i in range(n):
            vectors = np.array(
                [[maps[s, h, i, j] * values[s, h, j] @ matrix[h] for j in range(n)] for h in range(HEADS)]
            )
            outputs += np.linalg.norm(vectors.sum(1), axis=1)
            output_of_block += float(np.linalg.norm(vectors.sum((0, 1)) + bias))
        assert found["output"][s, :, 0].numpy() == pytest.approx(outputs)
        assert float(found["output_of_block"][s]) == pytest.approx(output_of_block)
        for t in range(3):
            of_type = [j for j in range(n) if types[s, j, t]]
            heads, block, norms = np.zeros(HEADS), 0.0, np.zeros(HEADS)
            for i in range(n):
                own = np.array([
                    sum((maps[s, h, i, j] * values[s, h, j] @ matrix[h] for j in of_type), np.zeros(D))
                    for h in range(HEADS)
                ])  # fmt: skip
                heads += np.linalg.norm(own, axis=1)
                block += float(np.linalg.norm(own.sum(0)))
            for j in of_type:
                norms += [np.linalg.norm(values[s, h, j] @ matrix[h]) for h in range(HEADS)]
            assert found["added"][s, :, t].numpy() == pytest.approx(heads)
            assert float(found["added_of_block"][s, 0, t]) == pytest.approx(block)
            assert found["value_norm"][s, :, t].numpy() == pytest.approx(norms, abs=1e-7)


@pytest.fixture(scope="module")
def corpus(sentences: list[str]) -> Corpus:
    return from_sentences("some", sentences[:40])


def test_the_output_of_a_block_is_what_its_projection_makes(
    checkpoints: dict[str, Path], corpus: Corpus, tmp_path: Path
) -> None:
    request = Request(resolve_model(str(checkpoints["bert"])), corpus, [0], "float32")
    reader_tokens = accumulate(request, [Attended.of({})], tmp_path, {"accelerator": "cpu"})["attended"].tokens
    kinds = as_sinks(reader_tokens, corpus, load_tokenizer(request.source))
    store = accumulate(request, [Added(kinds.members)], tmp_path, {"accelerator": "cpu"})["added"]
    encoder, _ = load(request)
    made: dict[int, Tensor] = {}
    for k, block in enumerate(encoder.encoder.layer):  # type: ignore[union-attr,arg-type]
        block.attention.output.dense.register_forward_hook(lambda m, i, o, k=k: made.__setitem__(k, o))
    tokens, found = store.tokens, store.by_sentence("output_of_block")
    for s in (0, 11, 39):
        rows = tokens.of_sentences(s, 1)
        with torch.inference_mode():
            encoder(input_ids=torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None])
        for k, output in made.items():
            assert float(found[s, k, 0, 0]) == pytest.approx(float(output[0].double().norm(dim=1).sum()), rel=1e-5)
    # The parts of all kinds are at least as long together as their sum.
    parts = store.by_sentence("added").sum(3)
    assert bool((parts >= store.by_sentence("output")[..., 0] * (1 - 1e-9)).all())


@pytest.mark.slow
def test_the_mass_of_a_kind_is_that_of_attention_itself(
    checkpoints: dict[str, Path], corpus: Corpus, tmp_path: Path
) -> None:
    text = tmp_path / "some.txt"
    text.write_text("\n".join(corpus.sentences), encoding="utf-8")
    options: dict[str, Any] = {
        "corpus": str(text),
        "runs": str(tmp_path),
        "quiet": True,
        "wandb": WandbOptions("disabled"),
    }
    model = str(checkpoints["bert"])
    made = geometry(model, extremes=True, transforms="none", name="g", **options)
    heads = attention(model, parts="tokens", name="a", **options)
    assert made is not None
    assert heads is not None
    theirs = {(r["layer"], r["head"], r["measure"], r["to"]): r for r in heads.heads if "to" in r}
    own = [
        row for row in made.sinks if row.get("head") is not None and row["token"] in ("[CLS]", "[SEP]", "punctuation")
    ]
    assert len(own) == 3 * 2 * 3
    for row in own:
        for name in ("mass", "norm_mass"):
            same = theirs[row["layer"], row["head"], name, row["token"]]
            assert (row[name], row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx(
                (same["value"], same["low"], same["high"]), rel=1e-9
            )
        lift = theirs[row["layer"], row["head"], "lift", row["token"]]
        assert row["mass"] / row["uniform"] == pytest.approx(lift["value"])
    for layer in (1, 2, 3):
        for head in (None, 1, 2):
            of = [row for row in made.sinks if (row["layer"], row.get("head")) == (layer, head)]
            assert sum(row["mass"] for row in of) == pytest.approx(1)
            assert sum(row["norm_mass"] for row in of) == pytest.approx(1, abs=1e-6)
    _check_stream(made, model, corpus)


def _check_stream(made: Any, model: str, corpus: Corpus) -> None:
    """Check what [CLS] adds to each query as a share of its hidden state, by a loop over attention of transformers."""
    encoder: Any = untouched(Path(model), attn_implementation="eager")
    tokenizer = load_tokenizer(resolve_model(model))
    values: dict[int, Tensor] = {}
    for k, block in enumerate(encoder.encoder.layer):
        block.attention.self.value.register_forward_hook(lambda m, i, o, k=k: values.__setitem__(k, o[0].double()))
    shares: dict[int, list[float]] = {k: [] for k in range(3)}
    for sentence in corpus.sentences:
        with torch.inference_mode():
            out = encoder(**tokenizer(sentence, return_tensors="pt"), output_attentions=True, output_hidden_states=True)
        for k, block in enumerate(encoder.encoder.layer):
            weight = block.attention.output.dense.weight.detach().double()
            for i, state in enumerate(out.hidden_states[k][0].double()):
                weights = out.attentions[k][0, :, i, 0].double().repeat_interleave(values[k].shape[1] // 2)
                shares[k].append(float((weight @ (weights * values[k][0])).norm() / state.norm()))
    for row in made.sinks:
        if row.get("head") is None and row["token"] == "[CLS]":
            assert row["of_stream"] == pytest.approx(np.mean(shares[row["layer"] - 1]), rel=1e-4)


@pytest.mark.slow
def test_models_whose_projection_cannot_be_told_have_the_attention_alone(
    checkpoints: dict[str, Path], corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    text = tmp_path / "some.txt"
    text.write_text("\n".join(corpus.sentences), encoding="utf-8")
    monkeypatch.setattr(AttentionReader, "of", _without_projections(AttentionReader.of))
    made = geometry(
        str(checkpoints["bert"]), extremes=True, transforms="none", name="g", corpus=str(text), runs=str(tmp_path),
        wandb=WandbOptions("disabled"),
    )  # fmt: skip
    assert made is not None
    assert "--extremes leaves out norms of what heads add" in capsys.readouterr().err
    assert {"mass", "uniform", "share"} <= set(made.sinks[0])
    assert not {"norm_mass", "added", "value_ratio", "of_stream"} & {name for row in made.sinks for name in row}
    assert any(line.startswith("The strongest sink is") for line in made.conclusions())


def _without_projections(of: Any) -> Any:
    def examined(*args: Any, **how: Any) -> AttentionReader:
        reader = of(*args, **how)
        return AttentionReader(reader.anatomy, reader.heads, None, reader.pad_token_id, reader.n_token_types)

    return examined
