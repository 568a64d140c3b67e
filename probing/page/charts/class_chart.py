"""The contribution of one neuron to each class, as bars that the page's script redraws for the picked neuron."""

from __future__ import annotations

from collections.abc import Sequence

from probing.results.markup import Html, element

WIDTH, HEIGHT = 720, 230
LEFT, RIGHT, TOP = 58, 8, 14
# Room for the labels of classes, which are turned upright if they are words.
BOTTOM_OF_NUMBERS, BOTTOM_OF_WORDS = 40, 84
MOST_LABELS = 40


def class_chart(values: Sequence[float], typical: Sequence[float], classes: Sequence[int | str], task: str) -> Html:
    """Return a bar per class, and a line for the average contribution of the layer's neurons.

    Args:
        values: Contribution of the neuron to each class, in logit units.
        typical: Mean contribution over all neurons, for each class.
        classes: Labels of the classes, in the same order.
        task: Name of the task whose labels they are.
    """
    bottom = HEIGHT - (BOTTOM_OF_NUMBERS if is_numeric(classes) else BOTTOM_OF_WORDS)
    # The coordinates that the script needs to draw another neuron.
    frame = {"data_left": LEFT, "data_width": WIDTH - LEFT - RIGHT, "data_top": TOP, "data_height": bottom - TOP}
    top = max([*values, *typical, 0.0]) or 1.0
    ticks = [
        element("text", f"{top * share:.2g}", x=LEFT - 7, y=bottom - share * (bottom - TOP) + 4, text_anchor="end",
                class_="level", data_share=share)
        for share in (0.0, 0.5, 1.0)
    ]  # fmt: skip
    grid = [
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=level, y2=level, class_="grid")
        for level in (bottom - share * (bottom - TOP) for share in (0.0, 0.5, 1.0))
    ]
    return element(
        "svg", *grid, *ticks,
        element("path", d=_bars(values, top, bottom), class_="bars"),
        element("path", d=_steps(typical, top, bottom), class_="typical"),
        *_names(classes, bottom),
        element("text", task, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 4, text_anchor="middle"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=f"contribution by {task}", class_="chart by-class",
        **frame,
    )  # fmt: skip


def is_numeric(classes: Sequence[int | str]) -> bool:
    """Return whether classes are numbers, such as positions."""
    return all(isinstance(label, int) for label in classes)


def _names(classes: Sequence[int | str], bottom: float) -> list[Html]:
    step = (WIDTH - LEFT - RIGHT) / len(classes)
    numeric = is_numeric(classes)
    every = -(-len(classes) // (20 if numeric else MOST_LABELS))
    names = []
    for i, label in list(enumerate(classes))[::every]:
        x = LEFT + (i + 0.5) * step
        if numeric:
            names.append(element("text", label, x=f"{x:.1f}", y=bottom + 16, text_anchor="middle"))
        else:
            turned = f"translate({x + 4:.1f} {bottom + 8:.1f}) rotate(-60)"
            text = str(label) if len(str(label)) <= 10 else f"{str(label)[:9]}…"
            names.append(element("text", text, transform=turned, text_anchor="end"))
    return names


def _bars(values: Sequence[float], top: float, bottom: float) -> str:
    step = (WIDTH - LEFT - RIGHT) / len(values)
    tall = (bottom - TOP) / top
    return "".join(
        f"M{LEFT + (i + 0.1) * step:.1f} {bottom}v{-max(value, 0) * tall:.1f}h{0.8 * step:.1f}V{bottom}z"
        for i, value in enumerate(values)
    )


def _steps(values: Sequence[float], top: float, bottom: float) -> str:
    step = (WIDTH - LEFT - RIGHT) / len(values)
    return "".join(
        f"M{LEFT + i * step:.1f} {bottom - max(value, 0) / top * (bottom - TOP):.1f}h{step:.1f}"
        for i, value in enumerate(values)
    )
