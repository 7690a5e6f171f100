"""What all option records are made of: their base, and numbers with bounds.

Light on purpose: no TensorFlow, no Ray.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0.0)]
NotNegative = Annotated[float, Meta(ge=0.0)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", description="letters, digits, _ and -; a letter first")]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all option records: immutable, keywords only, unknown keys refused."""
