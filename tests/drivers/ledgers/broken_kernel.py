"""A kernel that refuses: system calls of this very process fail from now on, as on a full, failing or foreign disk.

     refuse(fsync=EIO)       -->  seccomp filter  -->  every fsync of a file fails with EIO, for the rest of the process
     drop_privileges()       -->  no capabilities -->  permission bits count again, even for root

Nothing is mounted and nothing is replaced inside SQLite: the driver gets the answers that a real kernel would give.
Both functions are for child processes, because neither can be undone.
"""

import ctypes
import os
import platform
import struct

__all__ = ["drop_privileges", "refuse"]

_NUMBERS = {
    "x86_64": {"write": 1, "pwrite64": 18, "fsync": 74, "fdatasync": 75},
    "aarch64": {"write": 64, "pwrite64": 68, "fsync": 82, "fdatasync": 83},
}

_LOAD_WORD, _JUMP_IF_EQUAL, _JUMP_IF_GREATER, _RETURN = 0x20, 0x15, 0x25, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _FIRST_ARGUMENT_AT = 0, 16  # In struct seccomp_data.
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_CAPABILITY_VERSION = 0x20080522


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def refuse(**errors: int) -> None:
    """Make these system calls fail with these errors, except on standard input, output and error."""
    numbers = _NUMBERS[platform.machine()]
    steps = [
        _step(_LOAD_WORD, 0, 0, _FIRST_ARGUMENT_AT),
        _step(_JUMP_IF_GREATER, 1, 0, 2),  # A descriptor above 2 goes on; the others are let through.
        _step(_RETURN, 0, 0, _ALLOW),
        _step(_LOAD_WORD, 0, 0, _NUMBER_AT),
    ]
    for call, error in errors.items():
        steps += [_step(_JUMP_IF_EQUAL, 0, 1, numbers[call]), _step(_RETURN, 0, 0, _ERRNO | error)]
    steps.append(_step(_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(steps))
    program = _Program(len(steps), ctypes.cast(code, ctypes.c_void_p))
    kernel = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0)):
        if kernel.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def drop_privileges() -> None:
    """Give up all capabilities: then even root finds that a read-only file is read-only."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    nothing = bytes(24)  # Effective, permitted and inheritable, two times thirty-two bits each.
    kernel = ctypes.CDLL(None, use_errno=True)
    if kernel.capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _step(code: int, if_true: int, if_false: int, operand: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)
