"""FastAPI: each customer's orders are handled by the one server that owns the customer, and one server sends reminders.

    client --any server--> owner? --this one--> 200
                              '-- another --> 421 Misdirected Request, with its address (client.py asks again there)

    NELI_LEDGER=sqlite:orders.db POD_NAME=a POD_IP=127.0.0.1 PORT=8001 uvicorn orders:app --port 8001

uvicorn closes its port as soon as it gets SIGTERM, and ends the application only when the last request is answered. A
member that is closed only then is named as the owner all that time, and cannot be reached. So the server handles
SIGTERM first: the member hands over and leaves while the port is open. Then uvicorn gets the signal.

    SIGTERM --> member.close(): work ends, others take over, routers name them --> uvicorn: port closed, requests end
                                                                            '-- LINGER: for clients that asked before
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from neli_router import AsyncLease, AsyncMember, Config, Induction
from neli_router.errors import NeliError

LINGER = 1.0
"""Seconds for clients that looked the owner up before it left: they get a 503, and ask again."""

REMIND_EVERY = 60.0


async def remind(lease: AsyncLease) -> None:
    """A job that only one server runs. It is cancelled if the lease is lost."""
    lease.check()  # After each `await`: a process that was paused may take one more step. A write carries `lease.term`.
    print("reminders under term", lease.term)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    config = Config(
        ledger=os.environ["NELI_LEDGER"],
        name=os.environ["POD_NAME"],
        address=f"{os.environ['POD_IP']}:{os.environ['PORT']}",
        lease=float(os.environ.get("NELI_LEASE", "1")),
        protocol=Induction(accept_rewinds=os.environ.get("NELI_ACCEPT_REWINDS") == "true"),
    )
    async with AsyncMember(config) as member:  # In the worker, after any fork: a member does not survive one.
        app.state.member = member
        take_sigterm_first(member)
        member.background(remind, role="reminders", interval=REMIND_EVERY)
        yield


def take_sigterm_first(member: AsyncMember) -> None:
    """Let the member leave before the server closes its port."""
    end_server = signal.getsignal(signal.SIGTERM)
    assert callable(end_server), "uvicorn handles SIGTERM before the lifespan begins"
    leaving: list[asyncio.Task[None]] = []

    async def leave() -> None:
        try:
            await member.close()  # Waits for work in progress, at most `drain_timeout`.
            await asyncio.sleep(LINGER)
        finally:
            end_server(signal.SIGTERM, None)

    def told() -> None:
        if not leaving:  # Stored, because the loop itself does not keep tasks alive.
            leaving.append(asyncio.ensure_future(leave()))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told)


app = FastAPI(lifespan=lifespan)


@app.get("/orders/{customer}")
async def order(customer: str, seconds: float = 0) -> Response:
    member: AsyncMember = app.state.member
    try:
        owner = member.router.owner(customer)
        if owner.name != member.name:
            return JSONResponse({"owner": owner.address}, 421)
        async with member.leading(customer, timeout=0) as lease:  # Its handover waits for this block.
            await asyncio.sleep(seconds)  # Work, fenced by lease.term.
            return JSONResponse({"server": member.name, "term": lease.term})
    except NeliError:  # The member is leaving, or has just lost the customer.
        return Response("ask again", 503, {"Retry-After": "1"})


@app.get("/health")
async def health() -> Response:
    """Whether the server runs. It does not check the ledger, because a restart would not bring that back."""
    return Response()


@app.get("/ready")
async def ready() -> Response:
    """Whether the member knows the owners."""
    try:
        app.state.member.router.owner("any")
    except NeliError as error:
        return Response(str(error), 503)
    return Response()
