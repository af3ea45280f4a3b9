# SPDX-License-Identifier: Apache-2.0
"""The embedded v1model switch: bmv2 JSON in, native code out, P4Runtime served."""
