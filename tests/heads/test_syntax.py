"""From one or two treebanks to the two tables, and to files and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probing.cache import Request
from probing.corpus import Corpus
from probing.heads.accumulation import accumulate
from probing.heads.sums import SumsStore
from probing.heads.syntax import (
    RELATIONS_COLUMNS,
    TREES_COLUMNS,
    Part,
    parts_of_one,
    parts_of_two,
    relations_table,
    syntax_measures,
    trees_table,
)
from probing.models import resolve_model
from probing.tables.csv_files import read_csv, write_csv
from treebanks import treebank

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")


def test_two_treebanks_give_both_tables_and_one_is_divided(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    corpora = [treebank(120, 0), treebank(110, 1)]

    def parts(seed: int | None) -> tuple[Part, Part]:
        def read(corpus: Corpus) -> tuple[dict[str, SumsStore], Corpus]:
            request = Request(resolve_model(str(checkpoints["bert"])), corpus, (), random_weights_seed=seed)
            stores = accumulate(request, syntax_measures(corpus, 4, 0), tmp_path / "cache", {"accelerator": "cpu"})
            return stores, corpus

        return parts_of_two(read(corpora[0]), read(corpora[1]))

    trained, untrained = parts(None), parts(0)
    relations, trees = relations_table(trained, untrained), trees_table(trained, untrained)
    assert {row["relation"] for row in relations} == {"nsubj", "obl:tmod", "det"}
    heads = [(row["layer"], row.get("head")) for row in trees]
    assert heads[-1] == ("all", None)
    assert heads[:-1] == sorted(heads[:-1])
    assert sum(row.get("chosen") == "yes" for row in trees) == 1
    for rows, columns in ((relations, RELATIONS_COLUMNS), (trees, TREES_COLUMNS)):
        assert {name for row in rows for name in row} == set(columns)
        write_csv(tmp_path / "t.csv", rows, columns)
        found = read_csv(tmp_path / "t.csv")
        assert [row["test"] for row in found] == [row["test"] for row in rows]
        assert [row["layer"] for row in found] == [row["layer"] for row in rows]
    (train, test) = parts_of_one(trained[0].stores, corpora[0], seed=0)
    assert (train.sentences ^ test.sentences).all()
    assert 0 < test.sentences.mean() < 0.25
    own = [part.scored() for part in (train, test)]
    assert not set(own[0].arcs.sentences) & set(own[1].arcs.sentences)
    everything = Part(trained[0].stores, corpora[0], np.ones(120, dtype=bool)).scored()
    assert len(own[0].arcs) + len(own[1].arcs) == len(everything.arcs)
    assert relations_table((train, test), None) == []  # fewer than 100 arcs of each relation
    (*_, probe) = trees_table((train, test), None)
    assert "untrained" not in probe
    assert probe["n_test"] == len(own[1].arcs)
