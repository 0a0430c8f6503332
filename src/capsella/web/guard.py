"""Who may ask, and how much: stands before the routes, so that none of them is reached by what must not reach it.

A page of some other site, opened in the same browser, can send requests to loopback. It cannot read a token, it cannot forge
``Host`` or ``Origin``, and what it may send without being asked first is not JSON: that is what is checked here.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from capsella.web import signing_in

UPLOADS = "/upload"

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # answers change while a run is looked at, and a page of another release is another page.
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class Caps:
    """How much one request may bring, how often, and how slowly.

    Attributes:
        json_bytes: of a question.
        upload_bytes: of an image file.
        upload_pixels: of an image file, before any of them is decoded.
        uploads: by one address, at once; one more each ``upload_seconds``.
        upload_seconds: see there.
        body_seconds: until all of a body must be there.
    """

    json_bytes: int = 3 << 20
    upload_bytes: int = 4 << 20
    upload_pixels: int = 16_000_000
    uploads: int = 20
    upload_seconds: float = 0.5
    body_seconds: float = 30.0


class Rate:
    """Lets everyone do something a few times at once, and after that once in a while.

    Args:
        burst: how often at once.
        seconds: until it is allowed once more.
        clock: in seconds.

    Example:
        >>> now = [0.0]
        >>> rate = Rate(2, 1.0, lambda: now[0])
        >>> [rate.allows("a") for _ in range(3)], rate.allows("b")
        ([True, True, False], True)
        >>> now[0] = 1.0
        >>> rate.allows("a"), rate.allows("a")
        (True, False)
    """

    _MOST = 1024

    def __init__(self, burst: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._seconds, self._clock = burst, seconds, clock
        # when each would have all of it again; whoever has been away longest is forgotten.
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def allows(self, who: str) -> bool:
        """Tell whether ``who`` may, and count it."""
        now = self._clock()
        full_at = max(now, self._full_at.pop(who, now))
        is_allowed = full_at - now <= (self._burst - 1) * self._seconds
        self._full_at[who] = full_at + self._seconds * is_allowed
        while len(self._full_at) > self._MOST:
            self._full_at.popitem(last=False)
        return is_allowed


class Guard:
    """Passes on what may be asked, with its body read; everything else is told why not.

    Args:
        app: what is guarded.
        hosts: names under which a browser may ask; any if None, which is for whoever must show a token.
        token: what everyone must show; nobody if None.
        caps: see there.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None, token: str | None, caps: Caps) -> None:
        self._app, self._token, self._caps = app, token, caps
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._rate = Rate(caps.uploads, caps.upload_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            # no route speaks anything else; lifespan events have nobody to hear them.
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                ours = [(name.encode(), value.encode()) for name, value in _HEADERS.items() if name.encode() not in given]
                message = {**message, "headers": [*message["headers"], *ours]}
            await send(message)

        if self._token is not None and scope["method"] == "GET" and self._is_token(signing_in.of_query(scope) or ""):
            await _answer(303, b"", signing_in.handed_over(scope, self._token), send_guarded)
            return
        problem = self._problem(scope, headers)
        body: bytes | None = b""
        if problem is None:
            try:
                async with asyncio.timeout(self._caps.body_seconds):
                    body = await _whole_body(receive, headers, self._most(scope, headers))
            except _TooLarge as error:
                problem = (413, str(error))
            except TimeoutError:
                problem = (408, f"the body is not there yet; expected all of it within {self._caps.body_seconds:g} s")
        if body is None:
            # whoever asked is gone.
            return
        if problem is None and self._is_form(scope, headers):
            if self._is_token(signing_in.of_form(body)):
                await _answer(303, b"", signing_in.handed_over(scope, signing_in.of_form(body)), send_guarded)
                return
            problem = (401, "that is not the token; expected the one that the terminal shows")
        if problem is None:
            await self._app(scope, _again(body, receive), send_guarded)
        elif problem[0] == 401 and signing_in.is_wanted(scope, headers):
            says = problem[1] if self._is_form(scope, headers) else signing_in.ASKED
            await _answer(401, *signing_in.form(says), send_guarded)
        else:
            await _say(problem, send_guarded)

    def _problem(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return status and line for what may not be asked."""
        host = headers.get("host", "")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            expected = ", ".join(sorted(self._hosts))
            return 403, f"Host {_short(host)} is none of this server's; expected {expected}"
        if not (self._is_form(scope, headers) or self._shows_token(scope, headers)):
            return 401, "a token is needed: open the address with ?token=… that the terminal shows, or send it as Bearer"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, f"Origin {_short(origin)} is another page; expected this server's own"
        # a link may stand anywhere, and no GET changes anything; a frame in another's page is no link.
        opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest", "document") == "document"
        is_link = scope["method"] == "GET" and opened
        if headers.get("sec-fetch-site") == "cross-site" and not is_link:
            return 403, "the request comes from another site; expected this server's own page"
        client = scope.get("client")
        if scope["path"].endswith(UPLOADS) and not self._rate.allows(client[0] if client else ""):
            return 429, f"too many uploads; expected one each {self._caps.upload_seconds:g} s"
        return None

    def _is_form(self, scope: Scope, headers: dict[str, str]) -> bool:
        """Tell whether a request brings the token itself, and shows none beside."""
        return self._token is not None and signing_in.is_sent(scope) and "authorization" not in headers

    def _shows_token(self, scope: Scope, headers: dict[str, str]) -> bool:
        if self._token is None:
            return True
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(bearer.strip()):
            return True
        return self._is_token(_cookie(headers, signing_in.cookie_name(scope)))

    def _is_token(self, shown: str) -> bool:
        # in constant time, so that no part of it can be guessed by waiting.
        return self._token is not None and hmac.compare_digest(shown.encode(), self._token.encode())

    def _most(self, scope: Scope, headers: dict[str, str]) -> int:
        if self._is_form(scope, headers):
            return signing_in.FORM_BYTES
        return self._caps.upload_bytes if scope["path"].endswith(UPLOADS) else self._caps.json_bytes


class _TooLarge(ValueError):
    """A body of more bytes than are taken."""


async def _whole_body(receive: Receive, headers: dict[str, str], most: int) -> bytes | None:
    """Read a body, and no more of it than is taken; None if the connection ends before it does."""
    said = headers.get("content-length", "")
    if said.isdecimal() and (len(said) > 18 or int(said) > most):
        raise _TooLarge(f"the body has {f'{int(said):,}' if len(said) <= 18 else 'far more'} bytes; expected at most {most:,}")
    found = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        found += message.get("body", b"")
        if len(found) > most:
            raise _TooLarge(f"the body has more than {most:,} bytes; expected no more")
        if not message.get("more_body", False):
            return bytes(found)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that hands out a body that was read."""
    is_first = True

    async def replay() -> Message:
        nonlocal is_first
        if is_first:
            is_first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


async def _say(problem: tuple[int, str], send: Send) -> None:
    status, detail = problem
    headers = [(b"content-type", b"application/json")]
    if status in (408, 413):
        # what was not read is not wanted.
        headers.append((b"connection", b"close"))
    if status == 429:
        headers.append((b"retry-after", b"1"))
    await _answer(status, json.dumps({"detail": detail}, ensure_ascii=False).encode(), headers, send)


async def _answer(status: int, content: bytes, headers: signing_in.Headers, send: Send) -> None:
    headers = [*headers, (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _cookie(headers: dict[str, str], name: str) -> str:
    # by hand: cookies of a host's other programs come along, and one that is odd would hide ours from a stricter reader.
    for pair in headers.get("cookie", "").split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name:
            return value
    return ""


def _name_of(host: str) -> str:
    """Return the name of a host without its port."""
    name, _, port = host.lower().rpartition(":")
    return name if name and port.isdecimal() else host.lower()


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
