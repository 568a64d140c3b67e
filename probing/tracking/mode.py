"""Decides whether a run is logged online, from options, environment, settings and keys, without network or prompt."""

from __future__ import annotations

import netrc
import os
from collections.abc import Iterable, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from pathlib import Path
from typing import Literal, cast, get_args
from urllib.parse import urlsplit

from probing.errors import UserError

Mode = Literal["online", "offline", "disabled"]
# The client's older names. Lightning's `WandbLogger(offline=True)` leaves the first in WANDB_MODE.
_OLDER_NAMES = {"dryrun": "offline", "run": "online"}


# What is true for the client and for transformers.
_TRUE = {"1", "on", "t", "true", "y", "yes"}


def resolve_mode(mode: str) -> Mode:
    """Decide where the run is logged, without network or prompt.

    The client's own rules are not used: without a key it prompts forever in a terminal and fails elsewhere, and it
    treats an empty `WANDB_MODE` as an error. A user who has switched it off anywhere, as `wandb offline` and `wandb
    disabled` do for a folder, is followed even if the environment says `online`.

    Args:
        mode: The requested mode; `auto` takes the least of `WANDB_MODE`, or else of what an API key allows, of
            `WANDB_DISABLED`, and of the client's settings files.

    Raises:
        UserError: If the option, `WANDB_MODE` or the mode of a settings file is not a valid mode.
    """
    if mode != "auto":
        return _checked_mode("--wandb.mode", mode)
    modes: list[Mode] = ["disabled"] if os.environ.get("WANDB_DISABLED", "").lower() in _TRUE else []
    if from_environment := os.environ.get("WANDB_MODE"):
        modes.append(_checked_mode("WANDB_MODE", from_environment))
    else:
        modes.append("online" if credentials() else "offline")
    return least([*modes, *_modes_of_settings()])


def least(modes: Iterable[Mode]) -> Mode:
    """Return the mode that sends and writes least."""
    return max(modes, key=get_args(Mode).index)


def _modes_of_settings() -> list[Mode]:
    """Return the modes of the folder's settings, or else of the user's; those of clients up to 0.17 say `disabled`."""
    modes: list[Mode] = []
    for path in _local_settings():
        modes += _mode_of_file(path)
    return modes or _mode_of_file(_global_settings())


def _mode_of_file(path: Path) -> list[Mode]:
    settings = _settings_in(path)
    if mode := settings.get("mode"):
        return [_checked_mode(f"`mode` in {path}", mode)]
    return ["disabled"] if settings.get("disabled", "").lower() in _TRUE else []


def _checked_mode(source: str, mode: str) -> Mode:
    if (mode := _OLDER_NAMES.get(mode, mode) if not source.startswith("--") else mode) in get_args(Mode):
        return cast(Mode, mode)
    raise UserError(
        f"{source} is {mode!r}: expected online, offline or disabled"
        + (" (or auto)." if source.startswith("--") else "; correct it or remove it.")
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
    here = [settings["base_url"] for path in _local_settings() if "base_url" in (settings := _settings_in(path))]
    url = os.environ.get("WANDB_BASE_URL") or next(iter(here), _settings_in(_global_settings()).get("base_url"))
    # Both names of W&B's own service; the client accepts an entry for either.
    return (urlsplit(url).netloc,) if url else ("api.wandb.ai", "api.forge.coreweave.com")


def _global_settings() -> Path:
    """Return the settings file of the user, to which `wandb login --host` writes the server."""
    return Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser() / "settings"


def _local_settings() -> list[Path]:
    """Return the settings files of the working folder, which the client reads, and of `WANDB_DIR`, where it writes."""
    folders = dict.fromkeys([Path(), Path(os.environ.get("WANDB_DIR") or ".").expanduser()])
    return [folder / (".wandb" if (folder / ".wandb").exists() else "wandb") / "settings" for folder in folders]


def _settings_in(path: Path) -> Mapping[str, str]:
    """Return the settings in a file of the client, which also takes one that cannot be read as empty."""
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
    except (ConfigParserError, OSError, UnicodeDecodeError):
        return {}
    return dict(parser["default"]) if "default" in parser else {}


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
