"""How a checkpoint of sentence-transformers pools is read from its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probing.errors import UserError
from probing.models import ModelSource, resolve_model
from probing.models.source import SentenceModel, sentence_model


def write(folder: Path, pooling: dict[str, Any] | None, *further: str, transformer: str = "") -> ModelSource:
    """Write the files of a checkpoint that say what its parts are, and return it."""
    kinds = {"Transformer": transformer, **({} if pooling is None else {"Pooling": "1_Pooling"})}
    kinds |= {kind: f"{i}_{kind}" for i, kind in enumerate(further, 2)}
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds.items()]
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / transformer).mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    length = folder / transformer / "sentence_bert_config.json"
    length.write_text('{"max_seq_length": 128, "do_lower_case": false}', encoding="utf-8")
    return ModelSource(str(folder), folder / transformer)


OLD = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


@pytest.mark.parametrize("transformer", ["", "0_Transformer"])
@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [
        (OLD, "mean_special"),
        ({**OLD, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "mean"}, "mean_special"),
    ],
)
def test_mean_and_first_token_are_read_in_both_forms_of_the_file(
    pooling: dict[str, Any], wanted: str, transformer: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "one", pooling, "Normalize", transformer=transformer)
    assert sentence_model(source) == SentenceModel(wanted, 128)


def test_what_changes_a_vector_behind_the_pooling_is_named(tmp_path: Path) -> None:
    assert sentence_model(write(tmp_path / "one", OLD, "Dense", "Normalize")).left_out == ("Dense",)


@pytest.mark.parametrize(
    ("pooling", "found"),
    [
        ({"pooling_mode": "lasttoken"}, "lasttoken"),
        ({**OLD, "pooling_mode_max_tokens": True}, "mean_tokens and max_tokens"),
        ({}, "nothing"),
    ],
)
def test_another_pooling_is_refused_by_its_name(pooling: dict[str, Any], found: str, tmp_path: Path) -> None:
    source = write(tmp_path / "one", pooling)
    with pytest.raises(UserError, match=f"its pooling is {found}, where mean or cls was expected; choose one with"):
        sentence_model(source)
    assert sentence_model(source, with_pooling=False).pooling is None


def test_files_that_say_nothing_leave_it_open(tmp_path: Path) -> None:
    assert sentence_model(ModelSource("x", tmp_path)) == SentenceModel(None, None)
    assert sentence_model(write(tmp_path / "one", None)).pooling is None


def test_the_built_in_model_takes_the_mean_over_256_tokens() -> None:
    assert sentence_model(resolve_model("minilm")) == SentenceModel("mean_special", 256)
