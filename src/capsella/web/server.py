"""Address and port: one process that answers on loopback, or elsewhere to whoever has its token."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from capsella.web.app import application
from capsella.web.explorer import Explorer

HOST, PORT = "127.0.0.1", 8474
"""Where the explorer is, if nothing else is said; a port of its own, so that an address that was kept goes on being one."""

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# addresses of documentation (RFC 5737 and 3849), by what listens everywhere in the same family.
_EVERYWHERE = {"0.0.0.0": "192.0.2.1", "::": "2001:db8::1"}
_WAITING = 128
_GRACE = 2


@dataclass(frozen=True)
class Place:
    """Where the explorer answers.

    Attributes:
        socket: that listens.
        host: as it was asked for.
        token: what everyone must show; None on loopback.
    """

    socket: socket.socket
    host: str
    token: str | None

    @property
    def port(self) -> int:
        """The port, which the system chose if 0 was asked for."""
        return int(self.socket.getsockname()[1])

    @property
    def hosts(self) -> set[str] | None:
        """Names under which a browser may ask; any where a token is asked for as well."""
        return None if self.token is not None else {*_LOOPBACK_NAMES, _in_address(self.host)}

    @property
    def url(self) -> str:
        """The address to open."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        """All addresses to open it by: where it listens at all of this machine's, its name and a number that needs no name."""
        hosts = [self.host]
        if self.host in _EVERYWHERE:
            # of all addresses none can be opened as such, and its name is often known to nobody else.
            number = own_address(self.host)
            hosts = [socket.gethostname(), *([number] if number else [])]
        rest = f":{self.port}/" + (f"?token={self.token}" if self.token else "")
        return [f"http://{_in_address(host)}{rest}" for host in hosts]


def place(host: str = HOST, port: int | None = None) -> Place:
    """Listen at an address; one that other machines reach comes with a token.

    Args:
        host: an address or a name of this machine.
        port: 0 for any; if None, ``PORT`` where it is free, else any.

    Example:
        >>> found = place(port=0)
        >>> found.token is None, "localhost" in found.hosts, found.url == f"http://127.0.0.1:{found.port}/"
        (True, True, True)
        >>> found.socket.close()
    """
    if port is not None and not 0 <= port < 1 << 16:
        raise ValueError(f"port={port} is none; expected 0 to 65,535, 0 for any that is free")
    try:
        listening = _listening(host, PORT if port is None else port)
    except (OSError, UnicodeError) as error:
        if port is not None or _is_no_address(host):
            raise ValueError(_why_not(host, port, error)) from error
        listening = _listening(host, 0)
    return Place(listening, host, None if is_loopback(host) else secrets.token_urlsafe(24))


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine alone.

    Example:
        >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "0.0.0.0", "192.168.1.2", "my-laptop")]
        [True, True, True, False, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def own_address(host: str) -> str | None:
    """Return the address of this machine from which others are reached; None where none are.

    Args:
        host: ``"0.0.0.0"`` or ``"::"``, for an address of that family.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as outward:
            # nothing is sent: this asks for the way alone.
            outward.connect((_EVERYWHERE[host], 9))
            found = str(outward.getsockname()[0])
    except OSError:
        return None
    return None if is_loopback(found) or found in _EVERYWHERE else found


def server(explorer: Explorer, place: Place) -> uvicorn.Server:
    """Return what answers there."""
    return uvicorn.Server(
        uvicorn.Config(
            application(explorer, hosts=place.hosts, token=place.token),
            log_level="warning",
            access_log=False,
            server_header=False,
            # who asks is who is connected: what a request says of itself would get around the rate of uploads.
            proxy_headers=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_GRACE,
        )
    )


def serve(explorer: Explorer, place: Place, *, open_browser: bool = False) -> None:
    """Answer until Ctrl-C.

    Args:
        explorer: what is explored; closed in the end.
        place: where.
        open_browser: show the page to whoever started this, where there is a screen.
    """
    if open_browser and has_screen():
        # the socket listens already, so that a page that is fast only waits.
        threading.Thread(target=webbrowser.open, args=(place.url,), daemon=True).start()
    with explorer, contextlib.closing(place.socket), contextlib.suppress(KeyboardInterrupt):
        server(explorer, place).run(sockets=[place.socket])


@contextlib.contextmanager
def serving(explorer: Explorer) -> Iterator[str]:
    """Answer on a free port of loopback meanwhile, in a thread; yield the address, which ends with a slash."""
    where = place(port=0)
    running = server(explorer, where)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [where.socket]}, name="capsella-serve", daemon=True)
    thread.start()
    try:
        yield where.url
    finally:
        running.should_exit = True
        thread.join()
        where.socket.close()


def has_screen() -> bool:
    """Tell whether a browser would have somewhere to be seen, and not fill the terminal instead."""
    return sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )


def _listening(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    found = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            # a port that was answered at a moment ago is free again.
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_WAITING)
    except OSError:
        found.close()
        raise
    return found


def _is_no_address(host: str) -> bool:
    try:
        _listening(host, 0).close()
    except (OSError, UnicodeError):
        return True
    return False


def _why_not(host: str, port: int | None, error: OSError | UnicodeError) -> str:
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    if port is None or _is_no_address(host):
        return f"host={host!r} is no address of this machine ({reason}); expected {HOST} or one that others reach it by"
    return f"port={port} cannot be had at {host} ({reason}); expected another, or 0 for any that is free"


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host.lower()
