"""Why a machine has no native code."""


class NativeUnavailable(RuntimeError):
    """Compiled code cannot be had here. The message is the reason, and the way out if there is one."""
