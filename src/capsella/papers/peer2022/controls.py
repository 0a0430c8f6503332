"""What a bias may be good for, taken apart: the nets that differ in one thing each."""

from __future__ import annotations

from typing import Any

CONTROLS: dict[str, tuple[str, dict[str, Any]]] = {
    "no-bias": ("as published, no bias", {"bias": False}),
    "bias": ("as published, bias of 0.1", {"bias": True}),
    "zero-bias": ("bias that starts at 0", {"bias": True, "init": "peer2022_zero_bias"}),
    "last-bias": ("bias on the last layer alone", {"bias": "last"}),
    "wide": ("no bias, weights twice as large", {"bias": False, "init": "peer2022_wide"}),
    # from where on lengths do not vanish at the start.
    "wider": ("no bias, weights twenty times as large", {"bias": False, "init": "peer2022_wider"}),
    "lengths": ("no bias, length-preserving start", {"bias": False, "init": "length_preserving"}),
    "lengths-bias": ("bias, length-preserving start", {"bias": True, "init": "length_preserving"}),
}
"""What a bias may be good for, taken apart: by name, in words, and as options of the net."""

CONTROL_DEPTHS = (4, 5, 10)


def control(name: str, depth: int) -> str:
    """Return the key of a control's recipe; as published, depths 4 and 5 are rows of Table 2."""
    if name in ("no-bias", "bias") and depth in (4, 5):
        return f"peer2022/table2/mnist-{name}-depth{depth}"
    return f"peer2022/controls/{name}-depth{depth}"
