"""The process behind `racewatch serve`: pages, API and webhook, and the service's own work."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket

import uvicorn
import uvloop

from runner.errors import InputError
from service import live
from service.app import create_app
from service.control import Control
from service.database import Database
from service.github.outbox import readiness
from service.settings import ServiceSettings

_LOG = logging.getLogger("racewatch.serve")


def serve(settings: ServiceSettings, database: Database) -> None:
    """Answer until SIGTERM or SIGINT. Raises InputError where the address cannot be had."""
    for sentence in readiness(settings):
        _LOG.warning("%s", sentence)
    with _listening(settings.host, settings.port) as listener:
        _LOG.info("serving %s", settings.link)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, database, listener))


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only sockets that name the protocol get TCP_NODELAY from asyncio; without it every answer
    # waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot serve on {host}:{port}: {reason}; choose another with --host and --port"
        ) from error
    listener.listen(512)
    return listener


async def _serve(settings: ServiceSettings, database: Database, listener: socket.socket) -> None:
    stop = asyncio.Event()
    app = create_app(settings, database)
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=5,
        proxy_headers=True,
        server_header=False,
    )
    # What is there now stays. To look through its 200,000 objects again and again, as a full
    # collection does, would stop all answers each time, for a tenth of a second or more.
    gc.collect()
    gc.freeze()
    control = asyncio.create_task(Control(settings, database).run(stop))
    try:
        await live.Server(config, app.state.feed).serve(sockets=[listener])
    finally:
        stop.set()
        await control
