"""From sentences to stored sums, and from sums to rows with intervals, in models of several families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

from conftest import N_LAYERS
from families import CORE, few_quickly, untouched
from probing.activations import Request
from probing.errors import RunError, UserError
from probing.heads import accumulation
from probing.heads import measures as means
from probing.heads.accumulation import BatchValues, BlockAttention, Measure, SentenceBatch, SumsStore, accumulate
from probing.heads.measures import CLASSES, SentenceDraws, class_rows, measure_rows, type_rows
from probing.heads.parts import measurable, measure
from probing.heads.survey import HeadSurvey
from probing.models import load_tokenizer, resolve_model
from probing.statistics import ENDS, MIN_SENTENCES
from probing.statistics.chance import percentile_interval, resampled_means, sentence_counts
from probing.text import Corpus, from_sentences
from probing.text.tokens import Tokens

pytestmark = pytest.mark.numeric

CPU = {"accelerator": "cpu"}
CAUSAL = ("openai-gpt", "gpt2", "gpt_neox", "llama")


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a small corpus several shards."""
    monkeypatch.setattr(accumulation, "SHARD_TOKENS", 300)


def sums_of(attention: BlockAttention, batch: SentenceBatch) -> Mapping[str, Tensor]:
    """Three sums, one of them with an axis of its own."""
    probabilities = attention.probabilities.double()
    to = torch.arange(probabilities.shape[-1], dtype=torch.float64)
    found = {
        "to_special": (probabilities * batch.special[:, None, None, :]).sum((2, 3)),
        "end": probabilities @ to,
        "squares": (probabilities**2).sum((2, 3)),
    }
    found["end"] = torch.stack([found["end"].sum(2), (found["end"] ** 2).sum(2)], dim=2)
    if attention.projection:
        norms = attention.value_norms() * batch.mask[:, None]
        found["norms"] = (probabilities @ norms[..., None]).sum((2, 3))
    return found


@torch.no_grad()
def naive(folder: Path, sentences: list[str], causal: bool) -> dict[str, np.ndarray]:
    """Compute the same with numpy, one sentence and one head at a time, from what transformers returns."""
    model = untouched(folder, attn_implementation="eager")
    tokenizer = load_tokenizer(resolve_model(str(folder)))
    found: dict[str, list[Any]] = {"to_special": [], "end": [], "squares": []}
    for sentence in sentences:
        encoded = tokenizer(sentence)
        special = np.array([word is None for word in encoded.word_ids()])
        special[0] |= causal
        ids = torch.tensor([encoded["input_ids"]])
        maps = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True).attentions
        if model.config.model_type == "prophetnet":  # it returns the scores
            maps = [scores.softmax(-1) for scores in maps]
        rows: dict[str, list[Any]] = {name: [] for name in found}
        for layer in maps:
            of_heads = [head.numpy().astype(np.float64) for head in layer[0]]
            rows["to_special"].append([sum(row[special].sum() for row in head) for head in of_heads])
            ends = [[sum(j * p for j, p in enumerate(row)) for row in head] for head in of_heads]
            rows["end"].append([[sum(end), sum(e * e for e in end)] for end in ends])
            rows["squares"].append([sum((row * row).sum() for row in head) for head in of_heads])
        for name, values in rows.items():
            found[name].append(values)
    return {name: np.array(values) for name, values in found.items()}


@pytest.fixture
def request_for(checkpoints: dict[str, Path], sentences: list[str]) -> Callable[..., Request]:
    """Ask for the attention of a tiny model over some sentences, in batches of a few of them."""

    def ask(family: str = "bert", n: int = 30, model: Path | None = None, **options: Any) -> Request:
        source = resolve_model(str(model or checkpoints[family]))
        return Request(source, from_sentences("made up", sentences[:n]), (), **{"batch_tokens": 150, **options})

    return ask


PLAIN = Measure.of_blocks("plain", sums_of)


@pytest.mark.slow
@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("family", few_quickly(CORE))
def test_sums_are_those_of_a_loop_over_single_sentences(
    request_for: Callable[..., Request], tmp_path: Path, checkpoints: dict[str, Path], sentences: list[str], family: str
) -> None:
    store = accumulate(request_for(family, 16), [PLAIN], tmp_path, CPU)["plain"]
    assert len(store.plan.shards) > 1
    expected = naive(checkpoints[family], sentences[:16], family in CAUSAL)
    for name, values in expected.items():
        found = store.by_sentence(name)
        assert found.dtype == torch.float64
        assert found.shape[:2] == (16, N_LAYERS[family])
        # The forward pass is in float32, and a batch and a single sentence are rounded otherwise.
        assert_close(found.numpy(), values, rtol=2e-5, atol=2e-6)


@pytest.mark.usefixtures("small_shards")
def test_batches_and_shards_change_nothing(
    request_for: Callable[..., Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = accumulate(request_for(), [PLAIN], tmp_path / "a", CPU)["plain"]
    monkeypatch.setattr(accumulation, "SHARD_TOKENS", 10_000)
    alone = accumulate(request_for(batch_tokens=1), [PLAIN], tmp_path / "b", CPU)["plain"]
    assert len(together.plan.shards) > 2
    assert len(alone.plan.shards) == 1
    assert together.names() == [f"by_sentence/{name}" for name in ("end", "norms", "squares", "to_special")]
    for name in ("to_special", "end", "squares", "norms"):
        assert_close(together.by_sentence(name), alone.by_sentence(name), rtol=2e-5, atol=2e-6)


def everything(version: int = 1) -> Measure:
    def of_corpus(tokens: Tokens, corpus: Corpus) -> Callable[[SentenceBatch], Any]:
        long = torch.tensor([len(text) > 2 for text in tokens.word_texts(corpus)])
        return lambda batch: Rollout(batch, long)

    return Measure("everything", of_corpus, {"version": version})


class Rollout:
    def __init__(self, batch: SentenceBatch, labels: Tensor) -> None:
        n = batch.mask.shape[1]
        self.labels = labels[batch.rows] & batch.mask
        self.mask, self.product = batch.mask, torch.eye(n, dtype=torch.float64).expand(len(batch.mask), n, n)

    def add(self, attention: BlockAttention) -> None:
        mean = attention.probabilities.double().mean(1)
        self.product = (mean + torch.eye(mean.shape[-1])) / 2 @ self.product

    def batch_values(self) -> BatchValues:
        to_first = self.product[:, :, 0] * self.mask
        return BatchValues({"labels": self.labels.sum(1)}, {"to_first": to_first}, {"sum": to_first.sum()[None]})


@pytest.mark.usefixtures("small_shards")
def test_a_measure_may_see_all_blocks_and_labels_and_keep_values_by_token_and_totals(
    request_for: Callable[..., Request], tmp_path: Path
) -> None:
    request = request_for()
    stores = accumulate(request, [everything(), PLAIN], tmp_path, CPU)
    store = stores["everything"]
    by_token = store.by_token("to_first")
    assert by_token.shape == (store.plan.n_tokens,)
    assert_close(store.total("sum")[0], by_token.sum())
    assert by_token[torch.from_numpy(store.tokens.offsets[:-1])].min() > by_token.mean()  # of the first token itself
    expected = [
        sum(
            len(text) > 2
            for text, own in zip(store.tokens.word_texts(request.corpus), store.tokens.sentences, strict=True)
            if own == i
        )
        for i in range(30)
    ]
    assert store.by_sentence("labels").tolist() == expected
    assert len(set(expected)) > 5
    alone = accumulate(request_for(batch_tokens=1), [everything()], tmp_path / "alone", CPU)["everything"]
    assert_close(alone.by_token("to_first"), by_token, rtol=2e-5, atol=1e-7)


# --- what is stored is not computed again, and what is damaged is ---


class Count(pl.Callback):
    """Counts shards, and interrupts the pass after some of them."""

    def __init__(self, last: int | None = None) -> None:
        self.n, self.last = 0, last

    def on_predict_batch_end(self, *args: Any, **keywords: Any) -> None:
        self.n += 1
        if self.n == self.last:
            raise KeyboardInterrupt


def contents(cache: Path) -> dict[str, bytes]:
    return {str(path.relative_to(cache)): path.read_bytes() for path in sorted(cache.rglob("*.safetensors"))}


@pytest.mark.slow
@pytest.mark.usefixtures("small_shards")
def test_an_interrupted_pass_goes_on_and_ends_with_the_same_bytes(
    request_for: Callable[..., Request], tmp_path: Path
) -> None:
    measures: list[Measure] = [PLAIN, everything()]
    whole, count = tmp_path / "whole", Count()
    accumulate(request_for(), measures, whole, CPU, callbacks=[count])
    parts, first, second, third = tmp_path / "parts", Count(2), Count(), Count()
    with pytest.raises(KeyboardInterrupt):
        accumulate(request_for(), measures, parts, CPU, callbacks=[first])
    accumulate(request_for(), measures, parts, CPU, callbacks=[second])
    assert 0 < second.n < count.n
    assert contents(parts) == contents(whole)
    accumulate(request_for(), measures, parts, CPU, callbacks=[third])
    assert third.n == 0


@pytest.mark.slow
@pytest.mark.usefixtures("small_shards")
def test_a_further_measure_a_damaged_shard_and_other_settings_are_read(
    request_for: Callable[..., Request], tmp_path: Path
) -> None:
    store = accumulate(request_for(), [PLAIN], tmp_path, CPU)["plain"]
    before, n_shards = contents(tmp_path), len(store.plan.shards)
    path = store.path(0, 1)
    save_file({name: values + 1 for name, values in load_file(path).items()}, path)
    count = Count()
    accumulate(request_for(), [PLAIN], tmp_path, CPU, callbacks=[count])
    assert (count.n, contents(tmp_path)) == (1, before)
    for expected, version in ((n_shards, 1), (0, 1), (n_shards, 2)):
        count = Count()
        accumulate(request_for(), [everything(version), PLAIN], tmp_path, CPU, callbacks=[count])
        assert count.n == expected


@pytest.mark.usefixtures("small_shards")
def test_a_model_without_attention_is_refused_and_leaves_nothing(
    tmp_path: Path, tiny_model: Callable[..., Path], request_for: Callable[..., Request]
) -> None:
    from transformers import AutoModel, FNetConfig

    folder = tiny_model("bert")
    config = FNetConfig(
        vocab_size=len(load_tokenizer(resolve_model(str(folder)))), hidden_size=16, num_hidden_layers=2,
        intermediate_size=32, max_position_embeddings=128,
    )  # fmt: skip
    AutoModel.from_config(config).save_pretrained(folder)
    with pytest.raises(UserError, match=r"has 2 blocks, and 0 attentions were seen .*choose a model with attention"):
        accumulate(request_for(model=folder), [PLAIN], tmp_path / "cache", CPU)
    assert not list((tmp_path / "cache").rglob("*.jsonl"))


@pytest.mark.usefixtures("small_shards")
def test_values_that_are_not_finite_are_refused(request_for: Callable[..., Request], tmp_path: Path) -> None:
    bad = Measure.of_blocks("bad", lambda attention, batch: {"log": attention.probabilities.sum((2, 3)).sub(1e9).log()})
    with pytest.raises(RunError, match=r"sentences 0 to \d+ of the corpus .* values of `by_sentence/log` that are not"):
        accumulate(request_for(), [bad], tmp_path, CPU)


@pytest.mark.usefixtures("small_shards")
def test_the_stored_sums_are_an_entry_of_the_cache(
    request_for: Callable[..., Request], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from probing.commands import ls, verify

    store = accumulate(request_for(), [PLAIN], tmp_path, CPU)["plain"]
    assert isinstance(store, SumsStore)
    assert ls(str(tmp_path)) == [store.folder]
    assert "sums of plain" in capsys.readouterr().out
    verify(str(tmp_path))
    assert f"{1 + len(store.plan.shards)} cached files" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "gpt2", "xlnet"])
def test_a_survey_of_a_model(checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path, family: str) -> None:
    source = resolve_model(str(checkpoints[family]))
    request = Request(source, from_sentences("made up", sentences[:30]), (), batch_tokens=300)
    subject = HeadSurvey.of(request, [1, 2], 0)
    parts, left_out = measurable(subject, ["classes", "profile", "tokens"], by_name=True)
    assert left_out == {}
    tables, stores = measure(subject, parts, tmp_path, {"accelerator": "cpu"}, lambda message: None)
    heads = tables["heads"]
    types = {row.get("to", "") for row in heads}
    assert {"special tokens", "punctuation", "negation"} < types
    assert {"[CLS]", "[SEP]"} <= types or family != "bert"
    norms = {row["value"] for row in heads if row["measure"] == "norm_mass"}
    assert (not norms) == (family == "xlnet")
    places = {(row["layer"], row["head"]) for row in heads}
    for place in places:
        rows = [row for row in heads if (row["layer"], row["head"]) == place]
        own = {(row["measure"], row.get("to", "")): row["value"] for row in rows}
        assert 0 < own["entropy", ""] <= 1
        if family == "gpt2":  # the first token is the only special one, and nothing follows
            assert own["next", ""] == 0
        if family == "bert":
            assert own["mass", "special tokens"] == pytest.approx(own["mass", "[CLS]"] + own["mass", "[SEP]"])
    of_heads = [row for row in tables["attention_classes"] if row["layer"] != "all" and row["factor"] == 1]
    assert {(row["layer"], row["head"]) for row in of_heads} == places
    assert len(of_heads) == len(places)
    again, same = measure(subject, parts, tmp_path, {"accelerator": "cpu"}, lambda message: None)
    assert repr(again) == repr(tables)
    assert [store.folder for store in same.values()] == [store.folder for store in stores.values()]


LENGTHS = np.arange(5, 45)


def test_means_and_intervals_are_those_of_a_bootstrap_of_one_column_at_a_time() -> None:
    generator = np.random.default_rng(1)
    sums = generator.normal(size=(40, 2, 3)) * LENGTHS[:, None, None]
    found = SentenceDraws(40, seed=3).means(sums, LENGTHS)
    for i in range(2):
        for j in range(3):
            draws = resampled_means(sums[:, i, j : j + 1], LENGTHS, 3)[:, 0]
            assert found.row(i, j) == pytest.approx({
                "value": sums[:, i, j].sum() / LENGTHS.sum(), "low": percentile_interval(draws, 40)[0],
                "high": percentile_interval(draws, 40)[1], "n": 40,
            })  # fmt: skip


def test_few_sentences_have_no_interval_and_draws_without_the_type_do_not_count() -> None:
    counts = np.where(np.arange(40) < 19, 2, 0)
    few = SentenceDraws(40, 0).means(np.ones((40, 1)), counts)
    assert np.isnan([few.low[0], few.high[0]]).all()
    assert (few.values[0], few.n) == (40 / 38, 19)
    seldom = SentenceDraws(20, 0).means(np.ones((20, 1)) * 3, np.ones(20))
    assert (seldom.low[0], seldom.high[0]) == (3, 3)
    none = SentenceDraws(40, 0).means(np.zeros((40, 1)), np.zeros(40))
    assert np.isnan(none.values).all()
    assert none.n == 0


def test_the_class_of_a_head_is_that_of_most_of_its_maps() -> None:
    v, d = torch.zeros(40, 2, 2), torch.zeros(40, 2, 2)
    v[:, 1, 0] = 0.9
    d[:, 1, 1] = 0.9
    d[:10, 1, 1], v[:10, 1, 1] = 0.45, 0.45
    v[0] = 9.0  # of a sentence without tokens, which is no map
    lengths = np.where(np.arange(40) > 0, LENGTHS, 0)
    rows = class_rows({"v": v, "d": d}, lengths, [2], SentenceDraws(40, 0))
    first, second = (row for row in rows if row["factor"] == 1 and row["layer"] == 2)
    assert (first["head"], first["class"], first["share"], first["n"], first["class_entropy"]) == (
        1, "vertical", 1.0, 39, 0.0
    )  # fmt: skip
    assert (second["head"], second["class"]) == (2, "diagonal")
    assert second["share"] == pytest.approx(30 / 39)
    assert second["low"] < second["share"] < second["high"]
    assert second["class_entropy"] == pytest.approx(-(30 / 39 * np.log(30 / 39) + 9 / 39 * np.log(9 / 39)))
    assert second["v"] == pytest.approx(9 * 0.45 / 39)
    for factor in (1.0, 0.75, 1.25):
        of_all = {row["class"]: row["share"] for row in rows if (row["layer"], row["factor"]) == ("all", factor)}
        assert set(of_all) == set(CLASSES) - {"block"}
        assert sum(of_all.values()) == pytest.approx(1)
    # At 1.25 times the thresholds, a share of half v and half d is still both; v + d of .9 is above .625.
    assert of_all["vertical and diagonal"] == pytest.approx(9 / 78)


def test_mass_lift_and_column_maximum_of_a_type() -> None:
    of_type = np.array([0, 2] * 20)
    mass = torch.zeros(40, 1, 2, 1, dtype=torch.float64)
    mass[:, 0, 0, 0] = torch.from_numpy(of_type * 1.0)  # uniform: as many queries' worth as there are tokens
    mass[:, 0, 1, 0] = torch.from_numpy(of_type * 3.0)
    largest = torch.where(torch.from_numpy(of_type)[:, None, None, None] > 0, 0.25, 0.0).expand(40, 1, 2, 1).double()
    tables = type_rows({"mass": mass, "column_max": largest}, {"noun": of_type}, LENGTHS, [1], SentenceDraws(40, 0))
    rows, layers = tables.values()
    found = {(row["measure"], row["head"]): row for row in rows}
    assert set(found) == {(measure, head) for measure in ("mass", "lift", "column_max") for head in (1, 2)}
    assert found["lift", 1]["value"] == 1
    assert found["lift", 2]["value"] == 3
    assert found["lift", 2]["n"] == found["column_max", 2]["n"] == 20
    assert found["mass", 2]["value"] == pytest.approx(3 * 40 / LENGTHS.sum())
    assert found["mass", 2]["n"] == 40
    assert found["column_max", 1]["value"] == 0.25
    assert [row["value"] for row in layers if row["measure"] == "lift"] == [2]
    without = type_rows({"mass": mass}, {"noun": of_type}, LENGTHS, [1], SentenceDraws(40, 0), ["noun"])
    assert without == {"heads": [], "attention_layers": []}


def test_only_the_layers_that_are_asked_for_are_reported_under_their_numbers() -> None:
    sums = np.arange(3.0)[None, :, None] * LENGTHS[:, None, None] * np.ones((1, 1, 2))
    heads, layers = measure_rows(sums, LENGTHS, [1, 3], SentenceDraws(40, 0), measure="m").values()
    assert [(row["layer"], row["head"], row["value"]) for row in heads] == [(1, 1, 0), (1, 2, 0), (3, 1, 2), (3, 2, 2)]
    assert [(row["layer"], row["value"]) for row in layers] == [(1, 0), (3, 2)]


def test_means_and_ends_are_those_of_a_loop_over_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    sums, counts = generator.random((30, 2, 3)) * 5, generator.integers(0, 7, size=30)
    monkeypatch.setattr(means, "_COLUMNS", 4)  # more than one piece
    found = SentenceDraws(30, seed=3).means(sums, counts)
    assert found.n == int((counts > 0).sum())
    times = sentence_counts(30, 3)
    for layer in range(2):
        for head in range(3):
            own = sums[:, layer, head]
            row = found.row(layer, head)
            assert row["value"] == pytest.approx(own.sum() / counts.sum())
            drawn = [float((n * own).sum() / (n * counts).sum()) for n in times.astype(float)]
            assert [row["low"], row["high"]] == pytest.approx(np.quantile(drawn, ENDS).tolist())


def test_an_interval_needs_sentences_that_count() -> None:
    counts = np.zeros(60, dtype=int)
    counts[: MIN_SENTENCES - 1] = 1
    few = SentenceDraws(60, seed=0).means(np.ones((60, 1)), counts)
    assert np.isnan([few.low, few.high]).all()
    assert few.n == MIN_SENTENCES - 1
    counts[MIN_SENTENCES - 1] = 1
    enough = SentenceDraws(60, seed=0).means(counts[:, None].astype(float), counts)
    assert enough.row(0) == {"value": 1.0, "low": 1.0, "high": 1.0, "n": MIN_SENTENCES}
    assert np.isnan(SentenceDraws(60, seed=0).means(np.zeros((60, 1)), np.zeros(60)).values).all()
