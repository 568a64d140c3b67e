"""Role links in `attention`, from end to end on tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probing import WandbOptions, attention
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.tables.heads import conclusions

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning")

TREEBANK = "1\tshe\t_\tPRON\t_\t_\t4\tnsubj\t_\t_\n2\tnow\t_\tADV\t_\t_\t4\tadvmod\t_\t_\n" \
    "3\tquickly\t_\tADV\t_\t_\t4\tadvmod\t_\t_\n4\tsaw\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("roles")
    short = [text for text in sentences if 6 <= len(text.split()) <= 12]
    # The links of one half of the sentences could also be in the other half, where there are none.
    two, one = ("{0}\t1\tthing\t4\n{0}\t1\tplace\t3-5\n", "{0}\t0\tthing\t2\n")
    links = "".join((two, one)[i % 2].format(text) for i, text in enumerate(short))
    (folder / "roles.tsv").write_text(links, encoding="utf-8")
    (folder / "alone.conllu").write_text(TREEBANK, encoding="utf-8")
    (folder / "plain.txt").write_text("\n".join(sentences[:30]) + "\n", encoding="utf-8")
    return folder


def options(place: Path, model: Path) -> dict[str, Any]:
    usual = {"model": str(model), "corpus": str(place / "plain.txt"), "runs": str(place / "runs"), "parts": "roles"}
    return {**usual, "quiet": True, "trainer": {"accelerator": "cpu"}, "wandb": WandbOptions("disabled")}


def test_links_of_a_file_are_followed_in_both_directions(place: Path, checkpoints: dict[str, Path]) -> None:
    made = attention(**options(place, checkpoints["bert"]), roles=str(place / "roles.tsv"), layer=2)
    assert made is not None
    assert {(row["query"], row["layer"], row["head"]) for row in made.roles} == {
        (query, 2, head) for query in ("predicate", "filler") for head in (1, 2)
    }
    n = {row["role"]: row["n"] for row in made.roles}
    assert n["all"] <= (place / "roles.tsv").read_text(encoding="utf-8").count("\n")
    for row in made.roles:
        assert 0 < row["p_value"] <= 1
        assert 0 < row["score"] < 1
        assert 0 < row["unlinked"] < 1
    assert made.heads == []
    assert [line for line in conclusions(made.by_name) if line.startswith("Role links: ")]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--parts", "roles"], "`--parts roles` needs role links, given as --roles FILE or read from the columns head"),
        (["--roles", "nowhere.tsv"], "nowhere.tsv"),
        (["--roles", "framenet:nowhere"], "expected files `lu/lu*.xml` in the folder"),
        (["--corpus", "alone.conllu", "--parts", "roles"], "pairs of words that look like a role link and are none"),
    ],
)
def test_links_that_cannot_be_followed_are_refused(
    args: list[str], message: str, place: Path, checkpoints: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: Any,
) -> None:  # fmt: skip
    monkeypatch.chdir(place)
    usual = ["--model", str(checkpoints["bert"]), "--corpus", "plain.txt", "--runs", str(tmp_path / "runs")]
    assert run(COMMANDS, ["attention", *usual, "--wandb.mode", "disabled", *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
