"""Why the two readers may differ: each reason is found in the bytes, never in an error code."""

from .reading import read

# lading refuses, the reference accepts.
STRICTER = (
    "S1",
    "S2",
    "S3",
    "duplicate_tensor",
    "duplicate_metadata_key",
    "metadata_null",
    "entry_as_array",
    "dtype_as_object",
)
# lading accepts, the reference refuses.
MORE_LENIENT = ("unknown_dtype",)
REASONS = STRICTER + MORE_LENIENT


def explain(file, ours, theirs, reading=None):
    """The reasons for a difference; none: it is unexplained. With any other fault, no reason counts."""
    reading = reading or read(file)
    if theirs and not ours and reading.faults <= set(STRICTER):
        return sorted(reading.faults)
    if ours and not theirs and not reading.faults and reading.unknown_dtype:
        return ["unknown_dtype"]
    return []
