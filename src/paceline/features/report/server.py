"""The server of `paceline ui`: pages of this user's jobs, for those who have its token.

The shell of a page, its styles and scripts hold nothing of a job; everything else asks for the
token in a header. A browser gets it in the address behind ``#``, which it sends to nobody.
"""

import contextlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from typing import Annotated

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.features.report.comparing import ComparedJob, page_of_both
from paceline.features.report.content import Page, page_of
from paceline.features.report.following import FollowedJob, find_job, log_tails
from paceline.features.report.overview import AllJobs
from paceline.features.report.page import asset, render
from paceline.features.report.pushing import Watched
from paceline.jobs.facts import read_facts
from paceline.jobs.launch import ask_running
from paceline.wire.client import Done, Kill, Order, Scale, StopJob

ASSETS = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "live.js": "text/javascript",
    "uPlot.min.css": "text/css",
    "uPlot.iife.min.js": "text/javascript",
}
HEADERS = {
    # A page runs its own scripts only, and talks to this server only.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
MOST_BODY_BYTES = 4096
MOST_WORKERS = 1_000_000
"""More than any job has, and a number that fits into a message to its master."""
ENDED = "the job has ended; this page stays as it is"
Handler = Callable[[Request], Awaitable[Response]]


class OrderBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of an order."""

    workers: Annotated[int, msgspec.Meta(le=MOST_WORKERS)] | None = None
    node: str = ""


class Pages:
    """Pages that somebody has open now, by their addresses."""

    def __init__(self) -> None:
        self._jobs: dict[str, Watched] = {}
        self._all = Watched(AllJobs().look, over=lambda: "")

    def of_all(self) -> Watched:
        """The page of all jobs."""
        return self._all

    def of_job(self, job_id: str) -> Watched:
        """The page of one job.

        Raises:
            PacelineError: there is none of this id.
        """
        if job_id not in self._jobs or self._jobs[job_id].was_left:
            job = find_job(job_id)
            self._jobs[job_id] = Watched(FollowedJob(job).look, over=lambda: _end_of(job))
        return self._jobs[job_id]


def _end_of(job: JobDir) -> str:
    return ENDED if job.outcome.exists() else ""


def application(token: str, hosts: list[str]) -> Starlette:
    """Make the application.

    Args:
        token: what a request must have.
        hosts: names by which browsers may reach it.
    """
    pages = Pages()

    async def of_all(_: Request) -> Response:
        return _stream(pages.of_all())

    async def of_job(request: Request) -> Response:
        return _stream(pages.of_job(request.path_params["job"]))

    async def both(request: Request) -> Response:
        names = request.query_params.get("jobs", "").split(",")
        if len(names) != 2:
            raise HTTPException(400, "expected two jobs: /compare?jobs=ONE,OTHER")
        jobs = [find_job(name) for name in names]
        look = Watched(lambda: _compared(jobs), over=lambda: _end_of_both(jobs))
        return _stream(look)

    routes = [
        Route("/", _shell),
        Route("/jobs/{job}", _shell),
        Route("/compare", _shell),
        Route("/assets/{name}", _asset),
        Mount(
            "/api",
            routes=[
                Route("/jobs", of_all),
                Route("/jobs/{job}", of_job),
                Route("/jobs/{job}/report", _report),
                Route("/jobs/{job}/{order}", _order, methods=["POST"]),
                Route("/compare", both),
            ],
            middleware=[Middleware(Guard, token=token)],
        ),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
            Middleware(AddHeaders),
        ],
        exception_handlers={PacelineError: _refused},
    )


def _compared(jobs: list[JobDir]) -> Page:
    facts = [read_facts(job) for job in jobs]
    return page_of_both([ComparedJob(one, page_of(one)) for one in facts])


def _end_of_both(jobs: list[JobDir]) -> str:
    return "both jobs have ended" if all(job.outcome.exists() for job in jobs) else ""


def _stream(watched: Watched) -> Response:
    async def events() -> AsyncIterator[ServerSentEvent]:
        async with contextlib.aclosing(watched.messages()) as found:
            async for message in found:
                yield ServerSentEvent(message.decode(), sep="\n")

    return EventSourceResponse(events(), ping=15, headers=HEADERS)


async def _shell(_: Request) -> Response:
    return HTMLResponse(asset("live.html"))


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ASSETS:
        raise HTTPException(404)
    return Response(asset(name), media_type=ASSETS[name])


async def _report(request: Request) -> Response:
    job = find_job(request.path_params["job"])
    page = await run_in_threadpool(lambda: render(read_facts(job), log_tails(job)))
    return HTMLResponse(page)


async def _order(request: Request) -> Response:
    """Tell a running job what a person has asked for."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY_BYTES:
            raise HTTPException(413)
    try:
        asked = msgspec.json.decode(body, type=OrderBody)
    except msgspec.MsgspecError as error:
        raise HTTPException(400, str(error)) from error
    call, told = _call_of(request.path_params["order"], asked)
    job = find_job(request.path_params["job"])
    reply = await run_in_threadpool(ask_running, job, call)
    if isinstance(reply, Done) and reply.error:
        return PlainTextResponse(reply.error, 409)
    return PlainTextResponse(told)


def _call_of(order: str, asked: OrderBody) -> tuple[Order, str]:
    """Return what the job's master is asked for, and what a person is told then."""
    if order == "stop":
        return StopJob(), "The job is being stopped."
    if order == "scale" and asked.workers is not None and asked.workers >= 1:
        return Scale(workers=asked.workers), f"{asked.workers} workers from now on."
    if order == "kill" and asked.node:
        return Kill(node=asked.node), f"{asked.node} is killed, and will be started again."
    raise HTTPException(400, "expected stop, scale with workers from 1 on, or kill with a node")


async def _refused(_: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), 409)


class Guard:
    """Lets requests with the token through; 401 for others."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        got = dict(scope["headers"]).get(b"authorization", b"")
        if scope["type"] == "http" and not hmac.compare_digest(got, self._expected):
            text = "This page's token is not that of the server: open the address that it has told."
            await PlainTextResponse(text, 401)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class AddHeaders:
    """Adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(pair for pair in _encoded() if pair[0] not in present),
                ]
            await send(message)

        await self._app(scope, receive, with_headers)


@cache
def _encoded() -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
