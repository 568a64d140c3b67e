"""Ten numbers of a planted position part by plain loops, and the rows and the figure of several models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.position_parts import CLOSE, READ, draw, main, repeated, rows_of
from probing.figures.style import write_drawings
from synthetic import NEURONS, D, helix, planted, surveyed

pytestmark = pytest.mark.numeric


def test_ten_numbers_by_plain_loops_and_the_figure(tmp_path: Path) -> None:
    code = np.zeros((30, D))
    code[:, NEURONS] = helix(30)
    store = planted(tmp_path / "store", [None, code])
    found = surveyed(store)
    run: Any = SimpleNamespace(**found, config={"seed": 0})
    compared = repeated(run, store, 1)
    assert len(compared) == 10
    for name, ours, plain in compared:
        assert ours == pytest.approx(plain, abs=CLOSE / 100), name
    rows = list(rows_of({"minilm": run, "smollm2-later": run}))
    assert [row["layer"] for row in rows] == [0, 1, 0, 1]
    assert rows[0]["half"] is None
    assert rows[1]["half"] < rows[1]["half_lowest"]
    assert rows[1]["directions"] == 3
    (path,) = write_drawings(tmp_path, {"parts": partial(draw, rows=rows)}, ("png",))
    assert path.exists()


def test_models_of_reactions_need_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert {read.text for read in READ} == {"english", "reactions"}
    with pytest.raises(SystemExit):
        main(["--models", "rxn-bert"])
    assert "--reactions" in capsys.readouterr().err
