"""The benchmark of single passes and of decoding, beside other programs; see ``__main__``."""
