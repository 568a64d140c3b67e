"""Tables of `compare` of runs of `finetune`, and their sentences: scores of recipes, and options that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.results.schema import Row, Schema, ends, listed, number, shown, shown_table, text, whole
from probing.runtime.terminal import plain_table
from probing.statistics.intervals import LEVEL, MIN_SENTENCES, few_sentences
from probing.studies.finetune.options import PRETRAINED, RANDOM, SHUFFLED
from probing.studies.finetune.tables import SHORT, score_words
from probing.tables.evidence_sentences import say

# What `results.json` has under `compared` where the runs are of `finetune`.
TUNINGS = "tunings"
# Whether tunings are held against each other one by one, and which run is better.
PAIRED, INDEPENDENT = "paired", "independent"
FIRST, SECOND, EQUAL, UNRESOLVED, UNKNOWN = "a", "b", "equal", "unresolved", "unknown"

_STARTS = {
    PRETRAINED: "tuned from the pretrained model",
    RANDOM: "tuned from the randomly initialised model",
    SHUFFLED: "tuned on shuffled labels",
}

RECIPES = Schema("recipes", "a row per pair of runs of `finetune` and start", (
    text("run_a", "The first run.", "first run (a)"), text("run_b", "The second run.", "second run (b)"),
    text("start", "From where the models start, as in `tunings.csv` of the runs.", labels=SHORT),
    text("draws", f"Whether tunings are compared at the same seed and order (`{PAIRED}`), or, where those of neither "
         f"run are all among those of the other, as draws of their own (`{INDEPENDENT}`)."),
    whole("tunings_a", "Number of tunings of the first run that are compared.", "tunings of a"),
    whole("tunings_b", "The same of the second run.", "tunings of b"),
    number("score_a", "Mean accuracy of these tunings of the first run on test examples; R² of numbers.", "score of a"),
    number("score_b", "The same of the second run.", "score of b"),
    number("difference", "The first score less the second, with its interval over other seeds, orders and test "
           "sentences.", "a less b", form="+.3f", interval=""),
    text("verdict", f"Which run is better: `{FIRST}` or `{SECOND}` where the interval leaves out 0; `{UNRESOLVED}` "
         f"where it does not; `{EQUAL}` where both have the same score on every test cluster, a sentence or a "
         f"document; `{UNKNOWN}` without an interval."),
), optional=True)  # fmt: skip
OPTIONS = Schema("options", "a row per option of `finetune` that differs, and run", (
    text("option", "Name of the option. Of texts, only those count whose sentences differ, wherever they are."),
    text("run", "The run."),
    text("setting", "Its value there.", may_be_empty=True),
), optional=True)  # fmt: skip

_SHOWN = "start", "tunings_a", "tunings_b", "score_a", "score_b", "difference*", "verdict"
TERMS = RECIPES.terms(_SHOWN) | OPTIONS.terms(("option",))


def level_of(n_pairs: int) -> float:
    """Return the level of the interval of a pair of runs with which all pairs hold together (Bonferroni)."""
    return 1 - (1 - LEVEL) / n_pairs


def verdict_of(row: Row, is_equal: bool) -> str:
    """Return which run is better, by the interval of the difference.

    Args:
        row: A row of `recipes.csv` without its verdict.
        is_equal: Whether both runs have the same score on every test cluster.
    """
    if is_equal:
        return EQUAL
    if (found := ends(row)) is None:
        return UNKNOWN
    return FIRST if found[0] > 0 else SECOND if found[1] < 0 else UNRESOLVED


def answer(rows: Sequence[Row], results: Mapping[str, Any]) -> list[str]:
    """Return for each pair of runs and start which run is better.

    Args:
        rows: Rows of `recipes.csv`.
        results: The content of `results.json`.
    """
    return [_verdict(row, score_words(results["numbers"]), results["examples"]) for row in rows]


def _verdict(row: Row, score: str, examples: str) -> str:
    a, b, verdict, start = row["run_a"], row["run_b"], row["verdict"], _STARTS[row["start"]]
    if verdict == EQUAL:
        return say("equal_recipes", a=a, b=b, start=start)
    difference, apart = row["difference"], ends(row)
    if apart is None:
        return say(
            "unknown_recipes", a=a, b=b, start=start, difference=shown(difference, "+.3f"), score=score,
            least=MIN_SENTENCES,
        )  # fmt: skip
    if verdict == SECOND:
        difference, apart = -difference, (-apart[1], -apart[0])
    values = {
        "start": start, "score": score, "examples": examples, "difference": shown(difference, "+.3f"),
        "low": shown(apart[0], "+.3f"), "high": shown(apart[1], "+.3f"),
    }  # fmt: skip
    if verdict == UNRESOLVED:
        return say("unresolved_recipes", a=a, b=b, **values)
    better, worse = (a, b) if verdict == FIRST else (b, a)
    return say("better_recipe", better=better, worse=worse, **values)


def conclusions(rows: Sequence[Row], options: Sequence[Row], results: Mapping[str, Any]) -> list[str]:
    """Return in which options the runs differ, how their tunings are compared, and what intervals hold for.

    Args:
        rows: Rows of `recipes.csv`.
        options: Rows of `options.csv`.
        results: The content of `results.json`.
    """
    lines = [_options(options)]
    pairs = _pairs(rows)
    for a, b in pairs:
        of_pair = [row for row in rows if (row["run_a"], row["run_b"]) == (a, b)]
        lines.append(_draws(a, b, of_pair, results["n_tunings"]))
    if len(pairs) > 1:
        lines.append(say("several_recipes", level=level_of(len(pairs)), n=len(pairs)))
    over = results["intervals_over"]
    return [line for line in (*lines, few_sentences(over["n"], f"test {over['unit']}")) if line]


def _options(rows: Sequence[Row]) -> str:
    by_option: dict[str, list[str]] = {}
    for row in rows:
        by_option.setdefault(row["option"], []).append(f"{row['run']}: {row['setting'] or 'none'}")
    if not by_option:
        return say("options_same")
    return say("options_differ", options=listed([f"{name} ({'; '.join(of)})" for name, of in by_option.items()]))


def _draws(a: str, b: str, rows: Sequence[Row], n_tunings: Mapping[str, Mapping[str, int]]) -> str:
    if rows[0]["draws"] == INDEPENDENT:
        return say("independent_tunings", a=a, b=b)
    left_out = [
        f"{n} of {run}"
        for run, side in ((a, "a"), (b, "b"))
        if (n := sum(n_tunings[run][row["start"]] - row[f"tunings_{side}"] for row in rows))
    ]
    more = f"; left out are the tunings that only one has, {listed(left_out)}" if left_out else ""
    return say("paired_tunings", a=a, b=b, left_out=more)


def recipe_tables(rows: Sequence[Row], options: Sequence[Row]) -> list[Any]:
    """Return the scores of each pair of runs, and the options that differ, as rich tables."""
    tables = [_scores([row for row in rows if (row["run_a"], row["run_b"]) == pair]) for pair in _pairs(rows)]
    if options:
        runs = list(dict.fromkeys(row["run"] for row in options))
        table = plain_table("Options that differ")
        for heading in ("option", *runs):
            table.add_column(heading)
        for option in dict.fromkeys(row["option"] for row in options):
            there = {row["run"]: row["setting"] for row in options if row["option"] == option}
            table.add_row(option, *(there[run] for run in runs))
        tables.append(table)
    return tables


def _pairs(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["run_a"], row["run_b"]) for row in rows))


def _scores(rows: Sequence[Row]) -> Any:
    title = f"Scores of {rows[0]['run_a']} (a) and {rows[0]['run_b']} (b) on the same test part"
    return shown_table(RECIPES, rows, title, _SHOWN)


def options_of(config: Mapping[str, Any], left_out: Sequence[str]) -> dict[str, str]:
    """Return the options of a run as text by name, those of a group as `group.name`.

    Args:
        config: Its configuration.
        left_out: Options that do not decide what is learnt.
    """
    found: dict[str, str] = {}
    for name, setting in config.items():
        if isinstance(setting, dict):
            found |= {f"{name}.{inside}": one for inside, one in options_of(setting, ()).items()}
        elif name not in left_out:
            found[name] = "" if setting is None else str(setting)
    return found


def differing(options: Mapping[str, Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the rows of `options.csv`.

    Args:
        options: The options of each run, by its name.
    """
    names = dict.fromkeys(name for of_run in options.values() for name in of_run)
    return [
        {"option": name, "run": run, "setting": of_run.get(name, "")}
        for name in names
        if len({of_run.get(name, "") for of_run in options.values()}) > 1
        for run, of_run in options.items()
    ]
