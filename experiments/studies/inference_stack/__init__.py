"""The inference study: from naive decoding to speculation, one idea an arm, on one gate: the same ids."""
