"""Where the studies of this package are, in the order of the usage text; nothing is imported to know it."""

from __future__ import annotations

# For each command that is a study, the study as `module:name`; `probing/__init__.py` names its function for type
# checkers.
STUDIES = {
    "fit": "probing.runs.run:FIT",
    "rank": "probing.runs.loading:RANK",
    "compare": "probing.studies.compare:STUDY",
    "sweep": "probing.studies.sweep:STUDY",
    "geometry": "probing.studies.geometry:STUDY",
    "attention": "probing.studies.attention:STUDY",
    "disable": "probing.studies.disable:STUDY",
    "hierarchy": "probing.studies.hierarchy:STUDY",
    "cloze": "probing.studies.cloze:STUDY",
    "pretrain": "probing.studies.pretrain:STUDY",
    "finetune": "probing.studies.finetune:STUDY",
    "changes": "probing.studies.changes:STUDY",
    "series": "probing.studies.series:STUDY",
    "wic": "probing.studies.similarity:WIC_STUDY",
    "sts": "probing.studies.similarity:STS_STUDY",
    "embeddings": "probing.studies.embeddings:STUDY",
    "reproduce": "probing.studies.claims:STUDY",
}
