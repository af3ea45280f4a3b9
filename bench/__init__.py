# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: each a command that prints a table."""
