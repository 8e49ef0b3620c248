# SPDX-License-Identifier: Apache-2.0
"""Runs the command-line tool for `python -m fxattn` and the script `fxattn`. The command-line tool is an executable
that the package contains. The executable replaces the process of the Python interpreter (exec), so signals, pipes and
exit codes are those of the executable."""
import os
import sys
from typing import List, NoReturn, Optional

from ._errors import LibraryError
from ._library import FOLDER


def command_path() -> str:
    """Returns the path of the command-line tool inside the package. Raises LibraryError if the tool is missing."""
    path = os.path.join(FOLDER, "fxattn.exe" if os.name == "nt" else "fxattn")
    if not os.path.exists(path):
        raise LibraryError("the fxattn command is not in %s: install the package" % FOLDER)
    return path


def main(arguments: Optional[List[str]] = None) -> NoReturn:
    """Runs the command-line tool with `arguments` (None: sys.argv[1:]). Does not return."""
    path = command_path()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, ["fxattn", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    main()
