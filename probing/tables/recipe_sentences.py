"""What is said of two recipes of tuning that `compare` holds against each other, each with its rule."""

from __future__ import annotations

from probing.tables.evidence_notes import Sentence

_RECIPES = "Several recipes of tuning (`compare` of runs of `finetune`)"

RECIPE_SENTENCES: dict[str, Sentence] = {
    "better_recipe": Sentence(
        "{better} is better than {worse}, {start}: {difference} {score}, {low} to {high} over seeds, orders and test "
        "{examples}.",
        "The interval of the difference of both mean scores, over seeds, orders and test clusters, leaves out 0.",
        _RECIPES,
    ),
    "equal_recipes": Sentence(
        "{a} and {b} do not differ, {start}: every pair of tunings has the same score on every test cluster.",
        "So it is.",
        _RECIPES,
    ),
    "unresolved_recipes": Sentence(
        "Whether {a} or {b} is better, {start}, is not resolved: {difference} {score}, {low} to {high} over seeds, "
        "orders and test {examples}.",
        "The interval includes 0. The difference is that of the first run less the second.",
        _RECIPES,
    ),
    "unknown_recipes": Sentence(
        "Whether {a} or {b} is better, {start}, cannot be said: {difference} {score}, without an interval, for which "
        "each needs two tunings or more, and the test part {least} clusters.",
        "There is no interval.",
        _RECIPES,
    ),
    "options_differ": Sentence("The runs differ in {options}.", "Some option of the runs differs.", _RECIPES),
    "options_same": Sentence(
        "The runs have the same options, apart from what does not decide what is learnt.", "None does.", _RECIPES
    ),
    "paired_tunings": Sentence(
        "{a} and {b} are held against each other at the same seeds and orders{left_out}.",
        "Those of one run are all among those of the other. Tunings that only one has are left out.",
        _RECIPES,
    ),
    "independent_tunings": Sentence(
        "{a} and {b} have other seeds or orders, so that these are independent draws, and what they vary is added up.",
        "Otherwise.",
        _RECIPES,
    ),
    "several_recipes": Sentence(
        "Intervals are of {level:.1%}, so that those of all {n} pairs of runs hold together in 95 of 100 cases.",
        "There are three runs or more (Bonferroni).",
        _RECIPES,
    ),
}
