"""`attention` from end to end on tiny models: of a corpus, pairs of sentences, role links and treebanks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import yaml

from conftest import N_LAYERS
from probing import Result, WandbOptions, attention
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.heads import accumulation, syntax
from probing.models import load_tokenizer, resolve_model
from probing.runs.loading import load_run
from probing.studies.attention.conclusions import conclusions
from probing.studies.attention.tables import SCHEMAS
from rendering import rendered
from wandb_stand_in import read_offline_runs

CPU = {"accelerator": "cpu"}
# Tables that need neither another checkpoint nor to be asked for by name.
# The tables that are not of a run's positions.
NAMES = [schema.name for schema in SCHEMAS if not schema.name.startswith("position_")]
USUAL_TABLES = [name for name in NAMES if name not in ("change", "fusion")]


def treebank(sentences: list[str]) -> str:
    """Write sentences as CoNLL-U: the first word is the subject, the second the root, the last one the object."""
    lines = []
    for sentence in sentences:
        words = sentence.split()
        for i, word in enumerate(words, 1):
            relation = {1: "nsubj", 2: "root", len(words): "obj"}.get(i, "dep")
            upos = "VERB" if i == 2 else "NOUN" if i in (1, len(words)) else "X"
            lines.append("\t".join([str(i), word, "_", upos, "_", "_", str(0 if i == 2 else 2), relation, "_", "_"]))
        lines.append("")
    return "\n".join(lines) + "\n"


def known(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the cells of intervals that there are not, which are NaN and thus unequal to themselves."""
    return [{name: value for name, value in row.items() if value == value} for row in rows]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    (folder / "bank.conllu").write_text(treebank(sentences[:40]), encoding="utf-8")
    (folder / "test.conllu").write_text(treebank(sentences[40:80]), encoding="utf-8")
    (folder / "roles.tsv").write_text(
        "".join(f"{s}\t1\tthing\t4\n" for s in sentences if 5 <= len(s.split()) <= 12), encoding="utf-8"
    )
    (folder / "plain.txt").write_text("\n".join(sentences[:30]) + "\n", encoding="utf-8")
    return folder


def survey(place: Path, model: Path, **options: Any) -> Result:
    usual = {"corpus": str(place / "bank.conllu"), "runs": str(place / "runs"), "quiet": True, "trainer": CPU}
    return attention(model=str(model), **{**usual, "wandb": WandbOptions("disabled"), **options})


@pytest.fixture(scope="module")
def made(place: Path, checkpoints: dict[str, Path]) -> Result:
    files = {"test_corpus": str(place / "test.conllu"), "roles": str(place / "roles.tsv")}
    return survey(place, checkpoints["bert"], name="bert", wandb=WandbOptions("offline"), **files)


@pytest.mark.slow
def test_a_survey_has_every_head_every_measure_and_every_type(made: Result) -> None:
    heads = {(row["layer"], row["head"]) for row in made.heads}
    assert heads == {(layer, head) for layer in range(1, N_LAYERS["bert"] + 1) for head in (1, 2)}
    types = {row["to"] for row in made.heads if row["measure"] == "mass"}
    assert {"special tokens", "[CLS]", "[SEP]", "NOUN", "VERB", "X", "subject", "object"} <= types
    for measure, to in {("entropy", ""), ("distance", ""), ("self", ""), ("previous", ""), ("next", "")} | {
        (measure, to) for measure in ("mass", "lift", "norm_mass", "column_max") for to in types
    }:
        here = [row for row in made.heads if (row["measure"], row.get("to", "")) == (measure, to)]
        assert {(row["layer"], row["head"]) for row in here} == heads
        assert len(here) == len(heads)
        for row in here:
            assert 0 < row["n"] <= 40
            if row["n"] >= 20:
                assert 0 <= row["low"] <= row["value"] <= row["high"]
            else:
                assert math.isnan(row["low"])
        layers = [row for row in made.attention_layers if (row["measure"], row.get("to", "")) == (measure, to)]
        assert [row["layer"] for row in layers] == sorted({layer for layer, _ in heads})
        for row in layers:
            own = [one["value"] for one in here if one["layer"] == row["layer"]]
            assert row["value"] == pytest.approx(sum(own) / len(own))


def test_the_parts_of_a_row_of_attention_are_what_they_must_be(made: Result) -> None:
    found = {(row["measure"], row.get("to", ""), row["layer"], row["head"]): row["value"] for row in made.heads}
    results = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))
    for layer, head in {(row["layer"], row["head"]) for row in made.heads}:
        ends = found["mass", "[CLS]", layer, head] + found["mass", "[SEP]", layer, head]
        assert ends == pytest.approx(found["mass", "special tokens", layer, head])
        words = sum(found["mass", upos, layer, head] for upos in ("NOUN", "VERB", "X"))
        assert words + ends == pytest.approx(1, abs=1e-6)
        share = results["token_types"]["NOUN"]["share"]
        assert found["mass", "NOUN", layer, head] / share == pytest.approx(found["lift", "NOUN", layer, head])


def test_every_head_has_a_class_and_the_classes_of_all_maps_add_up(made: Result) -> None:
    for factor in (1.0, 0.75, 1.25):
        here = [row for row in made.attention_classes if row["factor"] == factor]
        assert sum(row["share"] for row in here if row["layer"] == "all") == pytest.approx(1)
        heads = [row for row in here if row["layer"] != "all"]
        assert len(heads) == 2 * N_LAYERS["bert"]
        assert all(row["low"] <= row["share"] <= row["high"] and row["n"] == 40 for row in heads)


def test_rollout_is_of_every_layer_and_its_shares_add_up(made: Result) -> None:
    layers = range(1, N_LAYERS["bert"] + 1)
    shares = ("self", "special_tokens", "previous", "next", "others")
    names = {(row["layer"], row["query"], row["measure"]) for row in made.rollout}
    for layer in layers:
        for query in ("words", "special tokens"):
            of = [row for row in made.rollout if (row["layer"], row["query"]) == (layer, query)]
            assert sum(row["value"] for row in of if row["measure"] in shares) == pytest.approx(1, abs=1e-6)
    assert len(names) == len(made.rollout) == len(layers) * 2 * (len(shares) + 2)
    assert any(
        line.startswith("Rollout, in which") and " after block 3, " in line for line in conclusions(made.by_name)
    )


def test_pairs_of_heads_and_consecutive_layers_are_compared(made: Result, place: Path) -> None:
    found = [row for row in made.similarity if row["measure"] == "jensen_shannon"]
    n_heads = 2 * N_LAYERS["bert"]
    assert len(found) == n_heads * (n_heads - 1) // 2
    assert all(0 <= row["low"] <= row["value"] <= row["high"] <= math.log(2) for row in found)
    layers = [row for row in made.similarity if row["measure"].startswith("cosine")]
    assert {row["measure"] for row in layers} == {
        name + end for name in ("cosine", "cosine_of_means", "cosine_matched") for end in ("", "_without_special")
    }
    assert {(row["layer"], row["other_layer"]) for row in layers} == {
        (layer, layer + 1) for layer in range(1, N_LAYERS["bert"])
    }
    assert all("head" not in row and 0 < row["value"] <= 1 + 1e-9 for row in layers)
    lines = conclusions(made.by_name)
    assert sum("pairs of heads" in line or "y the published cosine" in line for line in lines) == 2


def test_the_folder_holds_what_was_returned_and_repeats_it(made: Result, place: Path) -> None:
    assert made.change == []  # there is no other checkpoint
    for name in USUAL_TABLES:
        rows = getattr(made, name)
        assert known(rows) != []
        assert known(getattr(load_run(made.folder), name)) == known(rows)
    results = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))
    assert results["kind"] == "survey of attention heads"
    assert results["parts"] == [
        "classes", "profile", "tokens", "words", "rollout", "similarity", "relations", "trees", "roles"
    ]  # fmt: skip
    assert results["n_sentences"] == 40
    config = yaml.safe_load((made.folder / "config.yaml").read_text(encoding="utf-8"))
    again = attention(**{**config, "wandb": WandbOptions("disabled"), "name": "again"})
    assert all(known(getattr(again, name)) == known(getattr(made, name)) for name in USUAL_TABLES)


def test_figures_are_drawn_for_what_was_measured(made: Result, place: Path, checkpoints: dict[str, Path]) -> None:
    names = ("classes", "entropy", "special_tokens", "examples", "relations")
    assert {path.name for path in (made.folder / "figures").iterdir()} == {
        f"{name}.{form}" for name in names for form in ("png", "pdf")
    }
    with rendered():
        some = survey(place, checkpoints["bert"], name="some", parts="profile", layer=2, figure_format="svg")
    assert [path.name for path in (some.folder / "figures").iterdir()] == ["entropy.svg"]
    assert not some.attention_classes


def test_wandb_has_the_tables_and_curves_over_layers(made: Result) -> None:
    (logged,) = read_offline_runs(made.folder)
    assert all(logged.rows(name) for name in (*USUAL_TABLES, "figures/classes"))
    curve = [(row["layer"], row["by_layer/mass_special_tokens"]) for row in logged.rows("by_layer/mass_special_tokens")]
    plain = [
        (row["layer"], row["value"])
        for row in made.attention_layers
        if (row["measure"], row.get("to", "")) == ("mass", "special tokens")
    ]
    assert curve == plain


def test_roles_alone_are_read_in_their_own_sentences_and_words_are_counted_in_those_of_the_corpus(
    place: Path, checkpoints: dict[str, Path], sentences: list[str]
) -> None:
    made = survey(place, checkpoints["bert"], name="roles", parts="roles", roles=str(place / "roles.tsv"))
    results = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))
    assert results["n_sentences"] == 40
    assert results["cache"]["corpus"].endswith("bank.conllu")
    assert results["cache"]["n_words"] == sum(len(sentence.split()) for sentence in sentences[:40])


def test_text_has_no_classes_of_words_and_a_decoder_has_a_special_first_token(
    place: Path, checkpoints: dict[str, Path], capsys: Any
) -> None:
    found = survey(place, checkpoints["gpt2"], corpus=str(place / "plain.txt"), name="gpt2", quiet=False, layer=2)
    out, err = capsys.readouterr()
    assert "the part words is left out: it needs a corpus with the columns upos or deprel" in err
    assert "has neither" in err
    assert "Attention of each layer, mean over its heads and all queries" in out
    assert f"Results: {found.folder}" in out
    assert {row["layer"] for row in found.heads} == {2}
    values = {(row["measure"], row.get("to", "")): row["value"] for row in found.attention_layers}
    assert values["next", ""] == 0
    assert values["mass", "special tokens"] > 1 / 40  # the first token, which all queries see
    results = json.loads((found.folder / "results.json").read_text(encoding="utf-8"))
    assert results["model"]["is_causal"]
    assert results["token_types"]["special tokens"]["n_tokens"] == 30
    assert list(results["left_out"]) == ["words", "relations", "trees", "roles"]


class Stop(pl.Callback):
    """Interrupts a pass after some shards, and counts them."""

    def __init__(self, last: int | None = None) -> None:
        self.n, self.last = 0, last

    def on_predict_batch_end(self, *args: Any, **keywords: Any) -> None:
        self.n += 1
        if self.n == self.last:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_survey_that_was_killed_goes_on_and_ends_with_the_same_tables(
    place: Path, checkpoints: dict[str, Path], made: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulation, "SHARD_TOKENS", 200)
    counts: list[Stop] = []
    forward = accumulation.forward_trainer

    def with_stop(options: Any, callbacks: Any) -> Any:
        counts.append(Stop(2 if not counts else None))
        return forward(options, [*callbacks, counts[-1]])

    monkeypatch.setattr(accumulation, "forward_trainer", with_stop)
    # One pass in each run: other parts read further corpora and the randomly initialised model in passes of their own.
    parts = "classes,profile,tokens,words,rollout,similarity"
    where = {"runs": str(tmp_path / "runs"), "name": "killed", "parts": parts}
    with pytest.raises(KeyboardInterrupt):
        survey(place, checkpoints["bert"], **where)
    assert not list((tmp_path / "runs").glob("killed*"))  # nothing of the run, and the sums are in the cache
    found = survey(place, checkpoints["bert"], **where)
    monkeypatch.setattr(accumulation, "SHARD_TOKENS", 10_000)
    whole = survey(place, checkpoints["bert"], runs=str(tmp_path / "other"), name="whole", parts=parts)
    first, second, third = (count.n for count in counts)
    assert (first, third) == (2, 1)
    assert second >= 1
    for name in NAMES:
        for one, other in zip(known(getattr(found, name)), known(getattr(whole, name)), strict=True):
            assert one.keys() == other.keys()
            for column, value in one.items():
                same = other[column] if isinstance(value, str) else pytest.approx(other[column], rel=1e-6, abs=1e-9)
                assert value == same


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--parts", "clases"],
            "`--parts clases` is not one of classes, profile, tokens, words, first_token, rollout, similarity, "
            "relations, trees, attention_probe, roles, change, fusion, position_heads, position_neurons, all (",
        ),
        (["--parts", "words"], "`--parts words` needs a corpus with the columns upos or deprel, such as a .conllu"),
        (["--parts", "change"], "`--parts change` needs another checkpoint, given as --against MODEL"),
        (["--against", "nowhere/at-all"], "nowhere/at-all"),
        (["--parts", "relations"], "`--parts relations` needs dependency relations, the columns head and deprel of a"),
        (["--parts", "attention_probe"], "and `--corpus "),
        (["--corpus", "-", "--test_corpus", "-"], "`--test_corpus -`: standard input can be read only once"),
        (["--layer", "0,1"], "`--layer 0,1`: heads are in blocks, and"),
        (["--layer", "9"], "`--layer 9`"),
        (["--seed", "-1"], "`--seed -1` is out of range"),
        (["--corpus", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(
    args: list[str], message: str, place: Path, checkpoints: dict[str, Path], tmp_path: Path, capsys: Any
) -> None:
    usual = ["attention", "--model", str(checkpoints["bert"]), "--corpus", str(place / "plain.txt")]
    where = ["--runs", str(tmp_path / "runs"), "--cache", str(tmp_path / "cache"), "--wandb.mode", "disabled"]
    assert run(COMMANDS, [*usual, *where, *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_an_encoder_without_attention_is_refused(
    place: Path, tiny_model: Callable[..., Path], tmp_path: Path, capsys: Any
) -> None:
    from transformers import AutoModel, FNetConfig

    folder = tiny_model("bert")
    config = FNetConfig(
        vocab_size=len(load_tokenizer(resolve_model(str(folder)))), hidden_size=16, num_hidden_layers=2,
        intermediate_size=32, max_position_embeddings=128,
    )  # fmt: skip
    AutoModel.from_config(config).save_pretrained(folder)
    args = ["--model", str(folder), "--corpus", str(place / "plain.txt"), "--runs", str(tmp_path / "runs"), "--quiet"]
    assert run(COMMANDS, ["attention", *args, "--wandb.mode", "disabled"]) == 2
    err = capsys.readouterr().err
    assert "choose a model with attention weights" in err
    assert "Traceback" not in err
    assert not list((tmp_path / "runs").glob("*attention*"))


def test_few_sentences_are_told_to_be_too_few() -> None:
    nan = float("nan")
    row = {"layer": 1, "measure": "entropy", "value": 0.5, "low": nan, "high": nan, "n": 5}
    assert conclusions({"attention_layers": [row]}) == [
        "There are no 95% intervals: 5 sentences are too few; at least 20 are needed."
    ]


@pytest.fixture(scope="module")
def pairs_place(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
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


class PairsStop(pl.Callback):
    """Interrupts a pass after its first shard."""

    def on_predict_batch_end(self, *args: Any, **keywords: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_pairs_have_blocks_and_no_parts_of_a_treebank(
    pairs_place: Path, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(accumulation, "SHARD_TOKENS", 400)
    forward = accumulation.forward_trainer
    with monkeypatch.context() as once:
        once.setattr(
            accumulation, "forward_trainer", lambda trainer, callbacks: forward(trainer, [*callbacks, PairsStop()])
        )
        with pytest.raises(KeyboardInterrupt):
            attention(**options(pairs_place, checkpoints["bert"], max_length=40))
    made = attention(**options(pairs_place, checkpoints["bert"], max_length=40, quiet=False, name="one"))
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
    other = {"cache": str(pairs_place / "other"), "name": "again", "parts": "classes", "batch_tokens": 100}
    again = attention(**{**config, **other, "wandb": WandbOptions("disabled")})
    for row, same in zip(again.attention_classes, made.attention_classes, strict=True):
        assert row == {
            name: pytest.approx(value, abs=1e-6, nan_ok=True) if isinstance(value, float) else value
            for name, value in same.items()
        }
    # The same words as single sentences have no blocks, and nothing of the pairs is taken for theirs.
    single = {"pairs": None, "corpus": str(pairs_place / "plain.txt"), "parts": "classes", "max_length": 40}
    text = attention(**options(pairs_place, checkpoints["bert"], **single))
    assert all("b" not in row for row in text.attention_classes)
    assert {row["class"] for row in text.attention_classes if row["layer"] == "all"} == {
        row["class"] for row in made.attention_classes if row["layer"] == "all"
    } - {"block"}


def test_role_links_have_sentences_of_their_own(pairs_place: Path, checkpoints: dict[str, Path]) -> None:
    roles = str(pairs_place / "roles.tsv")
    made = attention(**options(pairs_place, checkpoints["bert"], parts="classes,roles", roles=roles, name="roles"))
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
    args: list[str], message: str, pairs_place: Path, checkpoints: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: Any,
) -> None:  # fmt: skip
    monkeypatch.chdir(pairs_place)
    where = ["--model", str(checkpoints["bert"]), "--runs", str(tmp_path / "runs"), "--wandb.mode", "disabled"]
    assert run(COMMANDS, ["attention", *where, *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


TREEBANK = "1\tshe\t_\tPRON\t_\t_\t4\tnsubj\t_\t_\n2\tnow\t_\tADV\t_\t_\t4\tadvmod\t_\t_\n" \
    "3\tquickly\t_\tADV\t_\t_\t4\tadvmod\t_\t_\n4\tsaw\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"  # fmt: skip


@pytest.fixture(scope="module")
def roles_place(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("roles")
    short = [text for text in sentences if 6 <= len(text.split()) <= 12]
    # The links of one half of the sentences could also be in the other half, where there are none.
    two, one = ("{0}\t1\tthing\t4\n{0}\t1\tplace\t3-5\n", "{0}\t0\tthing\t2\n")
    links = "".join((two, one)[i % 2].format(text) for i, text in enumerate(short))
    (folder / "roles.tsv").write_text(links, encoding="utf-8")
    (folder / "alone.conllu").write_text(TREEBANK, encoding="utf-8")
    (folder / "plain.txt").write_text("\n".join(sentences[:30]) + "\n", encoding="utf-8")
    return folder


def roles_options(place: Path, model: Path) -> dict[str, Any]:
    usual = {"model": str(model), "corpus": str(place / "plain.txt"), "runs": str(place / "runs"), "parts": "roles"}
    return {**usual, "quiet": True, "trainer": {"accelerator": "cpu"}, "wandb": WandbOptions("disabled")}


def test_links_of_a_file_are_followed_in_both_directions(roles_place: Path, checkpoints: dict[str, Path]) -> None:
    made = attention(**roles_options(roles_place, checkpoints["bert"]), roles=str(roles_place / "roles.tsv"), layer=2)
    assert {(row["query"], row["layer"], row["head"]) for row in made.roles} == {
        (query, 2, head) for query in ("predicate", "filler") for head in (1, 2)
    }
    n = {row["role"]: row["n"] for row in made.roles}
    assert n["all"] <= (roles_place / "roles.tsv").read_text(encoding="utf-8").count("\n")
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
    args: list[str], message: str, roles_place: Path, checkpoints: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: Any,
) -> None:  # fmt: skip
    monkeypatch.chdir(roles_place)
    usual = ["--model", str(checkpoints["bert"]), "--corpus", "plain.txt", "--runs", str(tmp_path / "runs")]
    assert run(COMMANDS, ["attention", *usual, "--wandb.mode", "disabled", *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def parsed_treebank(sentences: list[str]) -> str:
    """Write sentences as CoNLL-U in which each word but the first depends on the previous one."""
    lines = []
    for sentence in sentences:
        for i, word in enumerate(sentence.split(), 1):
            relation = "root" if i == 1 else "punct" if i == 3 else "dep"
            lines.append(f"{i}\t{word}\t_\tX\t_\t_\t{i - 1}\t{relation}\t_\t_")
        lines.append("")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def parsed_place(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("treebanks")
    (folder / "train.conllu").write_text(parsed_treebank(sentences[:60]), encoding="utf-8")
    (folder / "short.conllu").write_text(
        parsed_treebank([" ".join(text.split()[:4]) for text in sentences[:60]]), encoding="utf-8"
    )
    (folder / "test.conllu").write_text(parsed_treebank(sentences[50:110]), encoding="utf-8")
    (folder / "plain.txt").write_text("\n".join(sentences[:30]) + "\n", encoding="utf-8")
    return folder


def parsed_survey(place: Path, model: Path, **options: Any) -> Result:
    usual = {"corpus": str(place / "train.conllu"), "runs": str(place / "runs"), "quiet": True}
    usual |= {"trainer": {"accelerator": "cpu"}, "wandb": WandbOptions("disabled")}
    return attention(model=str(model), **{**usual, **options})


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_heads_are_chosen_on_the_corpus_and_tested_on_the_test_corpus(
    parsed_place: Path, checkpoints: dict[str, Path], family: str
) -> None:
    parts = "relations,trees,attention_probe"
    made = parsed_survey(
        parsed_place, checkpoints[family], parts=parts, test_corpus=str(parsed_place / "test.conllu"), layer=2
    )
    (relation,) = made.relations
    assert (relation["relation"], relation["layer"]) == ("dep", 2)
    assert (relation["offset"], relation["offset_train"], relation["offset_test"]) == (-1, 1.0, 1.0)
    assert relation["difference"] == pytest.approx(relation["test"] - 1)
    assert relation["test_low"] <= relation["test"] <= relation["test_high"]
    assert 0 <= relation["untrained_low"] <= relation["untrained"] <= relation["untrained_high"] <= 1
    trees = [row for row in made.trees if row["measure"] == "uuas"]
    assert [(row["layer"], row["head"]) for row in trees] == [(2, 1), (2, 2)]
    assert [row["chosen"] for row in trees].count("yes") == 1
    assert max(trees, key=lambda row: row["train"])["chosen"] == "yes"
    (probe,) = (row for row in made.trees if row["measure"] == "uas")
    assert (probe["layer"], probe["offset"]) == ("all", -1)
    assert 0 <= probe["optimality_gap"] <= 1e-5
    assert probe["n_test"] == relation["n_test"]
    # Trees have no word of punctuation, so that the word behind it has no edge.
    assert {row["n_test"] for row in trees} < {*range(relation["n_test"])}
    lines = " ".join(conclusions(made.by_name))
    assert f"dep 2-{relation['head']}" in lines
    assert "Trees of head 2-" in lines


@pytest.mark.slow
def test_without_a_test_corpus_heads_are_tested_on_sentences_that_they_are_not_chosen_on(
    parsed_place: Path, checkpoints: dict[str, Path]
) -> None:
    made = parsed_survey(parsed_place, checkpoints["bert"], parts="trees")
    whole = parsed_survey(
        parsed_place, checkpoints["bert"], parts="trees", test_corpus=str(parsed_place / "test.conllu"), seed=1
    )
    assert made.trees[0]["n_test"] < made.trees[0]["n_train"]
    assert whole.trees[0]["n_train"] < made.trees[0]["n_train"] + made.trees[0]["n_test"]  # shared ones are left out
    assert made.relations == []
    other = parsed_survey(parsed_place, checkpoints["bert"], parts="trees", random_weights=True)
    assert "untrained" not in other.trees[0] or other.trees[0]["untrained"] != other.trees[0]["untrained"]


def test_what_is_missing_is_said_and_the_probe_is_measured_only_if_it_is_named(
    parsed_place: Path, checkpoints: dict[str, Path], capsys: Any
) -> None:
    made = parsed_survey(parsed_place, checkpoints["bert"], corpus=str(parsed_place / "short.conllu"), quiet=False)
    err = capsys.readouterr().err
    assert f"the part relations is left out: it needs a relation with at least {syntax.LEAST_ARCS} arcs" in err
    results = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))
    assert "trees" in results["parts"]
    assert "attention_probe" not in [*results["parts"], *results["left_out"]]
    assert {row["measure"] for row in made.trees} == {"uuas"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--corpus", "short.conllu", "--parts", "relations"], "needs a relation with at least 100 arcs"),
        (
            ["--corpus", "train.conllu", "--test_corpus", "plain.txt", "--parts", "trees"],
            "`--parts trees` needs dependency relations, the columns head and deprel of a .conllu file, and "
            "`--test_corpus plain.txt` has none",
        ),
        (["--corpus", "broken.conllu", "--parts", "trees"], "has the head `99`, where 0 or the number of another"),
    ],
)
def test_what_cannot_be_tested_is_refused_before_the_model_reads(
    args: list[str], message: str, parsed_place: Path, checkpoints: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: Any,
) -> None:  # fmt: skip
    (parsed_place / "broken.conllu").write_text(
        (parsed_place / "train.conllu").read_text(encoding="utf-8").replace("\t1\tdep", "\t99\tdep", 1),
        encoding="utf-8",
    )
    monkeypatch.chdir(parsed_place)
    where = ["--model", str(checkpoints["bert"]), "--runs", str(tmp_path / "runs"), "--wandb.mode", "disabled"]
    assert run(COMMANDS, ["attention", *where, "--cache", str(tmp_path / "cache"), *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()
    assert not list((tmp_path / "cache").glob("*/plan.json"))
