"""`report` makes a page of any one finished run, and `Result` is the same for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

import probing
from conftest import BARE
from downstream_data import word_pairs, write_sts, write_wic
from families import masked_lm
from probing.results.rows import Table
from probing.runs.registry import study_names, study_of
from probing.runs.study import Result

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]
NO_WANDB: Any = {"mode": "disabled"}
# An encoder that is pretrained within a second.
SMALL = {"n_layers": 1, "d_model": 16, "n_heads": 2, "d_feedforward": 16, "vocabulary": 100, "row_length": 16}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, corpus_file: Path, sentences: list[str]) -> Callable[[str], Result]:
    """Return small results of a command by its name, made when they are first asked for."""
    place = tmp_path_factory.mktemp("every")
    model = str(masked_lm(place / "bert", "bert", sentences))
    usual: dict[str, Any] = {"quiet": True, "wandb": NO_WANDB, "runs": str(place), "cache": str(place / "cache")}
    read: dict[str, Any] = {**usual, "model": model, "corpus": str(corpus_file)}
    for part in ("train", "dev"):
        write_wic(place / "wic", part, word_pairs(40, len(part)))
    write_sts(place / "sts", 20)
    rows = [f'"{text}",{"long" if len(text) > 100 else "short"}\n' for text in sentences]
    (place / "labelled.csv").write_text("".join(["text,label\n", *rows]), encoding="utf-8")
    (place / "sweep.yaml").write_text(
        yaml.safe_dump({"method": "grid", "parameters": {"probe.l2": {"values": [1e-2, 1e-1]}}}), encoding="utf-8"
    )
    few = {"train_sentences": 60, "test_sentences": 25, "generalisation_sentences": 30}
    command: Any = probing  # its functions take options as a command line has them
    calls: dict[str, Callable[[], Any]] = {
        "fit": lambda: command.fit(**read, **BARE, layer=1, name="fit"),
        "rank": lambda: command.rank(str(made_of("fit").folder), method="anova", quiet=True, wandb=NO_WANDB),
        "compare": lambda: command.compare([str(made_of("fit").folder), str(second().folder)], null_draws=1, **usual),
        "sweep": lambda: command.sweep(
            str(place / "sweep.yaml"), fit={"model": model, "corpus": str(corpus_file), "layer": 1, "replicates": 0},
            runs=str(place), cache=str(place / "cache"), wandb=NO_WANDB, quiet=True,
        ),
        "geometry": lambda: command.geometry(**read, layer=1, transforms="none", draws=0),
        "attention": lambda: command.attention(**read, parts="profile"),
        "disable": lambda: command.disable(**read, units="layers", kinds="zero", retrain=0),
        "hierarchy": lambda: command.hierarchy(model=model, layer=1, probe={"l2": 1e-2}, **few, **usual),
        "cloze": lambda: command.cloze(**{name: value for name, value in read.items() if name != "cache"}),
        "pretrain": lambda: command.pretrain(
            corpus=str(corpus_file), arms="none", size="tiny", sentences=100, encoder=SMALL,
            training={"steps": 2, "warm_up": 1, "batch_size": 4}, **usual,
        ),
        "finetune": lambda: command.finetune(
            model=model, corpus=str(place / "labelled.csv"), seeds=1, orders=2, starts="all", tuning={"epochs": 1},
            **usual,
        ),
        "changes": lambda: command.changes(
            run=str(made_of("finetune").folder), measures="states,special", sentences=40,
            **usual,
        ),
        "series": lambda: command.series(
            str(made_of("pretrain").folder / "checkpoints" / "*" / "step*"), measures="geometry",
            corpus=str(corpus_file), layer=1, **usual,
        ),
        "wic": lambda: command.wic(str(place / "wic"), model=model, layer=1, transforms="none", **usual),
        "sts": lambda: command.sts([str(place / "sts")], model=model, layer="0,1", pooling="cls", **usual),
        "embeddings": lambda: command.embeddings(**read, sentences=3, documents=20, draws=2, top=2),
        "reproduce": lambda: command.reproduce("luo2021", models=model, corpus=str(corpus_file), claims=[1], **usual),
    }  # fmt: skip
    done: dict[str, Result] = {}

    def second() -> Any:
        return command.fit(**read, **BARE, layer=2, name="second")

    def made_of(name: str) -> Result:
        if name not in done:
            done[name] = calls[name]()
        return done[name]

    assert set(calls) == set(study_names())
    return made_of


@pytest.mark.slow
@pytest.mark.parametrize("name", study_names())
def test_results_are_opened_shown_and_reported_alike(name: str, made: Callable[[str], Result]) -> None:
    one = made(name)
    study = study_of(name)
    assert (one.study, isinstance(one, Result)) == (study, True)
    opened = probing.load_run(one.folder)
    assert type(opened) is type(one)
    assert (opened.config, opened.results) == (one.config, one.results)
    names = [schema.name for schema in study.schemas if schema.name != "METHOD"]
    assert repr([getattr(opened, of) for of in names]) == repr([getattr(one, of) for of in names])
    filled = [of for of in names if getattr(opened, of)]
    assert filled or name == "rank"
    for of in filled:
        table = getattr(opened, of)
        assert isinstance(table, Table)
        assert len(table.to_pandas()) == len(table)
        assert not isinstance(one.results.get(of), list) or name == "fit"  # tables are not repeated
    assert opened.tables()
    assert repr(opened).endswith(str(opened.folder))
    assert all(isinstance(line, str) and line for line in opened.conclusions())
    with pytest.raises(AttributeError, match=f"they have .*{names[0]}" if name != "rank" else "they have"):
        _ = opened.no_such_table
    page = opened.report().read_text(encoding="utf-8")
    text = unescape(re.sub("<[^>]*>", "", page))
    assert "nan" not in re.sub(r"<script>.*", "", page, flags=re.DOTALL).lower().split("</style>")[1].split()
    if name not in ("fit", "compare"):
        assert study.heading(opened) in text
        (section,) = re.findall(rf'<section[^>]* id="{name}-0".*?</section>', page, re.DOTALL)
        shown = unescape(re.sub("<[^>]*>", " ", section))
        if name != "geometry":  # whose section has the numbers that its sentences are made from
            assert all(line[:40] in shown for line in opened.conclusions())
    for term in ("Terms", "To reproduce"):
        assert term in text


@pytest.mark.parametrize("name", study_names())
def test_no_number_of_its_tables_is_cut(made: Callable[[str], Result], name: str) -> None:
    for table in made(name).tables():
        headings = [str(column.header) for column in table.columns]
        cells = [[str(cell) for cell in column.cells] for column in table.columns]
        for width in (60, 80, 100, 160):
            console = Console(width=width, color_system=None)
            with console.capture() as capture:
                console.print(table, crop=False)
            text = " ".join(capture.get().split())
            assert "…" not in text
            _, _, left_out = text.partition("left out for lack of room: ")
            for k, (heading, column) in enumerate(zip(headings, cells, strict=True)):
                # A heading that recurs is named by the column to its left.
                called = f"{heading} of {headings[k - 1]}" if headings.count(heading) > 1 and k else heading
                if called not in left_out.split(", "):
                    assert {word for cell in column for word in cell.split()} <= set(text.split()), (heading, width)
