"""What is measured of claims: functions of finished runs that return one number each."""

from probing.studies.claims.measures import (  # noqa: F401  importing them registers what they measure
    attention_maps,
    cosines,
    diagnostics,
    extremes,
    heads,
    layers,
    norms_and_tables,
    positions,
    tasks,
    tuned,
)
from probing.studies.claims.measures.registry import MEASURES as MEASURES
