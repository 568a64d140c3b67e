"""Numbers and lists as people read them."""

import pytest

from probing.results.schema import layers_named, listed, two_decimals


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.004, "0.00"), (0.004, "0.00"), (-0.006, "-0.01"), (1.0, "1.00"), (float("nan"), "nan")]
)
def test_zero_has_no_sign(value: float, shown: str) -> None:
    assert two_decimals(value) == shown


@pytest.mark.parametrize(
    ("layers", "shown"),
    [([3], "layer 3"), ([0, 1], "layers 0 and 1"), ([0, 1, 2], "layers 0 to 2"), ([0, 2, 3], "layers 0, 2 and 3")],
)
def test_layers_in_a_row_are_named_by_their_ends(layers: list[int], shown: str) -> None:
    assert layers_named(layers) == shown


def test_the_last_of_a_list_stands_after_and() -> None:
    assert [listed([7]), listed("ab"), listed("abc")] == ["7", "a and b", "a, b and c"]
