"""Where a token is asked for: the page that takes it, and the cookie in which it goes on.

The page is a plain form that is posted to the address under which it was opened: the token stands in no address, no history and
no ``Referer``, and because a redirect keeps what follows the #, whoever was sent an address sees what it shows.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from urllib.parse import parse_qsl, quote, urlencode

from starlette.types import Scope

TOKEN = "token"
COOKIE = "capsella_token"
PAGE = "/"
"""The one path that answers a browser with a form instead of a line; all that a page shows stands behind its #."""

ASKED = "a token is needed: fill in the one that the terminal shows"

FORM_BYTES = 4096

# what a token is written with; in an address more may follow it.
_LETTERS = re.compile(r"[\w-]+", re.ASCII)

Headers = list[tuple[bytes, bytes]]

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; background: light-dark(#f8f8f5, #111417); color: light-dark(#1b1f24, #e8eaed);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; overflow-wrap: break-word; }
main { max-width: 34rem; margin: 12vh auto 0; padding: 0 1.2rem; }
h1 { margin: 0 0 .6rem; font-size: 1.3rem; }
label { display: block; margin: 1.1rem 0 .3rem; }
form div { display: flex; flex-wrap: wrap; gap: .6rem; }
input { flex: 1 1 14rem; min-width: 0; }
input, button { padding: .5rem .8rem; border: 1px solid light-dark(#6b747e, #8b929b); border-radius: 9px; color: inherit;
  background: transparent; font: inherit; }
button { border-color: transparent; color: light-dark(#ffffff, #08201d); background: light-dark(#0f766e, #5ecfc0);
  cursor: pointer; }
:focus-visible { outline: 2.5px solid light-dark(#0f766e, #5ecfc0); outline-offset: 2px; }
"""

POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Of the form: no script at all, and what is filled in goes to this server alone."""


def form(detail: str) -> tuple[bytes, Headers]:
    """Return the page that asks for a token, with its headers; ``detail`` says in one line what is wrong.

    Example:
        >>> b"a token is needed" in form("a token is needed")[0]
        True
    """
    content = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>capsella explorer</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>capsella explorer</h1>
<p role="alert">{html.escape(detail)}</p>
<form method="post">
<label for="token">Token</label>
<div><input id="token" name="{TOKEN}" type="password" autocomplete="off" required autofocus><button>Open</button></div>
</form>
</main>
</body>
</html>
"""
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": POLICY,
        # without it a browser keeps from this server, too, which page a form comes from.
        "referrer-policy": "same-origin",
        "cache-control": "no-store",
    }
    return content.encode(), [(name.encode(), value.encode()) for name, value in headers.items()]


def is_wanted(scope: Scope, headers: dict[str, str]) -> bool:
    """Tell whether somebody looks at the page in a browser, who can fill in a form."""
    return bool(scope["path"] == PAGE) and "text/html" in headers.get("accept", "")


def is_sent(scope: Scope) -> bool:
    """Tell whether a request brings the form."""
    return bool(scope["path"] == PAGE and scope["method"] == "POST")


def of_form(body: bytes) -> str:
    """Return the token that was filled in, or that of an address that was.

    Example:
        >>> of_form(b"token=+abc%0A"), of_form(b"token=http://laptop:8474/?token%3Dabc%23run%3Da"), of_form(b"nothing")
        ('abc', 'abc', '')
    """
    fields = parse_qsl(body.decode("latin-1"), keep_blank_values=True)
    found = next((value.strip() for name, value in fields if name == TOKEN), "")
    shown = _LETTERS.match(found.rpartition(f"{TOKEN}=")[2])
    return shown[0] if shown else ""


def of_query(scope: Scope) -> str | None:
    """Return the token of an address, if it has one."""
    return next((value for name, value in _query(scope) if name == TOKEN), None)


def handed_over(scope: Scope, token: str) -> Headers:
    """Return headers that put a token into a cookie that no script can read, and lead to the same address without it."""
    rest = urlencode([pair for pair in _query(scope) if pair[0] != TOKEN])
    where = _own_path(scope["path"]) + (f"?{rest}" if rest else "")
    # lax: a link from elsewhere opens the page; what changes anything is posted, and comes from this page alone.
    cookie = f"{cookie_name(scope)}={token}; Path=/; HttpOnly; SameSite=Lax"
    return [(b"location", where.encode()), (b"set-cookie", cookie.encode())]


def cookie_name(scope: Scope) -> str:
    """Return the name of this server's cookie: browsers keep those of all ports of a host together."""
    server = scope.get("server")
    return f"{COOKIE}_{server[1]}" if server else COOKIE


def _own_path(path: str) -> str:
    """Return a path of this server: one that begins with two slashes would be another's."""
    return "/" + quote(path.lstrip("/"))


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
