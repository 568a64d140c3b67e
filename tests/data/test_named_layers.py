"""Arrays that are given under names: the names stand wherever a layer is shown, in the order that was given."""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from probing import ActivationDataModule, LinearProbe, load_run, probe
from probing.errors import UserError
from probing.figures.style import name_layers
from probing.results.schema import NamedLayer
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

GENERATOR = np.random.default_rng(0)
Y = GENERATOR.integers(2, size=600)
FIRST, SECOND = (GENERATOR.standard_normal((600, 6)).astype(np.float32) for _ in range(2))
SECOND[:, 3] += 3 * Y
LATE, EARLY = "encoder.layer.10.output", "encoder.layer.2.output"
NAMED = {LATE: FIRST, EARLY: SECOND}  # the order is the one that is given, and not that of the alphabet
FAST: dict[str, Any] = {"replicates": 0, "evidence": "none"}


def test_a_named_layer_is_a_number_that_is_shown_by_its_name() -> None:
    layer = NamedLayer(3, "block")
    assert (layer, f"{layer}", str(layer), f"{layer:02d}", layer + 1) == (3, "block", "block", "03", 4)
    assert {3: "x"}[layer] == "x"
    assert json.dumps([layer]) == "[3]"
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert (again, str(again)) == (3, "block")


@pytest.mark.slow
@pytest.mark.parametrize("y", [Y, Y + GENERATOR.standard_normal(600)], ids=["classes", "numbers"])
def test_names_are_shown_and_numbers_stay_in_files(y: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = probe(NAMED, y, runs=tmp_path, name="named", wandb={"mode": "offline"}, **FAST)
    for run in (made, load_run(tmp_path / "named")):
        assert [(row["layer"], row["layer_name"]) for row in run.accuracy] == [(0, LATE), (1, EARLY)]
        assert list(map(str, run.layers)) == [LATE, EARLY]
        assert f"Layer {EARLY}: " in repr(run)
        assert run.config["layer"] == [0, 1]
        assert run.top(EARLY)[0]["neuron"] == run.top(1)[0]["neuron"] == 3
        assert LATE in repr(run.accuracy)
        assert repr(run.accuracy).count("layer name") == 0
    for file in ("accuracy", "neurons"):
        table = (tmp_path / "named" / f"{file}.csv").read_text(encoding="utf-8").splitlines()
        assert table[0].startswith("layer,layer_name,")
        assert table[1].startswith(f"0,{LATE},")
    kept = json.loads((tmp_path / "named" / "results.json").read_text(encoding="utf-8"))
    assert kept["layers"][1]["layer_name"] == EARLY
    page = (tmp_path / "named" / "report.html").read_text(encoding="utf-8")
    assert f'<option value="1" selected>{EARLY}</option>' in page
    assert "layer 0" not in re.sub(r"<script.*", "", page, flags=re.DOTALL).lower()
    (tracked,) = read_offline_runs(tmp_path / "named")
    rows = tracked.table("neurons/layer_01")
    assert {(row["layer"], row["layer_name"]) for row in rows} == {(1, EARLY)}


def test_the_axis_of_layers_has_the_names() -> None:
    axes = Figure().subplots()
    name_layers(axes, [NamedLayer(1, EARLY), NamedLayer(0, LATE)])
    assert [label.get_text() for label in axes.get_xticklabels()] == [LATE, EARLY]
    assert axes.get_xlabel() == "layer"


def test_other_arrays_are_predicted_by_their_names_in_any_order() -> None:
    run = probe(NAMED, Y, quiet=True, **FAST)
    both = run.predict({EARLY: SECOND[:5], LATE: FIRST[:5]})
    assert {(row["layer"], row["layer_name"]) for row in both} == {(0, LATE), (1, EARLY)}
    (alone,) = ([row for row in found if row["layer"] == 1] for found in (run.predict({EARLY: SECOND[:5]}),))
    assert alone == [row for row in both if row["layer"] == 1]
    assert {row["layer"] for row in run.explain({EARLY: SECOND[:5]}, layer=EARLY)} == {1}
    with pytest.raises(
        UserError, match=rf"layer other is not in .*, which has {LATE}, {EARLY}; give a dict of layer name"
    ):
        run.predict({"other": FIRST})
    with pytest.raises(UserError, match=rf"`layer=other`: .* has layers {LATE} and {EARLY}"):
        run.explain(NAMED, layer="other")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (("a", 1), "'a' and 1 are a number and a name; give all layers one or the other"),
        ((1, "a"), "1 and 'a' are a number and a name"),
        (("3", "a"), "'3' is no name of a layer; expected text in one line that is no number and not `all`"),
        (("all",), "'all' is no name of a layer"),
        (("a", " a"), "' a' is no name of a layer"),
        (("",), "'' is no name of a layer"),
        ((1.5,), "1.5 is no layer number; expected whole numbers from 0, or names, as keys"),
    ],
)
def test_mixed_and_ambiguous_keys_are_refused(keys: tuple[Any, ...], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        probe(dict.fromkeys(keys, FIRST), Y, quiet=True, **FAST)


def test_an_array_is_named_as_it_was_given() -> None:
    with pytest.raises(UserError, match=r"`X\['b'\]` has shape \(600, 5\) and another layer has \(600, 6\)"):
        probe({"a": FIRST, "b": FIRST[:, :5]}, Y, quiet=True, **FAST)


def test_lightning_classes_number_named_layers() -> None:
    data = ActivationDataModule.from_arrays(NAMED, Y)
    assert [type(layer) for layer in data.layers] == [int, int]
    assert LinearProbe(data.d_model, data.classes, data.layers).layers == [0, 1]


def test_tables_have_no_names_where_none_were_given(tmp_path: Path) -> None:
    probe({2: FIRST, 5: SECOND}, Y, runs=tmp_path, name="n", quiet=True, **FAST)
    assert all(
        "layer_name" not in row for name in ("accuracy", "neurons") for row in read_csv(tmp_path / "n" / f"{name}.csv")
    )
