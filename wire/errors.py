# SPDX-License-Identifier: Apache-2.0
"""The one root of all errors p4reduce raises."""


class P4ReduceError(Exception):
    """Root of p4reduce's errors: the message names the thing and the remedy.

    Commands print the message and exit with `exit_code`; libraries only raise.
    """

    exit_code = 1
