"""Kinds of models are told by what models do, and by what they have, whatever they are called."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from families import masked_lm
from probing.cli.option_types import defaults
from probing.corpus import from_sentences
from probing.models import resolve_model
from probing.runs.loading import load_run
from probing.studies.claims.claim import KINDS_OF_MODELS, LARGE, kinds_of, read_paper
from probing.studies.claims.measures import MEASURES
from probing.studies.claims.planning import Given, rows_of
from probing.studies.claims.session import carry_out, plan
from probing.studies.geometry.command import geometry

# A causal mask, and none: also where the family is that of decoders.
DECODERS = {"gpt2": True, "gpt_neox": True, "llama": True, "bert": False, "albert": False, "xlnet": False, "t5": False}


@pytest.mark.parametrize(("family", "is_decoder"), sorted(DECODERS.items()))
def test_a_decoder_is_told_by_what_its_tokens_see(checkpoints: dict[str, Path], family: str, is_decoder: bool) -> None:
    found = kinds_of(resolve_model(str(checkpoints[family])), ["decoder"])
    assert found == ({"decoder"} if is_decoder else set())


@pytest.mark.parametrize("has_head", [True, False])
def test_a_masked_language_model_has_a_mask_token_and_a_head_with_weights(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path, has_head: bool
) -> None:
    folder = masked_lm(tmp_path / "masked", "bert", sentences) if has_head else checkpoints["bert"]
    found = kinds_of(resolve_model(str(folder)), ["masked language model", "large model"])
    assert found == ({"masked language model"} if has_head else set())


def test_only_what_is_asked_for_is_looked_for(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("probing.studies.claims.claim.load_encoder", refuse)
    assert kinds_of(resolve_model(str(checkpoints["gpt2"])), []) == frozenset()
    assert kinds_of(resolve_model(str(checkpoints["gpt2"])), ["large model"]) == frozenset()


def test_a_model_that_cannot_be_read_is_of_no_kind(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "model"
    shutil.copytree(checkpoints["gpt2"], broken)
    config = json.loads((broken / "config.json").read_text(encoding="utf-8"))
    (broken / "config.json").write_text(json.dumps({**config, "n_layer": LARGE}), encoding="utf-8")
    assert kinds_of(resolve_model(str(broken)), KINDS_OF_MODELS) == {"large model"}  # its weights lack most blocks


def test_a_claim_on_decoders_is_measured_on_a_decoder_that_is_given(
    checkpoints: dict[str, Path], tmp_path: Path, sentences: list[str]
) -> None:
    paper = read_paper("luo2021", MEASURES)
    claims = [claim for claim in paper.claims if claim.id == 58]
    folder = {name: str(checkpoints[name]) for name in ("gpt2", "bert")}
    named, text = {"d": folder["gpt2"], "e": folder["bert"]}, tmp_path / "text.txt"
    text.write_text("\n".join(sentences), encoding="utf-8")
    given = Given(str(text), {"other_corpus": None, "third_corpus": None})
    planned = plan(
        paper, claims, named, given, from_sentences("text", sentences), {"geometry": defaults(geometry)}, tmp_path
    )
    assert [len(planned.models[name]) for name in "de"] == [1, 0]
    assert planned.kinds == {"d": {"decoder"}, "e": frozenset()}

    def make(_: str, options: Mapping[str, Any]) -> Path:
        own: dict[str, Any] = {"runs": str(tmp_path), "quiet": True, "wandb": {"mode": "disabled"}}
        found = geometry(**options, **own, cache=str(tmp_path / "cache"))
        assert found is not None
        return found.folder

    made, _ = carry_out(planned, make, load_run, lambda line: None)
    rows = {row["model"]: row for row in rows_of(claims, made, paper)}
    assert rows["d"]["verdict"] == "analogue"
    least = min(
        row["value"] for row in made[0].runs["geometry"].geometry
        if (row["transform"], row["measure"]) == ("none", "mean_cosine") and row["layer"] not in (0, "all")
    )  # fmt: skip
    assert rows["d"]["measured"] == least
    assert rows["e"]["verdict"] == "not testable here"
    assert rows["e"]["lacking"] == f"{KINDS_OF_MODELS['decoder'].words}; e is none"
