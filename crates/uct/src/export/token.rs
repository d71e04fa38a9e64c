//! The secret of an export.

use std::fmt;

use constant_time_eq::constant_time_eq_16;

/// 128 random bits, per export: who shows them has the export's rights. Never printed; compared in constant time.
#[derive(Clone, Copy)]
pub struct Token([u8; 16]);

impl Token {
    /// Takes the bytes of a token.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes, for a handle.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        constant_time_eq_16(&self.0, &other.0)
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(<secret>)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_never_printed() {
        assert_eq!(format!("{:?}", Token::from_bytes([7; 16])), "Token(<secret>)");
        assert_eq!(Token::from_bytes([7; 16]), Token::from_bytes([7; 16]));
        assert_ne!(Token::from_bytes([7; 16]), Token::from_bytes([8; 16]));
    }
}
