"""The whole page: text, figures, style and script in one file."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any, TypeVar

from probing.page import answers
from probing.page.markup import MARK, Html, element, joined
from probing.page.sections.attention import survey_section
from probing.page.sections.claims import claims_section
from probing.page.sections.comparison import accuracies_figure, agreement_section
from probing.page.sections.diagnostics import cloze_section, hierarchy_section
from probing.page.sections.disabling import disabling_section
from probing.page.sections.evaluation import evaluation_section
from probing.page.sections.geometry import geometry_section
from probing.page.sections.pretraining import pretraining_section
from probing.page.sections.reproduce import folder_block, run_block
from probing.page.sections.run import accuracy_figure, heads_section, neurons_section
from probing.page.sections.series import series_section
from probing.page.sections.terms import terms_section
from probing.page.shown import Shown
from probing.page.sources import Evaluation, Geometry, Sources, Subject
from probing.runs.diagnostics import Cloze, Hierarchy
from probing.runs.kinds import Disabled, Reproduction
from probing.runs.reading import reading
from probing.runs.result_folder import ResultFolder
from probing.runs.trainings import CheckpointSeries, Pretraining
from probing.runtime.versions import own_version

# Number of characters that a page may have as long as its tables fit, and the number that a table takes per neuron.
ROOM, PER_NEURON = 4_600_000, 90

# Number of characters that a page may have for the example sentences of heads.
ROOM_OF_EXAMPLES = 1_100_000

# Parts of the script, of which each uses only those before it.
SCRIPT = ("packed_numbers", "elements", "neuron_table", "neurons", "heads", "page")

# What makes the section of results that have one of their own.
_SECTIONS: Mapping[type[ResultFolder], Callable[[Any, str], Html]] = {
    Disabled: disabling_section,
    Pretraining: pretraining_section,
    CheckpointSeries: series_section,
    Hierarchy: hierarchy_section,
    Cloze: cloze_section,
    Reproduction: claims_section,
}

_Measured = TypeVar("_Measured", bound=Geometry | Evaluation | Shown[ResultFolder])


def build(sources: Sources, defaults: Mapping[str, Any]) -> bytes:
    """Return the page, in UTF-8.

    Args:
        sources: Sources of the page.
        defaults: Default values of the options of `fit`, which commands on the page omit.
    """
    script, style = page_script(), _file("style.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    title = answers.title(sources)
    page = Template(_file("page.html")).substitute(
        mark=MARK,
        title=element("title", title[:1].upper() + title[1:]),
        digest=digest,
        style=style,
        heading=joined(title[:1].upper() + title[1:]),
        version=joined(own_version()),
        links=_links(sources),
        content=_content(sources, defaults),
        script=script,
    )
    return page.encode("utf-8", "backslashreplace")  # names of folders may be no UTF-8


def _links(sources: Sources) -> Html:
    links = [("#answer", "Answer"), ("#accuracy", "Accuracy")] if sources.subjects else []
    links += [("#agreement", "Agreement")] if sources.agreement else []
    links += [(f"#neurons-{i}", f"Neurons of {subject.label}") for i, subject in enumerate(sources.subjects)]
    links += [(f"#heads-{i}", f"Heads of {one.label}") for i, one in enumerate(sources.subjects) if one.run.heads]
    links += [(f"#attention-{i}", one.title) for i, one in enumerate(sources.surveys)]
    links += [(f"#{anchor}", one.title) for anchor, one in _anchored(sources)]
    links += [("#geometry", "Geometry")] if sources.geometry else []
    links += [("#evaluations", "Words and sentences")] if sources.evaluations else []
    links += [("#terms", "Terms"), ("#reproduce", "To reproduce")]
    return element("ul", *(element("li", element("a", text, href=href)) for href, text in links))


def _content(sources: Sources, defaults: Mapping[str, Any]) -> Html:
    parts = _of_probes(sources)
    for i, survey in enumerate(sources.surveys):
        with reading(survey.folder):
            parts.append(survey_section(survey, i, ROOM_OF_EXAMPLES // len(sources.surveys)))
    for anchor, one in _anchored(sources):
        with reading(one.folder):
            parts.append(_SECTIONS[type(one.made)](one, anchor))
    if sources.geometry:
        parts.append(element("div", *_each(geometry_section, sources.geometry), id="geometry"))
    if sources.evaluations:
        parts.append(element("div", *_each(evaluation_section, sources.evaluations), id="evaluations"))
    parts.append(terms_section(sources))
    blocks = [run_block(subject, defaults) for subject in sources.subjects]
    blocks += [folder_block("The comparison", sources.agreement.folder)] if sources.agreement else []
    others: list[Geometry | Evaluation | Shown[ResultFolder]] = [
        *sources.surveys, *sources.shown, *sources.geometry, *sources.evaluations,
    ]  # fmt: skip
    blocks += _each(lambda one: folder_block(one.title, one.folder), others)
    parts.append(element("section", element("h2", "To reproduce"), *blocks, id="reproduce"))
    return joined(*parts)


def _anchored(sources: Sources) -> Iterator[tuple[str, Shown[ResultFolder]]]:
    """Yield the anchor of each result that has a section of its own, such as series-0, and the result."""
    numbers: Counter[str] = Counter()
    for one in sources.shown:
        name = _SECTIONS[type(one.made)].__name__.removesuffix("_section")
        yield f"{name}-{numbers[name]}", one
        numbers[name] += 1


def _of_probes(sources: Sources) -> list[Html | None]:
    """Return what a page says of runs with probes: nothing if there are none."""
    subjects = sources.subjects
    if not subjects:
        return []
    tables = sum(PER_NEURON * len(subject.run.neurons) for subject in subjects)
    room = max(0, ROOM - tables) // len(subjects)  # characters for contributions by class
    several = len(subjects) > 1
    parts: list[Html | None] = [_answers(sources)]
    charts = [accuracies_figure(subjects)] * several + [accuracy_figure(subject, several) for subject in subjects]
    parts.append(element("section", element("h2", f"{_scores(subjects)} by layer"), *charts, id="accuracy"))
    if sources.agreement:
        parts.append(agreement_section(sources.agreement))
    for i, subject in enumerate(subjects):
        parts += [neurons_section(subject, i, room), heads_section(subject, i)]
    return parts


def _scores(subjects: Sequence[Subject]) -> str:
    """Return what the probes are scored by, as the beginning of a heading."""
    words = " and ".join(dict.fromkeys(subject.score.words for subject in subjects))
    return words[0].upper() + words[1:]


def _each(section: Callable[[_Measured], Html], measured: Iterable[_Measured]) -> Iterator[Html]:
    """Yield the section of each measurement; an error while it is made means that its tables are damaged."""
    for one in measured:
        with reading(one.folder):
            made = section(one)
        yield made


def _answers(sources: Sources) -> Html:
    parts = []
    for subject in sources.subjects:
        parts.append(element("h3", subject.label) if len(sources.subjects) > 1 else None)
        parts.append(element("p", answers.question(subject), class_="question"))
        parts.append(element("p", answers.answer(subject), class_="answer"))
    found = answers.agreements(sources.agreement) if sources.agreement else []
    if found:
        parts.append(element("h3", "Between them"))
        parts += [element("p", sentence, class_="answer") for sentence in found]
    return element("section", element("h2", "Question and answer"), *parts, id="answer")


def page_script() -> str:
    """Return the script of the page."""
    return "\n".join(['"use strict";', *(_file(f"script/{name}.js") for name in SCRIPT)])


def _file(name: str) -> str:
    return files("probing.page").joinpath(name).read_text(encoding="utf-8")
