# SPDX-License-Identifier: Apache-2.0
"""Reading packet captures: recorded at a network's links, decoded in field terms, checked and explained."""
