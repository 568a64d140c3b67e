"""Numbers as people read them."""


def two_decimals(value: float) -> str:
    """Return a number with two decimals, and 0 without a sign."""
    return f"{round(value, 2) + 0.0:.2f}"
