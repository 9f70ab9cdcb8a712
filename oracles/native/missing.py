"""What a user is told where there is no native pass."""


class NativeMissing(UserWarning):
    """Passes run eagerly because this machine has no native pass."""
