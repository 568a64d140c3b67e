"""The estimators inside of what scikit-learn has for estimators, and at the edges of what they can be given."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import SelectFromModel
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probing import ProbeClassifier, ProbeRegressor

N, D, SIGNAL = 240, 6, 3
GROUPS = np.repeat([f"sentence {i}" for i in range(N // 6)], 6)


def planted(seed: int = 0) -> tuple[pd.DataFrame, NDArray[Any]]:
    draw = np.random.default_rng(seed)
    x = pd.DataFrame(draw.normal(0, 1, (N, D)), columns=[f"unit {i}" for i in range(D)])
    return x, np.where(x[f"unit {SIGNAL}"] + 0.3 * draw.normal(0, 1, N) > 0, "noun", "verb")


def test_a_pipeline_is_cross_validated_by_group() -> None:
    x, y = planted()
    pipeline = make_pipeline(StandardScaler(), ProbeClassifier())
    scores = cross_val_score(
        pipeline, x, y, groups=GROUPS, cv=GroupKFold(3), params={"probeclassifier__groups": GROUPS}
    )
    assert scores.min() > 0.8
    with sklearn.config_context(enable_metadata_routing=True):
        routed = make_pipeline(StandardScaler(), ProbeClassifier().set_fit_request(groups=True))
        again = cross_val_score(routed, x, y, cv=GroupKFold(3), params={"groups": GROUPS})
    np.testing.assert_array_equal(again, scores)


def test_rows_of_a_group_are_held_out_together() -> None:
    x, y = planted()
    for probe in (ProbeClassifier().fit(x, y, groups=GROUPS), ProbeRegressor().fit(x, x["unit 0"], groups=GROUPS)):
        assert probe.split_ is not None
        kept, held_out = probe.split_
        assert len(held_out) == N // 10
        assert set(GROUPS[kept]) & set(GROUPS[held_out]) == set()
        assert sorted([*kept, *held_out]) == list(range(N))


def test_importances_selections_and_searches_agree_on_the_planted_column() -> None:
    x, y = planted()
    found = permutation_importance(make_pipeline(StandardScaler(), ProbeClassifier()).fit(x, y), x, y, random_state=0)
    assert found.importances_mean.argmax() == SIGNAL
    selection = SelectFromModel(ProbeClassifier(l2=1e-3), importance_getter="contributions_", max_features=1)
    assert selection.fit(x, y).get_feature_names_out().tolist() == [f"unit {SIGNAL}"]
    grid = {"l2": [1e-1, 1e-3, "auto"], "fit_intercept": [False, True]}
    search = GridSearchCV(ProbeClassifier(), grid, cv=3).fit(x, y)
    assert search.best_score_ > 0.8


def test_columns_are_ranked_with_their_names() -> None:
    x, y = planted()
    probe = ProbeClassifier(l2=1e-3).fit(x, y)
    first = probe.neurons_[0]
    assert (first["rank"], first["neuron"], first["feature"]) == (1, SIGNAL, f"unit {SIGNAL}")
    assert sum(row["share"] for row in probe.neurons_) == pytest.approx(1)
    assert probe.neurons_.to_pandas()["feature"][0] == f"unit {SIGNAL}"
    assert probe.neurons_.schema is not None
    columns = ["rank", "neuron", "feature", "contribution", "share"]
    beside = ["direction_p", "direction_p_centred", "above_directions"]
    assert probe.neurons_.schema.order(probe.neurons_) == columns + beside
    without = ProbeClassifier(l2=1e-3, rotations=0).fit(x, y)
    assert [*without.neurons_[0]] == columns
    assert [*without.basis_] == []
    assert "unit 3" in repr(probe.neurons_)
    assert "feature" not in ProbeClassifier(l2=1e-3).fit(x.to_numpy(), y).neurons_[0]


def test_a_probe_is_cloned_pickled_and_fitted_again() -> None:
    x, y = planted()
    probe = ProbeClassifier(l1=1e-4).fit(x, y)
    loaded = pickle.loads(pickle.dumps(probe))
    np.testing.assert_array_equal(loaded.predict_proba(x), probe.predict_proba(x))
    again = clone(probe).fit(x, y)
    np.testing.assert_array_equal(again.coef_, probe.coef_)
    other = planted(1)
    probe.set_params(l2=1e-2).fit(*other)  # nothing of the first fit is left
    fresh = ProbeClassifier(l1=1e-4, l2=1e-2).fit(*other)
    assert {name for name in vars(probe) if name.endswith("_")} == {name for name in vars(fresh) if name.endswith("_")}
    np.testing.assert_array_equal(probe.coef_, fresh.coef_)
    assert (probe.l2_, probe.split_, probe.validation_scores_) == (1e-2, None, None)


def test_a_pickle_has_the_directions_and_no_training_rows() -> None:
    x = np.random.default_rng(0).standard_normal((5_000, 8))
    probe = ProbeClassifier(l2=1e-3).fit(x, x[:, 2] > 0)
    content = pickle.dumps(probe)
    assert len(content) < 40_000
    loaded = pickle.loads(content)
    assert loaded.basis_ == probe.basis_ == ProbeClassifier(l2=1e-3).fit(x, x[:, 2] > 0).basis_
    assert loaded.basis_[0]["n_rows"] == 4_000
    assert loaded.neurons_ == probe.neurons_
    other = ProbeClassifier(l2=1e-3, random_state=np.random.RandomState(5)).fit(x, x[:, 2] > 0)
    assert other.basis_[0]["first_share_directions"] != probe.basis_[0]["first_share_directions"]


@pytest.mark.parametrize(
    "labels", [np.array([True, False]), np.array([-1, 7]), np.array([0.0, 2.0]), np.array(["up", "down"], dtype=object)]
)
def test_labels_come_back_as_they_were(labels: NDArray[Any]) -> None:
    x, y = planted()
    probe = ProbeClassifier(l2=1e-3).fit(x, labels[(y == "noun").astype(int)])
    assert probe.classes_.tolist() == sorted(labels.tolist())
    predicted = probe.predict(x)
    assert predicted.dtype == labels.dtype
    assert (predicted == labels[(y == "noun").astype(int)]).mean() > 0.8


def test_tensors_are_read() -> None:
    x, y = planted()
    tensor = torch.tensor(x.to_numpy(), requires_grad=True).to(torch.bfloat16)
    probe = ProbeClassifier(l2=1e-3).fit(tensor, y)
    assert (probe.predict(tensor) == y).mean() > 0.8


def test_columns_that_do_not_vary_have_no_weight() -> None:
    x, y = planted()
    probe = ProbeClassifier(l2=1e-3).fit(x.assign(constant=5.0), y)
    assert probe.coef_[0, -1] == 0
    np.testing.assert_allclose(probe.coef_[:, :-1], ProbeClassifier(l2=1e-3).fit(x, y).coef_, atol=1e-5)
    for probe in (ProbeClassifier(), ProbeClassifier(l2=1e-3)):
        np.testing.assert_array_equal(probe.fit(np.ones((N, 2)), y).predict_proba(np.ones((1, 2))), [[0.5, 0.5]])
    shares = ProbeClassifier(l2=1e-3, fit_intercept=True).fit(np.ones((N, 2)), y).predict_proba(np.ones((1, 2)))
    np.testing.assert_allclose(shares, [[(y == "noun").mean(), (y == "verb").mean()]], atol=1e-3)
    assert ProbeClassifier().fit(x[["unit 3"]], y).score(x[["unit 3"]], y) > 0.8


def test_a_class_of_one_row_is_learnt() -> None:
    x, y = planted()
    y = np.where(np.arange(N) == 5, "rare", y)
    probe = ProbeClassifier(validation_fraction=0.5).fit(x, y)
    assert probe.split_ is not None
    assert 5 in probe.split_[0]
    assert probe.classes_.tolist() == ["noun", "rare", "verb"]


@pytest.mark.parametrize(
    ("options", "change", "said"),
    [
        ({}, lambda x, y: (x, ["a"] * N), "`y` has only one class, a, and a probe tells at least two apart"),
        ({}, lambda x, y: (x.mask(x > 2), y), "contains NaN"),
        ({}, lambda x, y: (x * 1e300, y), r"`X`: row 0 has a value that is infinite or not a number in float32"),
        ({}, lambda x, y: (x * 1e20, y), r"the largest magnitude is [\d.]+e\+20, and expected are 1e-12 to 1e\+12"),
        ({}, lambda x, y: (np.ma.masked_array(x, x > 2), y), "`X` has masked values"),
        ({}, lambda x, y: (x[:0], y[:0]), "0 sample"),
        ({}, lambda x, y: (x[:3], [1, 2, 3]), "give more rows or groups, or a number, such as `l2=1e-3`"),
        ({"l2": -1}, lambda x, y: (x, y), "`l2=-1.0` is out of range: expected a number above 0"),
        ({"l2": "big"}, lambda x, y: (x, y), "`l2=big`: expected a number or auto"),
        ({"fit_intercept": "ja"}, lambda x, y: (x, y), "`fit_intercept=ja`: expected true or false"),
        ({"rotations": 5}, lambda x, y: (x, y), "`rotations=5`: expected 0, or at least 19"),
        ({"rotations": "ja"}, lambda x, y: (x, y), "`rotations=ja`: expected a whole number"),
        ({"random_state": -1}, lambda x, y: (x, y), "`random_state=-1` is out of range: expected 0 to"),
        ({"validation_fraction": 1.0}, lambda x, y: (x, y), "`validation_fraction=1.0`: expected a number between"),
        (
            {"penalty_space": "rms", "fit_intercept": True},
            lambda x, y: (x, y),
            "`penalty_space=rms`: with `fit_intercept=True` neurons are centred",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(options: dict[str, Any], change: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ProbeClassifier(**options).fit(*change(*planted()))


def test_groups_of_another_length_and_numbers_that_do_not_vary_are_refused() -> None:
    x, y = planted()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        ProbeClassifier().fit(x, y, groups=GROUPS[:-1])
    with pytest.raises(ValueError, match=r"`y`: the training rows all have the number 1"):
        ProbeRegressor().fit(x, np.ones(N))


@pytest.mark.slow
def test_a_probe_that_is_not_at_its_optimum_says_so() -> None:
    x, y = planted()
    centred = x - x.mean()  # so that float32 is used, whose rounding errors are larger than this tolerance
    with pytest.warns(ConvergenceWarning, match=r"may be .* nats above its optimum, .* at most 1e-20.* not compared"):
        probe = ProbeClassifier(l2=1e-3, tolerance=1e-20).fit(centred, y)
    assert 1e-20 < probe.gap_ < 1e-10
    assert [*probe.basis_] == []
    assert "direction_p" not in probe.neurons_[0]


def test_nothing_of_the_process_changes_and_nothing_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    x, y = planted()

    def state() -> list[Any]:
        return [
            torch.get_rng_state().tolist(), pickle.dumps(np.random.get_state()), torch.get_num_threads(),
            torch.get_num_interop_threads(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.benchmark, torch.is_grad_enabled(), list(warnings.filters),
        ]  # fmt: skip

    before = state()
    for probe in (ProbeClassifier(), ProbeClassifier(fit_intercept=True), ProbeRegressor()):
        probe.fit(x, y == "noun")
    assert state() == before
    assert capfd.readouterr() == ("", "")


SCRIPT = """
import sys
import probing
assert not {"sklearn", "torch", "numpy"} & {*sys.modules}
from probing import ProbeClassifier, ProbeRegressor
probe = ProbeClassifier()
assert not {"torch", "pytorch_lightning"} & {*sys.modules}
import numpy as np
from sklearn.model_selection import cross_val_score
x = np.random.default_rng(0).normal(0, 1, (90, 3))
scores = cross_val_score(probe, x, x[:, 1] > 0, cv=3, n_jobs=2)
assert scores.min() > 0.8
assert (cross_val_score(probe, x, x[:, 1] > 0, cv=3) == scores).all()
ProbeRegressor().fit(x, x[:, 1])
"""


@pytest.mark.several
def test_a_new_process_imports_little_and_says_nothing_in_other_processes_either() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, encoding="utf-8", check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


WITHOUT = """
import sys
sys.modules["sklearn"] = None
from probing import *
import probing
assert callable(fit) and "ProbeClassifier" not in globals() and "ProbeClassifier" not in dir(probing)
try:
    from probing import ProbeClassifier
except ImportError as error:
    print(error)
"""


@pytest.mark.several
def test_where_scikit_learn_is_missing_it_is_said_what_to_install() -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, encoding="utf-8", check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("`ProbeClassifier` and `ProbeRegressor` need scikit-learn 1.6 or later")
    assert "pip install 'neuron-probing[sklearn]'" in ended.stdout
