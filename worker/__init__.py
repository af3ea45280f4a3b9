# SPDX-License-Identifier: Apache-2.0
"""The all-reduce engine on a host: quantize, stream, recover."""
