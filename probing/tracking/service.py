"""The background process of the W&B client: one for many runs, ended when it hangs, closed when nobody needs it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from subprocess import Popen, TimeoutExpired
from typing import cast

from probing.tracking.environment import variables
from probing.tracking.mode import Mode


@contextmanager
def one_service(mode: Mode) -> Iterator[None]:
    """Keep one background process of the client for all offline runs meanwhile: each has its own otherwise.

    Online runs go on having one each, since that is how a server that falls silent is got rid of.
    """
    if mode != "offline" or "WANDB_SERVICE" in os.environ:
        yield
        return
    with variables({"WANDB_MODE": mode, "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}):
        import wandb

        with suppress(Exception):  # each run will have its own, or say what is wrong
            wandb.setup()
    try:
        yield
    finally:
        with suppress(Exception, SystemExit):
            wandb.teardown()


def background_process() -> Popen[bytes] | None:
    """Find the client's background process, which it has no public name for."""
    from wandb.sdk import wandb_setup

    try:
        process = attrgetter("_connection._proc._process")(wandb_setup.singleton())
    except AttributeError:
        return None  # another version of the client: its own limits must do
    return cast("Popen[bytes]", process)


def close_service() -> None:
    """End the background process, which closes every file and clears its variable.

    Raises:
        RuntimeError: If the client says that it ended badly.
    """
    import wandb

    try:
        wandb.teardown()
    except SystemExit as stopped:  # how the client says so
        raise RuntimeError("its background process failed") from stopped


def within(seconds: float, service: Popen[bytes] | None, action: Callable[[], None]) -> None:
    """Do something; if it takes longer than so many seconds, stop an online run's background process.

    That ends the wait with an error. The client's own limits do not hold everywhere: when a server falls silent during
    the upload of an artifact, `finish` with a limit of 9 s takes minutes.

    Args:
        seconds: That it may take.
        service: The process; without one there is no limit.
        action: What is done.

    Raises:
        TimeoutError: If it took longer.
        Exception: What the action raises by itself.
    """
    if service is None:
        return action()
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        service.terminate()
        try:
            service.wait(2)
        except TimeoutExpired:
            service.kill()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        action()
    except Exception as error:
        if expired.is_set():
            raise TimeoutError("the server answers too slowly") from error
        raise
    finally:
        timer.cancel()
