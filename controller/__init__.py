# SPDX-License-Identifier: Apache-2.0
"""Jobs, slots, isolation: the P4Runtime client, and the command line."""
