# SPDX-License-Identifier: Apache-2.0
"""`python -m switch`: the embedded switch with simple_switch_grpc's command line."""

import os
import signal
import sys

# While the modules are read there is nothing to stop in order: an interrupt ends the process, as TERM does.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
# gRPC's own log would put several lines before the one that says what is wrong.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from switch.process import run

if __name__ == "__main__":
    run(sys.argv[1:])
