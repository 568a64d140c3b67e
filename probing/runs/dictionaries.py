"""The dictionary of a finished run, found again after the run or the dictionary has moved."""

from __future__ import annotations

import os
from typing import Any

from probing.errors import UserError
from probing.models import site_of
from probing.models.dictionaries import load_dictionary
from probing.models.layers import PREFIX, folder_in, layout_at
from probing.results.schema import listed
from probing.runs.places import Kept, places_of


def site_read(run: Kept) -> dict[str, Any]:
    """Return what a run has read of its model, as arguments of `probing.cache.source.ActivationSource`.

    Raises:
        UserError: If its dictionary is not there any more, or has changed.
    """
    if (typed := folder_in(run.config)) is None:
        return {"site": site_of(run.config)}
    cached = run.results["cache"]["test"]
    expected, kept = cached["key"]["site"], (cached.get("site") or {}).get("kept")
    layers = [row["layer"] for row in run.results["layers"]]
    places = places_of(run, "site", typed)
    for place in filter(os.path.isdir, places):
        site = PREFIX + place
        dictionary = load_dictionary(layout_at(site, layers, str(run.config["model"]), max(layers)))
        if PREFIX + dictionary.fingerprint == expected:
            return {"site": site, "kept": None if kept is None else tuple(kept)}
    raise UserError(
        f"`{run.folder}`: its dictionary {typed} is not there any more, or has changed; it was looked for at "
        f"{listed(places)}; put it at one of these places."
    )
