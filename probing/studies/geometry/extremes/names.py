"""Names of what `geometry --extremes` measures, with what each of them means."""

from __future__ import annotations

from typing import Literal

Definition = Literal["massive", "token_sd", "neuron_sd"]
# Sun et al. 2024: magnitude above 100, and at least 1,000 times the median magnitude (they write "around").
ABSOLUTE, RELATIVE = 100.0, 1000.0
# Standard deviations beyond which a value is an outlier of its token's neurons, or of its neuron's tokens.
DEVIATIONS = 5.0
# Share of normally distributed values that are as far from their mean.
OF_NORMAL = 5.7e-7
DEFINITIONS: dict[Definition, str] = {
    "massive": f"above {ABSOLUTE:g} and {RELATIVE:,.0f} times the median magnitude of the layer",
    "token_sd": f"more than {DEVIATIONS:g} sd from the mean of the token's neurons",
    "neuron_sd": f"more than {DEVIATIONS:g} sd from the neuron's mean over tokens",
}
# Share of the tokens of a kind from which on a neuron is called large on that kind.
MOST_TOKENS = 0.5
# Kinds of tokens beside the texts of special and of frequent tokens.
ALL, FIRST, OTHER = "all tokens", "first token", "other tokens"
