# SPDX-License-Identifier: Apache-2.0
"""`python -m switch`: the embedded switch with simple_switch_grpc's command line."""

import os
import sys

# gRPC's own log would put several lines before the one that says what is wrong.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from switch.process import run

if __name__ == "__main__":
    run(sys.argv[1:])
