"""Where a run is tracked: decided from options, environment and stored keys, without network and without a prompt."""

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


def resolve_mode(mode: str) -> Mode:
    """Decide where the run is logged, without network and without a prompt.

    The client's own rules are avoided: with no key it prompts for ever in a terminal, fails
    without one, and takes an empty `WANDB_MODE` for an error.

    Args:
        mode: What the user asked for; `auto` defers to a non-empty `WANDB_MODE`, then to whether
            an API key is configured.

    Raises:
        UserError: If the option or `WANDB_MODE` is none of the modes.
    """
    if mode != "auto":
        return _checked_mode("--wandb.mode", mode)
    if from_environment := os.environ.get("WANDB_MODE"):
        return _checked_mode("WANDB_MODE", from_environment)
    return "online" if credentials() else "offline"


def _checked_mode(source: str, mode: str) -> Mode:
    if mode in get_args(Mode):
        return cast(Mode, mode)
    raise UserError(
        f"{source} is {mode!r}: expected online, offline or disabled"
        + (" (or auto)." if source.startswith("--") else "; correct it or unset it.")
    )


def credentials() -> dict[str, str]:
    """Find the user's W&B credentials, as the environment variable that carries them.

    Returns:
        One variable and its value, or nothing. Given to the client in this form, credentials
        from netrc cannot be read differently there and end in its prompt.
    """
    for variable in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        if value := os.environ.get(variable):
            return {variable: value}
    key = _netrc_password(_api_hosts())
    return {"WANDB_API_KEY": key} if key else {}


def _api_hosts() -> tuple[str, ...]:
    """Name the hosts whose netrc entry counts: the configured server, else W&B's own."""
    url = os.environ.get("WANDB_BASE_URL") or _base_url_from_settings_file()
    # Both names of W&B's own service; the client accepts an entry for either.
    return (urlsplit(url).netloc,) if url else ("api.wandb.ai", "api.forge.coreweave.com")


def _base_url_from_settings_file() -> str | None:
    """Read the server that `wandb login --host` stored for the user, if it did."""
    folder = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(folder / "settings", encoding="utf-8")
    except (ConfigParserError, OSError, UnicodeDecodeError):
        return None  # the client, too, treats a settings file that it cannot read as empty
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
