# SPDX-License-Identifier: Apache-2.0
"""The embedded v1model switch: bmv2 JSON in, native code out, P4Runtime served."""

from switch import sources as sources  # before all other modules: see there
