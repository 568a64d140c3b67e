"""Decides whether a run is logged online, from options, environment and stored keys, without network or prompt."""

from __future__ import annotations

import netrc
import os
from collections.abc import Iterable
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from pathlib import Path
from typing import Literal, cast, get_args
from urllib.parse import urlsplit

from probing.errors import UserError

Mode = Literal["online", "offline", "disabled"]
# The client's older names. Lightning's `WandbLogger(offline=True)` leaves the first in WANDB_MODE.
_OLDER_NAMES = {"dryrun": "offline", "run": "online"}


def resolve_mode(mode: str) -> Mode:
    """Decide where the run is logged, without network or prompt.

    The client's own rules are not used: without a key it prompts forever in a terminal and fails elsewhere, and it
    treats an empty `WANDB_MODE` as an error.

    Args:
        mode: The requested mode; `auto` follows a non-empty `WANDB_MODE`, otherwise whether an API key is configured.

    Raises:
        UserError: If the option or `WANDB_MODE` is not a valid mode.
    """
    if mode != "auto":
        return _checked_mode("--wandb.mode", mode)
    if from_environment := os.environ.get("WANDB_MODE"):
        return _checked_mode("WANDB_MODE", _OLDER_NAMES.get(from_environment, from_environment))
    return "online" if credentials() else "offline"


def _checked_mode(source: str, mode: str) -> Mode:
    if mode in get_args(Mode):
        return cast(Mode, mode)
    raise UserError(
        f"{source} is {mode!r}: expected online, offline or disabled"
        + (" (or auto)." if source.startswith("--") else "; correct it or unset it.")
    )


def credentials() -> dict[str, str]:
    """Find the user's W&B credentials, and return them as an environment variable.

    Returns:
        One variable and its value, or an empty dict. In this form the client uses credentials from netrc as they were
        found here, and does not prompt because it reads the file differently.
    """
    for variable in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        if value := os.environ.get(variable):
            return {variable: value}
    key = _netrc_password(_api_hosts())
    return {"WANDB_API_KEY": key} if key else {}


def _api_hosts() -> tuple[str, ...]:
    """Return the hosts whose netrc entries are used: the configured server, else W&B's own service."""
    url = os.environ.get("WANDB_BASE_URL") or _base_url_from_settings_file()
    # Both names of W&B's own service; the client accepts an entry for either.
    return (urlsplit(url).netloc,) if url else ("api.wandb.ai", "api.forge.coreweave.com")


def _base_url_from_settings_file() -> str | None:
    """Return the server that `wandb login --host` stored, if any."""
    folder = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(folder / "settings", encoding="utf-8")
    except (ConfigParserError, OSError, UnicodeDecodeError):
        return None  # the client also treats an unreadable settings file as empty
    return parser.get("default", "base_url", fallback=None)


def _netrc_password(hosts: Iterable[str]) -> str | None:
    candidates = [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]
    paths = [Path(candidate).expanduser() for candidate in candidates if candidate]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    try:
        entries = netrc.netrc(path)
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError):
        return None  # as the client does
    found = (entries.authenticators(host) for host in hosts)
    return next((entry[2] for entry in found if entry and entry[2]), None)
