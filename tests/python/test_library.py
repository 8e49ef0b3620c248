# SPDX-License-Identifier: Apache-2.0
"""_abi.py says what the loaded library has, every status is an exception, handles and contexts survive what processes
do: forks, threads, the end of the interpreter."""
import ast
import ctypes
import ctypes.util
import os
import pickle
import subprocess
import sys
import threading

import fxattn
import pytest
from fxattn import _abi, _errors, _library
from fxattn._library import lib


def in_python(source, **environment):
    """Runs source in a fresh interpreter with this package."""
    folder = os.path.dirname(os.path.dirname(fxattn.__file__))
    env = dict(os.environ, PYTHONPATH=folder, **environment)
    return subprocess.run([sys.executable, "-c", source], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True, timeout=120)


def test_layouts_are_those_that_the_compiler_measured():
    assert len(_abi.LAYOUTS) > 20
    for struct, (size, align, fields) in _abi.LAYOUTS.items():
        assert (ctypes.sizeof(struct), ctypes.alignment(struct)) == (size, align), struct
        assert [name for name, *_ in struct._fields_] == [name for name, *_ in fields]
        for name, offset, length in fields:
            field = getattr(struct, name)
            assert (field.offset, field.size) == (offset, length), (struct, name)


def test_constants_are_those_of_the_loaded_library():
    assert lib.version().decode() == _abi.VERSION == fxattn.__version__
    from fxattn._program import DTYPES, INPUTS
    from fxattn._problem import SLOTS
    for name, code in DTYPES.items():
        assert lib.dtype_name(code).decode() == name and lib.dtype_find(name.encode()) == code
    for name, code in INPUTS.items():
        assert lib.input_name(code).decode() == name
    for name, code in SLOTS.items():
        assert lib.slot_name(code).decode().lower() == name
    assert len(SLOTS) == _abi.SLOT_COUNT and len(INPUTS) == _abi.INPUT_COUNT
    assert all(lib.flag_name(1 << bit) for bit in range(_abi.FLAG_COUNT)) and not lib.flag_name(1 << _abi.FLAG_COUNT)


def test_every_function_of_the_header_is_there():
    for name in _abi.FUNCTIONS:
        assert getattr(lib, name[4:]).argtypes == _abi.FUNCTIONS[name][1]
    with pytest.raises(AttributeError):
        lib.no_such_function


def test_library_refuses_a_struct_that_is_not_this_version_s():
    """That sizes of structs are checked at all: one that was never filled."""
    problem, out = _abi.Problem(struct_size=8), ctypes.c_void_p()
    with pytest.raises(fxattn.InternalError):
        _library.call(lib.plan_create, _library.context(), ctypes.byref(problem), ctypes.byref(out))


def test_every_status_is_an_exception():
    statuses = {name: value for name, value in vars(_abi).items() if name.startswith("E_")}
    assert set(_errors.BY_STATUS) == set(statuses.values())
    for name, value in statuses.items():
        error = _errors.make_error(value, "text", name)
        assert isinstance(error, fxattn.Error) and error.status == name and str(error) == "text"
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and again.status == name and str(again) == "text"


@pytest.mark.parametrize("ours, theirs", [
    ("ArgumentError", ValueError), ("ArgumentTypeError", TypeError), ("ProgramError", ValueError),
    ("UnsupportedError", NotImplementedError), ("OutOfMemoryError", MemoryError), ("SystemRefusedError", OSError),
    ("EngineError", RuntimeError), ("LibraryError", ImportError), ("VersionError", ValueError)])
def test_exceptions_are_those_that_python_users_expect(ours, theirs):
    assert issubclass(getattr(fxattn, ours), theirs) and issubclass(getattr(fxattn, ours), fxattn.Error)


def test_a_status_that_is_new_is_still_an_error():
    assert type(_errors.make_error(999, "news")) is fxattn.Error


def test_the_package_is_written_for_python_3_9():
    """Later syntax would be an error there; `X | Y` of types outside of quotes too, which the compiler does not see."""
    package = os.path.dirname(fxattn.__file__)
    for folder, _, files in os.walk(package):
        for file in (f for f in files if f.endswith(".py")):
            with open(os.path.join(folder, file), encoding="utf-8") as f:
                tree = ast.parse(f.read(), file, feature_version=(3, 9))
            for node in ast.walk(tree):
                told = [getattr(node, name, None) for name in ("annotation", "returns")]
                joined = [n for part in told if part for n in ast.walk(part) if isinstance(n, ast.BinOp)]
                assert not joined, "%s:%d: Union or Optional" % (file, joined[0].lineno)


def test_import_is_light():
    ran = in_python("import fxattn, sys\n"
                    "fxattn.Program('score = 2 * score')\n"
                    "print([m for m in ('numpy', 'torch', 'jax') if m in sys.modules])")
    assert ran.returncode == 0 and ran.stdout.strip() == "[]", ran.stdout


def test_import_takes_less_than_a_tenth_of_a_second():
    """Of the processor, the best of five: others use the machine too."""
    source = "import time; t = time.process_time(); import fxattn; fxattn.Program; print(time.process_time() - t)"
    assert min(float(in_python(source).stdout) for _ in range(5)) < 0.1


@pytest.mark.parametrize("value, words", [("/nowhere/libfxattn.so", "cannot load"), (None, "not a library of fxattn")])
def test_a_wrong_library_is_an_import_error(value, words):
    path = value or ctypes.util.find_library("m") or "libm.so.6"
    ran = in_python("import fxattn\ntry: fxattn.Program()\nexcept ImportError as e: print(type(e).__name__, e)",
                    FXATTN_LIBRARY=path)
    assert ran.stdout.startswith("LibraryError") and words in ran.stdout, ran.stdout


def test_the_end_of_the_interpreter_releases_quietly():
    """Handles in globals, in cycles, in a daemon thread that is inside the library when it ends."""
    ran = in_python(
        "import fxattn, threading, sys\n"
        "a = fxattn.Program('score = 2 * score'); b = fxattn.Builder(); c = [a]; c.append(c)\n"
        "sys.keep = fxattn.Program('mask = q >= k')\n"
        "def work():\n"
        "    while True: fxattn.Program('score = ' + ' + '.join(['score * %d' % i for i in range(300)]))\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "import time; time.sleep(0.2); print('end')")
    assert ran.returncode == 0 and ran.stdout == "end\n", ran.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_while_threads_are_inside_the_library():
    """A child has a context of its own, uses its parent's programs, and releases nothing of its parent's."""
    ran = in_python(
        "import fxattn, os, threading, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from fxattn import _library\n"
        "program, old, stop = fxattn.Program('score = 2 * score'), _library.context(), []\n"
        "def work():\n"
        "    while not stop: fxattn.Program('score = ' + ' + '.join(['score * %d' % i for i in range(300)]))\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "[t.start() for t in threads]\n"
        "codes = []\n"
        "for i in range(20):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        ok = program.text == 'score = 2.0 * score\\n' and _library._process.generation == 1\n"
        "        ok = ok and fxattn.Program('mask = q >= k').hash != program.hash and _library.context() != 0\n"
        "        del program\n"
        "        os._exit(0 if ok else 1)\n"
        "    codes.append(os.waitpid(child, 0)[1])\n"
        "stop.append(1); [t.join() for t in threads]\n"
        "print(codes == [0] * 20, _library.context() == old)")
    assert ran.stdout == "True True\n", ran.stdout


def test_threads_share_the_context_and_their_number_is_checked():
    seen = set()
    threads = [threading.Thread(target=lambda: seen.add(_library.context())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1
    fxattn.set_num_threads(1)
    try:
        assert fxattn.get_num_threads() == 1 and _library.context() not in seen
    finally:
        fxattn.set_num_threads(0)
    for wrong in (-1, _abi.MAX_THREADS + 1):
        with pytest.raises(ValueError, match="accepted"):
            fxattn.set_num_threads(wrong)
    with pytest.raises(TypeError):
        fxattn.set_num_threads(1.5)


@pytest.mark.parametrize("library, version, there", [
    ("torch", "2.10", False), ("torch", "2.10", True), ("jax", "0.9", False), ("jax", "0.9", True), ("numpy", "1.22", False)])
def test_front_ends_say_what_to_install(library, version, there, tmp_path):
    """Where the library is missing, and where it is one that has nothing of what is needed."""
    if there:
        tmp_path.joinpath(library).mkdir()
        tmp_path.joinpath(library, "__init__.py").write_text("")
    code = ("import sys\n%s\ntry:\n    import fxattn.%s\nexcept ImportError as e:\n    print(e)"
            % ("" if there else "sys.modules[%r] = None" % library, library))
    folders = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=120,
                          env=dict(os.environ, PYTHONPATH=folders)).stdout.decode()
    assert "fxattn.{0} needs {0} {1} or newer: pip install \"fxattn[{0}]\"".format(library, version) in told
