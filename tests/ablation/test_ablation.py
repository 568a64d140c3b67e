"""Units that are ablated: passes over a text without them, their effects, and probes that are trained again."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pages import ROOT
from probing.cli.options import declared
from probing.errors import UserError
from probing.interventions import INTERCHANGE, NEURON_KINDS, READOUTS_OF_UNITS, HeadReplacement, measure_of
from probing.interventions import probed_task as retraining
from probing.interventions.forward import Readers, ReadText, padded
from probing.interventions.frozen_probes import ProbeReadout
from probing.interventions.heads import (
    KINDS,
    OF_HEADS,
    AblationJob,
    HeadPasses,
    Replacements,
    all_jobs,
    chosen_units,
    uniform_outputs,
    with_heads,
)
from probing.interventions.passes import fingerprint_of
from probing.interventions.probed_task import Frozen, Labelled, ProbedTask, frozen_of, retrained, task_of_run
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training
from probing.runs.run import Run
from probing.statistics import difference_interval, difference_p_value, mean_interval
from probing.statistics.chance import holm
from probing.studies.ablate import AblateOptions
from probing.studies.ablate.neuron_tables import OF_NEURONS
from probing.studies.ablate.survey import PassScores, better_without_rows, effect_rows, pass_scores_of, raising_rows
from probing.text import Corpus
from probing.text.tasks import load_task
from probing.text.tokens import Tokens
from synthetic import make_tokens
from tiny_models import Case, of_whole_model, weights_of

pytestmark = pytest.mark.numeric


@pytest.fixture(scope="module")
def case(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Case:
    return Case(checkpoints["bert"], tmp_path_factory.mktemp("cache"), sentences)


@pytest.mark.slow
@torch.no_grad()
def test_without_a_change_the_probes_read_what_they_read_from_the_whole_model(case: Case) -> None:
    passes = case.passes()
    for block in (1, 2, 3):
        right = passes.run(AblationJob(block, None, None))
        assert right.shape == (4 - block, 20)
        for i, layer in enumerate(range(block, 4)):
            assert torch.equal(right[i], of_whole_model(case, layer))
    assert np.array_equal(case.passes().readout.n, _n_examples(case))


def test_every_kind_of_replacement_and_every_readout_has_its_words() -> None:
    assert get_args(HeadReplacement) == KINDS
    options, page = declared(AblateOptions), (ROOT / "docs" / "ablate.md").read_text(encoding="utf-8")
    for names, option in ((KINDS, "kinds"), (NEURON_KINDS, "kinds"), (READOUTS_OF_UNITS, "readouts")):
        assert all(re.search(rf"\b{name}\b", options[option].help) for name in names)
        assert all(re.search(rf"`{name}[`=]", page) for name in names)
    assert set(OF_NEURONS) == {*NEURON_KINDS, INTERCHANGE}
    assert all(measure_of(name).loss for name in READOUTS_OF_UNITS)


def _n_examples(case: Case) -> list[int]:
    tokens, labels = case.text.tokens, case.labels
    return [int((labels[tokens.of_sentences(i, 1)] >= 0).sum()) for i in range(tokens.n_sentences)]


def test_every_kind_of_replacement_changes_something_and_the_jobs_name_all_of_them(case: Case) -> None:
    passes, jobs = case.passes(), all_jobs(3, 2)
    assert len(set(jobs)) == len(jobs) == 3 * (1 + 2 * len(OF_HEADS) + len(KINDS))
    intact = passes.run(AblationJob(1, None, None))
    found = {job: passes.run(job) for job in jobs if job.block == 1 and job.kind is not None}
    for right in found.values():
        assert not torch.equal(right, intact)
    distinct = {right.numpy().tobytes() for right in found.values()}
    assert len(distinct) == len(found)


def test_replaced_outputs_are_what_they_are_called(case: Case) -> None:
    passes = case.passes()
    replacements = passes.replacements(2)
    everything = padded(case.text.tokens, np.arange(case.text.tokens.n_sentences), case.pad)
    replaced = torch.ones(*everything.mask.shape, 8)
    outputs = _outputs_of_heads(case, case.train, 2)
    assert torch.allclose(replacements.mean, outputs.mean(0), atol=1e-6)
    drawn = replacements.of("resample", slice(8, 16), replaced, everything)[everything.mask]
    distances = torch.cdist(drawn, outputs[:, 8:16], compute_mode="donot_use_mm_for_euclid_dist")
    assert distances.min(1).values.max() < 1e-5  # each is the output at some training token
    assert len(distances.argmin(1).unique()) > case.text.tokens.n_tokens / 3
    assert not replacements.of("zero", slice(0, 8), replaced, everything).any()


def _outputs_of_heads(case: Case, text: ReadText, block: int) -> Tensor:
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
    passes = HeadPasses(Readers.of(case.encoder, case.pad, "tiny"), case.train, case.train, 256, seed=0)
    drawn = passes.replacements(1).drawn.numpy()
    sentences = case.train.tokens.sentences
    assert not (sentences[drawn] == sentences).any()
    assert len(set(sentences[drawn])) == 20


def test_a_sentence_gives_the_same_alone_as_in_a_padded_batch(case: Case) -> None:
    together, alone = case.passes(), case.passes(batch_tokens=1)
    for job in (
        AblationJob(1, 2, "uniform"),
        AblationJob(2, 1, "resample"),
        AblationJob(2, None, "mean"),
        AblationJob(1, None, "skip"),
    ):
        assert torch.equal(together.run(job), alone.run(job))


def test_ablation_changes_nothing_where_attention_is_uniform_already(
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
        intact = passes.run(AblationJob(block, None, None))
        for head in (1, 2, None):
            assert torch.equal(passes.run(AblationJob(block, head, "uniform")), intact)
            assert not torch.equal(passes.run(AblationJob(block, head, "zero")), intact)


@pytest.mark.slow
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
        effect = passes.run(job) - passes.run(AblationJob(job.block, None, None))
        if job.block == 2 and job.head in (2, None):
            assert effect[0].abs().sum() > 5
        else:
            assert not effect.any(), job


def test_the_model_is_what_it_was_to_the_bit_also_after_an_error(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = dict(case.encoder.named_modules())
    before = {name: value.clone() for name, value in case.encoder.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in modules.items()}
    passes = case.passes()
    passes.run(AblationJob(2, 1, "uniform"))
    hooks = {name: (len(module._forward_pre_hooks), len(module._forward_hooks)) for name, module in modules.items()}

    def fail(*args: Any) -> Any:
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(ProbeReadout, "right", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            passes.run(AblationJob(2, 1, "mean"))
    with monkeypatch.context() as patch:
        block: Any = passes.model.anatomy.blocks and passes.model.anatomy.blocks[2]
        patch.setattr(type(block.intermediate), "forward", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            passes.run(AblationJob(2, 1, "uniform"))
    assert all(torch.equal(value, before[name]) for name, value in case.encoder.state_dict().items())
    assert {name: set(vars(module)) for name, module in modules.items()} == attributes
    for name, module in modules.items():
        assert (len(module._forward_pre_hooks), len(module._forward_hooks)) == hooks[name]
    assert torch.equal(passes.run(AblationJob(2, None, None))[0], of_whole_model(case, 2))


def test_a_causal_model_is_read_too(checkpoints: dict[str, Path], tmp_path: Path, sentences: list[str]) -> None:
    passes = Case(checkpoints["gpt2"], tmp_path, sentences).passes()
    uniform = passes.replacements(1).uniform
    assert len(uniform) == passes.passes.tokens.n_tokens
    assert not torch.equal(passes.run(AblationJob(1, 1, "uniform")), passes.run(AblationJob(1, None, None)))


def test_fingerprints_tell_arrays_apart_by_their_values_and_not_by_how_they_lie_in_memory() -> None:
    values = torch.arange(6.0).view(2, 3)
    assert fingerprint_of(values) == fingerprint_of(values.T.contiguous().T)
    assert fingerprint_of(values) != fingerprint_of(values.T)
    assert fingerprint_of(values) != fingerprint_of(values + 1e-6)


N = np.full(60, 10)


def measured(
    effects: Mapping[tuple[int, int], float] | Mapping[tuple[int, None], float], seed: int = 0, kind: str = "mean"
) -> list[PassScores]:
    """Return passes over 60 sentences of 10 tokens, 6 of which are right while nothing is ablated."""
    generator = np.random.default_rng(seed)
    intact = np.full(60, 6.0)
    return [
        PassScores(
            AblationJob(block, head, kind),  # type: ignore[arg-type]
            "position",
            3,
            intact + generator.binomial(2, 0.5, 60) - 1 + 10 * e,  # type: ignore[arg-type]
            intact,
            N,
        )
        for (block, head), e in effects.items()
    ]


def test_an_effect_is_the_difference_of_accuracies_paired_by_sentence() -> None:
    made = measured({(1, 1): -0.1, (1, 2): 0.0, (2, 1): 0.05})
    rows = effect_rows(made)
    assert [row["unit"] for row in rows] == ["1-1", "1-2", "2-1"]
    raw = []
    for one, row in zip(made, rows, strict=True):
        assert row["intact"] == pytest.approx(0.6)
        assert row["value"] == pytest.approx(one.right.sum() / 600)
        assert row["effect"] == pytest.approx(row["value"] - row["intact"])
        difference = one.right - one.intact
        assert (row["low"], row["high"]) == difference_interval(difference, N)
        raw.append(difference_p_value(difference, N))
    assert [row["p_value"] for row in rows] == pytest.approx(holm(raw))
    # The head that costs most is at 100, the one that costs least at 0.
    assert [row["percentile"] for row in rows] == [100, 50, 0]
    # Heads that cost the same do not cost less.
    assert [row["percentile"] for row in effect_rows([made[1], made[0], made[1]])] == [0, 100, 0]


def test_heads_and_layers_and_kinds_are_corrected_and_ranked_by_themselves() -> None:
    heads, others = measured({(1, 1): -0.1, (1, 2): 0.0}), measured({(1, 1): -0.1}, kind="zero")
    layers = measured({(1, None): -0.1, (2, None): 0.02})
    together = effect_rows([*heads, *others, *layers])
    for part, rows in ((heads, together[:2]), (others, together[2:3]), (layers, together[3:])):
        assert [row["p_value"] for row in rows] == [row["p_value"] for row in effect_rows(part)]
    assert all(math.isnan(row["percentile"]) for row in together[2:])
    assert [row["unit"] for row in together[3:]] == ["1", "2"]


def test_the_layers_of_a_pass_are_told_apart() -> None:
    right, intact = np.array([[5.0] * 30, [4.0] * 30]), np.array([[6.0] * 30, [6.0] * 30])
    n = np.full(30, 10)
    found = pass_scores_of(
        {AblationJob(2, None, None): intact, AblationJob(2, 1, "zero"): right}, {2: [2, 3]}, n, "position"
    )
    assert [(row["layer"], row["effect"]) for row in effect_rows(found)] == [
        (2, pytest.approx(-0.1)), (3, pytest.approx(-0.2)),
    ]  # fmt: skip


def test_being_better_without_a_head_is_told_of_sentences_that_it_was_not_chosen_on() -> None:
    heads = {(block, head): 0.0 for block in range(1, 4) for head in range(1, 9)}
    (row,) = better_without_rows(measured(heads | {(2, 5): 0.2}), seed=0)
    assert (row["units"], row["unit"], row["n"]) == ("heads", "2-5", 30)
    assert row["low"] < row["effect"] < row["high"]
    assert row["effect"] == pytest.approx(0.2, abs=0.03)
    assert row["p_value"] < 0.001


def test_where_no_head_helps_the_best_one_seldom_seems_to() -> None:
    heads = {(block, head): 0.0 for block in range(1, 4) for head in range(1, 9)}
    rows = [better_without_rows(measured(heads, seed), seed)[0] for seed in range(100)]
    assert np.mean([row["effect_chosen_on"] for row in rows]) > 0.015  # chosen among 24, it seems to on its own half
    assert abs(np.mean([row["effect"] for row in rows])) < 0.004
    assert sum(row["p_value"] < 0.05 for row in rows) <= 9


def test_of_a_loss_less_is_better_and_its_interval_is_that_of_a_mean() -> None:
    generator = np.random.default_rng(0)
    intact = generator.gamma(3, 8, 60)
    made = [
        PassScores(AblationJob(1, head, "zero"), "mlm", 3, intact + 10 * of + generator.normal(0, 0.5, 60), intact, N)
        for head, of in ((1, 0.4), (2, 0.0), (3, -0.3))
    ]
    rows = effect_rows(made)
    assert [row["percentile"] for row in rows] == [100, 50, 0]
    for one, row in zip(made, rows, strict=True):
        assert (row["low"], row["high"]) == mean_interval(one.right - one.intact, N)
    assert rows[0]["p_value"] < 0.001 < 0.05 < rows[1]["p_value"]
    (best,) = better_without_rows(made, seed=0)
    assert best["unit"] == "1-3"
    assert best["effect"] == pytest.approx(-0.3, abs=0.05)


def test_units_without_which_a_measure_rises_are_counted_beside_what_chance_gives() -> None:
    some = measured({(1, head): 0.2 if head <= 9 else -0.2 for head in range(1, 13)})
    (row,) = raising_rows(some, 0)
    assert (row["units"], row["n_units"], row["n_better"]) == ("heads", 12, 9)
    assert row["n_clear"] == 9
    assert row["p_value"] < 0.05
    (all_rise,) = raising_rows(measured({(1, head): 0.2 for head in range(1, 13)}), 0)
    assert all_rise["n_better"] == 12
    assert all_rise["p_value"] < 0.01
    # Of a loss, units without which it falls are counted.
    losses = [PassScores(one.job, "mlm", 3, one.right, one.intact, one.n) for one in some]
    assert raising_rows(losses, 0)[0]["n_better"] == 3
    # What changes nothing is not better, however often signs are drawn.
    same = [PassScores(AblationJob(1, 1, "zero"), "tuned", 3, some[0].intact, some[0].intact, N)]
    (still,) = raising_rows(same, 0)
    assert (still["n_better"], still["n_chance_high"], still["p_value"]) == (0, 0, 1)
    # Layers and kinds are counted by themselves, in the highest layer that is read, and corrected for their number.
    others = [PassScores(AblationJob(1, None, "zero"), "position", 3, some[0].right, some[0].intact, N)]
    below = [PassScores(one.job, "position", 2, one.right, one.intact, N) for one in some]
    both = raising_rows([*below, *some, *others], 0)
    assert [(one["units"], one["layer"]) for one in both] == [("heads", 3), ("layers", 3)]
    assert both[0]["p_value"] >= row["p_value"]


def test_units_that_go_together_are_not_more_than_chance_gives() -> None:
    """Thirty heads that share most of what they change by chance: in 5% of texts, most of them rise together."""
    n_claims, intact = 0, np.full(60, 6.0)
    for seed in range(200):
        generator = np.random.default_rng(seed)
        shared = generator.normal(size=60)
        heads = [
            PassScores(
                AblationJob(1, head, "zero"), "tuned", 3, intact + shared + 0.3 * generator.normal(size=60), intact, N
            )
            for head in range(1, 31)
        ]
        (row,) = raising_rows(heads, seed)
        n_claims += row["p_value"] < 0.05
    assert n_claims <= 18


@dataclass
class Store:
    tokens: Tokens


def of_labels(labels: list[str], name: str = "task") -> ProbedTask:
    corpus = Corpus(
        "made up", ("one two", "three"), words=(("one", "two"), ("three",)), columns={"label": _rows(labels)}
    )
    frozen = Frozen({1: torch.ones(2, 3)}, np.array(["x", "y"], dtype=object))
    task = load_task("label" if name == "task" else "position")
    return ProbedTask(name, task, frozen, cast(Any, None), [corpus], [["train", "test"]], 0)


def _rows(labels: list[str]) -> Any:
    return (tuple(labels[:2]), tuple(labels[2:]))


def test_classes_are_texts_or_numbers_as_labels_are() -> None:
    weight = {1: torch.zeros(2, 3)}
    assert frozen_of(weight, ["ADJ", "NOUN"], "--run r").classes.dtype == object
    assert frozen_of(weight, [0, 4], "--run r").classes.dtype == np.int64
    with pytest.raises(UserError, match="`--run r` has probes of the embeddings alone"):
        frozen_of({}, [0, 1], "--run r")


def test_the_key_changes_with_the_labels_but_not_with_where_they_are_from() -> None:
    tokens = make_tokens([4, 3])
    store = cast(Any, Store(tokens))
    same, again, other = (
        of_labels(labels).key([store]) for labels in (["x", "y", "x"], ["x", "y", "x"], ["x", "x", "x"])
    )
    assert same == again
    assert same["labels"] != other["labels"]
    assert set(of_labels(["x", "y", "x"], "position").key([store])) == {"probes", "retrained"}


def test_a_task_without_classes_serves_where_none_are_needed(tmp_path: Any) -> None:
    config = {"task": "sentence_label", "task_args": {"numbers": True}}
    run = cast(Run, type("R", (), {"config": config, "folder": tmp_path, "results": {}})())
    assert task_of_run(run, "--run r", False, ["mean", "zero"]) is not None
    for reads, kinds in ((True, ["mean"]), (False, ["translate"]), (False, ["mean", "shuffled"])):
        with pytest.raises(UserError, match="its task sentence_label predicts numbers"):
            task_of_run(run, "--run r", reads, kinds)


@pytest.mark.parametrize("is_causal", [False, True])
def test_uniform_outputs_are_the_means_of_the_values_that_a_query_may_see(is_causal: bool) -> None:
    values = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    lengths = (5, 3)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    values[1, :, 3:] = 1e4  # of padding, which must not count
    found = uniform_outputs(values, mask, is_causal)
    assert found.shape == (2, 5 if is_causal else 1, 12)
    for sentence, n in enumerate(lengths):
        for query in range(n):
            for head in range(3):
                seen = range(query + 1) if is_causal else range(n)
                expected = sum(values[sentence, head, key] for key in seen) / len(seen)
                at = found[sentence, query if is_causal else 0, 4 * head : 4 * head + 4]
                assert torch.allclose(at, torch.as_tensor(expected), atol=1e-5)


def test_only_the_columns_of_the_heads_are_replaced_and_the_original_stays() -> None:
    outputs = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    before = outputs.clone()
    changed = with_heads(outputs, slice(4, 8), torch.arange(4.0))
    assert torch.equal(outputs, before)
    assert torch.equal(changed[..., :4], before[..., :4])
    assert torch.equal(changed[..., 8:], before[..., 8:])
    assert torch.equal(changed[..., 4:8], torch.arange(4.0).expand(2, 5, 4))


def test_a_whole_block_cannot_stand_in_the_place_of_outputs() -> None:
    nothing = torch.zeros(1, 4)
    made = Replacements(nothing, False, nothing[0], nothing, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="skip replaces no outputs"):
        made.of("skip", slice(0, 2), nothing[None], cast(Any, None))


TRAINING = Training(Penalty(0.0, 1e-3), Lbfgs(1e-4), trainer={"accelerator": "cpu"})


@dataclass
class Planted:
    """Stands for passes over 30 sentences of 5 tokens, whose states tell the class unless head 1 of block 1 is gone.

    Args:
        seed: Seed of the states.
    """

    seed: int
    d_model: int = 6

    def __post_init__(self) -> None:
        self.tokens = Tokens(
            np.full(30, 5, dtype=np.int32), np.ones(150, dtype=np.int32), np.zeros(150, dtype=np.int16)
        )
        self.labels = np.random.default_rng(self.seed).integers(3, size=150).astype(np.int32)
        self.asked: list[tuple[int, ...]] = []

    def states(self, job: AblationJob, layers: list[int]) -> dict[int, Tensor]:
        self.asked.append(tuple(layers))
        noise = torch.randn(150, 6, generator=torch.Generator().manual_seed(self.seed))
        told = torch.nn.functional.one_hot(torch.from_numpy(self.labels).long(), 6) * 8.0
        return {layer: noise + (0 if job.head == 1 and layer == 2 else told) for layer in layers}


@pytest.mark.parametrize("memory", [2**29, 1])
def test_a_probe_that_is_trained_again_reads_what_is_still_there(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retraining, "MEMORY", memory)  # with little of it, layer after layer
    train, test = Planted(0), Planted(1)
    parts = [Labelled(cast(HeadPasses, one), one.labels, load_task("position", {})) for one in (train, test)]
    classes: Any = np.arange(3)
    for head, share in ((1, 0.34), (2, 1.0)):
        right = retrained(parts[0], parts[1], classes, AblationJob(1, head, "zero"), TRAINING, [1, 2])
        assert right.shape == (2, 30)
        assert right[0].sum() / 150 > 0.98
        assert right[1].sum() / 150 == pytest.approx(share, abs=0.14)
    assert test.asked == ([(1, 2)] * 2 if memory > 1 else [(1,), (2,)] * 2)


def test_the_strongest_heads_and_layers_and_random_others_are_chosen() -> None:
    jobs = [job for job in all_jobs(4, 3) if job.kind in ("uniform", "zero", "skip", None)]
    effects = {job: -float(i) for i, job in enumerate(reversed(jobs)) if job.kind is not None}
    found = chosen_units(jobs, effects, 2, seed=0)
    assert all(job.kind == "uniform" for job in found)
    heads, layers = ([job for job in found if (job.head is None) is wanted] for wanted in (False, True))
    assert [job.unit for job in heads[:2]] == ["1-1", "1-2"]
    assert [job.unit for job in layers[:2]] == ["1", "2"]
    assert len(set(heads)) == len(set(layers)) == 4
    others = {job.unit for seed in range(30) for job in chosen_units(jobs, effects, 2, seed)[2:4]}
    assert len(others) == 10  # any of the others may be drawn
    assert chosen_units(jobs, effects, 99, 0)  # more than there are
