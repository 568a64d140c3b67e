"""`extremes`: large values, sinks and heads with outliers held, and all of it from end to end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from families import make_checkpoint, untouched
from probing import WandbOptions
from probing.__main__ import COMMANDS
from probing.activations import Request, load, tokens_of
from probing.cli.commandline import run
from probing.heads.accumulation import AttentionReader, BlockAttention, SentenceBatch, accumulate, attention_of
from probing.heads.measures import attention_by_type
from probing.heads.position_controls import NEAREST
from probing.models import load_tokenizer, resolve_model
from probing.models.attention_heads import OutputProjection, QueryKey
from probing.results import ALL_LAYERS
from probing.runs import Result
from probing.studies.attention import attention
from probing.studies.extremes import ALL, DEFINITIONS, SCHEMAS, extremes
from probing.studies.extremes.fixed_outliers import (
    DRAWS,
    FREQUENT,
    AttentionSample,
    Inputs,
    TokenKinds,
    agrees,
    as_sinks,
    by_text,
    compare,
    distinct_sets,
    effects,
    fixed_outlier_rows,
)
from probing.studies.extremes.survey import (
    MOST_NEURONS,
    ContributionMeasure,
    LargeValues,
    added,
    course_rows,
    large_values,
    massive_rows,
    median_magnitude,
)
from probing.text import Corpus, from_sentences
from synthetic import make_store, make_tokens
from written import read_csv

pytestmark = pytest.mark.numeric

PLANTED, LARGE = 11, 3


@pytest.fixture(scope="module")
def made(place: Path, short_text: Path, sentences: list[str]) -> Result:
    """Measure a BERT whose second block makes a neuron huge on [CLS], and whose first head reads an outlier alone."""
    folder = make_checkpoint(place / "bent", "bert", sentences, hidden_size=48)
    model: Any = untouched(folder)
    with torch.no_grad():
        for norm in [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]:
            norm.bias[PLANTED] = -20
        # Values of [CLS] alone have a huge entry, which the norm before does not see and the one behind hardly changes.
        block = model.encoder.layer[1]
        block.output.LayerNorm.weight[LARGE] = 2e4
        heads = model.encoder.layer[2].attention.self
        for linear in (heads.query, heads.key):
            linear.weight[:, PLANTED] = 3 * torch.randn(48)
    model.save_pretrained(folder)
    return extremes(
        str(folder), corpus=str(short_text), runs=str(place / "runs"), name="g", quiet=True,
        wandb=WandbOptions("disabled"),
    )  # fmt: skip


def test_large_values_are_found_in_their_layer_and_outliers_held_where_blocks_read_them(made: Result) -> None:
    massive = {row["layer"]: row for row in made.massive if (row["definition"], row["token"]) == ("massive", ALL)}
    assert [massive[layer]["count"] > 0 for layer in range(4)] == [False, False, True, False]
    assert {
        row["neuron"] for row in made.massive if row["definition"] == "massive" and row.get("neuron") is not None
    } == {LARGE}
    (course,) = {(row["first_layer"], row["last_layer"], row["gone_layer"], row["neuron"])
                 for row in made.massive_course if row["definition"] == "massive"}  # fmt: skip
    assert course == (2, 2, 3, LARGE)
    blocks = {row["layer"]: row for row in made.held_outliers if row.get("head") is None}
    assert blocks[1]["neurons"] == blocks[2]["neurons"] == str(PLANTED)
    assert len([row for row in made.held_outliers if row.get("head") is not None]) == 2 * (len(blocks) - 1)


def test_tables_figures_page_and_sentences_have_them(made: Result, tmp_path: Path) -> None:
    for schema in SCHEMAS:
        stored = read_csv(made.folder / f"{schema.name}.csv")
        assert len(stored) == len(getattr(made, schema.name)) > 0
        assert all(column.meaning for column in schema.columns)
    assert {"massive.png", "massive.pdf", "sinks.png", "sinks.pdf"} <= {
        path.name for path in (made.folder / "figures").iterdir()
    }
    shown, said = repr(made), made.conclusions()
    titles = (
        "Large values",
        "Neurons that are large",
        "What attention gives",
        "Attention of heads with outliers",
    )
    assert all(title in shown for title in titles)
    starts = ("Values more than 5 sd from the mean of their token", "The strongest sink is", "With the outliers fixed")
    assert all(any(line.startswith(start) for line in said) for start in starts)
    assert any("massive values, above 100 and 1,000 times the median" in line for line in said)
    page = made.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Massive activations and attention sinks" in page
    assert all(title in page for title in titles)


def argued(folder: Path, short_text: Path, runs: Path, *options: str) -> list[str]:
    return ["extremes", "--name=g", "--wandb.mode=disabled", f"--model={folder}",
            f"--corpus={short_text}", f"--runs={runs}", *options]  # fmt: skip


@pytest.mark.slow
def test_a_model_that_rotates_queries_has_everything_but_heads_without_outliers(
    place: Path, short_text: Path, sentences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_checkpoint(place / "rotating", "llama", sentences)
    model: Any = untouched(folder)
    with torch.no_grad():
        model.embed_tokens.weight[:, 5] = 30
    model.save_pretrained(folder)
    assert run(COMMANDS, argued(folder, short_text, tmp_path, "--definition=argmax_share")) == 0
    said = capsys.readouterr().err
    assert "no outliers are fixed in queries and keys" in said
    assert "its queries and keys are rotated or normalised" in said
    there = {path.stem for path in (tmp_path / "g").glob("*.csv")}
    assert there >= {"massive", "sinks"}
    assert "held_outliers" not in there


@pytest.mark.slow
@pytest.mark.parametrize(("family", "table"), [("gpt2", "wte"), ("mpnet", "embeddings.word_embeddings")])
def test_attention_without_outliers_is_that_of_the_model_behind_norms_masks_and_relative_biases(
    family: str, table: str, place: Path, short_text: Path, sentences: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = make_checkpoint(place / f"large-{family}", family, sentences)
    model: Any = untouched(folder)
    with torch.no_grad():
        model.get_submodule(table).weight[:, 5] = 30
    model.save_pretrained(folder)
    assert run(COMMANDS, argued(folder, short_text, tmp_path, "--definition=argmax_share")) == 0
    # A block whose attention were not the model's would be left out.
    assert "is left out: its attention" not in capsys.readouterr().err
    rows = read_csv(tmp_path / "g" / "held_outliers.csv")
    assert {row["layer"] for row in rows} >= {1}
    sinks = read_csv(tmp_path / "g" / "sinks.csv")
    of_special = [row for row in sinks if row["token"] in ("first token", "<s>", "</s>")]
    for row in rows:
        if row["head"] not in ("", None):
            own = [r["mass"] for r in of_special if (r["layer"], r["head"]) == (row["layer"], row["head"])]
            assert row["special"] == pytest.approx(sum(own), abs=0.05)


def test_a_model_without_attention_in_each_block_has_its_large_values(
    checkpoints: dict[str, Path], short_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(COMMANDS, argued(checkpoints["lfm2"], short_text, tmp_path)) == 0
    assert "what attention does with special tokens is left out" in capsys.readouterr().err
    assert not {"sinks", "held_outliers"} & {path.stem for path in (tmp_path / "g").glob("*.csv")}
    assert (tmp_path / "g" / "massive.csv").exists()


def test_a_model_without_outliers_is_told_so(
    checkpoints: dict[str, Path], short_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(COMMANDS, argued(checkpoints["gpt2"], short_text, tmp_path, "--layer=2,3")) == 0
    assert "no layer that a block reads has any" in capsys.readouterr().err
    rows = read_csv(tmp_path / "g" / "sinks.csv")
    assert {row["token"] for row in rows} == {"first token", "punctuation", "other tokens"}
    # The stream that enters block 2 was not asked for.
    of_block = {row["layer"]: row["of_stream"] for row in rows if row["head"] in ("", None)}
    assert of_block[2] in ("", None)
    assert of_block[3] not in ("", None)


def test_the_first_token_cannot_be_set_aside(
    checkpoints: dict[str, Path], short_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(COMMANDS, argued(checkpoints["bert"], short_text, tmp_path, "--first_token=exclude")) == 2
    assert "`--first_token` is not an option of extremes" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


D, NEURON = 48, 7
LENGTHS = [5, 9, 12, 7] * 10
TOKENS = make_tokens(LENGTHS)
N = sum(LENGTHS)
MASSIVE_NAMES = np.where(TOKENS.positions == 0, "[CLS]", np.where(TOKENS.special, "[SEP]", "word")).astype(object)
KINDS = TokenKinds.of(MASSIVE_NAMES)
# A token of the third sentence that is no special one.
PLACE = int(TOKENS.offsets[2]) + 4


def noise(n_layers: int, seed: int = 0) -> list[NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    return [generator.normal(scale=0.3, size=(N, D)).astype(np.float32) for _ in range(n_layers)]


def found_in(folder: Path, states: list[NDArray[np.float32]], dtype: str = "float32") -> list[LargeValues]:
    store = make_store(folder, states, TOKENS, dtype=dtype)
    return [large_values(store, layer, KINDS) for layer in range(len(states))]


def test_a_planted_value_is_found_by_every_definition_at_its_token_and_in_its_layer_alone(tmp_path: Path) -> None:
    states = noise(3)
    states[1][PLACE, NEURON] = -500
    found = found_in(tmp_path, states)
    rows = [row for one in found for row in massive_rows(one, KINDS)]
    massive = [row for row in rows if row["definition"] == "massive"]
    assert [(row["layer"], row["token"], row["count"]) for row in massive if row["token"] == ALL] == [
        (0, ALL, 0), (1, ALL, 1), (2, ALL, 0),
    ]  # fmt: skip
    (one,) = [row for row in massive if row.get("neuron") is not None]
    assert (one["layer"], one["token"], one["neuron"], one["count"], one["largest_magnitude"]) == (
        1,
        "word",
        NEURON,
        1,
        500,
    )
    assert one["share"] == 1 / (MASSIVE_NAMES == "word").sum()
    assert one["median"] == np.median(np.abs(states[1]))
    for name in ("token_sd", "neuron_sd"):
        counts = [large.counts[name] for large in found]
        assert counts[1][KINDS.names.index("word"), NEURON] == 1
        # Of 10,000 normally distributed values, the chance that one is beyond 5 sd is half a percent.
        assert [count.sum() for count in counts] == [0, 1, 0]


def test_noise_has_no_massive_value_however_large_it_is(tmp_path: Path) -> None:
    found = found_in(tmp_path, [2000 * states for states in noise(2, seed=1)])
    assert all(large.largest.max() > 100 for large in found)
    assert [large.counts["massive"].sum() for large in found] == [0, 0]
    assert all(row["count"] == 0 for row in massive_rows(found[0], KINDS) if row["definition"] == "massive")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_counts_are_those_of_a_loop_in_float64(tmp_path: Path, dtype: str) -> None:
    generator = np.random.default_rng(3)
    states = [(generator.standard_t(0.8, size=(N, D)) * 0.2 + generator.normal(size=D)).astype(np.float32)]
    states[0][:, 5] = 0.25  # a neuron that does not vary
    (found,) = found_in(tmp_path, states, dtype)
    x = torch.from_numpy(states[0]).to(getattr(torch, dtype)).double().numpy()
    median, mean, sd = np.median(np.abs(x)), x.mean(0), x.std(0)
    counts = {name: np.zeros((len(KINDS.names), D), dtype=int) for name in DEFINITIONS}
    tokens = {name: np.zeros(len(KINDS.names), dtype=int) for name in DEFINITIONS}
    for t in range(N):
        kind = KINDS.names.index(MASSIVE_NAMES[t])
        of = {
            "massive": [abs(v) > 100 and abs(v) >= 1000 * median for v in x[t]],
            "token_sd": [abs(v - x[t].mean()) > 5 * x[t].std() for v in x[t]],
            "neuron_sd": [k != 5 and abs(v - mean[k]) > 5 * sd[k] for k, v in enumerate(x[t])],
        }
        for name, flags in of.items():
            counts[name][kind] += flags  # type: ignore[index]
            tokens[name][kind] += any(flags)  # type: ignore[index]
    assert found.median == median
    for name in DEFINITIONS:
        np.testing.assert_array_equal(found.counts[name], counts[name])
        np.testing.assert_array_equal(found.tokens[name], tokens[name])
        assert counts[name].sum() > 0
    for kind, name in enumerate(KINDS.names):
        np.testing.assert_array_equal(found.largest[kind], np.abs(x[name == MASSIVE_NAMES]).max(0))


@pytest.mark.parametrize("n", [1, 2, 7, 1000, 1001])
def test_the_median_is_exact(n: int) -> None:
    values = torch.from_numpy(np.random.default_rng(n).standard_cauchy(n).astype(np.float32))
    values[: n // 3] = 0.5  # ties

    def shards() -> Iterator[tuple[slice, Tensor]]:
        for first in range(0, n, 100):
            yield slice(first, first + 100), values[first : first + 100, None]

    assert median_magnitude(shards) == np.median(np.abs(values.numpy().astype(np.float64)))


def test_the_course_of_a_neuron_is_its_longest_run_of_layers(tmp_path: Path) -> None:
    states = noise(6)
    first = TOKENS.positions == 0
    for layer in (0, 2, 3):
        states[layer][first, NEURON] = 400 + layer
    (row, *others) = course_rows(found_in(tmp_path, states), KINDS)
    assert (row["definition"], row["token"], row["neuron"]) == ("massive", "[CLS]", NEURON)
    assert (row["first_layer"], row["last_layer"], row["gone_layer"], row["n_layers"]) == (2, 3, 4, 3)
    assert (row["largest_magnitude"], row["largest_layer"]) == (403, 3)
    assert {(other["definition"], other["token"], other["neuron"]) for other in others} == {
        ("token_sd", "[CLS]", NEURON)
    }


def test_a_neuron_that_stays_to_the_last_layer_is_nowhere_gone(tmp_path: Path) -> None:
    states = noise(3)
    for layer in (1, 2):
        states[layer][:, NEURON] = 300
    rows = course_rows(found_in(tmp_path, states), KINDS)
    massive = [row for row in rows if row["definition"] == "massive"]
    assert {row["token"] for row in massive} == {"[CLS]", "[SEP]", "word"}
    assert all((row["first_layer"], row["last_layer"]) == (1, 2) and "gone_layer" not in row for row in massive)


def test_no_more_than_a_few_neurons_are_listed_for_each_kind(tmp_path: Path) -> None:
    states = noise(1)
    states[0][PLACE, :20] = 900
    rows = [row for row in massive_rows(found_in(tmp_path, states)[0], KINDS) if row["definition"] == "massive"]
    assert [row["n_neurons"] for row in rows if row.get("neuron") is None] == [20, 20]
    assert sum(row.get("neuron") is not None for row in rows) == MOST_NEURONS


@pytest.mark.parametrize(("family", "special"), [("bert", {"[CLS]", "[SEP]"}), ("gpt2", {"first token"})])
def test_every_token_is_of_one_kind(
    family: str, special: set[str], checkpoints: dict[str, Path], sentences: list[str]
) -> None:
    source = resolve_model(str(checkpoints[family]))
    corpus, tokenizer = from_sentences("some", sentences[:80]), load_tokenizer(source)
    tokens = tokens_of(Request(source, corpus, [0], "float32"), tokenizer)
    kinds, sinks = by_text(tokens, tokenizer), as_sinks(tokens, corpus, tokenizer)
    assert len(kinds.names) == FREQUENT + 1 + len(special)
    assert kinds.names[-1] == sinks.names[-1] == "other tokens"
    assert set(sinks.names) == {*special, "punctuation", "other tokens"}
    for found in (kinds, sinks):
        assert special <= set(found.names)
        assert sum(members.sum() for members in found.members.values()) == tokens.n_tokens == found.counts.sum()
    first = sinks.members["[CLS]" if family == "bert" else "first token"]
    np.testing.assert_array_equal(first, tokens.positions == 0)
    marks = {tokenizer.decode([i]).strip() for i in tokens.input_ids[sinks.members["punctuation"]].tolist()}
    assert marks <= set(",.?!-")


SINKS_LENGTHS, HEADS, WIDTH, SINKS_D = (6, 3), 2, 4, 7


def made_up() -> tuple[BlockAttention, SentenceBatch, Tensor]:
    """Return random attention over a padded batch, and types of tokens."""
    generator = torch.Generator().manual_seed(0)
    n, length = len(SINKS_LENGTHS), max(SINKS_LENGTHS)
    mask = torch.arange(length) < torch.tensor(SINKS_LENGTHS)[:, None]
    ids = torch.arange(n * length).view(n, length)
    batch = SentenceBatch(torch.arange(n), ids, ids, mask, mask & (ids % length == 0), ids)
    scores = torch.randn(n, HEADS, length, length, generator=generator).masked_fill(~mask[:, None, None], -torch.inf)
    values = torch.randn(n, HEADS, length, WIDTH, generator=generator)
    values[1, :, 3:] = torch.nan  # padding
    projection = OutputProjection(
        torch.randn(HEADS, WIDTH, SINKS_D, generator=generator), torch.randn(SINKS_D, generator=generator)
    )
    types = (torch.rand(n, length, 3, generator=generator) < 0.4) & mask[:, :, None]
    attention = attention_of(1, scores.softmax(-1), torch.nan_to_num(values), projection, batch)
    return BlockAttention(1, attention.probabilities, values, projection), batch, types


def test_what_is_added_is_that_of_a_loop() -> None:
    attention, batch, types = made_up()
    found = added(attention, batch, types)
    matrix = attention.projection.matrix.double().numpy()  # type: ignore[union-attr]
    bias = attention.projection.bias.double().numpy()  # type: ignore[union-attr]
    maps, values = attention.probabilities.double().numpy(), attention.values.double().numpy()
    for s, n in enumerate(SINKS_LENGTHS):
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
                    sum((maps[s, h, i, j] * values[s, h, j] @ matrix[h] for j in of_type), np.zeros(SINKS_D))
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
    reader_tokens = accumulate(request, [attention_by_type({})], tmp_path, {"accelerator": "cpu"})["attended"].tokens
    kinds = as_sinks(reader_tokens, corpus, load_tokenizer(request.source))
    measures: list[Any] = [ContributionMeasure(kinds.members)]
    store = accumulate(request, measures, tmp_path, {"accelerator": "cpu"})["added"]
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
    made = extremes(model, name="g", **options)
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
    made = extremes(
        str(checkpoints["bert"]), name="g", corpus=str(text), runs=str(tmp_path), wandb=WandbOptions("disabled")
    )  # fmt: skip
    assert "norms of what heads add are left out" in capsys.readouterr().err
    assert {"mass", "uniform", "share"} <= set(made.sinks[0])
    assert not {"norm_mass", "added", "value_ratio", "of_stream"} & {name for row in made.sinks for name in row}
    assert any(line.startswith("The strongest sink is") for line in made.conclusions())


def _without_projections(of: Any) -> Any:
    def examined(*args: Any, **how: Any) -> AttentionReader:
        reader = of(*args, **how)
        return AttentionReader(reader.anatomy, reader.heads, None, reader.pad_token_id, reader.n_token_types)

    return examined


HELD_D, D_HEAD, OUTLIER = 64, 6, 9
HELD_LENGTHS = (5, 8, 3, 8, 11, 6)
NOTHING: NDArray[np.int64] = np.empty((1, 0), dtype=np.int64)


def sample(is_causal: bool = False) -> AttentionSample:
    sentences = np.repeat(np.arange(len(HELD_LENGTHS)), HELD_LENGTHS)
    special = np.zeros(sum(HELD_LENGTHS), dtype=bool)
    special[np.cumsum(HELD_LENGTHS) - np.array(HELD_LENGTHS)] = True
    return AttentionSample(np.arange(sum(HELD_LENGTHS)), sentences, special, is_causal)


def planted(seed: int = 0) -> tuple[Inputs, QueryKey]:
    """Return a block of two heads: the first one reads mostly the outlier, the second one everything but that."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    states = normal(sum(HELD_LENGTHS), HELD_D) + 5 * (torch.arange(HELD_D) == OUTLIER)
    query, key = 0.1 * normal(2, HELD_D, D_HEAD), 0.1 * normal(2, HELD_D, D_HEAD)
    query[0, OUTLIER], key[0, OUTLIER] = 1.5, 1.5
    query[1, OUTLIER], key[1, OUTLIER] = 0, 0
    heads = QueryKey(query, normal(2, D_HEAD), key, None)
    return Inputs(states, states.mean(0), states.std(0, correction=0).numpy()), heads


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("has_biases", [False, True])
def test_effects_are_those_of_a_loop(is_causal: bool, has_biases: bool) -> None:
    inputs, heads = planted()
    if has_biases:
        of = torch.randn(2, 2 * max(HELD_LENGTHS) - 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        heads = replace(heads, biases=of)
    asked, sets = sample(is_causal), np.array([[OUTLIER, 3], [1, 2]])
    factors = np.array([1.0, 2.5])
    found = effects(inputs, heads, asked, sets, factors)
    for h in range(2):
        for s, (held, times) in enumerate(zip(sets, factors, strict=True)):
            divergence, special, whole = 0.0, 0.0, 0.0
            for sentence in range(len(HELD_LENGTHS)):
                rows = np.flatnonzero(asked.sentences == sentence)
                changed = inputs.states[rows].clone()
                changed[:, held] -= times * (changed[:, held] - inputs.mean[held])
                p, q = (maps_of(heads, h, states, is_causal) for states in (inputs.states[rows], changed))
                for i in range(len(rows)):
                    for j in range(len(rows)):
                        middle = (p[i, j] + q[i, j]) / 2
                        divergence += sum(a * math.log(a / middle) / 2 for a in (p[i, j], q[i, j]) if a > 0)
                special += q[:, asked.special[rows]].sum()
                whole += p[:, asked.special[rows]].sum()
            n = len(asked.rows)
            assert found.divergence[h, s] == pytest.approx(divergence / n, rel=1e-9)
            assert found.special[h, s] == pytest.approx(special / n, rel=1e-9)
            assert found.whole[h] == pytest.approx(whole / n, rel=1e-9)


def maps_of(heads: QueryKey, h: int, states: torch.Tensor, is_causal: bool) -> NDArray[np.float64]:
    scores = (states @ heads.query[h] + heads.query_bias[h]) @ (states @ heads.key[h]).T
    places = torch.arange(len(states))
    scores = scores + heads.biases_at(places - places[:, None])[h]
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    made: NDArray[np.float64] = scores.softmax(1).numpy()
    return made


def test_attention_is_exactly_the_same_where_no_neuron_is_held() -> None:
    inputs, heads = planted()
    found = effects(inputs, heads, sample(), NOTHING, np.ones(1))
    assert found.divergence.tolist() == [[0.0], [0.0]]
    np.testing.assert_array_equal(found.special[:, 0], found.whole)


def test_an_outlier_that_a_head_reads_has_the_least_p_and_one_that_it_does_not_read_has_the_largest() -> None:
    inputs, heads = planted()
    made = compare(4, [OUTLIER], inputs, heads, sample(), seed=0)
    assert made.n_draws == NEAREST
    block, reads, does_not = fixed_outlier_rows([made], seed=0)
    assert [row.get("head") for row in (block, reads, does_not)] == [None, 1, 2]
    assert reads["divergence_p"] == reads["divergence_scaled_p"] == 1 / (1 + NEAREST)
    assert reads["divergence"] > 5 * reads["divergence_matched_high"]
    assert does_not["divergence"] == 0
    assert does_not["special_held"] == does_not["special"]
    assert does_not["divergence_p"] == does_not["special_p"] == 1
    assert reads["divergence_p_holm"] == pytest.approx(2 / (1 + NEAREST))
    assert block["divergence"] == pytest.approx(reads["divergence"] / 2)
    assert block["divergence_p_holm"] == block["divergence_p"]


def test_neurons_that_are_no_outliers_have_no_small_p_more_often_than_chance() -> None:
    generator = np.random.default_rng(0)
    p = []
    for seed in range(60):
        inputs, heads = planted(seed)
        (neuron,) = generator.choice(np.setdiff1d(np.arange(HELD_D), OUTLIER), 1)
        row, *_ = fixed_outlier_rows([compare(1, [neuron], inputs, heads, sample(), seed, without=[OUTLIER])], seed)
        p.append(row["divergence_p"])
    assert np.mean(np.array(p) <= 0.1) < 0.25
    assert 0.35 < np.mean(p) < 0.7


def test_matched_sets_are_distinct_and_hold_no_outlier_by_any_definition() -> None:
    sd = np.linspace(1, 2, HELD_D)
    one = distinct_sets(sd, [OUTLIER], DRAWS, np.random.default_rng(0), without=[10])
    assert len(one) == NEAREST == len(np.unique(one))
    assert not {OUTLIER, 10} & set(one.flatten().tolist())
    assert np.abs(one - OUTLIER).max() <= NEAREST
    several = distinct_sets(sd, [OUTLIER, 40, 41], DRAWS, np.random.default_rng(0), without=[10])
    assert several.shape == (DRAWS, 3) == np.unique(several, axis=0).shape
    assert not {OUTLIER, 10, 40, 41} & set(several.flatten().tolist())
    assert all(len(set(row)) == 3 for row in several.tolist())


def test_scaled_sets_take_away_the_variance_of_the_outliers() -> None:
    inputs, heads = planted()
    inputs = replace(inputs, sd=np.where(np.arange(HELD_D) == OUTLIER, 3.0, 1.5))
    made = compare(1, [OUTLIER], inputs, heads, sample(), seed=0)
    assert made.sd_ratio == 2
    sets = distinct_sets(inputs.sd, [OUTLIER], DRAWS, np.random.default_rng([0, 1, 5]))
    scaled = effects(inputs, heads, sample(), sets, np.full(len(sets), 2.0))
    np.testing.assert_allclose(made.effects.divergence[:, 1 + len(sets) :], scaled.divergence, rtol=1e-12)


def test_the_row_of_all_blocks_is_the_mean_over_their_heads() -> None:
    inputs, heads = planted()
    chosen = {1: [OUTLIER], 2: [OUTLIER, 3]}
    several = [compare(layer, held, inputs, heads, sample(), seed=0) for layer, held in chosen.items()]
    whole, *rows = fixed_outlier_rows(several, seed=0)
    assert (whole["layer"], whole["neurons"], whole["n_draws"]) == (ALL_LAYERS, f"3 {OUTLIER}", DRAWS)
    of_heads = [row for row in rows if "head" in row]
    assert len(of_heads) == 4
    assert whole["divergence"] == pytest.approx(np.mean([row["divergence"] for row in of_heads]))
    assert whole["divergence_p"] == pytest.approx(1 / (1 + DRAWS))


def test_attention_that_does_not_follow_from_queries_and_keys_is_noticed() -> None:
    inputs, heads = planted()
    found = effects(inputs, heads, sample(), NOTHING, np.ones(1))
    assert agrees(found, found.whole + 0.005)
    assert not agrees(found, found.whole + np.array([0, 0.02]))
