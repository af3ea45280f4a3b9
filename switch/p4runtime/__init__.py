# SPDX-License-Identifier: Apache-2.0
"""The switch's control face: a P4Runtime server over a SwitchDevice."""
