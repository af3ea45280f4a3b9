# SPDX-License-Identifier: Apache-2.0
"""MeterConfig to the device's rates and back (spec 1.4, 9.4)."""

from __future__ import annotations

from p4.v1 import p4runtime_pb2

from switch.device import MeterRates
from switch.p4runtime.errors import invalid, unimplemented

MAX_BURST = 2**32 - 1


def decode(config: p4runtime_pb2.MeterConfig) -> MeterRates | None:
    """Return the rates of a MeterConfig, None for the all -1 that older clients write for "always green".

    Raises:
        RpcError: INVALID_ARGUMENT for a negative number, UNIMPLEMENTED beyond 32-bit bursts or with eburst.
    """
    numbers = {"cir": config.cir, "cburst": config.cburst, "pir": config.pir, "pburst": config.pburst}
    if all(number == -1 for number in numbers.values()):
        return None
    for name, number in numbers.items():
        if number < 0:
            raise invalid(f"Negative meter {name}: {number}")
        if name.endswith("burst") and number > MAX_BURST:
            raise unimplemented(f"Meter {name} {number} is too large: at most {MAX_BURST}")
    if config.eburst:
        raise unimplemented("Meter eburst: this target has two-rate meters only (RFC 2698)")
    return MeterRates(config.cir, config.cburst, config.pir, config.pburst)


def fill(config: p4runtime_pb2.MeterConfig, current: MeterRates | None) -> None:
    """Write rates into a message, which stays unset for an unconfigured meter."""
    if current is not None:
        config.SetInParent()
        config.cir, config.cburst = round(current.cir), current.cburst
        config.pir, config.pburst = round(current.pir), current.pburst
