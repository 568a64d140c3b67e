"""What is measured of claims: functions of finished runs that return one number each."""

from probing.claims.measures import (  # noqa: F401  importing them registers what they measure
    at_the_mask,
    attention_maps,
    cosines,
    extremes,
    heads_of_syntax,
    idle_heads,
    layers_of_heads,
    linear_order,
    linguistic_heads,
    norms_and_tables,
    pooled_sentences,
    position_probes,
    pretrained,
    probes_of_syntax,
    several,
    spare_heads,
    special_tokens,
    tasks,
    token_similarity,
)
from probing.claims.measures.registry import MEASURES as MEASURES
