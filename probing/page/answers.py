"""The question of a run and its answer, in sentences made from its numbers."""

from __future__ import annotations

from probing.models.layers import neuron_of, site_of
from probing.page.sources import Sources, Subject
from probing.results.schema import Row
from probing.results.shown import count, layers_named, listed
from probing.tables.answers import accuracies
from probing.tables.columns import R2, has_intercept, score_of
from probing.tables.conclusions import basis, conclusion, dependent_unit, given_words, held_fixed, overlaps, scope
from probing.tables.controls import held_against_by_layer, why_leading
from probing.tables.evidence_sentences import say
from probing.tables.probes import transform_sizes


def title(sources: Sources) -> str:
    """Return the title of a page: of its runs with probes, or else of what it shows instead."""
    if not sources.subjects:
        return listed(list(dict.fromkeys(one.study.about(one) for one in sources.shown)))
    tasks = list(dict.fromkeys(subject.task for subject in sources.subjects))
    return f"{listed(tasks)} in {listed([subject.label for subject in sources.subjects])}"


def question(subject: Subject) -> str:
    """Return the question of a run."""
    config, results, first = subject.run.config, subject.run.results, subject.run.accuracy[0]
    if subject.run.is_of_arrays:
        return _question_of_arrays(subject)
    model = str(config["model"]) + (", randomly initialised" if config.get("random_weights") else "")
    if subject.run.transform != "none":
        model += f", whose hidden states are transformed by {subject.run.transform}"
    if (site := site_of(config)) != "residual":
        model += f", where a neuron is a {neuron_of(site)}"
    sentences = results["n_sentences"]
    tested = f" of {config['test_corpus']}" if config.get("test_corpus") else ""
    # Where examples are sentences, results say how their tokens were pooled.
    n_tokens = {side: f"{count(first[f'n_{side}_tokens'], 'token')} of " for side in ("train", "test")}
    of = dict.fromkeys(n_tokens, "") if "pooling" in results else n_tokens
    return (
        f"Can {subject.task} be read off {layers_named(subject.layers)} of {model}, and which neurons carry it? "
        f"In each layer, a linear probe {_with_or_without(subject)} an intercept was trained to predict "
        f"{_predicted(first)} from {of['train']}"
        f"{count(sentences['train'], 'sentence')} of the corpus {config['corpus']}, and tested on "
        f"{of['test']}{count(sentences['test'], 'other sentence')}{tested}."
    )


def _question_of_arrays(subject: Subject) -> str:
    """Return the question of a run whose activations were given as arrays."""
    results, first = subject.run.results, subject.run.accuracy[0]
    unit = results["intervals_over"]["unit"]
    train, test = (results["n_sentences"][side] for side in ("train", "test"))
    of_groups = f" of {count(train, unit)}" if unit != "row" else ""
    others = f" of {count(test, f'other {unit}')}" if unit != "row" else " that it had not seen"
    return (
        f"Can {subject.task} be read off {layers_named(subject.layers)} of {subject.run.config['model']}, and which "
        f"neurons carry it? In each layer, a linear probe {_with_or_without(subject)} an intercept was trained to "
        f"predict {_predicted(first)} from {count(first['n_train_tokens'], 'row')}{of_groups} of "
        f"arrays, and tested on {count(first['n_test_tokens'], 'row')}{others}."
    )


def _with_or_without(subject: Subject) -> str:
    return "with" if has_intercept(subject.run.config) else "without"


def _predicted(row: Row) -> str:
    """Return what a probe predicts."""
    return "a number" if score_of(row) is R2 else count(row["n_classes"], "class", "classes")


def answer(subject: Subject) -> str:
    """Return the answer of a run, in a paragraph."""
    over = scope(subject.run.results, subject.run.config.get("test_corpus"))
    sentences = [accuracies(subject.run.accuracy), held_against_by_layer(subject.run.accuracy, subject.task), over]
    sentences += [why_leading(subject.run.accuracy), _on_neurons(subject, subject.leading)]
    short = [row["layer"] for row in subject.run.results["layers"] if not row.get("converged", True)]
    if short:
        sentences.append(say("stopped_short_report", layers=layers_named(short)))
    sentences += basis(subject.run.accuracy, subject.run.basis, subject.task, subject.run.config, in_short=True)
    sentences.append(held_fixed(subject.run.results, subject.run.config))
    return " ".join(
        sentence for sentence in [*sentences, *transform_sizes(subject.run.transform, subject.run.accuracy)] if sentence
    )


def conclusions(subject: Subject) -> list[str]:
    """Return the conclusion on the top neuron of each layer, and how far its ranking depends on choices."""
    return [_on_neurons(subject, layer) for layer in subject.ranked]


def _on_neurons(subject: Subject, layer: int) -> str:
    (row,) = (row for row in subject.run.accuracy if row["layer"] == layer)
    ranked = subject.ranked[layer]
    config, dependent = subject.run.config, dependent_unit(subject.run.results)
    of_first = conclusion(ranked, subject.task, row, given_words(config), has_intercept(config), dependent)
    said = of_first, overlaps(row, len(ranked))
    return " ".join(sentence for sentence in said if sentence)
