# SPDX-License-Identifier: Apache-2.0
"""The packet format, defined once: constants, numpy dtypes, verdicts, errors, and Scapy layers."""
