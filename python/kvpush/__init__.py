"""kvpush: the KV cache of a prompt, pushed from the engine that computed it to the engine that decodes.

`Agent` and `DirectoryServer` are the native classes (`_native.pyi` has their signatures); they are loaded when they are
first asked for, so that importing this package costs nothing where no transfer runs.
"""

from kvpush.errors import Error

__all__ = ["Agent", "DirectoryServer", "Error"]


def __getattr__(name: str) -> object:
    if name in ("Agent", "DirectoryServer"):
        from kvpush import _native

        return getattr(_native, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
