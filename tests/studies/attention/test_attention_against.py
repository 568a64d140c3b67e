"""`attention --against` from end to end: two checkpoints of a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from families import untouched
from probing import Result, WandbOptions, attention, load_run
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.heads import accumulation
from probing.heads import change as change_as_published
from probing.models import load_tokenizer, resolve_model
from probing.tables.change import change_conclusions, change_table
from tiny_models import CHANGED, other_queries, other_second_sentences, tuned
from wandb_stand_in import read_offline_runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]

CPU = {"accelerator": "cpu"}


@pytest.fixture
def pair(tiny_model: Callable[..., Path], tmp_path: Path, sentences: list[str]) -> tuple[Path, Path]:
    """A checkpoint, and one in which the queries of the second block are others; beside them a corpus."""
    before = tiny_model("bert")
    (tmp_path / "plain.txt").write_text("\n".join(sentences[:25]) + "\n", encoding="utf-8")
    return before, tuned(before, other_queries)


def compared(pair: tuple[Any, Any], tmp_path: Path, **options: Any) -> Result:
    usual = {"corpus": str(tmp_path / "plain.txt"), "runs": str(tmp_path / "runs"), "quiet": True, "trainer": CPU}
    usual |= {"parts": "change", "wandb": WandbOptions("disabled")}
    made = attention(model=pair[0], against=pair[1], **{**usual, **options})
    assert made is not None
    return made


def values(made: Result, measure: str, of: str = "same") -> dict[tuple[int, int | None], float]:
    return {
        (row["layer"], row.get("head")): row["value"]
        for row in made.change
        if (row["measure"], row["of"]) == (measure, of) and "layer" in row
    }


def known(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the ends of intervals that there are not, which are NaN and thus unequal to themselves."""
    return [{name: value for name, value in row.items() if value == value} for row in rows]


def test_below_a_changed_block_nothing_changes(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_as_published, "PUBLISHED_LENGTH", 100)
    wandb = WandbOptions("offline")
    made = compared(pair, tmp_path, parts="classes", as_published=True, wandb=wandb, figure_format="png")
    assert made.results["parts"] == ["classes", "change"]
    for measure in ("cosine", "cosine_as_published"):
        found = values(made, measure)
        assert {key: value == 1 for key, value in found.items()} == {
            (layer, head): layer < CHANGED for layer in (1, 2, 3) for head in (1, 2, None)
        }
    assert {layer: value == 1 for (layer, _), value in values(made, "hidden_states").items()} == {
        0: True, 1: True, 2: False, 3: False,
    }  # fmt: skip
    changed = [row for row in made.change if row["measure"] == "parameters" and row["value"] != 1]
    assert [(row["of"], row["layer"]) for row in changed] == [("encoder.layer.1.attention.self.query.weight", CHANGED)]
    assert known(load_run(made.folder).change) == known(made.change)
    assert made.config["against"] == made.results["against"]["model"] == str(pair[1])
    figures = made.folder / "figures"
    assert {path.name for path in figures.iterdir()} == {
        f"{name}.png" for name in ("classes", "examples", "change", "change_by_layer")
    }
    (logged,) = read_offline_runs(made.folder)
    assert len(logged.table("change")) == len(made.change)
    assert [row["by_layer/change_hidden_states"] for row in logged.rows("by_layer/change_hidden_states")] == list(
        values(made, "hidden_states").values()
    )
    least = min((1, 2, 3), key=lambda layer: values(made, "cosine")[layer, None])
    first, same, published, states, parameters = change_conclusions(made.change)
    assert first.startswith(f"Between the two checkpoints, the attention maps of layer {least} change most, to a mean")
    assert "two heads of this layer: " in first
    assert "two sentences of equal length: " in first
    assert same == "The attention maps of layer 1 are the same: their cosine is 1."
    assert published.startswith("As published, in maps of which ")
    assert states.startswith("Hidden states change most in layer ")
    assert parameters.startswith("1 of ")
    assert change_table(made.change).row_count == 4


def test_a_model_and_itself_are_the_same_in_every_number(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = compared((pair[0], pair[0]), tmp_path, layer=[2, 3], quiet=False)
    others = ("other heads", "other sentences", "other tokens")
    for measure in ("cosine", "hidden_states", "parameters"):
        rows = [row for row in made.change if row["measure"] == measure and row["of"] not in others]
        assert {row["value"] for row in rows} == {1}
    assert {layer for layer, _ in values(made, "cosine")} == {layer for layer, _ in values(made, "hidden_states")}
    out = capsys.readouterr().out
    assert "The two checkpoints have the same attention maps in all layers that are reported: each cosine is 1." in out
    assert "Cosines between the two checkpoints" in out
    assert "matrices of parameters have a cosine of 1." in out


def test_a_model_is_compared_with_its_random_initialisation(pair: tuple[Path, Path], tmp_path: Path) -> None:
    made = compared((pair[0], pair[0]), tmp_path, random_weights=True)
    found = values(made, "cosine")
    assert max(found.values()) < 0.999
    assert change_conclusions(made.change)[0].startswith("Between the two checkpoints")


def test_objects_are_compared_and_the_sums_are_kept_for_a_second_run(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = compared(pair, tmp_path)
    before, after = (untouched(folder) for folder in pair)
    tokenizer = load_tokenizer(resolve_model(str(pair[0])))
    by_object = compared((before, after), tmp_path, tokenizer=tokenizer)
    assert known(by_object.change) == known(by_name.change)
    assert by_object.config["against"].startswith("object:BertModel@")
    assert known(compared((pair[0], after), tmp_path).change) == known(by_name.change)

    def nothing_is_read(*args: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(accumulation.AttentionPass, "process", nothing_is_read)
    assert known(compared(pair, tmp_path).change) == known(by_name.change)


def test_pairs_of_sentences_are_read_as_pairs_by_both_checkpoints(
    tiny_model: Callable[..., Path], tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_as_published, "PUBLISHED_LENGTH", 100)
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"{one}\t{two}\n" for one, two in zip(sentences[:12], sentences[12:24], strict=True)), encoding="utf-8"
    )
    (tmp_path / "plain.txt").write_text("\n".join(sentences[:12]) + "\n", encoding="utf-8")
    before = tiny_model("bert")
    after = tuned(before, other_second_sentences)
    of_pairs = {"corpus": "builtin", "pairs": str(tmp_path / "pairs.tsv"), "as_published": True, "max_length": 60}
    for against, is_same in ((before, True), (after, False)):
        made = compared((before, against), tmp_path, **of_pairs)
        for measure in ("cosine", "hidden_states", "cosine_as_published"):
            assert {value == 1 for value in values(made, measure).values()} == {is_same}, measure
    alone = compared((before, after), tmp_path, as_published=True)
    for measure in ("cosine", "hidden_states", "cosine_as_published"):
        assert set(values(alone, measure).values()) == {1}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--against", "ROBERTA"], "` has 2 blocks, and "),
        (["--against", "nowhere/at-all"], "`--against nowhere/at-all`"),
        (["--against", "EMPTY"], "EMPTY`: the folder has no config.json; give a folder written by `save_pretrained`"),
        (["--as_published"], "`--as_published` needs another checkpoint, given as --against MODEL"),
        (["--as_published", "--against", "BERT"], "`--as_published` pads sentences to 200 tokens, and "),
        (["--parts", "change"], "`--parts change` needs another checkpoint, given as --against MODEL"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(
    args: list[str], message: str, checkpoints: dict[str, Path], tmp_path: Path, sentences: list[str], capsys: Any
) -> None:
    (tmp_path / "plain.txt").write_text("\n".join(sentences[:25]) + "\n", encoding="utf-8")
    (tmp_path / "EMPTY").mkdir()
    where = ["--corpus", str(tmp_path / "plain.txt"), "--runs", str(tmp_path / "runs"), "--wandb.mode", "disabled"]
    named = {"ROBERTA": str(checkpoints["roberta"]), "BERT": str(checkpoints["bert"]), "EMPTY": str(tmp_path / "EMPTY")}
    given = [named.get(arg, arg) for arg in args]
    capsys.readouterr()  # what was said while checkpoints were made
    assert run(COMMANDS, ["attention", "--model", str(checkpoints["bert"]), *given, *where]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "`--model" not in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
