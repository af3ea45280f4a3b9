# SPDX-License-Identifier: Apache-2.0
"""What aggregation at every level of a fabric saves: bytes on each link, time, slots."""
