"""What is measured of claims: functions of finished runs that return one number each."""

from probing.claims.measures import (  # noqa: F401  importing them registers what they measure
    attention_maps,
    cosines,
    extremes,
    idle_heads,
    layers_of_heads,
    linguistic_heads,
    norms_and_tables,
    position_probes,
    pretrained,
    several,
    tasks,
    token_similarity,
)
from probing.claims.measures.registry import MEASURES as MEASURES
