"""Numbers as people read them."""

import pytest

from probing.tables.decimals import two_decimals


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.004, "0.00"), (0.004, "0.00"), (-0.006, "-0.01"), (1.0, "1.00"), (float("nan"), "nan")]
)
def test_zero_has_no_sign(value: float, shown: str) -> None:
    assert two_decimals(value) == shown
