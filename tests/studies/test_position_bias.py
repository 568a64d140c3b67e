"""`position-bias`: vectors of texts, places of documents, and a planted bias found from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn

from conftest import BARE, make_sentences
from families import untouched
from probing import fit, position_bias
from probing.__main__ import COMMANDS
from probing.activations.source import ActivationSource
from probing.cli.commandline import run
from probing.downstream import Pooling
from probing.errors import UserError
from probing.models import load_tokenizer
from probing.runs import Result
from probing.runs.loading import load_run
from probing.studies.position_bias import (
    AGAINST,
    AS_WRITTEN,
    BAG,
    DELETE,
    EDITS,
    INSERT,
    MODEL,
    REPLACE,
    SHUFFLED,
    WEIGHT,
)
from probing.studies.position_bias.survey import (
    Documents,
    DocumentTexts,
    Pooled,
    PositionPart,
    bag_of_words,
    bias,
    bias_rows,
    changes,
    middle,
    texts_of,
    values_of,
    weights,
)
from probing.text import from_sentences
from probing.text.tokens import Tokens
from rendering import rendered
from small_data import sentence_pairs, write_benchmark
from synthetic import make_store, make_tokens, positional
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = pytest.mark.numeric

NONE: Any = {"mode": "disabled"}
SIZES = {"sentences": 4, "documents": 24, "top": 3, "draws": 3}


def plant(folder: Path, growth: float) -> Path:
    """Make a checkpoint in which no token sees another, and whose position embeddings grow with the position.

    The layer norms take from a word what its position adds, so that later words count less; without growth, all words
    count the same, wherever they are.
    """
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        if "attention.output.dense" in name:
            tensors[name].zero_()
    rows = next(name for name in tensors if name.endswith("position_embeddings.weight"))
    n, width = tensors[rows].shape
    direction = torch.randn(width, generator=torch.Generator().manual_seed(0))
    tensors[rows] = growth * torch.arange(n)[:, None] * direction
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(make_sentences(240, seed=5, longest=9)), encoding="utf-8")
    return path


@pytest.fixture
def options(tmp_path: Path, corpus: Path) -> dict[str, Any]:
    return {**SIZES, "corpus": str(corpus), "runs": str(tmp_path / "runs"), "quiet": True, "wandb": NONE}


def row_of(made: Any, **wanted: str) -> Any:
    (row,) = [row for row in made.bias if all(row[name] == value for name, value in wanted.items())]
    return row


@pytest.mark.slow
def test_a_bias_in_the_positions_is_found_and_none_where_words_count_the_same_everywhere(
    options: dict[str, Any], tiny_model: Callable[..., Path]
) -> None:
    folders = {growth: plant(tiny_model("bert", seed), growth) for seed, growth in enumerate((0.0, 0.05))}
    flat, falling = (position_bias(model=str(folder), edits="all", **options) for folder in folders.values())
    assert isinstance(flat, Result)
    for measure in ("replace", "delete", "insert"):
        same = {"measure": measure, "order": "shuffled"}
        for embedding in ("model", "bag", "centred"):
            assert abs(row_of(flat, embedding=embedding, **same)["start_end"]) < 1e-6
        row = row_of(falling, embedding="model", **same)
        assert row["start_end_low"] > 0
        assert row["start_end_p"] < 0.05
        assert row["relative"] > 0.1
        assert abs(row_of(falling, embedding="bag", **same)["start_end"]) < 1e-6
        removed = row_of(falling, embedding="position_removed", **same)
        assert removed["against"] == "centred"
        assert removed["relative_low"] > 0  # what positions do to the weight of words is no part that they add
    assert row_of(falling, measure="weight", order="shuffled", embedding="model")["start_end_low"] > 0
    assert "the start of a document is not shown to have more or less weight than its end" in flat.answer()[0]
    assert "the start of a document has more weight than its end" in falling.answer()[0]


@pytest.mark.slow
@rendered()
def test_everything_is_on_disk_and_repeats(
    options: dict[str, Any], checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sts").mkdir()
    write_benchmark(tmp_path / "sts", "dev", sentence_pairs(30, 0))
    args = [f"--{name}={value}" for name, value in options.items() if name not in ("wandb", "quiet")]
    args += ["--model", str(checkpoints["bert"]), "--sts", str(tmp_path / "sts"), "--figure_format=png", "--verbose"]
    assert run(COMMANDS, ["position-bias", *args, "--name=a", "--wandb.mode=offline"]) == 0
    said = capsys.readouterr()
    assert "has no file that says how it pools: the mean over all tokens is taken (--pooling)" in said.err
    assert "Relative bias of all vectors, sentences shuffled: replaced" in said.out
    assert "Similar sentences: Spearman's correlation" in said.out
    folder = Path(options["runs"]) / "a"
    tables = {"bias.csv", "places.csv", "similarity.csv"}
    assert {path.name for path in folder.iterdir()} == {*tables, "config.yaml", "results.json", "figures", "wandb"}
    assert (folder / "figures" / "position_bias.png").stat().st_size > 10_000
    assert len(read_csv(folder / "bias.csv")) == 2 * 2 * 6
    assert len(read_csv(folder / "places.csv")) == 2 * 2 * 6 * 4
    assert [row["embedding"] for row in read_csv(folder / "similarity.csv")] == [
        "model", "centred", "position_removed", "random_held", "neurons_held"
    ]  # fmt: skip
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["pooling"] == {"pooling": "mean_special", "told_by": "the default"}
    assert results["n_documents"]["measured"] == 24
    assert len(results["neurons"]) == 3
    (tracked,) = read_offline_runs(folder)
    assert len(tracked.table("bias")) == 24
    again = ["position-bias", "--config", str(folder / "config.yaml"), "--name", "b", "--wandb.mode=disabled"]
    assert run(COMMANDS, again) == 0
    for name in tables:
        assert (folder / name).read_bytes() == (folder.parent / "b" / name).read_bytes()
    made = load_run(folder)
    assert made.conclusions()[1].startswith(
        "Relative bias of the model, compared with a bag of word embeddings, which has"
    )


@pytest.mark.slow
def test_neurons_of_a_run_on_position_are_held(
    options: dict[str, Any], checkpoints: dict[str, Path], corpus_file: Path
) -> None:
    usual: dict[str, Any] = {"runs": options["runs"], "quiet": True, "wandb": NONE}
    found = fit(model=str(checkpoints["bert"]), corpus=str(corpus_file), layer=[2, 3], name="fit", **BARE, **usual)
    made = position_bias(run=found.folder, pooling="mean", **options)
    assert made.config["model"] == str(checkpoints["bert"])
    assert made.results["neurons"] == [row["neuron"] for row in found.top(3, 3)]
    with pytest.raises(UserError, match=r"expected a run with layer 1, found 2, 3; give `layer` too"):
        position_bias(run=found.folder, layer=1, **options)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sentences": 2}, r"`sentences=2` is out of range: expected at least 3"),
        ({"edits": "swap"}, r'`edits="swap"` is not one of replace, delete, insert, all'),
        ({"pooling": "max"}, r"`pooling=.max.`: expected checkpoint, mean, mean_special, cls; give one of them"),
        ({"layer": "1,2"}, r"`layer=.1,2.`: expected one layer, found 2; name one"),
        (
            {"sentences": 80},
            r"expected at least 4 runs of 80 consecutive sentences .*found 0 in .* 3 that are too long",
        ),
        ({"top": 1000}, r"`top=1000`"),
        ({"sts": "no-folder"}, r"`sts=.no-folder.` cannot be read"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_work(
    given: dict[str, Any], said: str, options: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    with pytest.raises(UserError, match=said):
        position_bias(model=str(checkpoints["bert"]), **{**options, **given})
    assert not Path(options["runs"]).exists() or not [*Path(options["runs"]).glob("*-position-bias-*")]


@pytest.mark.slow
def test_few_documents_have_no_intervals_and_that_is_said(
    options: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    made = position_bias(model=str(checkpoints["bert"]), **{**options, "documents": 5})
    assert made.conclusions()[-1] == ("There are no 95% intervals: 5 documents are too few; at least 20 are needed.")
    assert "is not tested against its end" in made.answer()[0]


Array = NDArray[np.float64]
LENGTHS = [5, 9, 3, 12, 7] * 6


@pytest.mark.parametrize("pooling", ["mean_special", "cls"])
def test_vectors_are_those_of_a_plain_loop_over_the_model(
    pooling: Pooling, tiny_model: Callable[..., Path], sentences: list[str], tmp_path: Path
) -> None:
    folder = tiny_model("bert")
    source = ActivationSource.of(str(folder), None, -1, {}, cache=tmp_path / "cache")
    (store,) = source.read([from_sentences("texts", sentences[:12])])
    found = Pooled.of(store, source.layers[0], pooling)
    model, tokenizer = untouched(folder), load_tokenizer(source.model)
    for i, text in enumerate(sentences[:12]):
        given = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            states = model(**given).last_hidden_state[0].double()
        wanted = states[0] if pooling == "cls" else states.sum(0) / len(states)
        assert found.vectors[i] == pytest.approx(wanted.numpy(), abs=1e-5)
        assert (found.first[i], found.stop[i]) == (0, 1 if pooling == "cls" else len(states))


def test_what_is_taken_from_a_vector_is_the_mean_of_what_is_taken_from_its_tokens(tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS)
    states = positional(tokens, 6, 2.0)
    store = make_store(tmp_path / "store", [states], tokens)
    states = np.concatenate([store.read(0, shard.index).numpy() for shard in store.plan.shards]).astype(np.float64)
    part = PositionPart.of(store, 0)
    assert part.mean == pytest.approx(states.mean(0))
    kinds: dict[Pooling, NDArray[np.bool_]] = {
        "mean_special": tokens.lengths[tokens.sentences] > 0,
        "mean": ~tokens.special,
    }
    for pooling, kept in kinds.items():
        part = PositionPart.of(store, 0, pooling == "mean_special")
        pooled = Pooled.of(store, 0, pooling)
        for i in range(tokens.n_sentences):
            here = tokens.of_sentences(i, 1)
            own, positions = states[here][kept[here]], tokens.positions[here][kept[here]]
            assert pooled.vectors[i] == pytest.approx(own.mean(0), abs=1e-5)
            assert part.centred(pooled)[i] == pytest.approx((own - part.mean).mean(0), abs=1e-5)
            assert part.removed(pooled)[i] == pytest.approx((own - part.means[positions]).mean(0), abs=1e-5)
            own[:, [1, 4]] = part.mean[[1, 4]]
            assert part.with_mean_neurons(pooled, [1, 4])[i] == pytest.approx(own.mean(0), abs=1e-5)


def regression(states: Array, tokens: Tokens) -> Array:
    """Return the position part by least squares on marks of positions and texts, with mean 0 over the tokens."""
    marks = [tokens.positions == one for one in range(tokens.lengths.max())]
    texts = [tokens.sentences == one for one in range(tokens.n_sentences)]
    design = np.array([*marks, *texts]).T.astype(np.float64)
    part = np.linalg.lstsq(design, states, rcond=None)[0][: len(marks)]
    return np.asarray(part - part[tokens.positions].mean(0))


def test_parts_are_those_of_a_regression_and_the_last_known_one_stands_for_later_positions(tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS)
    store = make_store(tmp_path / "store", [positional(tokens, 6, 2.0)], tokens)
    states = np.concatenate([store.read(0, shard.index).numpy() for shard in store.plan.shards]).astype(np.float64)
    part = PositionPart.of(store, 0)
    last = int(np.flatnonzero(np.bincount(tokens.positions) >= 10)[-1])
    assert last == 8  # of 30 texts, 6 are longer
    wanted = regression(states, tokens)
    assert part.means[: last + 1] == pytest.approx(states.mean(0) + wanted[: last + 1], abs=1e-6)
    assert (part.means[last:] == part.means[last]).all()
    first, stop = np.array([0, 2]), np.array([40, 5])
    means = np.concatenate([part.means[: last + 1], np.repeat(part.means[last:][:1], 31, axis=0)])
    assert part.over(first, stop) == pytest.approx(np.array([means.mean(0), means[2:5].mean(0)]))


def test_the_neurons_that_read_positions_are_found(tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS)
    states = np.random.default_rng(0).standard_normal((tokens.n_tokens, 6))
    states[:, 4] += tokens.positions
    states[:, 2] += 0.5 * tokens.positions
    states[:, 3] += tokens.sentences  # what texts add is no position
    states[:, 5] = 3.0
    store = make_store(tmp_path / "store", [states], tokens)
    part = PositionPart.of(store, 0)
    assert part.first_neurons(2) == [4, 2]
    assert part.shares[5] == 0
    assert np.abs(part.shares[[0, 1, 3]]).max() < 0.15 < part.shares[2] < part.shares[4] < 1


def test_a_bag_of_words_is_the_mean_of_the_words_rows_in_any_order() -> None:
    tokens = make_tokens([6, 6, 3, 2])
    ids = tokens.input_ids.copy()
    ids[7:11] = ids[1:5][::-1]  # the second text has the words of the first, in reverse
    object.__setattr__(tokens, "input_ids", ids)
    table = nn.Embedding(1000, 7)
    found = bag_of_words(tokens, table)
    rows = table.weight.detach().double().numpy()
    assert found[0] == pytest.approx(rows[ids[1:5]].mean(0))
    assert found[1] == pytest.approx(found[0], abs=1e-12)
    assert found[2] == pytest.approx(rows[ids[13]])
    assert (found[3] == 0).all()  # special tokens alone


Floats = NDArray[np.float64]


def documents(n: int, n_sentences: int, seed: int = 0) -> Documents:
    """Documents, and as many others, whose sentences are their own words apart."""
    sentences = make_sentences(2 * n * n_sentences, seed)
    n_tokens = np.array([len(one.split()) for one in sentences])
    index = np.arange(2 * n * n_sentences).reshape(2 * n, n_sentences)
    return Documents(sentences, index[:n], index[n:], n_tokens, 0, np.full(n, 100))


def planted(made: Documents, texts: DocumentTexts, weight: Floats, noise: float = 0.0, seed: int = 0) -> Floats:
    """Vectors of texts: weighted sums of random vectors of their words, by the place of their sentence; and noise.

    A sentence alone has weight 1. The last place of a text has the last weight, whatever the number of its sentences.
    """
    generator = np.random.default_rng(seed)
    words = sorted({word for text in texts.corpus.sentences for word in text.split()})
    of_word = dict(zip(words, generator.standard_normal((len(words), 24)), strict=True))
    ends = tuple(".?!")
    found = []
    for text in texts.corpus.sentences:
        vector, place, last = np.zeros(24), 0, sum(word.endswith(ends) for word in text.split()) - 1
        for word in text.split():
            own = 1.0 if last == 0 else weight[min(place, len(weight) - 1) if place < last else -1]
            vector += own * of_word[word]
            place += word.endswith(ends)
        found.append(vector / len(text.split()) + noise * generator.standard_normal(24))
    return np.array(found)


@pytest.mark.parametrize("n_orders", [1, 2])
def test_known_weights_of_sentences_are_recovered(n_orders: int) -> None:
    generator = np.random.default_rng(0)
    parts = generator.standard_normal((30, n_orders, 5, 16))
    wanted = np.array([2.0, 1.0, 0.5, 0.25, 0.3])
    found, explained = weights(np.einsum("i,noid->nod", wanted, parts), parts)
    assert found.shape == (30, 5)
    assert np.abs(found - wanted).max() < 1e-6
    assert explained == pytest.approx(1)


def test_weights_are_those_of_a_regression_and_their_errors_those_of_leaving_documents_out() -> None:
    generator = np.random.default_rng(1)
    parts = generator.standard_normal((25, 1, 4, 8))
    vectors = parts.sum(2) + generator.standard_normal((25, 1, 8))
    found, explained = weights(vectors, parts)

    def regression(kept: NDArray[np.int64]) -> Floats:
        design = parts[kept, 0].transpose(0, 2, 1).reshape(-1, 4)
        fit: Floats = np.linalg.lstsq(design, vectors[kept, 0].ravel(), rcond=None)[0]
        return fit

    whole = regression(np.arange(25))
    assert found.mean(0) == pytest.approx(whole, abs=1e-6)
    without = np.array([regression(np.delete(np.arange(25), i)) for i in range(25)])
    spread = np.sqrt(24 / 25 * ((without - without.mean(0)) ** 2).sum(0))
    assert found.std(0, ddof=1) / 5 == pytest.approx(spread, abs=1e-6)
    rest = vectors[:, 0] - np.einsum("i,nid->nd", whole, parts[:, 0])
    assert explained == pytest.approx(1 - (rest**2).sum() / (vectors**2).sum())


def test_an_edit_of_nothing_changes_nothing() -> None:
    vectors = np.random.default_rng(0).standard_normal((6, 10))
    intact = np.arange(6)
    assert (changes(vectors, intact, np.stack([intact, intact], axis=1)) == 0).all()
    row = bias(np.zeros((25, 4)))
    assert (row["start_end"], row["start_end_low"], row["start_end_high"], row["start_end_p"]) == (0, 0, 0, 1)


def test_equal_weights_show_no_bias_and_intervals_hold_0_as_often_as_they_say() -> None:
    holds = []
    for seed in range(200):
        generator = np.random.default_rng(seed)
        parts = generator.standard_normal((30, 2, 5, 8))
        vectors = parts.sum(2) + generator.standard_normal((30, 2, 8))
        row = bias(weights(vectors, parts)[0])
        holds.append(row["start_end_low"] <= 0 <= row["start_end_high"])
        assert (row["start_end_p"] >= 0.05) is holds[-1]
    assert 183 <= sum(holds) <= 199  # 190 are expected, of which three standard deviations are 9


def test_where_all_words_weigh_the_same_opposite_places_change_alike_in_both_orders() -> None:
    made = documents(24, 5)
    texts = texts_of(made, EDITS, 0)
    found, explained = values_of(planted(made, texts, np.ones(5)), texts)
    assert set(found) == {(name, order) for name in (*EDITS, WEIGHT) for order in (AS_WRITTEN, SHUFFLED)}
    for name in EDITS:
        values = found[name, SHUFFLED]
        assert values.shape == (24, 5 + (name == INSERT))
        assert np.abs(values - values[:, ::-1]).max() < 1e-6
        assert values.min() > 0
    assert np.ptp(found[INSERT, AS_WRITTEN], axis=1).max() < 1e-6  # the same sentence everywhere
    assert np.abs(found[WEIGHT, SHUFFLED] - 1).max() < 1e-6
    assert explained == pytest.approx({AS_WRITTEN: 1, SHUFFLED: 1})


@pytest.mark.parametrize("weight", [[3.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 3.0]])
def test_the_end_that_weighs_more_is_found_whatever_is_measured(weight: list[float]) -> None:
    made = documents(24, 5)
    texts = texts_of(made, EDITS, 0)
    found, _ = values_of(planted(made, texts, np.array(weight), 0.02), texts)
    sign = 1 if weight[0] > 1 else -1
    for name in (REPLACE, INSERT, WEIGHT):
        row = bias(found[name, SHUFFLED])
        assert sign * row["start_end"] > 0
        assert min(sign * row["start_end_low"], sign * row["start_end_high"]) > 0, name
        assert row["start_end_p"] < 0.001
    assert found[WEIGHT, SHUFFLED].mean(0) == pytest.approx(weight, abs=0.2)


def test_the_middle_is_one_place_or_two() -> None:
    assert [middle(n) for n in (3, 4, 5, 8)] == [[1], [1, 2], [2], [3, 4]]
    row = bias(np.array([[4.0, 2.0, 1.0, 0.0]] * 30))
    assert (row["at_start"], row["at_middle"], row["at_end"], row["start_middle"], row["relative"]) == (
        4,
        1.5,
        0,
        2.5,
        4 / 1.75,
    )


def test_vectors_are_compared_by_document_with_those_that_they_come_from() -> None:
    generator = np.random.default_rng(0)
    key = (REPLACE, SHUFFLED)
    own = {MODEL: generator.random((30, 4)) + 1}
    for name in (BAG, *AGAINST):
        own[name] = 3 * own[MODEL]  # another scale is no other bias
    own["position_removed"] = generator.random((30, 4)) + 1
    draws = [{key: generator.random((30, 4)) + 1} for _ in range(4)]
    rows = {row["embedding"]: row for row in bias_rows({name: {key: values} for name, values in own.items()}, draws)}
    assert [rows[name].get("against", "") for name in (MODEL, BAG, *AGAINST)] == ["", "", *AGAINST.values()]
    assert rows["centred"]["relative_difference"] == pytest.approx(0, abs=1e-12)
    other = rows["position_removed"]
    assert other["relative_difference"] == pytest.approx(other["relative"] - rows["centred"]["relative"])
    each = [bias(one[key])["relative"] for one in draws]
    assert (rows["random_held"]["least"], rows["random_held"]["most"]) == (min(each), max(each))


def test_texts_are_edited_at_the_place_that_is_said_and_nowhere_else() -> None:
    made = documents(4, 3)
    texts = texts_of(made, EDITS, 1)
    read = texts.corpus.sentences
    assert sorted(texts.orders[0].tolist()) == [[0, 1, 2]] * 4
    assert (texts.orders[1] == texts.orders[2][:, ::-1]).all()
    assert texts.shares.sum(1) == pytest.approx(1)
    others = {made.sentences[i] for i in made.others.ravel().tolist()}
    for which, order in enumerate(texts.orders):
        for i, own in enumerate(order):
            parts = [made.sentences[j] for j in made.evaluated[i, own].tolist()]
            assert read[texts.intact[which, i]] == " ".join(parts)
            assert [read[j] for j in texts.alone[i, own]] == parts
            for at in range(4):
                inserted = read[texts.edited[INSERT][which, i, at]]
                assert inserted in {" ".join([*parts[:at], one, *parts[at:]]) for one in others}
            for at in range(3):
                deleted = read[texts.edited[DELETE][which, i, at]]
                assert deleted == " ".join([*parts[:at], *parts[at + 1 :]])
                replaced = read[texts.edited[REPLACE][which, i, at]]
                assert replaced in {" ".join([*parts[:at], one, *parts[at + 1 :]]) for one in others}
    # A sentence is replaced by the same one in every order.
    for i in range(4):
        for j in range(3):
            new = set()
            for which, order in enumerate(texts.orders):
                at = int(np.flatnonzero(order[i] == j)[0])
                parts = [made.sentences[k] for k in made.evaluated[i, order[i]].tolist()]
                text = read[texts.edited[REPLACE][which, i, at]]
                before, after = " ".join(parts[:at]), " ".join(parts[at + 1 :])
                new.add(text.removeprefix(before).removesuffix(after).strip())
            assert len(new) == 1


def test_a_sentence_gives_way_to_one_of_about_its_length_for_which_there_is_room() -> None:
    made = documents(12, 4)
    texts = texts_of(made, [REPLACE], 0)
    assert texts.donor_distance < 4
    tight = replace(made, room=np.zeros(12, dtype=np.int64))
    texts = texts_of(tight, [REPLACE], 0)
    longest = [len(texts.corpus.sentences[i].split()) for i in texts.edited[REPLACE].ravel()]
    before = [len(texts.corpus.sentences[i].split()) for i in np.repeat(texts.intact.ravel(), 4)]
    assert all(a <= b for a, b in zip(longest, before, strict=True))
