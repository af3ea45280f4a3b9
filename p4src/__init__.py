# SPDX-License-Identifier: Apache-2.0
"""The data plane: P4_16 for v1model, and what p4c made of it."""
