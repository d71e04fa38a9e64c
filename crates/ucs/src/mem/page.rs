//! Page arithmetic.
