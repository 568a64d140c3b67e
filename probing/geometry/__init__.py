"""The command `geometry`, under which modules of `probing.layer_geometry` were once imported."""

from __future__ import annotations

import sys
from typing import Any, cast

from probing.commands.geometry import geometry

# Importing a module from here binds the package's name in `probing` to what stands here, which is to be the command.
vars(geometry).update(__path__=__path__, __spec__=__spec__)
sys.modules[__name__] = cast(Any, geometry)
