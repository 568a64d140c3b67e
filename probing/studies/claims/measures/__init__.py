"""What is measured of claims: functions of finished runs that return one number each."""

from probing.studies.claims.measures import (
    heads,  # noqa: F401  importing them registers what they measure
    layers,  # noqa: F401  importing them registers what they measure
    position,  # noqa: F401  importing them registers what they measure
    registry,  # noqa: F401  importing them registers what they measure
)
from probing.studies.claims.measures.registry import MEASURES as MEASURES
