"""Where the studies of this package are, in the order of the usage text; nothing is imported to know it."""

from __future__ import annotations

# For each command that is a study, the study as `module:name`; `probing/__init__.py` names its function for type
# checkers.
STUDIES = {
    "fit": "probing.runs.run:FIT",
    "rank": "probing.runs.rankings:RANK",
    "compare": "probing.studies.compare:COMPARE",
    "sweep": "probing.studies.sweep:SWEEP",
    "geometry": "probing.studies.geometry:GEOMETRY",
    "attention": "probing.studies.attention:ATTENTION",
    "disable": "probing.studies.disable:DISABLE",
    "hierarchy": "probing.studies.hierarchy:HIERARCHY",
    "cloze": "probing.studies.cloze:CLOZE",
    "pretrain": "probing.studies.pretrain:PRETRAIN",
    "finetune": "probing.studies.finetune:FINETUNE",
    "changes": "probing.studies.changes:CHANGES",
    "series": "probing.studies.series:SERIES",
    "wic": "probing.studies.similarity:WIC",
    "sts": "probing.studies.similarity:STS",
    "embeddings": "probing.studies.embeddings:EMBEDDINGS",
    "reproduce": "probing.studies.claims:REPRODUCE",
}
