# SPDX-License-Identifier: Apache-2.0
"""Mininet networks and the switches that run in them: described, brought up, recorded, taken down."""
