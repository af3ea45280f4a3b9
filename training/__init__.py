# SPDX-License-Identifier: Apache-2.0
"""Models, data and loops that train through the network."""
