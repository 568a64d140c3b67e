"""Pairs of sentences in `attention`, from end to end on tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import yaml

from probing import WandbOptions, attention
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.heads import accumulation

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    lines = [f"{a}\t{b}\n" for a, b in zip(sentences[:30], sentences[30:60], strict=True)]
    (folder / "pairs.tsv").write_text("".join([*lines, lines[0]]), encoding="utf-8")
    (folder / "plain.txt").write_text("".join(lines).replace("\t", " "), encoding="utf-8")
    (folder / "broken.tsv").write_text("".join([*lines[:2], "no tab\n"]), encoding="utf-8")
    (folder / "roles.tsv").write_text(
        "".join(f"{s}\t1\tthing\t4\n" for s in sentences if 5 <= len(s.split()) <= 12), encoding="utf-8"
    )
    return folder


def options(place: Path, model: Path, **more: Any) -> dict[str, Any]:
    usual = {"model": str(model), "pairs": str(place / "pairs.tsv"), "runs": str(place / "runs"), "quiet": True}
    return {**usual, "trainer": {"accelerator": "cpu"}, "wandb": WandbOptions("disabled"), **more}


class Stop(pl.Callback):
    """Interrupts a pass after its first shard."""

    def on_predict_batch_end(self, *args: Any, **keywords: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_pairs_have_blocks_and_no_parts_of_a_treebank(
    place: Path, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(accumulation, "SHARD_TOKENS", 400)
    forward = accumulation.forward_trainer
    with monkeypatch.context() as once:
        once.setattr(accumulation, "forward_trainer", lambda trainer, callbacks: forward(trainer, [*callbacks, Stop()]))
        with pytest.raises(KeyboardInterrupt):
            attention(**options(place, checkpoints["bert"], max_length=40))
    made = attention(**options(place, checkpoints["bert"], max_length=40, quiet=False, name="one"))
    out, err = capsys.readouterr()
    assert made is not None
    assert "over 30 pairs of sentences" in " ".join(out.split())
    assert "pairs.tsv: 1 repeated pairs were left out" in err
    assert " pairs were longer than the model accepts and were cut" in err
    assert "the parts words, relations, trees, roles are left out: they need single sentences with the columns" in err
    heads = [row for row in made.attention_classes if row["layer"] != "all"]
    assert all(0 <= row["b"] <= 1 for row in heads)
    assert any(row["b"] > 0 for row in heads)
    for factor in (0.75, 1.0, 1.25):
        shares = {row["class"]: row["share"] for row in made.attention_classes
                  if (row["layer"], row["factor"]) == ("all", factor)}  # fmt: skip
        assert "block" in shares
        assert sum(shares.values()) == pytest.approx(1)
    assert made.heads
    assert made.similarity
    assert not made.relations
    results = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))
    assert (results["unit"], results["n_sentences"]) == ("pairs", 30)
    assert results["cache"]["n_truncated"] > 0
    # Killed or not, and in batches of another size, it is the same.
    config = yaml.safe_load((made.folder / "config.yaml").read_text(encoding="utf-8"))
    other = {"cache": str(place / "other"), "name": "again", "parts": "classes", "batch_tokens": 100}
    again = attention(**{**config, **other, "wandb": WandbOptions("disabled")})
    assert again is not None
    for row, same in zip(again.attention_classes, made.attention_classes, strict=True):
        assert row == {
            name: pytest.approx(value, abs=1e-6, nan_ok=True) if isinstance(value, float) else value
            for name, value in same.items()
        }
    # The same words as single sentences have no blocks, and nothing of the pairs is taken for theirs.
    single = {"pairs": None, "corpus": str(place / "plain.txt"), "parts": "classes", "max_length": 40}
    text = attention(**options(place, checkpoints["bert"], **single))
    assert text is not None
    assert all("b" not in row for row in text.attention_classes)
    assert {row["class"] for row in text.attention_classes if row["layer"] == "all"} == {
        row["class"] for row in made.attention_classes if row["layer"] == "all"
    } - {"block"}


def test_role_links_have_sentences_of_their_own(place: Path, checkpoints: dict[str, Path]) -> None:
    roles = str(place / "roles.tsv")
    made = attention(**options(place, checkpoints["bert"], parts="classes,roles", roles=roles, name="roles"))
    assert made is not None
    assert made.roles
    assert "b" in made.attention_classes[0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--pairs", "broken.tsv"], "`--pairs broken.tsv`, line 3: expected two sentences with a tab between them"),
        (["--pairs", "nowhere.tsv"], "nowhere.tsv"),
        (["--pairs", "pairs.tsv", "--corpus", "plain.txt"], "`--pairs pairs.tsv` and `--corpus`: a survey reads pairs"),
        (["--pairs", "pairs.tsv", "--test_corpus", "plain.txt"], "`--pairs pairs.tsv` and `--test_corpus`"),
        (["--pairs", "pairs.tsv", "--parts", "trees"], "`--parts trees` needs single sentences with the columns of a"),
        (["--pairs", "pairs.tsv", "--parts", "fusion"], "`--parts fusion` needs single sentences, given as --corpus"),
        (["--pairs", "pairs.tsv", "--parts", "roles"], "and `--pairs pairs.tsv` has pairs of sentences without them"),
        (["--pairs", "pairs.tsv", "--max_length", "4"], "`--max_length 4`: "),
    ],
)
def test_what_pairs_cannot_do_is_refused(
    args: list[str], message: str, place: Path, checkpoints: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: Any,
) -> None:  # fmt: skip
    monkeypatch.chdir(place)
    where = ["--model", str(checkpoints["bert"]), "--runs", str(tmp_path / "runs"), "--wandb.mode", "disabled"]
    assert run(COMMANDS, ["attention", *where, *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
