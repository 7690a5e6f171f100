"""A basis that is kept in memory, in plain NumPy: a stand-in with the signatures of the kernels."""

from __future__ import annotations

import numpy as np

from learners.bases import Basis, Floats
from learners.bases import draw as draw


def project_kept(basis: Basis, matrix_Dd: Floats, gradient_D: Floats) -> Floats:
    """E^T g of a drawn E, float32 [d]."""
    found: Floats = (matrix_Dd.T.astype(np.float64) @ gradient_D).astype(np.float32)
    return found


def expand_kept(basis: Basis, matrix_Dd: Floats, coordinates_d: Floats) -> Floats:
    """E c of a drawn E, float32 [D]."""
    found: Floats = (matrix_Dd.astype(np.float64) @ coordinates_d).astype(np.float32)
    return found
