# SPDX-License-Identifier: Apache-2.0
"""Mininet networks, and which switch target runs in them."""
