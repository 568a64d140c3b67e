"""Claims: their files, verdicts and kinds of models, and that runs of which they are true confirm them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import ROOT
from families import masked_lm
from planted_claims import (
    attention_runs_of,
    bertology_runs_of,
    measured,
    name,
    paper,
    positions_runs_of,
    smoothing_runs_of,
    verdicts,
)
from probing.cli.commandline import converted, without_validation
from probing.cli.options import defaults
from probing.errors import UserError
from probing.models import resolve_model
from probing.runs import study_names, study_of
from probing.runs.loading import load_run
from probing.studies.claims import DATA
from probing.studies.claims import claim as module
from probing.studies.claims.claim import (
    KINDS_OF_MODELS,
    LARGE,
    Claim,
    ClaimEstimate,
    ClaimTest,
    NumberRange,
    chosen_claims,
    judge,
    kinds_of,
    paper_of,
    papers,
    read_paper,
)
from probing.studies.claims.measures import MEASURES
from probing.studies.claims.planning import Model, UserInputs, input_names, rows_of
from probing.studies.claims.session import carry_out, plan
from probing.studies.geometry import geometry
from probing.text import from_sentences

FILES = sorted((ROOT / "conf" / "claims").glob("*.yaml"))

GOOD: dict[str, Any] = {
    "title": "Somebody (2020)",
    "outliers": {"bert": {"minimum": 3}},
    "runs": {"geometry": {"command": "geometry"}},
    "claims": [
        {
            "id": 1, "says": "Neuron 3 is the smallest", "where": "section 1", "published": "90%", "models": ["bert"],
            "measure": "extreme_share", "with": {"role": "minimum"}, "criterion": "> 0.5",
        },
        {
            "id": 2, "says": "It is not", "where": "section 2", "published": "-", "models": ["bert"],
            "lacking": "a measure",
        },
    ],
}  # fmt: skip


def test_files_are_found() -> None:
    assert [file.stem for file in FILES] == papers()
    assert "luo2021" in papers()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_file_is_read_and_its_runs_are_options_of_the_real_commands(file: Path) -> None:
    found = read_paper(file.stem, MEASURES)
    assert found.claims
    data = input_names(found)
    for described in found.runs.values():
        options = dict(described)
        name = options.pop("command")
        assert name in study_names()
        command = without_validation(study_of(name).command)
        instead = options.pop("without", {})
        for asked in (options, options | instead):
            plain = {key: "text" if str(value).startswith("$") else value for key, value in asked.items()}
            plain |= {"size": "tiny"} if "size" in plain else {}
            plain |= {"folders": ["text"]} if "folders" in plain else {}
            assert set(plain) <= set(defaults(command))
            assert set(converted(command, plain)) == set(plain)  # refuses values that the command would not take
    assert set(data) <= {*DATA, "size"}  # of encoders that are trained here


def test_a_claim_is_read_with_its_reading_and_its_analogue() -> None:
    found = paper_of("x", GOOD, MEASURES)
    first, second = found.claims
    assert first.reading is not None
    assert first.reading == first.analogue()
    assert first.kinds == []
    assert str(first.reading.criterion) == "> 0.5"
    assert second.reading is None
    assert second.lacking == "a measure"


def test_an_analogue_may_have_a_measure_of_its_own_where_the_paper_s_models_have_none() -> None:
    content = deepcopy(GOOD)
    measure = {"measure": "extreme_share", "with": {"role": "minimum"}, "criterion": "> 0.5"}
    content["claims"][1]["analogue"] = measure
    (_, second) = paper_of("x", content, MEASURES).claims
    assert second.reading is None
    found = second.analogue()
    assert found is not None
    assert found.measure == "extreme_share"


def test_of_several_analogues_the_first_that_is_for_a_model_s_kind_is_taken() -> None:
    content = deepcopy(GOOD)
    others = [{"kind": "decoder", "criterion": "> 0.7"}, {"kind": "large model"}, {"criterion": "> 0.6"}]
    content["claims"][0]["analogue"] = others
    (first, _) = paper_of("x", content, MEASURES).claims
    assert first.kinds == ["decoder", "large model"]
    found = [first.analogue(kinds) for kinds in ((), {"decoder"}, {"large model"}, {"large model", "decoder"})]
    assert [str(one.criterion) for one in found if one] == ["> 0.6", "> 0.7", "> 0.5", "> 0.7"]
    content["claims"][0]["analogue"] = others[:2]
    (first, _) = paper_of("x", content, MEASURES).claims
    assert first.analogue() is None
    assert first.analogue({"masked language model"}) is None


def change(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["claims"][0].update(values)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda content: content.pop("title"), "has no `title`"),
        (lambda content: content.update(claim=[]), "has an unknown key `claim`.*claims"),
        (lambda content: content["claims"].append("x"), "is no mapping"),
        (lambda content: content["claims"].append(content["claims"][0]), "claim 1 is there twice"),
        (lambda content: content["claims"][1].pop("lacking"), "claim 2: it has neither a `measure`"),
        (lambda content: content["claims"][0].pop("where"), "claim 1 has no `where`"),
        (change(says="a\nb"), "longer than a line"),
        (change(says="a" * 121), "longer than a line"),
        (change(measure="extreme_shares"), "no measure extreme_shares.*extreme_share"),
        (change(criterion="big"), "claim 1: `big` is no range"),
        (change(control="small"), "claim 1: `small` is no range"),
        (change(criterion_of={"bert": "huge"}), "claim 1: `huge` is no range"),
        (change(criterion_of={"gpt2": "> 1"}), "claim 1: `criterion_of` has gpt2, which is not among `models`"),
        (change(**{"with": {"rôle": "minimum"}}), "does not take these arguments"),
        (change(**{"with": {}}), "does not take these arguments"),
        (change(analogue="none"), "does not say what is `lacking`"),
        (change(analogue="some"), "`analogue` is neither"),
        (change(analogue={"kind": "decoders"}), "claim 1: there is no kind of models decoders; there are decoder, "),
        (change(analogue=["none"]), "claim 1: `analogue` is neither"),
        (
            lambda content: content["runs"].update(other={"command": "geometry", "model": "@missing/a"}),
            "the run other reads the run missing, which does not stand before it among `runs`",
        ),
        (change(analogue={"criteria": "> 1"}), "the analogue of claim 1 has an unknown key `criteria`"),
        (change(measure="largest_whitened_mean_cosine"), "reads the run held_out, which is not among `runs`"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(spoil: Callable[[dict[str, Any]], None], words: str) -> None:
    content = deepcopy(GOOD)
    spoil(content)
    with pytest.raises(UserError, match=words) as raised:
        paper_of("x", content, MEASURES)
    assert str(raised.value).startswith("conf/claims/x.yaml: ")


def test_all_problems_are_named_at_once() -> None:
    content = deepcopy(GOOD)
    change(criterion="big")(content)
    content["claims"][1].pop("lacking")
    with pytest.raises(UserError, match=r"claim 1: .*; .*claim 2: "):
        paper_of("x", content, MEASURES)


@pytest.mark.parametrize(
    ("typed", "ids"),
    [
        ("all", list(range(1, 59))),
        (None, list(range(1, 59))),
        ("19-21,31", [19, 20, 21, 31]),
        ("31,19-21", [19, 20, 21, 31]),
        (7, [7]),
        ([7, "8-9"], [7, 8, 9]),
        ("7-7", [7]),
    ],
)
def test_claims_are_chosen_by_their_numbers(typed: Any, ids: list[int]) -> None:
    assert [claim.id for claim in chosen_claims(typed, paper())] == ids


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        *((typed, f"`--claims {typed}`: luo2021 has the claims 1 to 58") for typed in ("0", "59", "57-60", "9-7")),
        *((typed, "expected numbers of claims, such as 19-28,31") for typed in ("one", "1..3", "", "1,,2")),
    ],
)
def test_numbers_that_no_claim_has_are_refused(typed: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        chosen_claims(typed, paper())


def test_an_unknown_paper_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UserError, match=r"`reproduce luo2020`: papers are .*luo2021.*did you mean"):
        read_paper("luo2020", MEASURES)


def test_an_installed_copy_reads_the_installed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "probing" / "builtin_claims"
    installed.mkdir(parents=True)
    (installed / "mine.yaml").write_text(yaml.safe_dump(GOOD), encoding="utf-8")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "probing" / "studies" / "claims" / "claim.py"))
    assert papers() == ["mine"]
    assert read_paper("mine", MEASURES).title == "Somebody (2020)"


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("> 0.5", (0.51, 9), (0.2, 0.5)),
        (">= 0.5", (0.5, 9), (0.2, 0.49)),
        ("< 0.5", (-9, 0.49), (0.5, 0.6)),
        ("<= 0.5", (-9, 0.5), (0.51, 0.6)),
        ("= 2", (2, 2), (2.1, 2.2)),
        ("0.3 to 0.5", (0.3, 0.5), (0.51, 0.52)),
        ("-0.3 to 0.5", (-0.3, 0.5), (-0.5, -0.31)),
        ("< -0.8", (-1, -0.81), (-0.8, 0)),
    ],
)
def test_a_range_is_read_and_holds_what_it_says(
    text: str, inside: tuple[float, float], outside: tuple[float, float]
) -> None:
    found = NumberRange.parse(text)
    assert found.holds(*inside)
    assert not found.excludes(*inside)
    assert found.excludes(*outside)
    assert not found.holds(*outside)
    assert str(found) == text
    across = min(inside[0], outside[0]), max(inside[1], outside[1])
    assert not found.holds(*across)
    assert not found.excludes(*across)


@pytest.mark.parametrize("text", ["", "0.5", ">0.5", "> half", "0.5 to 0.3", "1 to", "> 0.5 to 0.6"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no range"):
        NumberRange.parse(text)


def test_a_gain_that_is_exactly_0_does_not_confirm_that_there_is_one() -> None:
    assert judge(ClaimEstimate.exact(0.0), NumberRange.parse("> 0")) == "not confirmed"
    assert judge(ClaimEstimate(0.0, 0.0, 0.1), NumberRange.parse("> 0")) == "unclear"


def test_only_a_control_in_its_range_confirms() -> None:
    criterion, control = NumberRange.parse("> 0.5"), NumberRange.parse("< 0.1")
    assert judge(ClaimEstimate(0.7, 0.6, 0.8, control=0.05), criterion, control) == "confirmed"
    assert judge(ClaimEstimate(0.7, 0.6, 0.8, control=0.1), criterion, control) == "unclear"
    assert judge(ClaimEstimate(0.7, 0.6, 0.8), criterion, control) == "unclear"
    assert judge(ClaimEstimate(0.7, 0.6, 0.8), criterion) == "confirmed"


@pytest.mark.parametrize("ends", [(1.0, 0.0), (math.nan, 1.0), (0.0, math.inf)])
def test_an_interval_is_two_numbers_in_order(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="no interval"):
        ClaimEstimate(0.5, *ends)


def test_the_forms_that_an_error_names_are_read() -> None:
    with pytest.raises(ValueError, match="such as") as raised:
        NumberRange.parse("?")
    forms = str(raised.value).partition("such as ")[2].split(", ")
    assert len(forms) == 6
    assert all(NumberRange.parse(form) for form in forms)


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
    given = UserInputs(str(text), {"other_corpus": None, "third_corpus": None})
    planned = plan(
        paper, claims, named, given, from_sentences("text", sentences), {"geometry": defaults(geometry)}, tmp_path
    )
    assert [len(planned.models[name]) for name in "de"] == [1, 0]
    assert planned.kinds == {"d": {"decoder"}, "e": frozenset()}

    def make(_: str, options: Mapping[str, Any]) -> Path:
        own: dict[str, Any] = {"runs": str(tmp_path), "quiet": True, "wandb": {"mode": "disabled"}}
        found = geometry(**options, **own, cache=str(tmp_path / "cache"))
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


def readings() -> list[tuple[str, ClaimTest]]:
    """Return how each claim is measured on the paper's own models, and on others where that is another way."""
    claims = [(name, claim) for name in papers() for claim in read_paper(name, MEASURES).claims]
    own = [(f"{name} {claim.id}", claim.reading) for name, claim in claims if claim.reading]
    other = [(f"{name} {claim.id}", one) for name, claim in claims for one in claim.analogues]
    return own + [pair for pair in other if pair not in own]


@pytest.mark.parametrize("reading", [one for _, one in readings()], ids=[name for name, _ in readings()])
def test_every_criterion_has_all_four_outcomes(reading: ClaimTest) -> None:
    criterion, control = reading.criterion, reading.control
    finite = [end for end in (criterion.low, criterion.high) if math.isfinite(end)]
    inside = sum(finite) / len(finite) if len(finite) == 2 else finite[0] + (1 if math.isfinite(criterion.low) else -1)
    outside = criterion.low - 1 if math.isfinite(criterion.low) else criterion.high + 1
    passed = None if control is None else max(control.low, -9.0) / 2 + min(control.high, 9.0) / 2

    def found(low: float, high: float, beside: float | None) -> str:
        return judge(ClaimEstimate((low + high) / 2, low, high, beside), criterion, control)

    assert found(inside, inside, passed) == "confirmed"
    assert found(outside, outside, passed) == "not confirmed"
    assert found(min(outside, inside), max(outside, inside), passed) == "unclear"
    assert judge(None, criterion, control) == "not testable here"
    if control is not None:
        failed = control.low - 1 if math.isfinite(control.low) else control.high + 1
        assert found(inside, inside, failed) == "unclear"
        assert found(inside, inside, None) == "unclear"
        assert found(outside, outside, failed) == "not confirmed"


PAPER = read_paper("bertology", MEASURES)


@pytest.mark.parametrize(("claim", "model"), measured(PAPER), ids=name)
def test_a_claim_is_confirmed_where_it_is_true_and_not_where_it_is_false(claim: Claim, model: str) -> None:
    assert verdicts(PAPER, claim, model, bertology_runs_of) == ["confirmed", "not confirmed"]


def test_another_model_has_analogues_of_every_claim_that_is_measured() -> None:
    for true, met in ((True, "yes"), (False, "no")):
        rows = {row["id"]: row for row in rows_of(PAPER.claims, [Model("other", bertology_runs_of(true))], PAPER)}
        assert {row["verdict"] for row in rows.values()} == {"analogue", "not testable here"}
        measured = {claim.id for claim in PAPER.claims if claim.analogues}
        assert {number: row["met"] for number, row in rows.items() if "met" in row} == dict.fromkeys(measured, met)
        assert all(rows[number]["lacking"] for number in set(rows) - measured)


def test_without_a_head_of_its_own_a_model_is_measured_by_its_probes() -> None:
    rows = {row["id"]: row for row in rows_of(PAPER.claims, [Model("other", bertology_runs_of(True))], PAPER)}
    assert [rows[number]["measure"] for number in (29, 30)] == ["spare_heads_of_positions", "gain_for_positions"]


def test_a_model_with_a_head_of_its_own_is_measured_by_masked_words_as_the_survey_s_models_are() -> None:
    of_words = frozenset({"masked language model"})
    for true, met in ((True, "yes"), (False, "no")):
        other = Model("other", bertology_runs_of(true), kinds=of_words)
        rows = {row["id"]: row for row in rows_of(PAPER.claims, [other], PAPER)}
        assert [rows[number]["measure"] for number in (29, 30)] == ["spare_heads_of_words", "gain_for_words"]
        assert [(rows[number]["verdict"], rows[number]["met"]) for number in (29, 30)] == [("analogue", met)] * 2


def test_the_survey_has_38_claims_of_which_34_are_measured() -> None:
    assert [claim.id for claim in PAPER.claims] == list(range(1, 39))
    assert {claim.id for claim in PAPER.claims if claim.reading is None} == {12, 32, 33, 37}
    assert {claim.id for claim in PAPER.claims if not claim.analogues} == {12}
    assert PAPER.models == ["bert", "bert-uncased", "bert-large", "own"]


KOVALEVA2019 = read_paper("kovaleva2019", MEASURES)


@pytest.mark.parametrize(("claim", "model"), measured(KOVALEVA2019), ids=name)
def test_a_claim_is_confirmed_where_it_is_true_and_not_where_it_is_false_of_kovaleva2019(
    claim: Claim, model: str
) -> None:
    assert verdicts(KOVALEVA2019, claim, model, attention_runs_of) == ["confirmed", "not confirmed"]


def test_another_model_has_analogues_of_its_own_heads() -> None:
    rows = {}
    for true, met in ((True, "yes"), (False, "no")):
        rows = {
            row["id"]: row
            for row in rows_of(KOVALEVA2019.claims, [Model("other", attention_runs_of(true))], KOVALEVA2019)
        }
        assert {row["verdict"] for row in rows.values()} == {"analogue"}
        assert {number: row["met"] for number, row in rows.items()} == dict.fromkeys(range(1, 11), met)
        assert rows[4]["measure"] == "lead_of_change_by_tuning"
    named = frozenset({"tuned model"})
    (row,) = (
        row
        for row in rows_of(KOVALEVA2019.claims, [Model("other", attention_runs_of(True), kinds=named)], KOVALEVA2019)
        if row["id"] == 4
    )
    assert (row["measure"], row["met"]) == ("lead_of_change_in_last_layers", "yes")


def test_claims_on_glue_are_not_testable_on_a_model_of_the_authors() -> None:
    rows = {
        row["id"]: row for row in rows_of(KOVALEVA2019.claims, [Model("own", attention_runs_of(True))], KOVALEVA2019)
    }
    assert all("GLUE" in rows[number]["lacking"] or "RTE" in rows[number]["lacking"] for number in (5, 9, 10))


def test_the_paper_has_10_claims() -> None:
    assert [claim.id for claim in KOVALEVA2019.claims] == list(range(1, 11))
    assert KOVALEVA2019.models == ["own", "bert-uncased"]


MEASURED = [(claim, model) for claim in paper().claims if claim.reading for model in claim.models]
# No decoder has runs of its own here: what is measured of them is what is measured of others.
PLANTED = [pair for pair in MEASURED if pair[1] not in ("gpt2", "pythia")]


def luo2021_name(value: object) -> str:
    return str(value.id) if isinstance(value, Claim) else str(value)


def verdict(claim: Claim, model: str, true: bool) -> str:
    compared = [Model("bert", positions_runs_of("bert", True))] if model == "roberta" else []
    rows = rows_of([claim], [Model(model, positions_runs_of(model, true)), *compared], paper())
    return next(str(row["verdict"]) for row in rows if row["model"] == model)


@pytest.mark.parametrize(("claim", "model"), PLANTED, ids=luo2021_name)
def test_a_claim_is_confirmed_where_it_is_true_and_not_where_it_is_false_of_luo2021(claim: Claim, model: str) -> None:
    assert verdict(claim, model, true=True) == "confirmed"
    assert verdict(claim, model, true=False) == "not confirmed"


def test_decoders_are_anisotropic_if_every_layer_is() -> None:
    (claim,) = (claim for claim in paper().claims if claim.id == 58)
    for true, expected in ((True, "confirmed"), (False, "not confirmed")):
        (row,) = rows_of([claim], [Model("gpt2", positions_runs_of("bert", true))], paper())
        assert row["verdict"] == expected


@pytest.mark.parametrize("number", [8, 58])
def test_a_claim_on_a_kind_of_models_is_measured_on_another_model_of_that_kind_alone(number: int) -> None:
    (claim,) = (claim for claim in paper().claims if claim.id == number)
    (kind,) = claim.kinds
    source = "bert-large" if number == 8 else "bert"
    for true, met in ((True, "yes"), (False, "no")):
        runs = positions_runs_of(source, true)
        (row,) = rows_of([claim], [Model("other", runs, kinds=frozenset({kind}))], paper())
        assert (row["verdict"], row["met"]) == ("analogue", met)
        (without,) = rows_of([claim], [Model("other", runs)], paper())
        assert without["verdict"] == "not testable here"
        assert without["lacking"] == f"{KINDS_OF_MODELS[kind].words}; other is none"
        assert "met" not in without


def test_the_paper_has_58_claims_and_each_says_what_is_measured_or_what_is_lacking() -> None:
    claims = paper().claims
    assert [claim.id for claim in claims] == list(range(1, 59))
    assert all(claim.reading or claim.lacking for claim in claims)
    assert all(claim.analogues or claim.lacking for claim in claims)
    assert len(MEASURED) > 40


SHI2022 = read_paper("shi2022", MEASURES)


@pytest.mark.parametrize("claim", [claim for claim in SHI2022.claims if claim.reading], ids=lambda claim: str(claim.id))
def test_a_claim_is_confirmed_where_it_is_true_and_not_where_it_is_false_of_shi2022(claim: Claim) -> None:
    for true, verdict in ((True, "confirmed"), (False, "not confirmed")):
        (row,) = rows_of([claim], [Model("own", smoothing_runs_of(true))], SHI2022)
        assert row["verdict"] == verdict


def test_another_model_has_analogues_also_of_claims_that_need_pretraining() -> None:
    for true, met in ((True, "yes"), (False, "no")):
        rows = {row["id"]: row for row in rows_of(SHI2022.claims, [Model("other", smoothing_runs_of(true))], SHI2022)}
        assert {number: row["met"] for number, row in rows.items() if "met" in row} == dict.fromkeys(
            [1, 2, 3, 5, 6, 7, 8, 10], met
        )
        assert all(rows[number]["verdict"] == "not testable here" for number in (4, 9))


def test_a_frozen_model_gives_no_verdict_on_pretraining() -> None:
    rows = {row["id"]: row for row in rows_of(SHI2022.claims, [Model("own", smoothing_runs_of(True))], SHI2022)}
    assert {number for number, row in rows.items() if row["verdict"] == "not testable here"} == {2, 4, 8, 9, 10}
    assert "pretrained with fused layers" in rows[8]["lacking"]


def test_the_paper_has_10_claims_of_shi2022() -> None:
    assert [claim.id for claim in SHI2022.claims] == list(range(1, 11))
