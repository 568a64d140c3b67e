"""Sentences on a page: options and what stands between backticks are code, everything else is text."""

from __future__ import annotations

import pytest

from probing.results.rows import Html, element


@pytest.mark.parametrize(
    ("sentence", "inner"),
    [
        ("`--probe.bias true` trains; a < b", '<code class="whole">--probe.bias true</code> trains; a &lt; b'),
        ("--test_corpus tests.", '<code class="whole">--test_corpus</code> tests.'),
        ("from 1--5, a--b, -- and one `", "from 1--5, a--b, -- and one `"),
        (f"`{'x ' * 20}<b>`", f"<code>{'x ' * 20}&lt;b&gt;</code>"),
        (Html("<b>`made`</b>"), "<b>`made`</b>"),
    ],
)
def test_code_in_a_paragraph_is_marked(sentence: str, inner: str) -> None:
    assert element("p", sentence) == f"<p>{inner}</p>"


def test_a_cell_of_data_is_text() -> None:
    assert element("td", "`a` --b") == "<td>`a` --b</td>"
