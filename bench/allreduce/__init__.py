# SPDX-License-Identifier: Apache-2.0
"""Goodput of all-reduces over real links, beside other ways on the same ones; every result is verified."""
