# SPDX-License-Identifier: Apache-2.0
"""`python -m fxattn` and the script `fxattn`: the command line, a program of its own beside the library. It replaces
the interpreter's process, so signals, pipes and exit codes are those of the command."""
import os
import sys
from typing import List, NoReturn, Optional

from ._errors import LibraryError
from ._library import FOLDER


def command_path() -> str:
    """Returns the file of the command inside the package."""
    path = os.path.join(FOLDER, "fxattn.exe" if os.name == "nt" else "fxattn")
    if not os.path.exists(path):
        raise LibraryError("the fxattn command is not in %s: install the package" % FOLDER)
    return path


def main(arguments: Optional[List[str]] = None) -> NoReturn:
    """Runs the command with the given arguments, those of the process by default; does not return."""
    path = command_path()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, ["fxattn", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    main()
