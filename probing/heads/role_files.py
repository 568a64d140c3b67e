"""Role links, which words of a sentence fill which role of a predicate: read from a file, a treebank or FrameNet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from probing.corpus import Corpus, from_words
from probing.corpus.files import read_lines
from probing.errors import UserError

Span = tuple[int, int]
# Words of the sentence, predicate, role, filler; both spans have a first and a last word.
RawLink = tuple[tuple[str, ...], Span, str, Span]
# The elements that a frame needs; the others (`Peripheral`, `Extra-Thematic`) fit any event.
_CORE = ("Core", "Core-Unexpressed")


def framenet_links(folder: Path, typed: str) -> Iterator[RawLink]:
    """Yield the links of targets with core elements in the example sentences.

    Elements that are not in the sentence, elements that share a word with the target, and annotations whose target or
    element is in several parts are left out.

    Args:
        folder: The folder that holds `lu`.
        typed: The option and its value, for messages.

    Raises:
        UserError: If there is no such folder, or a file is not FrameNet's; the message names file and line.
    """
    files = sorted((folder / "lu").glob("lu*.xml"))
    if not files:
        raise UserError(
            f"`{typed}`: expected files `lu/lu*.xml` in the folder, as FrameNet is distributed, and found none; name "
            "the folder that holds `lu` and `frame`, such as framenet:fndata-1.7."
        )
    for file in files:
        try:
            root = ElementTree.parse(file).getroot()
        except ElementTree.ParseError as error:
            raise UserError(
                f"`{typed}`: {file.name} is not XML in line {error.position[0]} ({str(error).split(':')[0]}); unpack "
                "FrameNet again."
            ) from None
        except OSError as error:
            raise UserError(f"`{typed}`: {file.name} cannot be read ({error.strerror}); check the folder.") from None
        yield from _of_unit(root, f"`{typed}`: {file.name}")


def _of_unit(root: ElementTree.Element, where: str) -> Iterator[RawLink]:
    core = {element.get("name") for element in _all(root, "FE") if element.get("type") in _CORE}
    for sentence in _all(root, "sentence"):
        text = next(_all(sentence, "text"), None)
        if text is None:
            raise UserError(f"{where} has a sentence without text (ID {sentence.get('ID')}); unpack FrameNet again.")
        words, spans = _words(text.text or "")
        for annotation in _all(sentence, "annotationSet"):
            layers: dict[str, dict[str, list[Span]]] = {"Target": {}, "FE": {}}
            for layer in _all(annotation, "layer"):
                if layer.get("name") in layers and layer.get("rank", "1") == "1":
                    found = layers[layer.get("name", "")]
                    for label in _all(layer, "label"):
                        if label.get("start") is not None:
                            at = _characters(label, len(text.text or ""), sentence, where)
                            found.setdefault(label.get("name", ""), []).append(at)
            target = _one(layers["Target"].get("Target", []), spans)
            for role, places in layers["FE"].items():
                filler = _one(places, spans)
                if role in core and target and filler and (filler[1] < target[0] or target[1] < filler[0]):
                    yield words, target, role, filler


def _all(element: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    """Yield the descendants of this name in any namespace."""
    return (other for other in element.iter() if other.tag.rpartition("}")[2] == name)


def _characters(label: ElementTree.Element, n: int, sentence: ElementTree.Element, where: str) -> Span:
    """Return the first and the last character of a label."""
    ends = [label.get(end, "") for end in ("start", "end")]
    if not all(end.isascii() and end.isdigit() for end in ends) or not int(ends[0]) <= int(ends[1]) < n:
        raise UserError(
            f"{where} has the label {label.get('name')!r} from character {ends[0]!r} to {ends[1]!r} in a sentence of "
            f"{n} characters (ID {sentence.get('ID')}); unpack FrameNet again."
        )
    return int(ends[0]), int(ends[1])


def _words(text: str) -> tuple[tuple[str, ...], list[Span]]:
    """Return the words of a text, and the first and the last character of each."""
    words, spans, end = tuple(text.split()), [], 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        spans.append((start, end - 1))
    return words, spans


def _one(places: list[Span], spans: list[Span]) -> Span | None:
    """Return the first and the last word of a label that stands in one place; None if there is none or several."""
    if len(places) != 1:
        return None
    ((first, last),) = places
    inside = [i for i, (start, stop) in enumerate(spans) if start <= last and first <= stop]
    return (inside[0], inside[-1]) if inside else None


FRAMENET = "framenet:"
# Relations of a treebank that count as roles, without their subtypes.
CORE_ARGUMENTS = ("nsubj", "obj", "iobj")
# Which links Kovaleva et al. 2019, section 4.2, keep: words of the filler, words of the sentence, and words from the
# predicate to the filler.
LONGEST_FILLER, LONGEST_SENTENCE, LEAST_DISTANCE = 3, 12, 2
_SPAN = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


@dataclass(frozen=True)
class Link:
    """A predicate and what fills one of its roles.

    Args:
        sentence: Index of the sentence in the corpus.
        predicate: First and last word.
        role: Name of the role.
        filler: First and last word.
    """

    sentence: int
    predicate: Span
    role: str
    filler: Span


@dataclass(frozen=True)
class RoleLinks:
    """Sentences with their links.

    Args:
        corpus: The sentences that are short enough. Sentences without a link are kept too: their pairs of words are
            unlinked pairs for the comparison.
        links: The links, in the order of the sentences.
        left_out: Why links were left out, with their number.
    """

    corpus: Corpus
    links: tuple[Link, ...]
    left_out: tuple[tuple[str, int], ...] = ()


def read_role_links(name: str, option: str = "--roles") -> RoleLinks:
    """Read links from a file, or from the folder of FrameNet as it is distributed (`framenet:FOLDER`).

    Args:
        name: The source, as the user typed it.
        option: The option that names it, for messages.

    Raises:
        UserError: If it cannot be read, a line is malformed, or no link is left that is short enough.
    """
    typed = f"{option} {name}"
    if name.startswith(FRAMENET):
        found = list(framenet_links(Path(name.removeprefix(FRAMENET)), typed))
    else:
        found = list(_links_of_lines(read_lines(name, option), typed))
    if not found:
        raise UserError(f"`{typed}` holds no link: it is empty or blank; give lines `text TAB 3 TAB role TAB 0-1`.")
    corpus = from_words(name, [words for words, *_ in found], option=option)
    sentence = {words: i for i, words in enumerate(corpus.words or ())}
    links = [Link(sentence[words], predicate, role, filler) for words, predicate, role, filler in found]
    return _selected(corpus, links, typed)


def treebank_links(corpus: Corpus, option: str = "--corpus") -> RoleLinks:
    """Return the core arguments of a treebank: subjects and objects, linked to the word that they depend on.

    Args:
        corpus: A corpus with the columns `head` and `deprel`.
        option: The option that names it, for messages.

    Raises:
        UserError: If it has no such columns, or no link is short enough.
    """
    typed = f"{option} {corpus.name}"
    if not {"head", "deprel"} <= set(corpus.columns):
        raise UserError(
            f"`{typed}` has no columns `head` and `deprel`, from which core arguments are read; give a .conllu file."
        )
    links = []
    for i, (heads, relations) in enumerate(zip(corpus.columns["head"], corpus.columns["deprel"], strict=True)):
        for word, (head, relation) in enumerate(zip(heads, relations, strict=True)):
            role = relation.split(":")[0]
            if role in CORE_ARGUMENTS and head.isascii() and head.isdigit() and 0 < int(head) <= len(heads):
                predicate = int(head) - 1
                links.append(Link(i, (predicate, predicate), role, (word, word)))
    return _selected(corpus, links, typed)


def distance(predicate: Span, filler: Span) -> int:
    """Return the number of words from the nearest word of the predicate to that of the filler, negative leftwards."""
    return filler[0] - predicate[1] if filler[0] > predicate[1] else filler[1] - predicate[0]


def _selected(corpus: Corpus, links: Iterable[Link], typed: str) -> RoleLinks:
    """Keep the links and the sentences that are short enough."""
    words = corpus.words or ()
    reasons: dict[str, Callable[[Link], bool]] = {
        f"sentence of more than {LONGEST_SENTENCE} words": lambda link: len(words[link.sentence]) > LONGEST_SENTENCE,
        f"filler of more than {LONGEST_FILLER} words": lambda link: link.filler[1] - link.filler[0] >= LONGEST_FILLER,
        f"predicate and filler less than {LEAST_DISTANCE} words apart": lambda link: (
            abs(distance(link.predicate, link.filler)) < LEAST_DISTANCE
        ),
    }
    left_out: Counter[str] = Counter()
    kept: dict[Link, None] = {}
    for link in links:
        if reason := next((reason for reason, holds in reasons.items() if holds(link)), None):
            left_out[reason] += 1
        else:
            kept[link] = None
    if not kept:
        said = "; ".join(f"{reason}: {n}" for reason, n in left_out.items()) or "there is none"
        raise UserError(f"`{typed}` has no role link that can be measured ({said}); give other sentences.")
    sentences = [i for i, of in enumerate(words) if len(of) <= LONGEST_SENTENCE]
    index = {sentence: i for i, sentence in enumerate(sentences)}
    moved = [Link(index[link.sentence], link.predicate, link.role, link.filler) for link in kept]
    return RoleLinks(
        corpus.subset(sentences), tuple(sorted(moved, key=lambda link: link.sentence)), tuple(left_out.items())
    )


def _links_of_lines(lines: Iterable[str], typed: str) -> Iterator[RawLink]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"`{typed}`, line {number}"
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 4:
            raise UserError(
                f"{where}: expected text, predicate, role and filler with a tab between them, found "
                f"{len(cells)} column{'s' * (len(cells) != 1)}; write for example `She saw him TAB 1 TAB object TAB 2`."
            )
        words = tuple(cells[0].split())
        if not words:
            raise UserError(f"{where}: the text is empty; write the sentence in the first column.")
        if not cells[2]:
            raise UserError(f"{where}: the role has no name; write one in the third column.")
        predicate = _span(cells[1], "predicate", len(words), where)
        filler = _span(cells[3], "filler", len(words), where)
        if predicate[0] <= filler[1] and filler[0] <= predicate[1]:
            raise UserError(
                f"{where}: predicate {cells[1]} and filler {cells[3]} share a word; give spans without a common word."
            )
        yield words, predicate, cells[2], filler


def _span(text: str, what: str, n_words: int, where: str) -> Span:
    found = _SPAN.fullmatch(text)
    if not found:
        raise UserError(f"{where}: the {what} is {text!r}, where a word such as 3 or a span such as 3-4 is expected.")
    first = int(found[1])
    last = int(found[2] or first)
    if first > last:
        raise UserError(f"{where}: the {what} {text} ends before it begins; write {last}-{first}.")
    if last >= n_words:
        raise UserError(
            f"{where}: the {what} {text} is outside of the text, whose {n_words} words are counted from 0; give 0 to "
            f"{n_words - 1}."
        )
    return first, last
