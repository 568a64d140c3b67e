"""The whole page: text, figures, style and script in a file."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from string import Template

from probing.page import run
from probing.page.charts import RunView, Sources, folder_block, run_block
from probing.page.run import (
    accuracies_figure,
    accuracy_figure,
    bases_of,
    classes_of,
    heads_of,
    neurons_section,
)
from probing.page.terms import ACCURACY, BASES, CLASSES, HEADS, NEURON_TERMS, NUMBERS, Glossary, shown_by_script
from probing.results import MARK, Html, element, joined
from probing.runs import Result, SectionPlace
from probing.runs.folder import reading
from probing.runtime import package_version
from probing.tables import R2

# Number of characters that a page may have as long as its tables fit, and the number that a table takes per neuron.
ROOM, PER_NEURON = 4_600_000, 90

# Number of these that it may have for single neurons.
ROOM_OF_NEURONS = 600_000
# Number of characters that a page may have for the example sentences of heads.
ROOM_OF_EXAMPLES = 1_100_000

# Sections of a run after its neurons: the name, the table without which there is none, the content, and its terms.
_PARTS = (
    ("Classes", "confusions", classes_of, CLASSES), ("Heads", "heads", heads_of, HEADS),
    ("Bases", "bases", bases_of, BASES),
)  # fmt: skip

# Parts of the script, of which each uses only those before it.
SCRIPT = ("packed_numbers", "elements", "neuron_table", "neurons", "heads", "page")


def build(sources: Sources, title: str | None = None) -> bytes:
    """Return the page in UTF-8."""
    script, style = page_script(), _file("style.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    title = title or run.title(sources)
    page = Template(_file("page.html")).substitute(
        mark=MARK,
        title=element("title", title[:1].upper() + title[1:]),
        digest=digest,
        style=style,
        heading=joined(title[:1].upper() + title[1:]),
        version=joined(package_version()),
        links=_links(sources),
        content=_content(sources),
        script=script,
    )
    return page.encode("utf-8", "backslashreplace")  # names of folders may be no UTF-8


def _links(sources: Sources) -> Html:
    links = [("#answer", "Answer"), ("#accuracy", "Accuracy")] if sources.views else []
    links += [("#agreement", "Agreement")] if sources.agreement else []
    for name, table in (("Neurons", "neurons"), *((name, table) for name, table, *_ in _PARTS)):
        of_views = [(i, view.label) for i, view in enumerate(sources.views) if getattr(view.run, table)]
        links += [(f"#{name.lower()}-{i}", f"{name} of {label}") for i, label in of_views]
    links += [(f"#{place.anchor}", result.study.heading(result)) for place, result in _placed(sources)]
    links += [("#terms", "Terms"), ("#reproduce", "To reproduce")]
    return element("ul", *(element("li", element("a", text, href=href)) for href, text in links))


def _content(sources: Sources) -> Html:
    glossary = Glossary()
    parts = _of_probes(sources, glossary)
    for place, result in _placed(sources):
        parts.append(_of_study(result, place, glossary))
    parts.append(glossary.section())
    blocks = [run_block(view) for view in sources.views]
    blocks += [folder_block("The comparison", sources.agreement)] if sources.agreement else []
    blocks += [folder_block(result.study.heading(result), result) for result in sources.shown]
    parts.append(element("section", element("h2", "To reproduce"), *blocks, id="reproduce"))
    return joined(*parts)


def _of_study(result: Result, place: SectionPlace, glossary: Glossary) -> Html:
    """Return the section of results, and add its terms."""
    with reading(result.folder):  # an error while a section is made means that its tables are damaged
        section = result.study.section(result, place)
        for title, terms in result.study.terms(result).items():
            glossary.add(title, terms, section)
    return section


def _placed(sources: Sources) -> Iterator[tuple[SectionPlace, Result]]:
    of_study = Counter(result.study.name for result in sources.shown)
    numbers: Counter[str] = Counter()
    for result in sources.shown:
        name = result.study.name
        yield SectionPlace(f"{name}-{numbers[name]}", numbers[name], ROOM_OF_EXAMPLES // of_study[name]), result
        numbers[name] += 1


def _of_probes(sources: Sources, glossary: Glossary) -> list[Html | None]:
    """Return the parts of runs with probes, and add their terms."""
    views = sources.views
    if not views:
        return []
    tables = sum(PER_NEURON * len(view.run.neurons) for view in views)
    room = max(0, ROOM - tables) // len(views)  # characters for contributions by class
    several = len(views) > 1
    parts: list[Html | None] = [_answers(sources)]
    charts = [accuracies_figure(views)] * several
    for view in views:
        charts.append(accuracy_figure(view, several))
        glossary.add(*(("R²", NUMBERS) if view.score is R2 else ("Accuracy", ACCURACY)), charts[-1])
    parts.append(element("section", element("h2", f"{_scores(views)} by layer"), *charts, id="accuracy"))
    if sources.agreement:
        parts.append(_of_study(sources.agreement, SectionPlace("agreement", 0, 0), glossary))
    for i, view in enumerate(views):
        parts.append(neurons_section(view, i, room, ROOM_OF_NEURONS // len(views)))
        glossary.add("Neurons", NEURON_TERMS, parts[-1], shown_by_script(view))
        for name, _, content_of, terms in _PARTS:
            if content := content_of(view):
                heading = element("h2", f"{name} of {view.label}")
                parts.append(element("section", heading, *content, id=f"{name.lower()}-{i}"))
                glossary.add(name, terms, parts[-1])
    return parts


def _scores(views: Sequence[RunView]) -> str:
    words = " and ".join(dict.fromkeys(view.score.words for view in views))
    return words[0].upper() + words[1:]


def _answers(sources: Sources) -> Html:
    parts: list[Html | None] = [element("p", run.question(sources.views), class_="question")]
    sentences = sources.agreement.answer() if sources.agreement else []
    if sentences:
        parts.append(element("h3", "Between them"))
        parts += [element("p", run.with_bold_numbers(sentence), class_="answer") for sentence in sentences]
    for view in sources.views:
        parts.append(element("h3", view.label) if len(sources.views) > 1 else None)
        parts.append(run.answer_section(view))
    return element("section", element("h2", "Question and answer"), *parts, id="answer")


def page_script() -> str:
    """Return the script of the page."""
    return "\n".join(['"use strict";', *(_file(f"script/{name}.js") for name in SCRIPT)])


def _file(name: str) -> str:
    return files("probing.page").joinpath(name).read_text(encoding="utf-8")
