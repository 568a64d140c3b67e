"""Files of claims: what is in them is checked, and each is read from where the program is."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import ROOT
from planted_claims import paper
from probing.cli.commandline import converted, unchecked
from probing.cli.option_types import defaults
from probing.errors import UserError
from probing.runs.study import study_of
from probing.studies.claims import claim as module
from probing.studies.claims.claim import chosen_claims, paper_of, papers, read_paper
from probing.studies.claims.command import DATA
from probing.studies.claims.measures import MEASURES
from probing.studies.claims.planning import KINDS, given_data

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
    data = given_data(found)
    for described in found.runs.values():
        options = dict(described)
        name = options.pop("command")
        assert name in KINDS
        command = unchecked(study_of(name).command)
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


@pytest.mark.parametrize("typed", ["0", "59", "57-60", "9-7"])
def test_numbers_that_no_claim_has_are_refused(typed: str) -> None:
    with pytest.raises(UserError, match=f"`--claims {typed}`: luo2021 has the claims 1 to 58"):
        chosen_claims(typed, paper())


@pytest.mark.parametrize("typed", ["one", "1..3", "", "1,,2"])
def test_what_is_no_number_of_claims_is_refused(typed: str) -> None:
    with pytest.raises(UserError, match="expected numbers of claims, such as 19-28,31"):
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
