# SPDX-License-Identifier: Apache-2.0
"""All primitives of bmv2's core and of simple_switch. A new one goes into one of the modules named here."""

from switch import primitives_arrays, primitives_headers, primitives_packet, primitives_values
from switch.primitive import PRIMITIVES, Context, Primitive

__all__ = ["MODULES", "PRIMITIVES", "Context", "Primitive"]

MODULES = (primitives_arrays, primitives_headers, primitives_packet, primitives_values)
