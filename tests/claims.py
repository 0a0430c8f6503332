"""One list of tests for several processes that know nothing of each other but a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest


def claimed(items: Iterable[pytest.Item], folder: Path) -> Iterator[pytest.Item]:
    """Yield the tests that no other process has; whoever makes the file of a test first has it."""
    folder.mkdir(parents=True, exist_ok=True)
    # what compiles whole nets takes longest, and would be waited for if it came last.
    for item in sorted(items, key=lambda item: "/train/" not in item.nodeid):
        try:
            (folder / hashlib.sha256(item.nodeid.encode()).hexdigest()).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield item


def run_claimed(session: pytest.Session, folder: Path) -> bool:
    """Be pytest's loop over the tests of a session, for those that are claimed."""
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    mine, count = claimed(session.items, folder), 0
    item = next(mine, None)
    while item is not None:
        count += 1
        # claimed before this one runs: fixtures are kept for the next, or not.
        following = next(mine, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    session.config.get_terminal_writer().line(f"\n{count} of {len(session.items)} tests were claimed here")
    # nothing that was run is no success, as without claims: the folder may be that of an earlier session.
    session.testscollected = count
    return True
