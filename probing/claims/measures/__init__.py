"""What is measured of claims: functions of finished runs that return one number each."""

from probing.claims.measures import cosines, extremes, norms_and_tables, position_probes, several, tasks  # noqa: F401  register
from probing.claims.measures.registry import MEASURES as MEASURES
