"""The benchmark of the estimators, at toy size."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import estimators
from probing import ProbeClassifier


def test_little_is_lost_by_the_path(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = estimators.planted(300, 6, 3, 3.0, 0)
    monkeypatch.setattr(estimators, "data_sets", lambda: iter([("toy", x, y)]))
    monkeypatch.setattr(estimators, "GRID", estimators.GRID[:13])  # to 1e-4, where probes are soon at their optimum
    estimators.print_choices()
    head, line, toy, *diabetes = capsys.readouterr().out.splitlines()
    assert head.count("|") == line.count("|") == toy.count("|") == 6
    _, name, auto, search, lost, _, _ = (cell.strip() for cell in toy.split("|"))
    assert name == "toy"
    assert 0 <= float(lost) < 2e-3  # below what the path takes for no gain
    assert 1e-4 <= float(search) <= 100
    assert float(auto) <= 100
    assert len(diabetes) == 3


def test_the_gap_is_the_one_that_the_probe_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, size in (("N_ROWS", 400), ("WIDTH", 8), ("N_CLASSES", 3), ("L2", 1e-3)):
        monkeypatch.setattr(estimators, name, size)
    x, y = estimators.correlated()
    sd = x.std(0, dtype=np.float64)
    probe = ProbeClassifier(l2=1e-3, tolerance=1e-4).fit(x, y)
    assert estimators.gap(probe.coef_ * sd, x / sd, y) == pytest.approx(probe.gap_, rel=0.01)
    estimators.print_times()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| Probe", "| Logistic"))]
    assert len(rows) == 4
    assert float(rows[0].split("|")[4]) <= 3e-6
