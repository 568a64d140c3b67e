"""The tables of a survey, on heads that are made up."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from probing.cache import Request
from probing.corpus import from_sentences
from probing.heads.patterns import CLASSES
from probing.heads.survey import class_rows, read_survey, survey
from probing.models import resolve_model

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")

N, LAYERS, HEADS = 40, 2, 3
TYPES = ("special tokens", "negation")


def made_up() -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Return sums of 40 sentences and one without tokens; head 2 of layer 1 attends to special tokens alone."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.cat([torch.randint(4, 20, (N,), generator=generator), torch.zeros(1, dtype=torch.long)])
    n = lengths.double()[:, None, None]
    shares = torch.rand(N + 1, LAYERS, HEADS, generator=generator).double()
    profiles = dict.fromkeys(("entropy", "distance", "self"), shares * n)
    profiles |= dict.fromkeys(("previous", "next"), shares * (n - 1).clamp_min(0))
    profiles["n_entropy"] = n.expand(N + 1, LAYERS, 1)
    n_tokens = torch.stack([torch.full((N + 1,), 2.0), torch.arange(N + 1) % 2], dim=1).double()
    n_tokens[-1] = 0
    mass = torch.stack([shares * n, 0.1 * n_tokens[:, None, None, 1].expand_as(shares) * n], dim=3)
    mass[:, 0, 1, 0] = n[:, 0, 0]
    attended = {
        "n_tokens": n_tokens[:, None, None].expand(N + 1, LAYERS, 1, 2), "mass": mass, "norm_mass": mass / 2,
        "column_max": mass / n.clamp_min(1)[..., None],
    }  # fmt: skip
    stripes = {"v": torch.zeros(N + 1, LAYERS, HEADS).double(), "d": torch.zeros(N + 1, LAYERS, HEADS).double()}
    stripes["v"][:, 0, 1] = 0.9
    stripes["d"][:30, 1, 0] = 0.45
    return profiles, stripes, attended, lengths


def test_rows_are_means_over_queries_with_their_intervals() -> None:
    profiles, stripes, attended, lengths = made_up()
    found = survey(profiles, stripes, attended, lengths, TYPES)
    rows = {(row["layer"], row["head"], row["measure"], row["to"]): row for row in found.heads}
    assert len(rows) == len(found.heads) == LAYERS * HEADS * (5 + 4 * len(TYPES))
    one = rows[2, 3, "distance", ""]
    assert one["value"] == pytest.approx(float(profiles["distance"][:, 1, 2].sum() / lengths.sum()))
    assert one["low"] < one["value"] < one["high"]
    assert one["n"] == N
    special = rows[1, 2, "mass", "special tokens"]
    assert (special["value"], special["low"], special["high"]) == pytest.approx((1, 1, 1))
    assert rows[1, 2, "norm_mass", "special tokens"]["value"] == pytest.approx(0.5)
    share = 2 * N / float(lengths.sum())
    assert rows[1, 2, "lift", "special tokens"]["value"] == pytest.approx(1 / share)
    # Half of the sentences have a negation, and get .1; the others do not count as 0.
    column = rows[2, 1, "column_max", "negation"]
    assert (column["value"], column["n"]) == (pytest.approx(0.1), N // 2)
    assert rows[2, 1, "mass", "negation"]["n"] == N


def test_without_norms_their_rows_are_absent() -> None:
    profiles, stripes, attended, lengths = made_up()
    del attended["norm_mass"]
    found = survey(profiles, stripes, attended, lengths, TYPES)
    assert {row["measure"] for row in found.heads if row["to"]} == {"mass", "lift", "column_max"}


def test_classes_by_head_and_their_shares() -> None:
    _, stripes, _, _ = made_up()
    v, d = stripes["v"][:N], stripes["d"][:N]
    rows, shares = class_rows(v, d)
    by_head = {(row["layer"], row["head"]): row for row in rows}
    assert (by_head[1, 2]["class"], by_head[1, 2]["share"], by_head[1, 2]["class_entropy"]) == ("vertical", 1, 0)
    # Three quarters are diagonal at lower thresholds alone.
    uncertain = by_head[2, 1]
    assert (uncertain["class"], uncertain["share"], uncertain["share_lower_thresholds"]) == ("heterogeneous", 1, 0.25)
    assert uncertain["share_higher_thresholds"] == 1
    total = {row["class"]: row for row in shares}
    assert list(total) == list(CLASSES)
    assert total["vertical"]["share"] == pytest.approx(1 / 6)
    assert sum(row["share"] for row in shares) == pytest.approx(1)
    assert total["diagonal"]["share_lower_thresholds"] == pytest.approx(0.75 / 6)
    mixed = torch.zeros(40, 1, 1).double()
    mixed[:20] = 0.9
    (row,), shares = class_rows(mixed, torch.zeros_like(mixed))
    assert row["class_entropy"] == pytest.approx(math.log(2))
    assert next(row for row in shares if row["class"] == "vertical")["low"] < 0.5


@pytest.mark.parametrize("family", ["bert", "gpt2", "xlnet"])
def test_a_survey_of_a_model(checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path, family: str) -> None:
    source = resolve_model(str(checkpoints[family]))
    request = Request(source, from_sentences("made up", sentences[:30]), (), batch_tokens=300)
    found, store = read_survey(request, tmp_path, {"accelerator": "cpu"})
    types = {row["to"] for row in found.heads}
    assert {"special tokens", "punctuation", "negation"} < types
    assert {"[CLS]", "[SEP]"} <= types or family != "bert"
    norms = {row["value"] for row in found.heads if row["measure"] == "norm_mass"}
    assert (not norms) == (family == "xlnet")
    for head in {(row["layer"], row["head"]) for row in found.heads}:
        own = {(row["measure"], row["to"]): row["value"] for row in found.heads if (row["layer"], row["head"]) == head}
        assert 0 < own["entropy", ""] <= 1
        if family == "gpt2":  # the first token is the only special one, and nothing follows
            assert own["next", ""] == 0
        if family == "bert":
            assert own["mass", "special tokens"] == pytest.approx(own["mass", "[CLS]"] + own["mass", "[SEP]"])
    assert len(found.classes) == len({(row["layer"], row["head"]) for row in found.heads})
    again, same = read_survey(request, tmp_path, {"accelerator": "cpu"})
    assert again == found
    assert same.folder == store.folder
