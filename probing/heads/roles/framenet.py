"""Reads role links from FrameNet, in the layout in which it is distributed: a folder `lu` with a file for each unit.

A file `lu/lu*.xml` holds the example sentences of one lexical unit. Its header says which elements of the frame are
core. An annotation marks the target and the elements by their first and last character. FrameNet requires a licence,
and no part of it comes with this project.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

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
