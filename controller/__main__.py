# SPDX-License-Identifier: Apache-2.0
"""`python -m controller`: the command `p4reduce`, also where no script of that name is on the path."""

from controller.cli import main

if __name__ == "__main__":
    main()
