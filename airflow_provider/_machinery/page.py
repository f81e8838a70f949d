"""The page: the agent's status page inside Airflow, for logged-in users. It shows, and changes nothing.

    browser --/neli/, /neli/assets/*--> Login --> the agent's own files, marked as read-only
            --/neli/v1/events---------> Login --> the agent's stream, event by event, until the browser leaves
            --all other--------------> Login --> 404, or 405 for what does not read

Airflow serves a plugin's app to anyone. So the whole app lies behind `Login`, as one thing: a path that is added later
cannot be forgotten, and a stranger cannot distinguish a path that exists from one that does not.

The page shows the agent of the connection that `[neli] conn_id` names. The connection is looked up for each stream, so
after a connection is fixed, the page works at its next automatic retry. A token of the connection goes from here to the
agent, and never to the browser. Wishes are not passed on: they need the agent's own page and its token.

The login is checked when a stream begins. So a stream ends after STREAM_MAX, and then the page opens another one, or is
refused. A server that is asked to stop waits for its streams without notifying them, so the streams check on their own.
"""

import asyncio
import signal
from http import HTTPStatus

from airflow.providers.common.compat.sdk import AirflowException, conf
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from airflow_provider.hooks.neli import CONNECTION_ID, NeliHook
from neli_router.agent import AsyncClient, page
from neli_router.agent.client.calls import EVENTS
from neli_router.errors import ConfigError, NeliError

__all__ = ["status_page"]

STREAM_MAX = 3600.0
"""Seconds for which a login is valid for one stream."""

LOOK_EVERY = 1.0
"""Seconds between two checks whether the server is to stop. An operator who stops it does not notice one second."""

NO_STORE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # Otherwise a proxy such as nginx would collect events before it sends them.
]


def status_page() -> ASGIApp:
    """The app that Airflow mounts."""
    return _Login(_StatusPage())


class _Login:
    """In front of `app`: lets logged-in users of Airflow pass who may see the pages of plugins."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close"})
            return
        try:
            await _require_user(Request(scope))
        except HTTPException as refused:
            answer = PlainTextResponse(
                str(refused.detail), refused.status_code, {**NO_STORE, **(refused.headers or {})}
            )
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _require_user(request: Request) -> None:
    """Raise HTTPException unless the request comes from a user who may see this."""
    # The API server has imported these long before. Elsewhere the imports take seconds.
    from airflow.api_fastapi.app import get_auth_manager  # noqa: PLC0415
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView  # noqa: PLC0415
    from airflow.api_fastapi.core_api.security import bearer_scheme, get_user  # noqa: PLC0415

    user = await get_user(request, None, await bearer_scheme(request))
    if not get_auth_manager().is_authorized_view(access_view=AccessView.PLUGINS, user=user):
        raise HTTPException(HTTPStatus.FORBIDDEN, "Forbidden")


class _StatusPage:
    def __init__(self) -> None:
        self._assets = page.load(frames="'self'", read_only=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] not in {"GET", "HEAD"}:
            await _say("this page only shows: make changes on the agent's own page", 405, scope, receive, send)
        elif path == "/v1/events":
            await self._events(scope, receive, send)
        elif path in self._assets:
            await page.answer_asset(self._assets[path], scope, send)
        else:
            await _say("there is nothing at this path", 404, scope, receive, send)

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        conn_id = conf.get("neli", "conn_id", fallback=CONNECTION_ID)
        started = False

        async def forward() -> None:
            nonlocal started
            async with NeliHook(conn_id) as hook:
                client = await hook.aget_conn()
                if not isinstance(client, AsyncClient):
                    raise ConfigError([f"the connection {conn_id!r} is to a ledger: the page needs that of an agent"])
                async with client.stream(EVENTS) as stream:
                    async for name, content in stream.events():
                        if not started:
                            started = True
                            await send({"type": "http.response.start", "status": 200, "headers": STREAM})
                        body = b"event: %b\ndata: %b\n\n" % (name.encode(), bytes(content))
                        await send({"type": "http.response.body", "body": body, "more_body": True})

        async def leave() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        loop = asyncio.get_running_loop()
        forwarding, leaving = loop.create_task(forward()), loop.create_task(leave())
        end_at = loop.time() + STREAM_MAX
        try:
            while not (forwarding.done() or leaving.done() or loop.time() > end_at or _is_stopping()):
                await asyncio.wait((forwarding, leaving), timeout=LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            forwarding.cancel()
            outcome, _ = await asyncio.gather(forwarding, leaving, return_exceptions=True)
        if started:
            await send({"type": "http.response.body", "body": b""})
        elif isinstance(outcome, NeliError | AirflowException):
            await _say(str(outcome), 503, scope, receive, send)
        elif isinstance(outcome, Exception):
            raise outcome


async def _say(text: str, status: int, scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(text, status, NO_STORE)(scope, receive, send)


def _is_stopping() -> bool:
    """Whether this process's server was asked to stop. uvicorn's server handles the signal with a method of its own."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))
