"""Short versions of gu2021's rows, for minutes on a CPU: small nets and few steps, the same for all rows of a table."""

from __future__ import annotations

from typing import Any

from capsella.papers.gu2021.nets import Net

SHORT = {"batch_size": 64, "lr": 2e-3, "steps": 200, "log_every": 20}
SMALL: dict[str, dict[str, Any]] = {
    "capsnet": {"model.trunk_stride": 2, "model.channels": 32, "model.types": 8, "model.decoder_hidden": (64, 128)},
    "convnet_fc": {"model.channels": (8, 8, 8), "model.hidden": (64, 32)},
    "convnet_fc_lk": {"model.channels": (8, 8, 8), "model.hidden": (64, 32)},
    "convnet_avg": {"model.channels": 8},
    "convnet_r": {"model.channels": 8, "model.types": 4},
    "convnet_cr": {"model.channels": 8, "model.types": 4},
    "convnet_cr_sf": {"model.channels": 8, "model.types": 4},
}


def quick(net: Net, *kept: str, **changes: Any) -> dict[str, Any] | None:
    """Return the settings of a short version, all but those that a row is about; of matrix capsules there is none.

    Args:
        net: of the row.
        *kept: options of the model that stay as they are.
        **changes: further settings of the training.
    """
    if net.model not in SMALL:
        return None
    small = {key: value for key, value in SMALL[net.model].items() if key.removeprefix("model.") not in kept}
    return {**small, **SHORT, **changes}
