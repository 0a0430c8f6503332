"""The routes: each reads a question and has it answered by the one thread that runs networks; what was wrong is one line.

Files of the page come from a list that is made at the start, and images and reports from memory: no part of a request is ever a
path.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import resources
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi import Path as InPath
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp

from capsella import __version__
from capsella.web import schemas as S
from capsella.web.explorer import Explorer
from capsella.web.guard import Guard
from capsella.web.pictures import decoded, packed, png
from capsella.web.trouble import NotThere, Trouble, WrongKind, check_below
from capsella.web.worker import BusyError

MOST_PICKED = 200
"""Test images of one page of a gallery."""

REPORT_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Of the doctor's page, which is one file with its style and script in it, and asks for nothing."""

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
_PAGE = "index.html"
_UPLOADED = ("image/", "application/octet-stream")

# what a route may say besides its answer, and when.
_PROBLEMS = {
    400: "not JSON",
    401: "no token where one is needed",
    403: "asked under another name, or by another page",
    404: "no such run, or nothing of that number",
    408: "a body that does not come",
    413: "too many bytes, or too many pixels",
    415: "no image file by its content type",
    422: "a value that is missing, unknown or out of range",
    429: "too many uploads",
    503: "too many questions wait",
}
_ALWAYS = (401, 403)
_ASKED = (*_ALWAYS, 400, 404, 408, 413, 422, 503)

# why a body cannot be parsed, by what the parser raises.
_UNREAD: dict[type, str] = {
    RecursionError: "is nested too deeply",
    UnicodeDecodeError: "is no text in UTF-8",
    ValueError: "has a number of too many digits",
}

_log = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")
Responses = dict[int | str, dict[str, Any]]
Key = Annotated[str, InPath(description="of a run, as /api/about lists it", examples=["capsnet_small"])]


def application(explorer: Explorer, *, hosts: Collection[str] | None, token: str | None = None) -> ASGIApp:
    """Return the whole application, guarded.

    Args:
        explorer: what is explored.
        hosts: names under which a browser may ask; any if None, which only a token makes safe.
        token: what everyone must show; nobody if None.
    """
    if hosts is None and token is None:
        raise ValueError("hosts=None lets anyone ask; expected a token with it")
    return Guard(routes(explorer, needs_token=token is not None), hosts=hosts, token=token, caps=explorer.caps)


def routes(explorer: Explorer, *, needs_token: bool = False) -> FastAPI:
    """Return the routes, which nothing guards; ``needs_token`` is what the page is told of who will."""
    app = FastAPI(
        title="capsella explore",
        version=__version__,
        description="What trained networks make of images. A run is named by its key; images travel as grey levels in base64.",
        openapi_url="/api/openapi.json",
        # both would load their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_name_of,
    )
    app.state.explorer = explorer
    _problems(app)
    _page(app, files())
    _facts(app, explorer, needs_token)
    _questions(app, explorer)
    _images(app, explorer)
    _reports(app, explorer)
    return app


def files() -> dict[str, bytes]:
    """Return the files of the page by name.

    Example:
        >>> "api.js" in files()
        True
    """
    folder = resources.files("capsella.web") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in _TYPES}


def _name_of(route: APIRoute) -> str:
    return route.name


def _responses(*statuses: int) -> Responses:
    return {status: {"model": S.Problem, "description": _PROBLEMS[status]} for status in sorted(statuses)}


def _binary(kind: str, what: str) -> Responses:
    return {200: {"content": {kind: {}}, "description": what}}


# --- what goes wrong ---------------------------------------------------------------------------------------------------


def _problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    # escaped, because what somebody sent may be no text that can be encoded.
    content = json.dumps({"detail": " ".join(detail.split())})
    return Response(content, status, headers=dict(headers or {}), media_type="application/json")


def _problems(app: FastAPI) -> None:
    @app.exception_handler(Trouble)
    def trouble(_: Request, error: Trouble) -> Response:
        return _problem(error.status, str(error))

    @app.exception_handler(BusyError)
    def busy(_: Request, error: BusyError) -> Response:
        return _problem(503, str(error), {"retry-after": "1"})

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> Response:
        found = error.errors()
        is_json = all(each["type"] != "json_invalid" for each in found)
        return _problem(422 if is_json else 400, "; ".join(map(_in_words, found[:3])))

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:100]
        # of what it could not parse the framework says nothing but that.
        why = _UNREAD.get(type(error.__cause__), "cannot be read")
        words = {
            400: f"the body {why}; expected JSON that /api/openapi.json describes",
            404: f"{path} is not here; /api/openapi.json lists what is",
            405: f"{path} takes no {request.method}",
        }
        headers = {"allow": _allowed(request)} if error.status_code == 405 else error.headers
        return _problem(error.status_code, words.get(error.status_code, str(error.detail)), headers)

    @app.exception_handler(Exception)
    def failed(_: Request, error: Exception) -> Response:
        # starlette raises it again, and the server writes the traceback down.
        return _problem(500, f"this failed: {type(error).__name__}; the terminal says more")


def _allowed(request: Request) -> str:
    """Return what a path can be asked with: each of its routes knows of itself alone."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods
    return ", ".join(sorted(found))


def _in_words(error: Mapping[str, Any]) -> str:
    """Say what is wrong with one value of a request."""
    if error["type"] == "json_invalid":
        reason = str(error["ctx"]["error"])
        return f"the body is no JSON from character {error['loc'][-1]} on: {reason[:1].lower()}{reason[1:]}"
    place = [str(part) for part in error["loc"] if part not in ("body", "query", "path")]
    where = ".".join(place[-4:])[:100]
    given, message = error.get("input"), str(error["msg"]).removeprefix("Value error, ")
    shown = f"={given!r}" if isinstance(given, str | int | float | bool) and len(repr(given)) <= 60 else ""
    return f"{where or 'the request'}{shown}: {message[:1].lower()}{message[1:300]}"


# --- the page ----------------------------------------------------------------------------------------------------------


def _page(app: FastAPI, found: Mapping[str, bytes]) -> None:
    def file(name: str) -> Response:
        content = found.get(name)
        if content is None:
            raise NotThere(f"{name[:100]!r} is no file of the page")
        return Response(content, media_type=_TYPES[name.rpartition(".")[2]])

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return file(_PAGE)

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        return file(name)

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return Response(status_code=204)


# --- the API -----------------------------------------------------------------------------------------------------------


def _facts(app: FastAPI, explorer: Explorer, needs_token: bool) -> None:
    @app.get("/api/about", responses=_responses(*_ALWAYS))
    def about() -> S.About:
        """Say which runs there are."""
        return explorer.about().model_copy(update={"needs_token": needs_token})

    @app.get("/api/runs/{key}/survey", responses=_responses(*_ALWAYS, 404, 422))
    def survey(key: Key) -> S.Surveyed:
        """Say how many test images of a run have been looked at."""
        return explorer.net(key).survey.state()

    @app.get("/api/runs/{key}/images", responses=_responses(*_ALWAYS, 404, 422))
    def images(
        key: Key,
        label: Annotated[S.Index | None, Query(description="their true class, as data_classes counts them")] = None,
        answer: Annotated[S.Index | None, Query(description="what the network says of them")] = None,
        mistakes: Annotated[S.Flag | None, Query(description="whether it is wrong about them; both if left out")] = None,
        order: Annotated[
            Literal["index", "sure", "unsure"], Query(description="by number, or the most or least confident first")
        ] = "index",
        offset: Annotated[S.Index, Query(description="how many to pass over")] = 0,
        limit: Annotated[S.Count, Query(ge=1, le=MOST_PICKED, description="how many to return")] = 24,
    ) -> S.Gallery:
        """Pick test images; what is asked of answers is known of those alone that have been looked at."""
        return explorer.net(key).survey.pick(
            label=label, answer=answer, mistakes=mistakes, order=order, offset=offset, limit=limit
        )

    @app.get("/api/runs/{key}/curves", responses=_responses(*_ALWAYS, 404, 422))
    def curves(key: Key) -> S.Training:
        """Return what became of a run while it was trained."""
        return explorer.curves(key)


def _questions(app: FastAPI, explorer: Explorer) -> None:
    responses = _responses(*_ASKED)

    async def ask(task: Callable[[Sequence[Q]], Sequence[A | Exception]], question: Q) -> A:
        return await asyncio.wrap_future(explorer.worker.submit(task, question))

    @app.post("/api/runs/{key}/see", responses=responses)
    async def see(key: Key, question: S.SeeRequest) -> S.Sight:
        """Say what a network makes of a scene: scores, parse tree, couplings of every iteration, reconstructions."""
        return await ask(explorer.ask(key).see, question)

    @app.post("/api/runs/{key}/move", responses=responses)
    async def move(key: Key, question: S.MoveRequest) -> S.Moved:
        """Show the trees of an image as it is and changed, and how alike their activations are."""
        return await ask(explorer.ask(key).moved, question)

    @app.post("/api/runs/{key}/follow", responses=responses)
    async def follow(key: Key, question: S.FollowRequest) -> S.Followed:
        """Correlate a network's activations with those of the image as it is, over growing changes of one kind."""
        return await ask(explorer.ask(key).follow, question)

    @app.post("/api/runs/{key}/capsule", responses=responses)
    async def capsule(key: Key, question: S.CapsuleRequest) -> S.CapsuleAnswer:
        """Say everything about one capsule: its pose, what it sees of the image, what it did over the test set."""
        return await ask(explorer.ask(key).capsule, question)

    @app.post("/api/runs/{key}/reconstruct", responses=responses)
    async def reconstruct(key: Key, question: S.ReconstructRequest) -> S.Drawn:
        """Draw a class from class capsules that somebody has turned."""
        return await ask(explorer.ask(key).reconstruct, question)

    @app.post("/api/runs/{key}/sheet", responses=responses)
    async def sheet(key: Key, question: S.SheetRequest) -> S.Sheet:
        """Draw what each value of a class capsule does."""
        return await ask(explorer.ask(key).sheet, question)


def _images(app: FastAPI, explorer: Explorer) -> None:
    @app.get(
        "/api/runs/{key}/images/{index}",
        response_class=Response,
        responses={**_binary("image/png", "the image"), **_responses(*_ALWAYS, 404, 422)},
    )
    def image(key: Key, index: S.Index) -> Response:
        """Return a test image as a PNG file of its own size."""
        net = explorer.net(key)
        check_below("index", index, net.survey.size, trouble=NotThere)
        return Response(png(net.test_image(index)), media_type="image/png")

    body = {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}

    @app.post(
        "/api/runs/{key}/upload",
        responses=_responses(*_ALWAYS, 404, 408, 413, 415, 422, 429),
        openapi_extra={"requestBody": body},
    )
    async def upload(
        request: Request, key: Key, invert: Annotated[S.Flag, Query(description="turn dark into light")] = False
    ) -> S.Pixels:
        """Read an image file, scale it to what the network takes, and return its grey levels; nothing of it is kept."""
        shape = explorer.net(key).shape
        kind = request.headers.get("content-type", "")
        if not kind.lower().startswith(_UPLOADED):
            raise WrongKind(f"content-type={kind[:60]!r} is no image file's; expected image/… or {_UPLOADED[1]}")
        content = await request.body()
        return packed(await run_in_threadpool(decoded, content, shape, most_pixels=explorer.caps.upload_pixels, invert=invert))


def _reports(app: FastAPI, explorer: Explorer) -> None:
    @app.get("/api/runs/{key}/doctor", responses=_responses(*_ALWAYS, 404, 422))
    def report_state(key: Key) -> S.DoctorState:
        """Say how far the doctor's report of a run is."""
        return explorer.examination(key).state()

    @app.post("/api/runs/{key}/doctor", responses=_responses(*_ALWAYS, 404, 422))
    def begin_report(key: Key) -> S.DoctorState:
        """Begin the doctor's report of a run, unless it has begun."""
        return explorer.examination(key).begin()

    @app.get(
        "/runs/{key}/doctor",
        response_class=Response,
        responses={**_binary("text/html", "the page"), **_responses(*_ALWAYS, 404, 422)},
    )
    def report(key: Key) -> Response:
        """Return the doctor's report of a run as a page, once it is there."""
        html = explorer.examination(key).html
        if html is None:
            raise NotThere(f"the report of run {key!r} is not there yet; POST /api/runs/{key}/doctor begins it")
        return Response(html, media_type="text/html; charset=utf-8", headers={"content-security-policy": REPORT_POLICY})
