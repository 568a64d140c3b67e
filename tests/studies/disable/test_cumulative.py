"""Heads disabled together in a tiny model in which only some of them matter; a killed run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probing.disabling.probed_task import PassStore
from probing.readouts.forward import Forward, Readers
from probing.readouts.frozen_probes import ProbeReadout
from probing.studies.disable.weights import Cumulative, n_files
from tiny_models import Case, of_whole_model, weights_of

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]

# Only these heads are read by what follows.
MATTER = {(1, 2), (3, 1)}


def only_some_matter(encoder: Any) -> None:
    for block in (1, 2, 3):
        read = weights_of(encoder, "output", block).weight
        for head in (1, 2):
            if (block, head) not in MATTER:
                read[:, 8 * (head - 1) : 8 * head] = 0
            else:
                read[:, 8 * (head - 1) : 8 * head] *= 20


class Setting:
    """What is disabled, and a place for the passes."""

    def __init__(self, case: Case, place: Path) -> None:
        self.readers = Readers.of(case.encoder, case.pad, "tiny")
        self.readout = ProbeReadout(case.text, case.probes, self.readers.device)
        model, self.case, self.place = self.readers.model, case, place
        stands = torch.zeros(3, model.width)
        self.how = Cumulative(self.readers, "heads", "zero", stands, [1, 2, 3], 0.1, 0, 256)

    def store(self, name: str) -> PassStore:
        plan = self.case.store.plan
        return PassStore.opened(self.place / name, {"a": 1}, self.case.text.tokens, n_files(6, 0.1), 256, plan.key)

    def rows(self, name: str) -> list[list[dict[str, Any]]]:
        return list(self.how.rows(self.readout, self.readout, self.store(name)))


@pytest.fixture(scope="module")
def setting(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Setting:
    import shutil

    place = tmp_path_factory.mktemp("pruning")
    shutil.copytree(checkpoints["bert"], place / "model")
    return Setting(Case(place / "model", place / "cache", sentences, only_some_matter), place)


@pytest.mark.slow
def test_the_curve_stays_flat_until_the_heads_go_that_matter(setting: Setting) -> None:
    rows, areas = setting.rows("whole")
    curve = [row for row in rows if row["order"] == "importance"]
    assert [row["n_disabled"] for row in curve] == list(range(7))
    last = {row["disabled"] for row in curve[-2:]}
    assert last == {f"{block}-{head}" for block, head in MATTER}
    assert [row["effect"] for row in curve[:5]] == [0] * 5
    assert all(row["effect"] != 0 for row in curve[5:])
    assert {row["order"]: len([one for one in rows if one["order"] == row["order"]]) for row in rows} == {
        "importance": 7, "reverse": 7, "random": 140,
    }  # fmt: skip
    assert {row["order"] for row in areas} == {"importance", "reverse"}
    # All orders begin with nothing and end with everything.
    assert len({row["value"] for row in rows if row["n_disabled"] == 0}) == 1
    assert len({row["value"] for row in rows if row["n_disabled"] == 6}) == 1


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = setting.rows("whole")  # from what is stored, or made now
    before = {name: value.clone() for name, value in setting.case.encoder.state_dict().items()}
    calls: list[Any] = []
    read = Forward.read

    def counting(self: Forward, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return read(self, *given)

    monkeypatch.setattr(Forward, "read", counting)
    with pytest.raises(KeyboardInterrupt):
        setting.rows("killed")
    assert all(torch.equal(value, before[name]) for name, value in setting.case.encoder.state_dict().items())
    assert [str(table) for table in setting.rows("killed")] == [str(table) for table in whole]
    n_done = len(calls)
    assert [str(table) for table in setting.rows("killed")] == [str(table) for table in whole]
    assert len(calls) == n_done  # nothing is computed twice
    files = [sorted((setting.place / name).rglob("*.safetensors")) for name in ("whole", "killed")]
    assert len(files[0]) == len(files[1]) > 20
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))


def test_heads_together_are_the_same_heads_with_weights_of_zero(setting: Setting) -> None:
    case = setting.case
    change = setting.how._together([unit for unit in setting_units() if unit.name in ("1-2", "2-1")])
    found = Forward(setting.readers, case.text, 256).read(change, setting.readout)[-1]
    read = weights_of(case.encoder, "output", 1).weight
    before = read.detach().clone()
    with torch.no_grad():
        read[:, 8:16] = 0  # 2-1 is not read at all
    with torch.no_grad():
        expected = of_whole_model(case, 3)
        read.copy_(before)
    assert np.array_equal(found.numpy(), expected.numpy())


def setting_units() -> list[Any]:
    from probing.studies.disable.weights import units_of

    return units_of("heads", [1, 2, 3], 2)
