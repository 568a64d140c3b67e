"""A number as text."""

from __future__ import annotations

import math


def shown(value: float, form: str) -> str:
    """Return a number as text; one that is not 0 never looks like 0: it has as many digits as show its first one.

    So an interval that leaves out 0 is seen to do so, such as `2e-05 to 0.0036` in place of `0.0000 to 0.0036`.

    Args:
        value: The number.
        form: Its format, such as `.4f`, `+.3f` or `.1%`.
    """
    text = format(value + 0.0 if value else 0.0, form)
    if value and math.isfinite(value) and not set(text) & set("123456789"):
        sign, percent = "+" * form.startswith("+"), "%" * form.endswith("%")
        return format(100 * value if percent else value, f"{sign}.1g") + percent
    return text
